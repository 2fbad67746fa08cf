package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

// roundTrip is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// partner is a service that several instances call in a bubble of synctest: "name@ms" is
// when a call reaches it, "name!why@ms" when RoundTrip returns an error.
type partner struct {
	*events
	answers   map[string]*http.Response // of single calls; the others are 200
	takes     time.Duration             // how long it takes to answer
	instances []*ratelimit.Transport
	calls     int
}

// newPartner has three instances, with a limiter each, on one store.
func newPartner(t *testing.T, config ratelimit.Config, transport ratelimit.Transport) *partner {
	p := &partner{events: newEvents(), answers: make(map[string]*http.Response)}
	config.Store = memstore.New(memstore.Config{})
	transport.Base = roundTrip(p.serve)
	for range 3 {
		transport.Limiter = build(t, config)
		p.instances = append(p.instances, newTransport(t, transport))
	}
	return p
}

func newTransport(t *testing.T, transport ratelimit.Transport) *ratelimit.Transport {
	t.Helper()
	if transport.Policy == "" {
		transport.Policy = "api"
	}
	checked, err := ratelimit.NewTransport(transport)
	if err != nil {
		t.Fatal(err)
	}
	return checked
}

func (p *partner) serve(r *http.Request) (*http.Response, error) {
	p.note("%s", r.Header.Get("Name"))
	time.Sleep(p.takes)
	if answer := p.answers[r.Header.Get("Name")]; answer != nil {
		return answer, nil
	}
	return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
}

// says is how the partner answers a call.
func (p *partner) says(name string, status int, header ...string) {
	r := answerOf(status, header...)
	r.Header.Del("Date") // the bubble's clock is another
	p.answers[name] = r
}

// call makes calls, each from the next instance in turn.
func (p *partner) call(names ...string) {
	for _, name := range names {
		p.callBy(name, 0)
	}
}

// callBy makes a call with a deadline so far away; 0 means none.
func (p *partner) callBy(name string, deadline time.Duration) {
	instance := p.instances[p.calls%len(p.instances)]
	p.calls++
	ctx, cancel := context.WithCancel(context.Background())
	if deadline > 0 {
		ctx, cancel = context.WithTimeout(context.Background(), deadline)
	}
	r, _ := http.NewRequestWithContext(ctx, "GET", "https://api.example.com/", nil)
	r.Header.Set("Name", name)
	go func() {
		defer cancel()
		_, err := instance.RoundTrip(r)
		var waiting *ratelimit.WaitError
		switch {
		case errors.As(err, &waiting) && errors.Is(err, context.DeadlineExceeded):
			p.note("%s!deadline", name)
		case errors.As(err, &waiting):
			p.note("%s!refused(%v)", name, waiting.RetryAfter.Round(10*time.Millisecond))
		case err != nil:
			p.note("%s!%v", name, err)
		}
	}()
	synctest.Wait()
}

