package ratelimit_test

import (
	"bufio"
	"context"
	"errors"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
)

// remaining asks the limiter where the one peer stands.
func remaining(t *testing.T, l *ratelimit.Limiter, policy string) int64 {
	t.Helper()
	d, err := l.Peek(context.Background(), ratelimit.Key{Kind: "ip", ID: "203.0.113.9"}, policy)
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

func TestHandlerLearnsWhatWasDecided(t *testing.T) {
	l := build(t, ratelimit.Config{Key: ratelimit.APIKey(func(context.Context, string) (ratelimit.Key, error) {
		return ratelimit.Key{ID: "alice", Tier: "free"}, nil
	})})
	var got ratelimit.Admission
	var found bool
	h := l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got, found = ratelimit.FromContext(r.Context()) }))
	get(h, "/", "X-API-Key", "k")
	if !found || got.Key != (ratelimit.Key{Kind: "key", ID: "alice", Tier: "free"}) || got.Policy != "api" || got.Decision.Remaining != 1 {
		t.Errorf("FromContext: %+v, %v", got, found)
	}
	away := build(t, ratelimit.Config{Store: newFaulty(isAway), Failure: ratelimit.FailOpen})
	get(away.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, found = ratelimit.FromContext(r.Context()) })), "/")
	if found {
		t.Error("FromContext found a decision that nobody made")
	}
	if _, found := ratelimit.FromContext(context.Background()); found {
		t.Error("FromContext found something in a context of no request")
	}
}

func TestHandlerChargesAndRefundsWhatItCostInTheEnd(t *testing.T) {
	l := build(t, ratelimit.Config{
		Policies: []ratelimit.Policy{policy("read", 100), {Name: "query", Quota: "read", Cost: 2}, policy("day", 1000)},
		Routes:   ratelimit.Routes{"/": {"read", "query", "day"}},
		Default:  "read",
	})
	for _, step := range []struct {
		name        string
		call        func(context.Context) error
		read, day   int64
		wantFailure bool
	}{
		{"nothing", func(context.Context) error { return nil }, 97, 999, false},
		{"charge all: a shared counter once", func(ctx context.Context) error { return ratelimit.Charge(ctx, 10) }, 84, 988, false},
		{"charge one", func(ctx context.Context) error { return ratelimit.Charge(ctx, 7, "day") }, 81, 980, false},
		{"refund one", func(ctx context.Context) error { return ratelimit.Refund(ctx, 3, "query") }, 81, 979, false},
		{"a policy it wasn't charged under", func(ctx context.Context) error { return ratelimit.Charge(ctx, 1, "other") }, 78, 978, true},
		{"a negative charge", func(ctx context.Context) error { return ratelimit.Charge(ctx, -1) }, 75, 977, true},
	} {
		var err error
		get(l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { err = step.call(r.Context()) })), "/")
		if read, day := remaining(t, l, "read"), remaining(t, l, "day"); read != step.read || day != step.day || (err != nil) != step.wantFailure {
			t.Errorf("%s: read %d, day %d left, error %v; want %d, %d, %v", step.name, read, day, err, step.read, step.day, step.wantFailure)
		}
	}
	var kept context.Context
	get(l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { kept = r.Context() })), "/")
	if err := ratelimit.Charge(kept, 1); err == nil {
		t.Error("Charge after the request was over returned no error")
	}
	if err := ratelimit.Charge(context.Background(), 1); err == nil {
		t.Error("Charge outside a request returned no error")
	}
}

func TestB83CountIf(t *testing.T) {
	failed := func(status int) bool { return status >= 400 }
	answers := map[string]http.HandlerFunc{
		"status":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"success":       func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) },
		"nothing":       func(http.ResponseWriter, *http.Request) {},
		"early hints":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); w.WriteHeader(403) },
		"panic":         func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"written, then": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); panic(http.ErrAbortHandler) },
		"hijacked": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		},
	}
	for name, counted := range map[string]bool{
		"status": true, "success": false, "nothing": false, "early hints": true, "panic": true, "written, then": true, "hijacked": false,
	} {
		l := build(t, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "login", Limits: perMinute(10), Cost: 2, CountIf: failed}}})
		func() {
			defer func() { _ = recover() }()
			l.Handler(answers[name]).ServeHTTP(hijackable{httptest.NewRecorder()}, newRequest("GET", "/", peer))
		}()
		want := int64(10)
		if counted {
			want = 8
		}
		if got := remaining(t, l, "login"); got != want {
			t.Errorf("%s: %d left, want %d", name, got, want)
		}
	}

	var codes = []int{200, 401, 200, 401, 200}
	l := build(t, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "login", Limits: perMinute(2), CountIf: failed}}})
	i := 0
	h := l.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(codes[i]); i++ }))
	wantStatuses(t, statuses(h, 5, func(int) *http.Request { return newRequest("POST", "/", peer) }), 200, 401, 200, 401, 429)
}

