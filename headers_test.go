package ratelimit_test

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
)

// headerCase is a row of testdata/header-cases.json: what a store decides and what the
// client must read. Names of headers are absent where the value is "".
type headerCase struct {
	Name, Basis, Method string
	NowUnixMS           int64 `json:"now_unix_ms"`
	Allowed             bool
	Satisfiable         bool
	Policies            []struct {
		Name              string
		Limit, Remaining  int64
		WindowMS          *int64 `json:"window_ms"`
		ResetInMS         *int64 `json:"reset_in_ms"`
		EffectiveWindowMS *int64 `json:"effective_window_ms"`
		RetryAfterMS      *int64 `json:"retry_after_ms"` // of those that refuse
	}
	Status         int
	Headers        map[string]string // those of every profile, and of the default one
	DeltaSeconds   map[string]string `json:"delta-seconds"`
	Draft8         map[string]string `json:"ietf-draft-8"`
	RetryAfterDate string            `json:"retry_after_date"`
}

// notOurs are the rows that no limiter of this package can come to, and why.
var notOurs = map[string]string{
	"pk_ascii":                  "a limit without a window: every rule here has one",
	"concurrency_limit_allowed": "a limit on concurrency has no window; there is none yet",
	"concurrency_limit_denied":  "a limit on concurrency has no window; there is none yet",
}

// notNames are the rows whose policies New refuses; their other headers are tested under
// other names. What drafts 06 and 07 and the one after 11 would read is in the source of
// the table and not here: the first two are superseded, the last can't be read yet.
var notNames = map[string]bool{
	"duplicate_policy_names": true, "policy_name_quote_backslash": true, "policy_name_space_comma_semicolon": true,
	"policy_name_non_ascii": true, "policy_name_crlf": true, "policy_name_del": true, "policy_name_empty": true,
}

// tooLong are the rows with a window that no rule has: all but w is as they say.
var tooLong = map[string]bool{"retry_after_max_int64_ms": true, "retry_after_100_years": true}

