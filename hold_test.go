package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
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

// tenASecond is a queue that drains a unit every 100 ms.
func tenASecond(capacity int64) ratelimit.Limits {
	return ratelimit.Limits{algorithms.LeakyBucket{Capacity: capacity, Rate: 10, Per: time.Second}}
}

// events are what happened in a bubble of synctest, each with how many milliseconds after
// its begin.
type events struct {
	begin time.Time
	mu    sync.Mutex
	all   []string
}

func newEvents() *events { return &events{begin: time.Now()} }

func (e *events) note(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, fmt.Sprintf(format, args...)+fmt.Sprintf("@%d", time.Since(e.begin).Milliseconds()))
}

// want waits until all that is under way is over.
func (e *events) want(t *testing.T, want string) {
	t.Helper()
	time.Sleep(time.Minute)
	synctest.Wait()
	if got := strings.Join(e.all, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// arrivals are requests to a handler, each served on a goroutine of its own.
type arrivals struct {
	*events
	handler http.Handler
	ctx     map[string]context.CancelFunc
}

// newArrivals is around a limiter: "name@ms" is when a request reaches its handler,
// "name=status@ms" how one is answered that doesn't.
func newArrivals(limiter *ratelimit.Limiter) *arrivals {
	a := &arrivals{events: newEvents(), ctx: make(map[string]context.CancelFunc)}
	a.handler = limiter.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		a.note("%s", r.Header.Get("Name"))
	}))
	return a
}

// arrive sends a request from the peer, with header names and values in turn.
func (a *arrivals) arrive(name string, header ...string) {
	ctx, cancel := context.WithCancel(context.Background())
	a.ctx[name] = cancel
	a.send(ctx, "/", name, header...)
}

func (a *arrivals) arriveAt(target, name string) { a.send(context.Background(), target, name) }

func (a *arrivals) send(ctx context.Context, target, name string, header ...string) {
	r := newRequest("GET", target, peer, append(header, "Name", name)...).WithContext(ctx)
	w := httptest.NewRecorder()
	go func() {
		a.handler.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			a.note("%s=%d(%s)", name, w.Code, w.Header().Get("Retry-After"))
		}
	}()
	synctest.Wait()
}

// leave ends the context of a request, as when its client goes away.
func (a *arrivals) leave(name string) {
	a.ctx[name]()
	synctest.Wait()
}