func TestTransport(t *testing.T) {
	api := ratelimit.Policy{Name: "api", Limits: tenASecond(10)}
	changed := func(change func(*ratelimit.Policy)) ratelimit.Config {
		p := api
		change(&p)
		return one(p)
	}
	// A pause has up to 2 ms for rounding.
	for _, tc := range []struct {
		name   string
		config ratelimit.Config
		do     func(p *partner)
		want   string
	}{
		{"an even stream over the instances", one(api), func(p *partner) {
			p.call("a", "b", "c", "d")
		}, "a@0 b@100 c@200 d@300"},
		{"a pause: turns that come in it are lost, and nobody rushes out at its end", one(api), func(p *partner) {
			p.says("a", 429, "Retry-After", "2")
			p.call("a", "x", "x", "x")
		}, "a@0 x@2001 x@2101 x@2201"},
		{"a pause: turns that come later are kept", one(api), func(p *partner) {
			p.says("b", 503, "Retry-After", "0.15")
			p.call("a", "b", "c", "d", "e")
		}, "a@0 b@100 d@300 e@400 c@500"},
		{"a pause: who comes in it takes no turn", one(api), func(p *partner) {
			p.says("a", 429, "Retry-After", "2")
			p.call("a")
			time.Sleep(time.Second)
			p.call("x", "x")
			time.Sleep(1500 * time.Millisecond)
			p.call("d")
		}, "a@0 x@2001 x@2101 d@2500"},
		{"two are told the same at once: it doesn't add up", one(ratelimit.Policy{Name: "api", Limits: bucket(5)}), func(p *partner) {
			p.takes = 10 * time.Millisecond
			p.says("told", 429, "Retry-After", "2")
			p.call("told", "told")
			time.Sleep(p.takes + time.Millisecond)
			p.call("c")
		}, "told@0 told@0 c@2011"},
		{"two are told different things at once: the later end counts", one(ratelimit.Policy{Name: "api", Limits: bucket(5)}), func(p *partner) {
			p.takes = 10 * time.Millisecond
			p.says("a", 200, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1")
			p.says("b", 429, "Retry-After", "3")
			p.call("a", "b")
			time.Sleep(p.takes + time.Millisecond)
			p.call("c")
		}, "a@0 b@0 c@3011"},
		{"a longer pause prolongs a shorter one", one(api), func(p *partner) {
			p.takes = 150 * time.Millisecond
			p.says("a", 429, "Retry-After", "1")
			p.says("b", 429, "Retry-After", "2")
			p.call("a", "b", "c")
		}, "a@0 b@100 c@2251"},
		{"a shorter pause doesn't end a longer one", one(api), func(p *partner) {
			p.takes = 150 * time.Millisecond
			p.says("a", 429, "Retry-After", "3")
			p.says("b", 429, "Retry-After", "1")
			p.call("a", "b", "c")
		}, "a@0 b@100 c@3151"},
		{"a second pause after the first", one(api), func(p *partner) {
			p.says("a", 429, "Retry-After", "2")
			p.says("told", 429, "Retry-After", "1")
			p.call("a", "told", "told")
		}, "a@0 told@2001 told@3002"},
		{"longer than MaxPause", one(api), func(p *partner) {
			p.says("a", 429, "Retry-After", "315360000")
			p.call("a", "b")
		}, "a@0 b@10001"},
		{"a quota that is used up", one(api), func(p *partner) {
			p.says("a", 200, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "4")
			p.call("a", "b")
		}, "a@0 b@4001"},
		{"a deadline in the pause fails at once, and one after it doesn't", one(api), func(p *partner) {
			p.says("a", 429, "Retry-After", "2")
			p.call("a")
			p.callBy("b", 1900*time.Millisecond)
			p.callBy("c", 2010*time.Millisecond)
		}, "a@0 b!deadline@0 c@2001"},
		{"a deadline between the pause and the turn fails when the turn is known", one(api), func(p *partner) {
			p.says("b", 429, "Retry-After", "0.25")
			p.call("a", "b", "x", "x", "d")
			time.Sleep(150 * time.Millisecond)
			p.callBy("e", 340*time.Millisecond)
		}, "a@0 b@100 e!deadline@351 d@400 x@500 x@600"},
		{"a pause beyond MaxWait", changed(func(p *ratelimit.Policy) { p.Action, p.MaxWait = ratelimit.Delay, time.Second }), func(p *partner) {
			p.says("a", 429, "Retry-After", "2")
			p.call("a", "b")
		}, "a@0 b!refused(2s)@0"},
		{"more than the queue holds, in the pause", changed(func(p *ratelimit.Policy) { p.Limits = tenASecond(1) }), func(p *partner) {
			p.says("a", 429, "Retry-After", "2")
			p.call("a")
			p.calls = 0 // all of one instance
			p.call("b")
			p.calls = 0
			p.call("c")
		}, "a@0 c!refused(2s)@0 b@2001"},
		{"more than may wait, in the pause", withWaiting(1, api), func(p *partner) {
			p.says("a", 429, "Retry-After", "2")
			p.call("a")
			p.calls = 0
			p.call("b")
			p.calls = 0
			p.call("c")
		}, "a@0 c!refused(2s)@0 b@2001"},
		{"limits that hand out no turns", one(ratelimit.Policy{Name: "api", Limits: bucket(2)}), func(p *partner) {
			p.says("a", 429, "Retry-After", "2")
			p.call("a", "x", "x", "x")
		}, "a@0 x@2001 x@2001 x@2101"},
		{"on trial", changed(func(p *ratelimit.Policy) { p.Shadow = true }), func(p *partner) {
			p.says("a", 429, "Retry-After", "2")
			p.call("a", "b")
		}, "a@0 b@0"},
		{"disabled", changed(func(p *ratelimit.Policy) { p.Disabled = true }), func(p *partner) {
			p.says("a", 429, "Retry-After", "2")
			p.call("a", "b")
		}, "a@0 b@0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPartner(t, tc.config, ratelimit.Transport{MaxPause: 10 * time.Second})
				tc.do(p)
				p.want(t, tc.want)
				for i, instance := range p.instances {
					if n := instance.Limiter.Waiting(); n != 0 {
						t.Errorf("%d wait in instance %d", n, i)
					}
				}
			})
		})
	}
}

