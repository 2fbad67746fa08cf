package ratelimit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seed-601ed181/ratelimit"
)

var allCodes = []ratelimit.Code{
	ratelimit.ForwardedUntrusted, ratelimit.CountedTwice, ratelimit.UserNeverFound, ratelimit.OneAddress, ratelimit.KeysNeverRepeat,
	ratelimit.CostOverLimit, ratelimit.BuiltInHandler, ratelimit.RouteNeverMatched, ratelimit.StoreReadOnly,
	ratelimit.StoreSettings,
}

// warnings is a log that keeps what was said of misuse.
type warnings struct {
	mu   sync.Mutex
	said []map[string]any
}

func (w *warnings) Write(line []byte) (int, error) {
	record := make(map[string]any)
	if err := json.Unmarshal(line, &record); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if record["code"] != nil {
		w.said = append(w.said, record)
	}
	return len(line), nil
}

func (w *warnings) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(w, nil)) }

func (w *warnings) codes() []ratelimit.Code {
	w.mu.Lock()
	defer w.mu.Unlock()
	var codes []ratelimit.Code
	for _, record := range w.said {
		codes = append(codes, ratelimit.Code(record["code"].(string)))
	}
	return codes
}

// addressOf is a client's, one for each n below 65,536.
func addressOf(n int) string { return fmt.Sprintf("198.18.%d.%d:5000", n/256, n%256) }

func user(r *http.Request) string { return r.Header.Get("User") }

