package ratelimit_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"runtime/debug"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(fleetRedis); addr != "" {
		serveAsMember(addr)
		return
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		removeQuickstart()
		os.Exit(code)
	}))
}

// A key's life outside HTTP. Every method but Settle and Reset gives a decision.
func TestTheMethodsOfALimiter(t *testing.T) {
	limiter := build(t, ratelimit.Config{
		Policies: []ratelimit.Policy{
			{Name: "read", Quota: "api", Limits: perMinute(10), Tiers: map[string]ratelimit.Limits{"pro": perMinute(100)}},
			{Name: "search", Quota: "api", Cost: 5},
		},
		Default: "read",
	})
	ctx, acme := context.Background(), ratelimit.Key{Kind: "tenant", ID: "acme"}
	pro := ratelimit.Key{Kind: "tenant", ID: "acme", Tier: "pro"}
	take := func(key ratelimit.Key, policy string) func() (ratelimit.Decision, error) {
		return func() (ratelimit.Decision, error) { return limiter.Take(ctx, key, policy) }
	}
	takeN := func(n int64) func() (ratelimit.Decision, error) {
		return func() (ratelimit.Decision, error) { return limiter.TakeN(ctx, acme, "search", n) }
	}
	peek := func(key ratelimit.Key) func() (ratelimit.Decision, error) {
		return func() (ratelimit.Decision, error) { return limiter.Peek(ctx, key, "search") }
	}
	and := func(err error) func() (ratelimit.Decision, error) {
		return func() (ratelimit.Decision, error) {
			if err != nil {
				return ratelimit.Decision{}, err
			}
			return limiter.Peek(ctx, acme, "read")
		}
	}
	for _, step := range []struct {
		name      string
		do        func() (ratelimit.Decision, error)
		allowed   bool
		remaining int64
		retry     time.Duration
	}{
		{"peek at nothing", peek(acme), true, 10, 0},
		{"a read", take(acme, "read"), true, 9, 0},
		{"a search costs 5", take(acme, "search"), true, 4, 0},
		{"another is too dear", take(acme, "search"), false, 4, time.Minute},
		{"and took nothing", peek(acme), true, 4, 0},
		{"n instead of the cost", takeN(2), true, 2, 0},
		{"n of 0 takes nothing", takeN(0), true, 2, 0},
		{"more than ever fits", takeN(11), false, 2, ratelimit.Never},
		{"on another plan there is room", peek(pro), true, 92, 0},
		{"another identity", take(ratelimit.Key{Kind: "user", ID: "acme"}, "read"), true, 9, 0},
		{"nobody", take(ratelimit.Key{}, "read"), true, 9, 0},
		{"nobody again", take(ratelimit.Key{Kind: "user"}, "read"), true, 8, 0},
		{"and nobody is not acme", and(nil), true, 2, 0},
	} {
		d, err := step.do()
		if err != nil || d.Allowed != step.allowed || d.Remaining != step.remaining || d.RetryAfter != step.retry {
			t.Errorf("%s: got %+v, %v", step.name, d, err)
		}
	}
	for _, step := range []struct {
		name      string
		do        func() error
		remaining int64
	}{
		{"give 3 back", func() error { return limiter.Settle(ctx, acme, "search", -3) }, 5},
		{"charge 9 more than there is", func() error { return limiter.Settle(ctx, acme, "read", 9) }, 0},
		{"give more back than was taken", func() error { return limiter.Settle(ctx, acme, "read", -100) }, 10},
		{"charge again", func() error { return limiter.Settle(ctx, acme, "read", 7) }, 3},
		{"reset one policy, and so the quota", func() error { return limiter.Reset(ctx, acme, "search") }, 10},
	} {
		d, err := and(step.do())()
		if err != nil || d.Remaining != step.remaining {
			t.Errorf("%s: %d left, want %d (%v)", step.name, d.Remaining, step.remaining, err)
		}
	}
}

func TestOfSeveralLimitsTheTightestIsReported(t *testing.T) {
	clock := newClock(exampleClock())
	minute := algorithms.FixedWindow{Limit: 3, Window: time.Minute}
	hour := algorithms.FixedWindow{Limit: 5, Window: time.Hour}
	limiter := build(t, ratelimit.Config{
		Store:    clock.Store(),
		Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{hour, minute}}},
	})
	for i, want := range []struct {
		after            time.Duration
		allowed          bool
		limit, remaining int64
		retry            time.Duration
	}{
		{0, true, 3, 2, 0},
		{0, true, 3, 1, 0},
		{0, true, 3, 0, 0},
		{0, false, 3, 0, time.Minute}, // the minute refuses; the hour has 2
		{time.Minute, true, 5, 1, 0},
		{0, true, 5, 0, 0},
		{0, false, 5, 0, 59 * time.Minute}, // the hour refuses; the minute has 1
	} {
		clock.Advance(want.after)
		d, err := limiter.Take(context.Background(), ratelimit.Key{ID: "x"}, "api")
		if err != nil || d.Allowed != want.allowed || d.Limit != want.limit || d.Remaining != want.remaining || d.RetryAfter != want.retry {
			t.Errorf("request %d: got %+v, %v, want %+v", i, d, err, want)
		}
	}
}