// A login that began in one window and succeeded in the next gives its unit back to the
// window it was taken from, not to the next one's guesses.
func TestCountIfAfterTheWindowHasTurned(t *testing.T) {
	for name, limit := range map[string]algorithms.Algorithm{
		"fixed window":           algorithms.FixedWindow{Limit: 10, Window: time.Minute},
		"sliding window counter": algorithms.SlidingWindowCounter{Limit: 10, Window: time.Minute},
		"sliding window log":     algorithms.SlidingWindowLog{Limit: 10, Window: time.Minute},
	} {
		c := newClock(exampleClock())
		l := build(t, ratelimit.Config{Store: c.Store(), Policies: []ratelimit.Policy{{
			Name: "login", Limits: ratelimit.Limits{limit}, CountIf: func(status int) bool { return status == http.StatusUnauthorized },
		}}})
		fail := l.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
		slow := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			c.Advance(time.Minute)
			get(fail, "/")
		}))
		get(slow, "/")
		if got := remaining(t, l, "login"); got != 9 {
			t.Errorf("%s: %d left after one failed login, want 9", name, got)
		}
	}
}

type hijackable struct{ *httptest.ResponseRecorder }

func (hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	here, there := net.Pipe()
	_ = there.Close()
	return here, nil, nil
}

func TestParallelFailingLoginsReachTheHandlerLimitTimes(t *testing.T) {
	l := build(t, ratelimit.Config{Policies: []ratelimit.Policy{{
		Name: "login", Limits: perMinute(5), CountIf: func(status int) bool { return status == http.StatusUnauthorized },
	}}})
	var reached atomic.Int64
	h := l.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reached.Add(1)
		time.Sleep(time.Millisecond)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	var wait sync.WaitGroup
	for range 100 {
		wait.Go(func() { send(h, newRequest("POST", "/login", peer)) })
	}
	wait.Wait()
	if reached.Load() != 5 {
		t.Errorf("%d of 100 parallel failing logins reached the handler, want exactly 5", reached.Load())
	}
}

func TestCostOfEachRequest(t *testing.T) {
	var failures atomic.Int64
	l := build(t, ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "api", Limits: perMinute(10), CostOf: func(r *http.Request) int64 { return r.ContentLength }}},
		Hooks:    ratelimit.Hooks{Failed: func(context.Context, ratelimit.Event) { failures.Add(1) }},
	})
	h := l.Handler(ok)
	for _, step := range []struct {
		cost      int64
		status    int
		remaining string
		retry     string
	}{{4, 200, "6", ""}, {0, 200, "6", ""}, {-1, 200, "5", ""}, {11, 429, "5", ""}, {6, 429, "5", "60"}} {
		r := newRequest("POST", "/", peer)
		r.ContentLength = step.cost
		resp := send(h, r)
		if resp.StatusCode != step.status {
			t.Errorf("cost %d: %d, want %d", step.cost, resp.StatusCode, step.status)
		}
		wantHeaders(t, resp.Header, "X-RateLimit-Remaining", step.remaining, "Retry-After", step.retry)
	}
	if failures.Load() != 1 {
		t.Errorf("%d failures reported, want 1 for the negative cost", failures.Load())
	}
}

// A cost that a client can choose must not wrap around into one that nobody pays.
func TestHugeCostsOfOneQuotaAreRefused(t *testing.T) {
	huge := func(*http.Request) int64 { return math.MaxInt64 }
	l := build(t, ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "a", Limits: perMinute(10), CostOf: huge}, {Name: "b", Quota: "a", CostOf: huge}},
		Routes:   ratelimit.Routes{"/": {"a", "b"}},
		Default:  "a",
	})
	resp := get(l.Handler(ok), "/")
	wantStatuses(t, []int{resp.StatusCode}, 429)
	wantHeaders(t, resp.Header, "X-RateLimit-Remaining", "10", "Retry-After", "")
}