func headerCases(t testing.TB) []headerCase {
	text, err := os.ReadFile("testdata/header-cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []headerCase
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 60 {
		t.Fatalf("only %d cases", len(cases))
	}
	return cases
}

// The middleware is given each row's decisions by a store that says what it is told to.
func TestHeaderCases(t *testing.T) {
	for _, tc := range headerCases(t) {
		for _, profile := range []struct {
			name    string
			headers ratelimit.Headers
			want    func(t *testing.T, got http.Header)
		}{
			{"default", ratelimit.Headers{}, func(t *testing.T, got http.Header) {
				wantHeaders(t, got, "RateLimit", "", "RateLimit-Policy", "")
				for name, value := range tc.Headers {
					wantHeaders(t, got, name, value)
				}
			}},
			{"delta seconds", ratelimit.Headers{ResetForm: ratelimit.ResetDelta}, func(t *testing.T, got http.Header) {
				wantHeaders(t, got, "Retry-After", tc.Headers["Retry-After"], "Cache-Control", tc.Headers["Cache-Control"])
				for name, value := range tc.DeltaSeconds {
					wantHeaders(t, got, name, value)
				}
			}},
			{"date", ratelimit.Headers{RetryAfterDate: true}, func(t *testing.T, got http.Header) {
				if tc.RetryAfterDate != "" {
					wantHeaders(t, got, "Retry-After", tc.RetryAfterDate)
				}
			}},
			{"draft 8", ratelimit.Headers{Draft: ratelimit.Draft8}, func(t *testing.T, got http.Header) {
				for name, value := range tc.Headers {
					wantHeaders(t, got, name, value)
				}
				if notNames[tc.Name] {
					return
				}
				for name, value := range tc.Draft8 {
					tc.wantList(t, got, name, value)
				}
			}},
		} {
			t.Run(tc.Name+"/"+profile.name, func(t *testing.T) {
				if why, ok := notOurs[tc.Name]; ok {
					t.Skip(why)
				}
				config := tc.config()
				config.Headers = profile.headers
				resp := send(build(t, config).Handler(ok), newRequest(tc.Method, "/", peer))
				want := tc.Status
				if want == http.StatusNoContent {
					want = http.StatusOK // the row's handler answers a preflight, ours doesn't
				}
				if resp.StatusCode != want {
					t.Errorf("got %d, want %d", resp.StatusCode, want)
				}
				profile.want(t, resp.Header)
			})
		}
	}
}

// wantList compares a structured field with the row's, which has parameters that we
// don't send.
func (tc headerCase) wantList(t *testing.T, got http.Header, name, want string) {
	t.Helper()
	if want == "" {
		wantHeaders(t, got, name, "")
		return
	}
	canonical := func(lines []string) string {
		list, err := httpsfv.UnmarshalList(lines)
		if err != nil {
			t.Fatalf("%s: %q: %v", name, lines, err)
		}
		for _, member := range list {
			params := member.(httpsfv.Item).Params
			params.Del("pk")
			params.Del("qu")
			if tooLong[tc.Name] {
				params.Del("w")
			}
		}
		text, err := httpsfv.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if got, want := canonical(got.Values(name)), canonical([]string{want}); got != want {
		t.Errorf("%s: got %s, want %s", name, got, want)
	}
}

// A policy name that would have to be escaped, or twice the same, isn't accepted.
func TestHeaderCasesWithNamesThatNewRefuses(t *testing.T) {
	for _, tc := range headerCases(t) {
		if !notNames[tc.Name] {
			continue
		}
		config := ratelimit.Config{Store: exampleStore(), Key: ratelimit.ClientIP(), Default: ratelimit.Unlimited}
		for i, p := range tc.Policies {
			config.Policies = append(config.Policies, ratelimit.Policy{Name: p.Name, Quota: "q" + strconv.Itoa(i), Limits: perMinute(1)})
		}
		_, err := ratelimit.New(config)
		if got := mistakes(t, err); len(got) != 1 || !strings.Contains(got[0], ".Name must be ") {
			t.Errorf("%s: got %v", tc.Name, got)
		}
	}
}

// config is a limiter in the state that the row describes.
func (tc headerCase) config() ratelimit.Config {
	config := ratelimit.Config{Routes: ratelimit.Routes{"/": {"api"}}}
	switch tc.Name {
	case "store_error_fail_open":
		config.Store, config.Failure = newFaulty(isAway), ratelimit.FailOpen
	case "store_error_fail_closed":
		config.Store, config.Failure = newFaulty(isAway), ratelimit.FailClosed
	case "skipped_request_no_policy", "preflight_exempt":
		config.Routes = ratelimit.Routes{"/": {}}
	default:
		store := &scripted{Store: exampleStore()}
		config.Default, config.Routes["/"] = ratelimit.Unlimited, nil
		for i, p := range tc.Policies {
			name := p.Name
			if notNames[tc.Name] {
				name = "p" + strconv.Itoa(i)
			}
			// Where the effective window isn't the time to the reset, the row's rule is a bucket.
			window := max(time.Millisecond, min(milliseconds(*p.WindowMS), 70*365*24*time.Hour)).Truncate(time.Microsecond)
			rule := algorithms.Algorithm(algorithms.FixedWindow{Limit: 1, Window: window})
			if *p.EffectiveWindowMS != *p.ResetInMS {
				rule = algorithms.TokenBucket{Capacity: p.Limit, Refill: p.Limit, Per: window}
			}
			config.Policies = append(config.Policies, ratelimit.Policy{Name: name, Limits: ratelimit.Limits{rule}})
			config.Routes["/"] = append(config.Routes["/"], name)
			d := ratelimit.Decision{
				At: time.UnixMilli(tc.NowUnixMS), Allowed: tc.Allowed || tc.Satisfiable && p.RetryAfterMS == nil,
				Limit: p.Limit, Remaining: p.Remaining, ResetAfter: milliseconds(*p.ResetInMS),
			}
			switch {
			case p.RetryAfterMS != nil:
				d.RetryAfter = milliseconds(*p.RetryAfterMS)
			case !d.Allowed:
				d.RetryAfter = ratelimit.Never
			}
			store.decisions = append(store.decisions, d)
		}
		config.Store = store
	}
	return config
}

// milliseconds is the duration, or the longest that is not Never.
func milliseconds(n int64) time.Duration {
	if n > math.MaxInt64/int64(time.Millisecond) {
		return ratelimit.Never - 1
	}
	return time.Duration(n) * time.Millisecond
}

// scripted is a store that decides what it is told to.
type scripted struct {
	ratelimit.Store
	decisions []ratelimit.Decision
}

func (s *scripted) Take(_ context.Context, _ []algorithms.Charge, decisions []ratelimit.Decision) error {
	copy(decisions, s.decisions)
	return nil
}

// A client that waits exactly Retry-After, alone, passes (B57), and so does one that
// waits until the instant of X-RateLimit-Reset (B60).
func TestB57_WaitingAsToldPasses(t *testing.T) {
	for _, rule := range algorithms.Rules() {
		for _, fraction := range []time.Duration{0, time.Microsecond, 200 * time.Millisecond, 999_999 * time.Microsecond} {
			t.Run(rule.Name+" at "+fraction.String(), func(t *testing.T) {
				clock := newClock(exampleClock().Add(fraction))
				h := build(t, ratelimit.Config{
					Store:    clock.Store(),
					Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{rule.Example}}},
				}).Handler(ok)
				for _, name := range []string{"Retry-After", "X-RateLimit-Reset"} {
					resp := get(h, "/")
					for resp.StatusCode == http.StatusOK {
						resp = get(h, "/")
					}
					seconds := integer(t, resp.Header, name)
					if name == "Retry-After" {
						if seconds < 1 {
							t.Errorf("Retry-After: %d", seconds)
						}
						clock.Advance(time.Duration(seconds) * time.Second)
					} else {
						wait := time.Unix(seconds, 0).Sub(clock.Now())
						if wait < 0 {
							t.Errorf("X-RateLimit-Reset is %v in the past", -wait)
						}
						clock.Advance(wait)
					}
					if resp = get(h, "/"); resp.StatusCode != http.StatusOK {
						t.Errorf("after %s: got %d", name, resp.StatusCode)
					}
				}
			})
		}
	}
}

// A handler that appends to one header changes no other, and no other answer.
func TestHeaderValuesAreNotShared(t *testing.T) {
	names := []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}
	h := build(t, ratelimit.Config{}).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range names {
			w.Header()[name] = append(w.Header()[name], "appended to "+name)
		}
	}))
	first, second := get(h, "/").Header, get(h, "/").Header
	for _, name := range names {
		for _, header := range []http.Header{first, second} {
			if got := header.Values(name); len(got) != 2 || got[1] != "appended to "+name {
				t.Errorf("%s: got %q", name, got)
			}
		}
	}
	if a, b := first.Get(names[1]), second.Get(names[1]); a != "1" || b != "0" {
		t.Errorf("remaining: got %s, then %s", a, b)
	}
}