func TestDelayHoldsARequestUntilItsTurn(t *testing.T) {
	delays := func(capacity int64, maxWait time.Duration) ratelimit.Policy {
		return ratelimit.Policy{Name: "api", Limits: tenASecond(capacity), Action: ratelimit.Delay, MaxWait: maxWait}
	}
	units := func(r *http.Request) int64 { return int64(len(r.Header.Get("Units"))) }
	for _, tc := range []struct {
		name   string
		config ratelimit.Config
		do     func(a *arrivals)
		want   string
	}{
		{"an even stream, and 429 when the queue is full", one(delays(3, 0)), func(a *arrivals) {
			for i := range 5 {
				a.arrive(fmt.Sprint(i))
			}
		}, "0@0 3=429(1)@0 4=429(1)@0 1@100 2@200"},
		{"no later than MaxWait, rounded down to turns", one(delays(100, 250*time.Millisecond)), func(a *arrivals) {
			for i := range 4 {
				a.arrive(fmt.Sprint(i))
			}
			time.Sleep(60 * time.Millisecond)
			a.arrive("4") // its turn comes in 240 ms
			time.Sleep(40 * time.Millisecond)
			a.arrive("5")
		}, "0@0 3=429(1)@0 4=429(1)@60 1@100 2@200 5@300"},
		{"a burst passes at once, the rest is an even stream", one(ratelimit.Policy{Name: "api", Action: ratelimit.Delay, Limits: ratelimit.Limits{
			algorithms.LeakyBucket{Capacity: 5, Rate: 10, Per: time.Second, Burst: 2},
		}}), func(a *arrivals) {
			for i := range 6 {
				a.arrive(fmt.Sprint(i))
			}
			time.Sleep(450 * time.Millisecond)
			a.arrive("6")
			a.arrive("7")
			a.arrive("8")
		}, "0@0 1@0 2@0 5=429(1)@0 3@100 4@200 6@450 7@450 8@500"},
		{"no later than MaxWait, behind a burst", one(ratelimit.Policy{Name: "api", Action: ratelimit.Delay, MaxWait: 100 * time.Millisecond, Limits: ratelimit.Limits{
			algorithms.LeakyBucket{Capacity: 5, Rate: 10, Per: time.Second, Burst: 2},
		}}), func(a *arrivals) {
			for i := range 5 {
				a.arrive(fmt.Sprint(i))
			}
		}, "0@0 1@0 2@0 4=429(1)@0 3@100"},
		{"who comes when nobody is there passes", one(delays(3, 0)), func(a *arrivals) {
			a.arrive("a")
			time.Sleep(100 * time.Millisecond)
			a.arrive("b")
			time.Sleep(50 * time.Millisecond)
			a.arrive("c")
		}, "a@0 b@100 c@200"},
		{"what costs more keeps the next away longer", costs(delays(10, 0), units), func(a *arrivals) {
			a.arrive("a", "Units", "123")
			a.arrive("b", "Units", "1")
			a.arrive("free")
			a.arrive("c", "Units", "1")
		}, "a@0 free@0 b@300 c@400"},
		{"MaxWait is of the wait, whatever the cost", costs(delays(10, 200*time.Millisecond), units), func(a *arrivals) {
			a.arrive("a", "Units", "12")
			a.arrive("b", "Units", "12345")
			a.arrive("c", "Units", "1")
		}, "a@0 c=429(1)@0 b@200"},
		{"a client that goes away", one(delays(10, 0)), func(a *arrivals) {
			for i := range 4 {
				a.arrive(fmt.Sprint(i))
			}
			time.Sleep(50 * time.Millisecond)
			a.leave("1")
		}, "0@0 1=503(1)@50 2@100 3@200"},
		{"a turn left behind is the next arrival's", one(delays(3, 0)), func(a *arrivals) {
			for i := range 3 {
				a.arrive(fmt.Sprint(i))
			}
			a.leave("1") // 2 moves up, and the queue is full for the store
			a.arrive("3")
			a.arrive("4")
		}, "0@0 1=503(1)@0 4=429(1)@0 2@100 3@200"},
		{"a turn left behind is within MaxWait", one(delays(100, 200*time.Millisecond)), func(a *arrivals) {
			for i := range 3 {
				a.arrive(fmt.Sprint(i))
			}
			a.leave("1")
			a.arrive("3")
		}, "0@0 1=503(1)@0 2@100 3@200"},
		{"a turn left behind stays when another limit refuses", ratelimit.Config{
			Policies: []ratelimit.Policy{delays(10, 0), {Name: "each", Limits: perMinute(1), Key: func(r *http.Request) (ratelimit.Key, error) {
				return ratelimit.Key{ID: r.Header.Get("Name")}, nil
			}}},
			Routes: ratelimit.Routes{"/": {"api", "each"}}, Default: "api",
		}, func(a *arrivals) {
			for i := range 3 {
				a.arrive(fmt.Sprint(i))
			}
			a.leave("2")
			a.arrive("1") // once too often
			a.arrive("3")
		}, "0@0 2=503(1)@0 1=429(60)@0 1@100 3@200"},
		{"a turn left behind that is later than MaxWait is not", ratelimit.Config{Policies: []ratelimit.Policy{
			{Name: "long", Limits: tenASecond(100), Action: ratelimit.Delay},
			{Name: "short", Quota: "long", Action: ratelimit.Delay, MaxWait: 200 * time.Millisecond},
		}, Routes: ratelimit.Routes{"/short": {"short"}}, Default: "long"}, func(a *arrivals) {
			for i := range 4 {
				a.arrive(fmt.Sprint(i))
			}
			a.leave("3")
			a.arriveAt("/short", "4")
			a.arrive("5")
		}, "0@0 3=503(1)@0 4=429(1)@0 1@100 2@200 5@300"},
		{"a deadline too early is known at once", one(delays(10, 0)), func(a *arrivals) {
			a.arrive("a")
			ctx, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
			time.AfterFunc(time.Minute, cancel)
			for i := range 3 {
				a.send(ctx, "/", fmt.Sprint(i))
			}
			a.arrive("b") // what was refused took nothing
		}, "a@0 2=429(1)@0 0@100 1@200 b@300"},
		{"beside a limit that refuses", ratelimit.Config{
			Policies: []ratelimit.Policy{delays(10, 0), policy("quota", 3)},
			Routes:   ratelimit.Routes{"/": {"quota", "api"}}, Default: "api",
		}, func(a *arrivals) {
			for i := range 5 {
				a.arrive(fmt.Sprint(i))
			}
			a.leave("2")
			a.arrive("5") // refused by the quota, it leaves the spare turn where it was
		}, "0@0 3=429(60)@0 4=429(60)@0 2=503(1)@0 5=429(60)@0 1@100"},
		{"what CountIf doesn't count is given back", ratelimit.Config{
			Policies: []ratelimit.Policy{delays(10, 0), {Name: "served", Limits: perMinute(2), CountIf: func(status int) bool { return status == 200 }}},
			Routes:   ratelimit.Routes{"/": {"api", "served"}}, Default: "api",
		}, func(a *arrivals) {
			a.arrive("0")
			a.arrive("1")
			a.leave("1")
			a.arrive("2")
			a.arrive("3")
		}, "0@0 1=503(1)@0 3=429(60)@0 2@100"},
		{"the latest of two turns", ratelimit.Config{
			Policies: []ratelimit.Policy{delays(10, 0), {
				Name: "all", Key: func(*http.Request) (ratelimit.Key, error) { return ratelimit.Key{ID: "all"}, nil },
				Limits: ratelimit.Limits{algorithms.LeakyBucket{Capacity: 10, Rate: 4, Per: time.Second}}, Action: ratelimit.Delay,
			}},
			Routes: ratelimit.Routes{"/": {"api", "all"}}, Default: "api",
		}, func(a *arrivals) {
			a.arrive("0")
			a.arrive("1")
			a.arrive("2")
			a.leave("1")
		}, "0@0 1=503(1)@0 2@250"},
		{"on trial it holds nothing", one(ratelimit.Policy{Name: "api", Limits: tenASecond(1), Action: ratelimit.Delay, Shadow: true}), func(a *arrivals) {
			a.arrive("0")
			a.arrive("1")
		}, "0@0 1@0"},
		{"while the store is away, by the limits in memory", ratelimit.Config{
			Store: newFaulty(isAway), Policies: []ratelimit.Policy{delays(2, 0)},
		}, func(a *arrivals) {
			for i := range 3 {
				a.arrive(fmt.Sprint(i))
			}
		}, "0@0 2=429(1)@0 1@100"},
		{"while the store is away, open", ratelimit.Config{
			Store: newFaulty(isAway), Policies: []ratelimit.Policy{delays(2, 0)}, Failure: ratelimit.FailOpen,
		}, func(a *arrivals) {
			a.arrive("0")
			a.arrive("1")
		}, "0@0 1@0"},
		{"while the store is away, closed", ratelimit.Config{
			Store: newFaulty(isAway), Policies: []ratelimit.Policy{delays(2, 0)}, Failure: ratelimit.FailClosed,
		}, func(a *arrivals) { a.arrive("0") }, "0=503(1)@0"},
		{"limits of a key that hand out no turns refuse", one(ratelimit.Policy{
			Name: "api", Limits: tenASecond(3), Action: ratelimit.Delay,
			LimitsOf: func(context.Context, ratelimit.Key) (ratelimit.Limits, error) { return perMinute(1), nil },
		}), func(a *arrivals) { a.arrive("0") }, "0=429()@0"},
		{"limits of a key that do", one(ratelimit.Policy{
			Name: "api", Limits: tenASecond(3), Action: ratelimit.Delay,
			LimitsOf: func(context.Context, ratelimit.Key) (ratelimit.Limits, error) { return tenASecond(2), nil },
		}), func(a *arrivals) {
			for i := range 3 {
				a.arrive(fmt.Sprint(i))
			}
		}, "0@0 2=429(1)@0 1@100"},
		{"no more wait than may", ratelimit.Config{MaxWaiting: 2, Policies: []ratelimit.Policy{delays(10, 0)}}, func(a *arrivals) {
			for i := range 5 {
				a.arrive(fmt.Sprint(i))
			}
			time.Sleep(101 * time.Millisecond)
			a.arrive("5") // the place of 1 is free, and 3 and 4 took no turn
		}, "0@0 3=429(1)@0 4=429(1)@0 1@100 2@200 5@300"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tc.config.Store == nil {
					tc.config.Store = memstore.New(memstore.Config{})
				}
				a := newArrivals(build(t, tc.config))
				tc.do(a)
				a.want(t, tc.want)
				for _, cancel := range a.ctx {
					cancel()
				}
			})
		})
	}
}