func TestMisuseIsFound(t *testing.T) {
	trusting := ratelimit.ClientIP(proxies...)
	for _, tc := range []struct {
		name     string
		config   ratelimit.Config
		requests int
		request  func(i int) *http.Request
		want     []ratelimit.Code
	}{
		{"nothing wrong", ratelimit.Config{}, 1000, func(i int) *http.Request {
			return newRequest("GET", "/", addressOf(i%500))
		}, nil},

		{"a proxy that isn't trusted", ratelimit.Config{}, 1000, func(i int) *http.Request {
			return newRequest("GET", "/", "10.0.0.5:1", "X-Forwarded-For", addressOf(i))
		}, []ratelimit.Code{ratelimit.ForwardedUntrusted}},
		{"found early", ratelimit.Config{}, 10, func(int) *http.Request {
			return newRequest("GET", "/", "10.0.0.5:1", "X-Real-IP", "198.51.100.7")
		}, []ratelimit.Code{ratelimit.ForwardedUntrusted}},
		{"over IPv6, with Forwarded", ratelimit.Config{}, 10, func(int) *http.Request {
			return newRequest("GET", "/", "[2001:db8::5]:1", "Forwarded", "for=198.51.100.7")
		}, []ratelimit.Code{ratelimit.ForwardedUntrusted}},
		{"another proxy than those trusted", ratelimit.Config{Key: trusting}, 10, func(int) *http.Request {
			return newRequest("GET", "/", peer, "X-Forwarded-For", "198.51.100.7")
		}, []ratelimit.Code{ratelimit.ForwardedUntrusted}},
		{"a few clients who write it themselves", ratelimit.Config{}, 1000, func(i int) *http.Request {
			r := newRequest("GET", "/", addressOf(i%500))
			if i%3 == 1 {
				r.Header.Set("X-Forwarded-For", "127.0.0.1")
			}
			return r
		}, nil},
		{"a trusted proxy, and clients around it who write it", ratelimit.Config{Key: trusting}, 1000, func(i int) *http.Request {
			if i%4 == 0 {
				return newRequest("GET", "/", "10.0.0.5:1", "X-Forwarded-For", addressOf(i))
			}
			return newRequest("GET", "/", addressOf(i), "X-Forwarded-For", "127.0.0.1")
		}, nil},
		{"RemoteAddr is rewritten from it", ratelimit.Config{}, 1000, func(i int) *http.Request {
			return newRequest("GET", "/", fmt.Sprintf("198.51.100.%d", i%200), "X-Forwarded-For", fmt.Sprintf("198.51.100.%d", i%200))
		}, nil},

		{"mounted before the authentication", ratelimit.Config{Key: ratelimit.FirstOf(ratelimit.By("user", user), ratelimit.ClientIP())}, 1000, func(i int) *http.Request {
			return newRequest("GET", "/", addressOf(i), "Authorization", "Bearer t")
		}, []ratelimit.Code{ratelimit.UserNeverFound}},
		{"nobody is found", ratelimit.Config{Key: ratelimit.By("user", user)}, 1000, func(int) *http.Request {
			return newRequest("GET", "/", peer, "Authorization", "Bearer t")
		}, []ratelimit.Code{ratelimit.UserNeverFound}},
		{"few have Authorization", ratelimit.Config{}, 1000, func(i int) *http.Request {
			r := newRequest("GET", "/", addressOf(i))
			if i%3 == 0 {
				r.Header.Set("Authorization", "Bearer t")
			}
			return r
		}, nil},
		{"one user is found", ratelimit.Config{Key: ratelimit.FirstOf(ratelimit.By("user", user), ratelimit.ClientIP())}, 1000, func(i int) *http.Request {
			r := newRequest("GET", "/", addressOf(i), "Authorization", "Bearer t")
			if i == 700 {
				r.Header.Set("User", "alice")
			}
			return r
		}, nil},

		{"one address", ratelimit.Config{}, 1000, func(int) *http.Request { return newRequest("GET", "/", peer) }, []ratelimit.Code{ratelimit.OneAddress}},
		{"one address, not long enough", ratelimit.Config{}, 999, func(int) *http.Request { return newRequest("GET", "/", peer) }, nil},
		{"one user", ratelimit.Config{Key: ratelimit.By("user", user)}, 1000, func(int) *http.Request {
			return newRequest("GET", "/", peer, "User", "alice")
		}, nil},
		{"one address, known to be a proxy", ratelimit.Config{}, 1000, func(int) *http.Request {
			return newRequest("GET", "/", peer, "X-Forwarded-For", "198.51.100.7")
		}, []ratelimit.Code{ratelimit.ForwardedUntrusted}},

		{"a key with a request's ID", ratelimit.Config{Key: ratelimit.By("request", user)}, 1000, func(i int) *http.Request {
			return newRequest("GET", "/", peer, "User", fmt.Sprint(i))
		}, []ratelimit.Code{ratelimit.KeysNeverRepeat}},
		{"a key with the port", ratelimit.Config{Key: ratelimit.By("ip", func(r *http.Request) string { return r.RemoteAddr })}, 1, func(int) *http.Request {
			return newRequest("GET", "/", peer)
		}, []ratelimit.Code{ratelimit.KeysNeverRepeat}},
		{"one key comes again", ratelimit.Config{Key: ratelimit.By("user", user)}, 1000, func(i int) *http.Request {
			return newRequest("GET", "/", peer, "User", fmt.Sprint(i%999))
		}, nil},
		{"every request from another address", ratelimit.Config{}, 1000, func(i int) *http.Request {
			return newRequest("GET", "/", addressOf(i))
		}, nil},

		{"a cost over the limit", ratelimit.Config{Policies: []ratelimit.Policy{{
			Name: "api", Limits: perMinute(2), CostOf: func(*http.Request) int64 { return 3 },
		}}}, 2, func(i int) *http.Request { return newRequest("GET", "/", addressOf(i)) }, []ratelimit.Code{ratelimit.CostOverLimit}},
		{"a cost over what is left", ratelimit.Config{Policies: []ratelimit.Policy{{
			Name: "api", Limits: perMinute(3), CostOf: func(*http.Request) int64 { return 2 },
		}}}, 3, func(int) *http.Request { return newRequest("GET", "/", peer) }, nil},

		{"a replica", ratelimit.Config{Store: newFaulty(func(context.Context) error {
			return fmt.Errorf("redisstore: %w", errors.New("READONLY You can't write against a read only replica."))
		})}, 3, func(i int) *http.Request { return newRequest("GET", "/", addressOf(i)) }, []ratelimit.Code{ratelimit.StoreReadOnly}},
		{"a client that heeds no deadline", ratelimit.Config{Store: settings{exampleStore(), []string{"ReadTimeout is 5s"}}}, 1, func(int) *http.Request {
			return newRequest("GET", "/", peer)
		}, []ratelimit.Code{ratelimit.StoreSettings}},
		{"a client that is fine", ratelimit.Config{Store: settings{exampleStore(), nil}}, 1, func(int) *http.Request {
			return newRequest("GET", "/", peer)
		}, nil},
		{"a store that is away", ratelimit.Config{Store: newFaulty(isAway)}, 3, func(i int) *http.Request {
			return newRequest("GET", "/", addressOf(i))
		}, nil},

		{"a route that is misspelt", ratelimit.Config{Routes: ratelimit.Routes{"/": {"api"}, "GET /serach": {"api"}}, Default: "api"}, 100_000, func(i int) *http.Request {
			return newRequest("GET", "/search", addressOf(i%500))
		}, []ratelimit.Code{ratelimit.RouteNeverMatched}},
		{"all routes match", ratelimit.Config{Routes: ratelimit.Routes{"/": {"api"}, "/healthz": {}}, Default: "api"}, 100_000, func(i int) *http.Request {
			if i == 99_999 {
				return newRequest("GET", "/healthz", peer)
			}
			return newRequest("GET", "/", addressOf(i%500))
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log, none warnings
			tc.config.Logger = log.logger()
			h := build(t, tc.config).Handler(ok)
			tc.config.Logger, tc.config.Silence = none.logger(), tc.want
			silent := build(t, tc.config).Handler(ok)
			for i := range tc.requests {
				send(h, tc.request(i))
				if tc.requests <= 1000 {
					send(silent, tc.request(i))
				}
			}
			if got := log.codes(); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			if got := none.codes(); len(got) != 0 {
				t.Errorf("got %v although it was silenced", got)
			}
			for _, record := range log.said {
				anchor := "docs/misuse.md#" + strings.ToLower(record["code"].(string))
				if record["help"] != anchor || record["level"] != "WARN" {
					t.Errorf("got %v, want a warning with help %s", record, anchor)
				}
			}
		})
	}
}