// A pause of 2 s that 500 wait for ends with an even stream over all instances.
func TestAPauseEndsWithoutAHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var departures []time.Duration
		p := newPartner(t, one(ratelimit.Policy{Name: "api", Limits: ratelimit.Limits{
			algorithms.LeakyBucket{Capacity: 500, Rate: 50, Per: time.Second},
		}}), ratelimit.Transport{})
		begin := time.Now()
		var mu sync.Mutex
		for _, instance := range p.instances {
			instance.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				departures = append(departures, time.Since(begin))
				return p.serve(r)
			})
		}
		p.says("first", 429, "Retry-After", "2")
		p.call("first")
		for range 500 {
			p.call("waiter")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(departures) != 501 {
			t.Fatalf("%d calls, want 501", len(departures))
		}
		if departures[1] < 2*time.Second {
			t.Errorf("called %v after it was told to pause for 2s", departures[1])
		}
		for i := range departures[2:] {
			if gap := departures[i+2] - departures[i+1]; gap != 20*time.Millisecond {
				t.Errorf("call %d came %v after the one before, want 20ms", i+2, gap)
			}
		}
	})
}

// Many answers of one moment, from calls that were under way, pause for as long as the
// latest end of any, and the operator is told once.
func TestAPauseIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		var mu sync.Mutex
		config := one(ratelimit.Policy{Name: "api", Limits: bucket(50)})
		config.Hooks.Paused = func(_ context.Context, e ratelimit.Event) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf("%s %s %v %s %s", e.Key, e.Policy, e.Paused, e.Why, e.Request.URL))
		}
		p := newPartner(t, config, ratelimit.Transport{})
		p.takes = 100 * time.Millisecond
		p.says("told", 429, "Retry-After", "2")
		for range 50 {
			p.call("told")
			time.Sleep(time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		p.call("after")
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []string{`host:api.example.com:443 api 2s 429 with Retry-After: "2" https://api.example.com/`}
		if !slices.Equal(told, want) {
			t.Errorf("got %q, want %q", told, want)
		}
		if last := p.all[len(p.all)-1]; last != "after@2150" {
			t.Errorf("got %s, want after@2150", last)
		}
	})
}

// What the other side said holds also if the caller has gone meanwhile.
func TestAPauseOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPartner(t, one(ratelimit.Policy{Name: "api", Limits: tenASecond(10)}), ratelimit.Transport{})
		p.says("a", 429, "Retry-After", "2")
		p.takes = 100 * time.Millisecond
		p.callBy("a", 50*time.Millisecond)
		time.Sleep(101 * time.Millisecond)
		p.call("b")
		p.want(t, "a@0 b@2101")
	})
}

// What a call costs the store, as the comment on Transport says. In a pause nobody asks
// more than once.
func TestWhatATransportAsksTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCounting(memstore.New(memstore.Config{}))
		p := &partner{events: newEvents(), answers: make(map[string]*http.Response)}
		limiter := build(t, ratelimit.Config{Store: store, Policies: []ratelimit.Policy{{Name: "api", Limits: tenASecond(100)}}})
		p.instances = append(p.instances, newTransport(t, ratelimit.Transport{Limiter: limiter, Base: roundTrip(p.serve)}))
		p.says("refused", 429, "Retry-After", "1")
		asked := func(what string, want int, do func()) {
			before := store.asked()
			do()
			synctest.Wait()
			if got := store.asked() - before; got != want {
				t.Errorf("%s: asked %d times, want %d", what, got, want)
			}
		}
		asked("a call that goes at once", 1, func() { p.call("a") })
		asked("a call that waits", 2, func() { p.call("b"); time.Sleep(time.Second) })
		asked("an answer that begins a pause", 1+1, func() { p.call("refused") })
		asked("50 calls in a pause", 50, func() {
			for range 50 {
				p.call("c")
			}
			time.Sleep(990 * time.Millisecond)
		})
		asked("50 calls after a pause, of which the first goes at once", 50+49, func() { time.Sleep(time.Minute) })
	})
}

func TestResetEndsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPartner(t, one(ratelimit.Policy{Name: "api", Limits: tenASecond(10)}), ratelimit.Transport{})
		p.says("a", 429, "Retry-After", "60")
		p.call("a")
		host := ratelimit.Key{Kind: "host", ID: "api.example.com:443"}
		if err := p.instances[2].Limiter.Reset(t.Context(), host, "api"); err != nil {
			t.Fatal(err)
		}
		p.call("b")
		p.want(t, "a@0 b@0")
	})
}