// one is a config of one policy.
func one(p ratelimit.Policy) ratelimit.Config {
	return ratelimit.Config{Policies: []ratelimit.Policy{p}}
}

func costs(p ratelimit.Policy, of func(*http.Request) int64) ratelimit.Config {
	p.CostOf = of
	return one(p)
}

// What an operator is told of a request that is held: the decision with its delay, and
// when it goes on or has left.
func TestHooksAreToldHowLongARequestWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := newEvents()
		limiter := build(t, ratelimit.Config{
			Store:    memstore.New(memstore.Config{}),
			Policies: []ratelimit.Policy{{Name: "api", Limits: tenASecond(3), Action: ratelimit.Delay}},
			Hooks: ratelimit.Hooks{
				Allowed: func(_ context.Context, e ratelimit.Event) { told.note("allowed %v", e.Decision.Delay) },
				Refused: func(_ context.Context, e ratelimit.Event) { told.note("refused") },
				Waited: func(_ context.Context, e ratelimit.Event) {
					told.note("%s under %s waited %v of %v (%v)", e.Key, e.Policy, e.Waited, e.Decision.Delay, e.Err)
				},
			},
		})
		a := newArrivals(limiter)
		for i := range 4 {
			a.arrive(fmt.Sprint(i))
		}
		if n := limiter.Waiting(); n != 2 {
			t.Errorf("%d wait, want 2", n)
		}
		a.leave("1")
		told.want(t, "allowed 0s@0 allowed 100ms@0 allowed 200ms@0 refused@0 "+
			"ip:203.0.113.9 under api waited 0s of 100ms (context canceled)@0 "+
			"ip:203.0.113.9 under api waited 100ms of 200ms (<nil>)@100")
		if n := limiter.Waiting(); n != 0 {
			t.Errorf("at the end %d wait", n)
		}
	})
}