func TestAPolicyThatDoesNotExistIsAnError(t *testing.T) {
	limiter := build(t, ratelimit.Config{})
	ctx, key := context.Background(), ratelimit.Key{ID: "x"}
	const want = `ratelimit: there is no policy "nope" in Config.Policies`
	for method, ask := range map[string]func() error{
		"Take":   func() error { _, err := limiter.Take(ctx, key, "nope"); return err },
		"TakeN":  func() error { _, err := limiter.TakeN(ctx, key, "nope", 1); return err },
		"Peek":   func() error { _, err := limiter.Peek(ctx, key, "nope"); return err },
		"Settle": func() error { return limiter.Settle(ctx, key, "nope", 1) },
		"Reset":  func() error { return limiter.Reset(ctx, key, "nope") },
	} {
		if err := ask(); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", method, err, want)
		}
	}
}

func TestAMistakeOfTheCallerIsNoFailureOfTheStore(t *testing.T) {
	failures := 0
	limiter := build(t, ratelimit.Config{Hooks: ratelimit.Hooks{Failed: func(context.Context, ratelimit.Event) { failures++ }}})
	ctx, key := context.Background(), ratelimit.Key{ID: "x"}
	if _, err := limiter.TakeN(ctx, key, "api", -1); err == nil {
		t.Error("-1 units were taken")
	}
	if failures != 0 {
		t.Errorf("Hooks.Failed was called %d times", failures)
	}
	if d, err := limiter.Peek(ctx, key, "api"); err != nil || d.Remaining != 2 {
		t.Errorf("then: got %+v, %v", d, err)
	}
}

func TestAStoreThatCannotDecideIsAnErrorExceptLocally(t *testing.T) {
	for mode, fails := range map[ratelimit.FailureMode]bool{ratelimit.FailOpen: true, ratelimit.FailClosed: true, ratelimit.FailLocal: false} {
		limiter := build(t, ratelimit.Config{Store: newFaulty(isAway), Failure: mode})
		_, err := limiter.Take(context.Background(), ratelimit.Key{ID: "x"}, "api")
		if (err != nil) != fails || err != nil && !errors.Is(err, errAway) {
			t.Errorf("%v: got %v", mode, err)
		}
	}
}

func TestConfigIsReadOnce(t *testing.T) {
	rules := perMinute(2)
	tiers := map[string]ratelimit.Limits{"pro": perMinute(3)}
	routes := ratelimit.Routes{"/x": {"api"}}
	policies := []ratelimit.Policy{{Name: "api", Limits: rules, Tiers: tiers}}
	limiter := build(t, ratelimit.Config{Policies: policies, Routes: routes, Default: ratelimit.Unlimited})
	rules[0] = algorithms.FixedWindow{Limit: 99, Window: time.Minute}
	tiers["pro"][0], tiers["new"] = rules[0], rules
	policies[0].Name = "gone"
	routes["/x"][0] = "gone"
	delete(routes, "/x")

	wantHeaders(t, get(limiter.Handler(ok), "/x").Header, "X-RateLimit-Limit", "2")
	for tier, want := range map[string]int64{"pro": 3, "new": 2} {
		d, err := limiter.Peek(context.Background(), ratelimit.Key{ID: "x", Tier: tier}, "api")
		if err != nil || d.Limit != want {
			t.Errorf("tier %s: got %+v, %v, want limit %d", tier, d, err, want)
		}
	}
}

// To refuse such a rule would do as well.
func TestARuleGivenByPointerCannotChangeLater(t *testing.T) {
	rule := &algorithms.FixedWindow{Limit: 2, Window: time.Minute}
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: exampleStore(), Key: ratelimit.ClientIP(),
		Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{rule}}},
	})
	if err != nil {
		return
	}
	rule.Limit = 99
	wantHeaders(t, get(limiter.Handler(ok), "/").Header, "X-RateLimit-Limit", "2")
}

// One request through the whole middleware with all its headers. The bound is what it
// takes today; it may fall, and rise only with a reason.
func TestAllocationsOfARequest(t *testing.T) {
	if info, found := debug.ReadBuildInfo(); found {
		for _, s := range info.Settings {
			if s.Key == "-race" && s.Value == "true" {
				t.Skip("sync.Pool drops at random under the race detector")
			}
		}
	}
	for _, tc := range []struct {
		name   string
		config ratelimit.Config
		most   float64
	}{
		{"one policy", ratelimit.Config{}, 2},
		{"a route of two", ratelimit.Config{
			Policies: []ratelimit.Policy{policy("api", 1e9), policy("read", 1e9)},
			Routes:   ratelimit.Routes{"GET /items/{id}": {"api", "read"}}, Default: "read",
		}, 4},
		{"one policy, with a draft's fields", ratelimit.Config{Headers: ratelimit.Headers{Draft: ratelimit.Draft8}}, 6},
	} {
		if tc.config.Policies == nil {
			tc.config.Policies = []ratelimit.Policy{policy("api", 1e9)}
		}
		tc.config.Store = memstore.New(memstore.Config{})
		h := build(t, tc.config).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		r := newRequest("GET", "/items/1", peer)
		w := headersOnly{}
		got := testing.AllocsPerRun(1000, func() { clear(w); h.ServeHTTP(w, r) })
		t.Logf("%s: %v allocations", tc.name, got)
		if got > tc.most {
			t.Errorf("%s: %v allocations, want at most %v", tc.name, got, tc.most)
		}
		if w.Header().Get("X-RateLimit-Limit") == "" {
			t.Errorf("%s: it wasn't counted", tc.name)
		}
	}
}

// headersOnly is a response writer that allocates nothing itself.
type headersOnly http.Header

func (w headersOnly) Header() http.Header       { return http.Header(w) }
func (headersOnly) Write(p []byte) (int, error) { return len(p), nil }
func (headersOnly) WriteHeader(int)             {}