func TestLimitsThatCanNotBeCountNothing(t *testing.T) {
	l := build(t, ratelimit.Config{
		Policies: []ratelimit.Policy{
			policy("api", 10),
			{Name: "own", Limits: perMinute(10), LimitsOf: func(context.Context, ratelimit.Key) (ratelimit.Limits, error) { return ratelimit.Limits{}, nil }},
		},
		Routes:  ratelimit.Routes{"/": {"api", "own"}},
		Default: "api",
	})
	resp := get(l.Handler(ok), "/")
	wantStatuses(t, []int{resp.StatusCode}, 429)
	wantHeaders(t, resp.Header, "X-RateLimit-Remaining", "0", "Retry-After", "")
	if reset := integer(t, resp.Header, "X-RateLimit-Reset"); reset < time.Now().Unix()-1 {
		t.Errorf("X-RateLimit-Reset is %d, before now", reset)
	}
	if got := remaining(t, l, "api"); got != 10 {
		t.Errorf("%d left of the other policy, want 10", got)
	}
}

func TestPolicyWithAKeyOfItsOwnIsABackstop(t *testing.T) {
	l := build(t, ratelimit.Config{
		Key: ratelimit.By("user", func(r *http.Request) string { return r.Header.Get("User") }),
		Policies: []ratelimit.Policy{
			policy("user", 3),
			{Name: "address", Limits: perMinute(5), Key: ratelimit.ClientIP()},
		},
		Routes:  ratelimit.Routes{"/": {"user", "address"}},
		Default: "user",
	})
	h := l.Handler(ok)
	users := []string{"ann", "ann", "ann", "ann", "ben", "ben", "ben"}
	wantStatuses(t, statuses(h, len(users), func(i int) *http.Request { return newRequest("GET", "/", peer, "User", users[i]) }),
		200, 200, 200, 429, 200, 200, 429)
	if d, _ := l.Peek(context.Background(), ratelimit.Key{Kind: "user", ID: "ben"}, "user"); d.Remaining != 1 {
		t.Errorf("ben has %d left, want 1: what the address refused is not counted", d.Remaining)
	}
}

func TestShadowNeverRefusesAndNeverShows(t *testing.T) {
	var would atomic.Int64
	l := build(t, ratelimit.Config{
		Policies: []ratelimit.Policy{policy("api", 6), {Name: "trial", Limits: perMinute(2), Shadow: true}},
		Routes:   ratelimit.Routes{"/": {"api", "trial"}, "/only": {"trial"}},
		Default:  "api",
		Hooks: ratelimit.Hooks{Refused: func(_ context.Context, e ratelimit.Event) {
			if e.Shadow && e.Policy == "trial" {
				would.Add(1)
			}
		}},
	})
	h := l.Handler(ok)
	for i := range 5 {
		resp := get(h, "/")
		wantHeaders(t, resp.Header, "X-RateLimit-Limit", "6")
		if resp.StatusCode != 200 {
			t.Errorf("B83 request %d: %d, want 200", i, resp.StatusCode)
		}
	}
	if would.Load() != 3 {
		t.Errorf("B83: %d would have been refused, want 3", would.Load())
	}
	resp := get(h, "/only")
	wantHeaders(t, resp.Header, noRateHeaders...)
}

// What a request on trial gives back is what it took: beside an enforced policy of the
// same counters its own part, and nothing if it was refused.
func TestShadowsGiveBackWhatTheyTook(t *testing.T) {
	isError := func(status int) bool { return status >= 400 }
	refund := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _ = ratelimit.Refund(r.Context(), 1) })
	served := 0
	errorFirst := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if served++; served == 1 {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	for _, tc := range []struct {
		name         string
		enforced     ratelimit.Policy
		trial        ratelimit.Policy
		handler      http.Handler
		api, onTrial int64
	}{
		{"the enforced one, of shared counters", ratelimit.Policy{CountIf: isError}, ratelimit.Policy{Quota: "api", Cost: 2}, ok, 4, 4},
		{"the one on trial, of shared counters", ratelimit.Policy{}, ratelimit.Policy{Quota: "api", Cost: 2, CountIf: isError}, ok, 7, 7},
		{"both, of shared counters", ratelimit.Policy{CountIf: isError}, ratelimit.Policy{Quota: "api", Cost: 2, CountIf: isError}, ok, 10, 10},
		{"the one on trial, refused the second time", ratelimit.Policy{}, ratelimit.Policy{Limits: perMinute(5), Cost: 3, CountIf: isError}, errorFirst, 7, 2},
		{"a refund, refused the second time", ratelimit.Policy{}, ratelimit.Policy{Limits: perMinute(5), Cost: 4}, refund, 10, 2},
	} {
		tc.enforced.Name, tc.enforced.Limits = "api", perMinute(10)
		tc.trial.Name, tc.trial.Shadow = "trial", true
		l := build(t, ratelimit.Config{
			Policies: []ratelimit.Policy{tc.enforced, tc.trial}, Routes: ratelimit.Routes{"/": {"api", "trial"}}, Default: "api",
		})
		for range 3 {
			get(l.Handler(tc.handler), "/")
		}
		if api, onTrial := remaining(t, l, "api"), remaining(t, l, "trial"); api != tc.api || onTrial != tc.onTrial {
			t.Errorf("%s: %d and %d left, want %d and %d", tc.name, api, onTrial, tc.api, tc.onTrial)
		}
	}
}