// A context also ends at a deadline of the service's own, or as it shuts down, while the
// client listens.
func TestWhoIsHeldNoLongerIsToldSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := build(t, ratelimit.Config{
			Store:    memstore.New(memstore.Config{}),
			Policies: []ratelimit.Policy{{Name: "api", Limits: tenASecond(3), Action: ratelimit.Delay}},
		})
		h := limiter.Handler(ok)
		get(h, "/")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		resp := send(h, newRequest("GET", "/", peer, "Accept", "text/plain").WithContext(ctx))
		body, err := io.ReadAll(resp.Body)
		if want := "This request could not wait for its turn. Try again in 1 s.\n"; resp.StatusCode != 503 || string(body) != want || err != nil {
			t.Errorf("got %d %q (%v), want 503 %q", resp.StatusCode, body, err, want)
		}
		wantHeaders(t, resp.Header, "Retry-After", "1", "X-RateLimit-Limit", "3")
		time.Sleep(time.Second)
	})
}

// A limit reads the same whether the store hands out the turn, one was left behind, or too
// many wait to ask for one.
func TestHeadersSpeakOfTheQueueThatMaxWaitLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := build(t, ratelimit.Config{
			Store: memstore.New(memstore.Config{}), MaxWaiting: 2, Headers: ratelimit.Headers{Draft: ratelimit.Draft8},
			Policies: []ratelimit.Policy{{Name: "api", Limits: tenASecond(50), Action: ratelimit.Delay, MaxWait: 300 * time.Millisecond}},
		})
		a := newArrivals(limiter)
		announced := func(name, remaining string) {
			t.Helper()
			w := httptest.NewRecorder()
			go limiter.Handler(ok).ServeHTTP(w, newRequest("GET", "/", peer))
			synctest.Wait()
			h := w.Header()
			got := h.Get("X-RateLimit-Limit") + " " + h.Get("X-RateLimit-Remaining") + " " + h.Get("RateLimit-Policy")
			if want := "4 " + remaining + ` "api";q=4;w=1`; got != want {
				t.Errorf("%s: got %s, want %s", name, got, want)
			}
		}
		announced("at once", "3")
		announced("a turn of the store", "2")
		a.arrive("leaves")
		a.leave("leaves")
		announced("a turn left behind", "1")
		announced("one too many", "0")
		time.Sleep(time.Minute)
	})
}