// Hooks.Waited is told once, also of a call that lost its turn to a pause.
func TestWaitedIsToldOnceOfACallThatWasPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := newEvents()
		config := one(ratelimit.Policy{Name: "api", Limits: tenASecond(10)})
		config.Hooks.Waited = func(_ context.Context, e ratelimit.Event) {
			told.note("%s %s %v %v", e.Key, e.Policy, e.Waited.Round(100*time.Millisecond), e.Err)
		}
		p := newPartner(t, config, ratelimit.Transport{})
		p.says("a", 429, "Retry-After", "1")
		p.call("a", "b")
		told.want(t, "host:api.example.com:443 api 1s <nil>@1001")
	})
}

func TestAPauseIsOfOneKeyAndQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := newEvents()
		limiter := build(t, ratelimit.Config{
			Store:   memstore.New(memstore.Config{}),
			Default: "core",
			Policies: []ratelimit.Policy{
				{Name: "core", Limits: tenASecond(10)}, {Name: "write", Quota: "core"}, {Name: "search", Limits: tenASecond(10)},
			},
		})
		call := func(policy, url string) {
			transport := newTransport(t, ratelimit.Transport{Limiter: limiter, Policy: policy, Base: roundTrip(func(r *http.Request) (*http.Response, error) {
				events.note("%s %s", policy, r.URL.Hostname())
				return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"2"}}, Body: http.NoBody}, nil
			})})
			r, _ := http.NewRequest("GET", url, nil)
			go func() { _, _ = transport.RoundTrip(r) }()
			synctest.Wait()
		}
		call("core", "https://a.example/")
		call("core", "https://b.example/")
		call("search", "https://a.example/")
		call("write", "https://a.example/")
		events.want(t, "core a.example@0 core b.example@0 search a.example@0 write a.example@2001")
	})
}

// While the store is away the failure mode holds, and what was configured for it.
func TestTransportWhileTheStoreIsAway(t *testing.T) {
	for _, tc := range []struct {
		mode ratelimit.FailureMode
		want string
	}{
		{ratelimit.FailLocal, "a@0 b@2001"}, // by the memory of the one instance
		{ratelimit.FailOpen, "a@0 b@0"},
		{ratelimit.FailClosed, `a!ratelimit: not called, waiting for policy "api" ended: ` + errAway.Error() + `@0 b!ratelimit: not called, waiting for policy "api" ended: ` + errAway.Error() + "@0"},
	} {
		t.Run(tc.mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &partner{events: newEvents(), answers: make(map[string]*http.Response)}
				limiter := build(t, ratelimit.Config{
					Store: newFaulty(isAway), Failure: tc.mode, Instances: 3,
					Policies: []ratelimit.Policy{{Name: "api", Limits: tenASecond(10)}},
				})
				p.instances = append(p.instances, newTransport(t, ratelimit.Transport{Limiter: limiter, Base: roundTrip(p.serve)}))
				p.says("a", 429, "Retry-After", "2")
				p.call("a", "b")
				p.want(t, tc.want)
			})
		})
	}
}

// body notes what is done to it.
type body struct {
	io.Reader
	reads, closes int
}

func (b *body) Read(p []byte) (int, error) { b.reads++; return b.Reader.Read(p) }
func (b *body) Close() error               { b.closes++; return nil }