func TestTakeObeysShadowAndDisabled(t *testing.T) {
	var shadows atomic.Int64
	l := build(t, ratelimit.Config{
		Policies: []ratelimit.Policy{
			{Name: "trial", Limits: perMinute(1), Shadow: true},
			{Name: "off", Limits: perMinute(1), Disabled: true},
		},
		Default: "trial",
		Hooks: ratelimit.Hooks{Refused: func(_ context.Context, e ratelimit.Event) {
			if e.Shadow && e.Key == "user:ann" && e.Request == nil {
				shadows.Add(1)
			}
		}},
	})
	for range 3 {
		for _, name := range []string{"trial", "off"} {
			d, err := l.Take(context.Background(), ratelimit.Key{Kind: "user", ID: "ann"}, name)
			if err != nil || !d.Allowed || d.RetryAfter != 0 {
				t.Errorf("%s: %+v, %v; want it admitted", name, d, err)
			}
		}
	}
	if shadows.Load() != 2 {
		t.Errorf("%d refusals on trial were told, want 2", shadows.Load())
	}
}

func TestEnforcePercentGivesEachKeyOneFate(t *testing.T) {
	l := build(t, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "api", Limits: perMinute(1), EnforcePercent: 30}}})
	h := l.Handler(ok)
	refused := 0
	for i := range 200 {
		from := net.IPv4(10, 0, byte(i/250), byte(i%250)).String() + ":1"
		got := statuses(h, 4, func(int) *http.Request { return newRequest("GET", "/", from) })
		switch {
		case got[1] == 429 && got[2] == 429 && got[3] == 429:
			refused++
		case got[1] != 200 || got[2] != 200 || got[3] != 200:
			t.Errorf("%s has two fates: %v", from, got)
		}
	}
	if refused < 40 || refused > 80 {
		t.Errorf("enforced for %d of 200 keys, want about 60", refused)
	}
}

func TestPenaltyBlocksAKeyThatKeepsGoingOver(t *testing.T) {
	c := newClock(exampleClock())
	l := build(t, ratelimit.Config{Store: c.Store(), Policies: []ratelimit.Policy{{
		Name: "api", Limits: ratelimit.Limits{algorithms.TokenBucket{Capacity: 2, Refill: 1, Per: time.Second}},
		Penalty: ratelimit.Penalty{Refusals: 3, Window: time.Minute, Block: time.Hour},
	}}})
	h := l.Handler(ok)
	wantStatuses(t, statuses(h, 5, func(int) *http.Request { return newRequest("GET", "/", peer) }), 200, 200, 429, 429, 429)
	c.Advance(30 * time.Minute)
	resp := get(h, "/")
	wantHeaders(t, resp.Header, "X-RateLimit-Limit", "2", "X-RateLimit-Remaining", "0", "Retry-After", "1800")
	c.Advance(30*time.Minute - time.Second)
	wantStatuses(t, statuses(h, 1, func(int) *http.Request { return newRequest("GET", "/", peer) }), 429)
	c.Advance(time.Second)
	resp = get(h, "/")
	wantHeaders(t, resp.Header, "X-RateLimit-Remaining", "1", "Retry-After", "")
	if err := l.Reset(context.Background(), ratelimit.Key{Kind: "ip", ID: "203.0.113.9"}, "api"); err != nil {
		t.Error(err)
	}
}