// Who leaves the line is answered 503: what a policy with CountIf beside it took, and what
// is on trial, goes by that status. Leases end.
func TestWhoLeavesTheLineGivesBackWhatElseItTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := func(status int) func(int) bool { return func(got int) bool { return got == status } }
		limiter := build(t, ratelimit.Config{
			Store: memstore.New(memstore.Config{}),
			Policies: []ratelimit.Policy{
				{Name: "turns", Limits: tenASecond(5), Action: ratelimit.Delay},
				{Name: "login", Limits: perMinute(20), CountIf: at(401)},
				{Name: "errors", Limits: perMinute(20), CountIf: at(503)},
				{Name: "trial", Limits: perMinute(20), CountIf: at(401), Shadow: true},
				{Name: "flight", Limits: ratelimit.Limits{algorithms.Concurrency{Limit: 20, Lease: time.Minute}}},
			},
			Routes: ratelimit.Routes{"/": {"turns", "login", "errors", "trial", "flight"}}, Default: "turns",
		})
		want := func(when string, login, errors, trial, flight int64) {
			t.Helper()
			for policy, want := range map[string]int64{"login": login, "errors": errors, "trial": trial, "flight": flight} {
				if got := remaining(t, limiter, policy); got != want {
					t.Errorf("%s %d of %s left, want %d", when, got, policy, want)
				}
			}
		}
		a := newArrivals(limiter)
		a.arrive("0")
		want("after one that was served", 20, 20, 20, 20)
		a.arrive("1")
		want("while one waits", 19, 19, 20, 19)
		a.leave("1")
		want("after it left", 20, 19, 20, 20)
		time.Sleep(time.Second)
		a.leave("0")
	})
}

// net/http recovers what a hook panics with, so nothing may stay behind.
func TestAPanicOfAHookEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := build(t, ratelimit.Config{
			Store:    memstore.New(memstore.Config{}),
			Policies: []ratelimit.Policy{{Name: "api", Limits: tenASecond(5), Action: ratelimit.Delay}},
			Hooks: ratelimit.Hooks{Allowed: func(_ context.Context, e ratelimit.Event) {
				if e.Request.Header.Get("Name") == "1" {
					panic(http.ErrAbortHandler)
				}
			}},
		})
		a := newArrivals(limiter)
		handler := a.handler
		a.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { _ = recover() }()
			handler.ServeHTTP(w, r)
		})
		for i := range 3 {
			a.arrive(fmt.Sprint(i))
		}
		if n := limiter.Waiting(); n != 1 {
			t.Errorf("%d wait, want 1", n)
		}
		a.want(t, "0@0 2@100")
		for _, cancel := range a.ctx {
			cancel()
		}
	})
}

func TestAPanicOfAHookLeavesNothingTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := build(t, ratelimit.Config{
			Store:    memstore.New(memstore.Config{}),
			Policies: []ratelimit.Policy{{Name: "api", Limits: tenASecond(5)}, inFlight("jobs", 1, time.Minute)},
			Default:  "api",
			Hooks:    ratelimit.Hooks{Allowed: func(context.Context, ratelimit.Event) { panic(http.ErrAbortHandler) }},
		})
		for name, call := range map[string]func(){
			"Wait":    func() { _ = limiter.Wait(context.Background(), acme, "api") },
			"Acquire": func() { _, _ = limiter.Acquire(context.Background(), acme, "jobs") },
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s: the hook was not told", name)
					}
				}()
				call()
			}()
		}
		if n := limiter.Waiting(); n != 0 {
			t.Errorf("%d wait, want none", n)
		}
		if d, err := limiter.Peek(context.Background(), acme, "jobs"); err != nil || d.Remaining != 1 {
			t.Errorf("%d of jobs left, want 1 (%v)", d.Remaining, err)
		}
	})
}