// Later requests say nothing, whatever they look like.
func TestMisuseIsLookedForInTheFirstRequests(t *testing.T) {
	var log warnings
	h := build(t, ratelimit.Config{Logger: log.logger()}).Handler(ok)
	for i := range 1000 {
		send(h, newRequest("GET", "/", addressOf(i)))
	}
	for range 2000 {
		send(h, newRequest("GET", "/", peer, "X-Forwarded-For", "198.51.100.7"))
	}
	if got := log.codes(); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestMisuseIsSaidOnceByParallelRequests(t *testing.T) {
	var log warnings
	h := build(t, ratelimit.Config{Logger: log.logger(), Key: ratelimit.By("request", user)}).Handler(ok)
	var wait sync.WaitGroup
	for g := range 8 {
		wait.Go(func() {
			for i := range 400 {
				send(h, newRequest("GET", "/", peer, "User", fmt.Sprint(g*1000+i)))
			}
		})
	}
	wait.Wait()
	if got := log.codes(); !slices.Equal(got, []ratelimit.Code{ratelimit.KeysNeverRepeat}) {
		t.Errorf("got %v", got)
	}
}

func TestMisuseOfTwoLimitersAroundEachOther(t *testing.T) {
	shared := exampleStore()
	reads := func(limit int64) []ratelimit.Policy { return []ratelimit.Policy{policy("api", limit)} }
	for name, tc := range map[string]struct {
		inner ratelimit.Config
		want  int
	}{
		"one counter":      {ratelimit.Config{Store: shared, Policies: reads(50)}, 1},
		"another store":    {ratelimit.Config{Policies: reads(50)}, 0},
		"another quota":    {ratelimit.Config{Store: shared, Policies: []ratelimit.Policy{policy("other", 50)}}, 0},
		"another key":      {ratelimit.Config{Store: shared, Policies: reads(50), Key: ratelimit.By("user", user)}, 0},
		"silenced":         {ratelimit.Config{Store: shared, Policies: reads(50), Silence: []ratelimit.Code{ratelimit.CountedTwice}}, 0},
		"a store by value": {ratelimit.Config{Store: byValue{shared, nil}, Policies: reads(50)}, 0},
	} {
		var log warnings
		outer := build(t, ratelimit.Config{Store: shared, Policies: reads(50)})
		between := build(t, ratelimit.Config{Store: shared, Policies: []ratelimit.Policy{policy("between", 50)}})
		tc.inner.Logger = log.logger()
		h := outer.Handler(between.Handler(build(t, tc.inner).Handler(ok)))
		for range 3 {
			get(h, "/")
		}
		if got := log.codes(); len(got) != tc.want || tc.want > 0 && got[0] != ratelimit.CountedTwice {
			t.Errorf("%s: got %v, want %d", name, got, tc.want)
		}
	}

	var log warnings
	both := build(t, ratelimit.Config{
		Policies: []ratelimit.Policy{policy("api", 50), {Name: "search", Quota: "api"}},
		Default:  "api", Logger: log.logger(),
	})
	get(both.Handler(both.For("search")(ok)), "/")
	if got := log.codes(); len(got) != 0 {
		t.Errorf("one limiter twice: got %v", got)
	}
}

// byValue is a store that can't be compared.
type byValue struct {
	ratelimit.Store
	_ []int
}

func TestMisuseOfALimiterMadeInAHandler(t *testing.T) {
	var log warnings
	config := func(silence ...ratelimit.Code) ratelimit.Config {
		return ratelimit.Config{
			Store: exampleStore(), Key: ratelimit.ClientIP(), Policies: []ratelimit.Policy{policy("api", 2)},
			Logger: log.logger(), Silence: silence,
		}
	}
	var once sync.Once
	for name, h := range map[string]http.HandlerFunc{
		"once":     func(http.ResponseWriter, *http.Request) { once.Do(func() { _, _ = ratelimit.New(config()) }) },
		"silenced": func(http.ResponseWriter, *http.Request) { _, _ = ratelimit.New(config(ratelimit.BuiltInHandler)) },
	} {
		get(h, "/")
		if got := log.codes(); len(got) != 0 {
			t.Errorf("%s: got %v", name, got)
		}
	}
	if _, err := ratelimit.New(config()); err != nil || len(log.codes()) != 0 {
		t.Errorf("outside of a handler: got %v, %v", log.codes(), err)
	}

	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limiter, err := ratelimit.New(config())
		if err == nil {
			limiter.Handler(ok).ServeHTTP(w, r)
		}
	})
	for range 20 {
		get(h, "/")
	}
	want := 1
	if saidBefore { // the test runs again in this process
		want = 0
	}
	saidBefore = true
	if got := log.codes(); len(got) != want || want > 0 && !strings.Contains(fmt.Sprint(log.said[0]["place"]), "misuse_test.go:") {
		t.Errorf("got %v, %v", got, log.said)
	}
}

var saidBefore bool

func TestSilenceTakesCodesOnly(t *testing.T) {
	_, err := ratelimit.New(ratelimit.Config{
		Store: exampleStore(), Key: ratelimit.ClientIP(), Policies: []ratelimit.Policy{policy("api", 2)},
		Silence: append(slices.Clone(allCodes), "RL999"),
	})
	const want = `ratelimit: Silence[10] must be a Code, RL001 to RL010, got "RL999"`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestEveryCodeHasItsHelp(t *testing.T) {
	text, err := os.ReadFile("docs/misuse.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range allCodes {
		if !bytes.Contains(text, []byte("\n## "+string(code)+"\n")) {
			t.Errorf("docs/misuse.md has no section %s", code)
		}
	}
	if sections := bytes.Count(text, []byte("\n## RL")); sections != len(allCodes) {
		t.Errorf("docs/misuse.md has %d sections of codes, want %d", sections, len(allCodes))
	}
}

// settings is a store that tells of its setup.
type settings struct {
	ratelimit.Store
	warnings []string
}

func (s settings) Warnings() []string { return s.warnings }