func TestLimitsOfSingleKeys(t *testing.T) {
	var asked, failures atomic.Int64
	l := build(t, ratelimit.Config{
		Key: ratelimit.By("tenant", func(r *http.Request) string { return r.Header.Get("Tenant") }),
		Policies: []ratelimit.Policy{{
			Name: "api", Limits: perMinute(2),
			LimitsOf: func(_ context.Context, key ratelimit.Key) (ratelimit.Limits, error) {
				asked.Add(1)
				switch key.ID {
				case "big":
					return perMinute(4), nil
				case "zero":
					return perMinute(0), nil
				case "lost":
					return nil, errors.New("database away")
				}
				return nil, nil
			},
		}},
		Hooks: ratelimit.Hooks{Failed: func(context.Context, ratelimit.Event) { failures.Add(1) }},
	})
	h := l.Handler(ok)
	for tenant, want := range map[string][]int{"big": passThen(4, 1), "small": passThen(2, 3), "zero": passThen(0, 3), "lost": passThen(2, 1)} {
		asked.Store(0)
		failures.Store(0)
		wantStatuses(t, statuses(h, len(want), func(int) *http.Request { return newRequest("GET", "/", peer, "Tenant", tenant) }), want...)
		if tenant == "lost" {
			continue // an error is not remembered
		}
		if asked.Load() != 1 {
			t.Errorf("%s: asked %d times, want once", tenant, asked.Load())
		}
		if reported := failures.Load() > 0; reported != (tenant == "zero") {
			t.Errorf("%s (B50): %d failures reported", tenant, failures.Load())
		}
	}
}

func TestDenyAndPreflights(t *testing.T) {
	denied := func(r *http.Request) bool { return r.Header.Get("X-Bad") != "" }
	preflight := []string{"Origin", "https://app.example", "Access-Control-Request-Method", "GET"}
	l := build(t, ratelimit.Config{Deny: denied, Policies: []ratelimit.Policy{policy("api", 2)}})
	h := l.Handler(ok)
	resp := get(h, "/", "X-Bad", "1")
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("denied: %d, want 403", resp.StatusCode)
	}
	wantHeaders(t, resp.Header, append(noRateHeaders, "Retry-After", "")...)
	for range 5 {
		resp := send(h, newRequest("OPTIONS", "/", peer, preflight...))
		wantHeaders(t, resp.Header, noRateHeaders...)
	}
	resp = send(h, newRequest("OPTIONS", "/", peer))
	wantHeaders(t, resp.Header, "X-RateLimit-Remaining", "1")

	counting := build(t, ratelimit.Config{CountPreflights: true})
	resp = send(counting.Handler(ok), newRequest("OPTIONS", "/", peer, preflight...))
	wantHeaders(t, resp.Header, "X-RateLimit-Remaining", "1")
}

func TestUpdateKeepsWhatClientsHaveUsed(t *testing.T) {
	c := newClock(exampleClock())
	l := build(t, ratelimit.Config{
		Store:    c.Store(),
		Policies: []ratelimit.Policy{policy("api", 10), policy("export", 5)},
		Routes:   ratelimit.Routes{"GET /x": {"api"}},
		Default:  "api",
	})
	h, export := l.Handler(ok), l.For("export")(ok)
	for range 10 {
		get(h, "/")
	}
	get(export, "/")
	if err := l.Update([]ratelimit.Policy{policy("api", 20), policy("export", 7)}); err != nil {
		t.Fatal(err)
	}
	resp := get(h, "/")
	wantHeaders(t, resp.Header, "X-RateLimit-Limit", "20", "X-RateLimit-Remaining", "9")
	resp = get(export, "/")
	wantHeaders(t, resp.Header, "X-RateLimit-Limit", "7", "X-RateLimit-Remaining", "5")

	for name, policies := range map[string][]ratelimit.Policy{
		"a route's policy is gone": {policy("export", 7)},
		"For's policy is gone":     {policy("api", 20)},
		"a limit can't be":         {policy("api", 0), policy("export", 7)},
	} {
		if err := l.Update(policies); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	resp = get(h, "/")
	wantHeaders(t, resp.Header, "X-RateLimit-Limit", "20", "X-RateLimit-Remaining", "8")

	off := policy("api", 20)
	off.Disabled = true
	if err := l.Update([]ratelimit.Policy{off, policy("export", 7)}); err != nil {
		t.Fatal(err)
	}
	resp = get(h, "/")
	wantHeaders(t, resp.Header, noRateHeaders...)
}

func TestUpdateUnderLoadDecidesEachRequestByOneSet(t *testing.T) {
	small := []ratelimit.Policy{policy("api", 10), {Name: "twin", Quota: "api"}}
	large := []ratelimit.Policy{policy("api", 1000), {Name: "twin", Quota: "api"}}
	l := build(t, ratelimit.Config{Policies: small, Routes: ratelimit.Routes{"/": {"api", "twin"}}, Default: "api"})
	h := l.Handler(ok)
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for range 300 {
				if limit := get(h, "/").Header.Get("X-RateLimit-Limit"); limit != "10" && limit != "1000" {
					t.Errorf("limit %q", limit)
				}
			}
		})
	}
	for i := range 200 {
		policies := small
		if i%2 == 0 {
			policies = large
		}
		if err := l.Update(policies); err != nil {
			t.Error(err)
		}
	}
	wait.Wait()
}