// Beyond the bound a request is refused and leaves nothing behind.
func TestAHundredThousandBeyondTheBoundGrowNoMemory(t *testing.T) {
	const waiting, beyond = 500, 100_000
	for _, tc := range []struct {
		name string
		keys int
		from func(i int) string // the address of a client
		asks bool
	}{
		{"of the key that waits", 1, func(int) string { return "203.0.113.9:1" }, false},
		{"of a thousand keys that would have to", 1000, func(i int) string { return fmt.Sprintf("203.0.%d.%d:1", i%4, i/4%250) }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store := newCounting(memstore.New(memstore.Config{}))
			limiter := build(t, ratelimit.Config{
				Store:      store,
				MaxWaiting: waiting,
				// A turn an hour: none comes while the test runs.
				Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{algorithms.LeakyBucket{Capacity: 1e6, Rate: 1, Per: time.Hour}}, Action: ratelimit.Delay}},
			})
			h := limiter.Handler(ok)
			ctx, cancel := context.WithCancel(context.Background())
			var held sync.WaitGroup
			for i := range tc.keys { // the first of each passes
				send(h, newRequest("GET", "/", tc.from(i)))
			}
			for range waiting + 1 {
				held.Go(func() { send(h, newRequest("GET", "/", "203.0.113.9:1").WithContext(ctx)) })
			}
			for limiter.Waiting() < waiting {
				runtime.Gosched()
			}
			refuse := func(n int) (refused int) {
				for i := range n {
					w := &discard{header: make(http.Header)}
					h.ServeHTTP(w, newRequest("GET", "/", tc.from(i)))
					if w.header.Get("Retry-After") != "" {
						refused++
					}
				}
				return refused
			}
			refuse(1000) // what grows once
			asked, before := store.calls, heap()
			if refused := refuse(beyond); refused != beyond {
				t.Errorf("%d of %d were refused with Retry-After", refused, beyond)
			}
			grown := heap() - before
			t.Logf("%d refused: %+d bytes of heap", beyond, grown)
			if grown > 1<<18 {
				t.Errorf("%d refused requests left %d bytes behind", beyond, grown)
			}
			if asks := store.calls - asked; asks > 0 != tc.asks {
				t.Errorf("the store was asked %d times", asks)
			}
			cancel()
			held.Wait()
		})
	}
}

func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// A server that shuts down lets the requests it holds go at their turns.
func TestShutdownDrains(t *testing.T) {
	limiter := build(t, ratelimit.Config{
		Store:    memstore.New(memstore.Config{}),
		Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{algorithms.LeakyBucket{Capacity: 10, Rate: 10, Per: time.Second}}, Action: ratelimit.Delay}},
	})
	var reached hits
	server := httptest.NewServer(limiter.Handler(&reached))
	defer server.Close()
	const requests = 6
	statuses := make(chan int, requests)
	for range requests {
		go func() {
			resp, err := http.Get(server.URL)
			if err != nil {
				t.Error(err)
				statuses <- 0
				return
			}
			_ = resp.Body.Close()
			statuses <- resp.StatusCode
		}()
	}
	for limiter.Waiting()+int(reached.Load()) < requests {
		time.Sleep(time.Millisecond)
	}
	if limiter.Waiting() == 0 {
		t.Error("all have gone before the shutdown, on a machine this slow")
	}
	if err := server.Config.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if n := limiter.Waiting(); n != 0 {
		t.Errorf("%d wait after the shutdown", n)
	}
	var got []int
	for range requests {
		got = append(got, <-statuses)
	}
	slices.Sort(got)
	wantStatuses(t, got, slices.Repeat([]int{200}, requests)...)
	http.DefaultClient.CloseIdleConnections()
}

// A client that closes its connection is no longer held.
func TestAClientThatGoesAwayIsHeldNoLonger(t *testing.T) {
	var reached hits
	limiter := build(t, ratelimit.Config{
		Store:    memstore.New(memstore.Config{}),
		Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{algorithms.LeakyBucket{Capacity: 10, Rate: 1, Per: time.Minute}}, Action: ratelimit.Delay}},
	})
	server := httptest.NewUnstartedServer(limiter.Handler(&reached))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	defer server.Close()
	if a := request(t, "GET", server.URL); a.status != 200 {
		t.Fatalf("the first: %d", a.status)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		r, _ := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
		resp, err := http.DefaultClient.Do(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		done <- err
	}()
	for limiter.Waiting() < 1 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	for begin := time.Now(); limiter.Waiting() > 0; time.Sleep(time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatal("it is still held")
		}
	}
	if n := reached.Load(); n != 1 {
		t.Errorf("%d requests reached the handler, want the first", n)
	}
	http.DefaultClient.CloseIdleConnections()
}