func TestTransportLeavesRequestsAsTheyAre(t *testing.T) {
	errLost := errors.New("lost")
	limiter := build(t, ratelimit.Config{})
	seen := (*http.Request)(nil)
	for _, tc := range []struct {
		name        string
		do          func(r *http.Request) *http.Request
		base        error
		key         error
		want        error
		sent        bool
		wantsClosed int
	}{
		{name: "sent", sent: true},
		{name: "the other side can't be reached", base: errLost, want: errLost, sent: true},
		{name: "no key", key: errLost, sent: true},
		{name: "the context has ended", do: func(r *http.Request) *http.Request {
			ctx, cancel := context.WithCancel(r.Context())
			cancel()
			return r.WithContext(ctx)
		}, want: context.Canceled, wantsClosed: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			seen = nil
			b := &body{Reader: strings.NewReader("webhook")}
			response := &http.Response{StatusCode: 200, Body: http.NoBody}
			transport := newTransport(t, ratelimit.Transport{
				Limiter: limiter,
				Key: func(*http.Request) (ratelimit.Key, error) {
					return ratelimit.Key{Kind: "case", ID: tc.name}, tc.key
				},
				Base: roundTrip(func(r *http.Request) (*http.Response, error) {
					seen = r
					if tc.base != nil {
						return nil, tc.base
					}
					return response, nil
				}),
			})
			r, _ := http.NewRequest("POST", "https://api.example.com/", b)
			if tc.do != nil {
				r = tc.do(r)
			}
			before := r.Clone(r.Context())
			got, err := transport.RoundTrip(r)
			if !errors.Is(err, tc.want) {
				t.Errorf("got error %v, want %v", err, tc.want)
			}
			if tc.want == nil && got != response {
				t.Error("the response is another one")
			}
			if (seen == r) != tc.sent {
				t.Errorf("sent: got %v, want %v", seen == r, tc.sent)
			}
			if b.reads != 0 || b.closes != tc.wantsClosed {
				t.Errorf("the body was read %d times and closed %d times, want 0 and %d", b.reads, b.closes, tc.wantsClosed)
			}
			if len(r.Header) != len(before.Header) || r.URL.String() != before.URL.String() || r.Host != before.Host {
				t.Error("the request was changed")
			}
		})
	}
}

func TestTransportKeysByHostAndPort(t *testing.T) {
	for url, want := range map[string]string{
		"https://api.example.com/a?b=c":    "host:api.example.com:443",
		"https://API.Example.com:443/":     "host:api.example.com:443",
		"https://user:secret@example.com.": "host:example.com:443",
		"http://example.com":               "host:example.com:80",
		"http://example.com:8080":          "host:example.com:8080",
		"http://[2001:DB8::1]/":            "host:[2001:db8::1]:80",
	} {
		var got string
		limiter := build(t, ratelimit.Config{Hooks: ratelimit.Hooks{Allowed: func(_ context.Context, e ratelimit.Event) { got = e.Key }}})
		transport := newTransport(t, ratelimit.Transport{Limiter: limiter, Base: roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
		})})
		r, err := http.NewRequest("GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := transport.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", url, got, want)
		}
	}
}

func TestMistakesOfATransportSurfaceAtConstruction(t *testing.T) {
	limiter := build(t, ratelimit.Config{})
	for _, tc := range []struct {
		transport ratelimit.Transport
		want      string
	}{
		{ratelimit.Transport{MaxPause: -1}, "ratelimit: Transport.Limiter is required: what ratelimit.New returns\n" +
			"ratelimit: Transport.MaxPause must be between 0, which means 1h0m0s, and 8784h0m0s, got -1ns"},
		{ratelimit.Transport{Limiter: limiter}, `ratelimit: Transport.Policy must name one of the limiter's Policies, got ""`},
		{ratelimit.Transport{Limiter: limiter, Policy: "sned"}, `ratelimit: Transport.Policy must name one of the limiter's Policies, got "sned"`},
	} {
		got, err := ratelimit.NewTransport(tc.transport)
		if got != nil || err == nil || err.Error() != tc.want {
			t.Errorf("got %v, %v, want %s", got, err, tc.want)
		}
	}
	unmade := &ratelimit.Transport{Limiter: limiter, Policy: "api"}
	r, _ := http.NewRequest("GET", "https://example.com", nil)
	if _, err := unmade.RoundTrip(r); err == nil || err.Error() != "ratelimit: a Transport must be made by NewTransport" {
		t.Errorf("got %v of a transport that NewTransport didn't make", err)
	}
	made := newTransport(t, ratelimit.Transport{Limiter: limiter})
	if _, err := made.RoundTrip(&http.Request{}); err == nil || err.Error() != "ratelimit: a request needs a URL, got nil" {
		t.Errorf("got %v of a request without a URL", err)
	}
	if err := limiter.Update([]ratelimit.Policy{policy("other", 2)}); err == nil {
		t.Error("Update took the policy away from its transport")
	}
}

type idle struct {
	http.RoundTripper
	closed int
}

func (i *idle) CloseIdleConnections() { i.closed++ }

func TestTransportPassesCloseIdleConnectionsOn(t *testing.T) {
	base := new(idle)
	limiter := build(t, ratelimit.Config{})
	client := &http.Client{Transport: newTransport(t, ratelimit.Transport{Limiter: limiter, Base: base})}
	client.CloseIdleConnections()
	if base.closed != 1 {
		t.Errorf("closed %d times, want once", base.closed)
	}
	newTransport(t, ratelimit.Transport{Limiter: limiter, Base: roundTrip(nil)}).CloseIdleConnections()
}
