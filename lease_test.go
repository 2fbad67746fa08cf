package ratelimit_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
	"github.com/seed-601ed181/ratelimit/memstore"
	"github.com/seed-601ed181/ratelimit/redisstore"
)

// inFlight is a policy of so many at once.
func inFlight(name string, limit int64, lease time.Duration) ratelimit.Policy {
	return ratelimit.Policy{Name: name, Limits: ratelimit.Limits{algorithms.Concurrency{Limit: limit, Lease: lease}}}
}

// redisOf is a store on the server, with a client of its own as another process has.
func redisOf(t testing.TB, addr string) ratelimit.Store {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return redisstore.New(client)
}

// onBothStores runs the test with stores that share their counters, in memory and on a
// real server.
func onBothStores(t *testing.T, test func(t *testing.T, open func() ratelimit.Store)) {
	t.Run("memory", func(t *testing.T) {
		store := memstore.New(memstore.Config{})
		test(t, func() ratelimit.Store { return store })
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.Run(t)
		test(t, func() ratelimit.Store { return redisOf(t, server.Addr) })
	})
}

// wantFree compares what is left of the policy for the key of the peer.
func wantFree(t *testing.T, limiter *ratelimit.Limiter, policy string, want int64) {
	t.Helper()
	d, err := limiter.Peek(context.Background(), peerKey, policy)
	if err != nil || d.Remaining != want {
		t.Errorf("%d units of %q are free (%v), want %d", d.Remaining, policy, err, want)
	}
}

var peerKey = ratelimit.Key{Kind: "ip", ID: "203.0.113.9"}

// A hundred clients at three instances ask until they are served: no more than ten are at
// once, and in the end nothing is held.
func TestNeverMoreInFlightThanTheLimit(t *testing.T) {
	onBothStores(t, func(t *testing.T, open func() ratelimit.Store) {
		const clients, limit = 100, 10
		var flying, most, refused atomic.Int64
		work := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			now := flying.Add(1)
			for {
				if was := most.Load(); now <= was || most.CompareAndSwap(was, now) {
					break
				}
			}
			time.Sleep(5 * time.Millisecond)
			flying.Add(-1)
		})
		var handlers []http.Handler
		var limiter *ratelimit.Limiter
		for range 3 {
			limiter = build(t, ratelimit.Config{
				Store: open(), Failure: ratelimit.FailClosed, Timeout: 5 * time.Second,
				Policies: []ratelimit.Policy{inFlight("api", limit, time.Minute)},
			})
			handlers = append(handlers, limiter.Handler(work))
		}
		var wait sync.WaitGroup
		for i := range clients {
			wait.Go(func() {
				for {
					switch resp := get(handlers[i%len(handlers)], "/"); resp.StatusCode {
					case http.StatusOK:
						return
					case http.StatusTooManyRequests:
						refused.Add(1)
						time.Sleep(2 * time.Millisecond)
					default:
						t.Errorf("client %d: %d", i, resp.StatusCode)
						return
					}
				}
			})
		}
		wait.Wait()
		if most.Load() != limit || refused.Load() == 0 {
			t.Errorf("%d at once with %d refusals, want %d at most and at times", most.Load(), refused.Load(), limit)
		}
		wantFree(t, limiter, "api", limit)
	})
}

// However a request ends, its lease goes back with it.
func TestALeaseEndsWithItsRequest(t *testing.T) {
	onBothStores(t, func(t *testing.T, open func() ratelimit.Store) {
		limiter := build(t, ratelimit.Config{Store: open(), Policies: []ratelimit.Policy{inFlight("api", 3, time.Minute)}})
		inside := func(t *testing.T) { t.Helper(); wantFree(t, limiter, "api", 2) }
		for name, handler := range map[string]http.HandlerFunc{
			"it returns": func(http.ResponseWriter, *http.Request) { inside(t) },
			"it panics":  func(http.ResponseWriter, *http.Request) { inside(t); panic(http.ErrAbortHandler) },
			"its client leaves": func(w http.ResponseWriter, r *http.Request) {
				inside(t)
				w.Header().Set("Left", "now")
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			},
			"it takes the connection over": func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				inside(t)
				_ = conn.Close()
			},
		} {
			t.Run(name, func(t *testing.T) {
				over := make(chan struct{})
				h := limiter.Handler(handler)
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer close(over)
					r.RemoteAddr = peer
					h.ServeHTTP(w, r)
				}))
				defer server.Close()
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				r, err := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
				if err != nil {
					t.Fatal(err)
				}
				if resp, err := server.Client().Do(r); err == nil {
					leave()
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				<-over
				wantFree(t, limiter, "api", 3)
			})
		}
	})
}

// A handler that runs longer than the lease goes on being counted, and not twice.
func TestALongRequestKeepsItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := build(t, ratelimit.Config{
			Store:    memstore.New(memstore.Config{}),
			Policies: []ratelimit.Policy{inFlight("api", 3, 10*time.Second)},
		})
		var wait sync.WaitGroup
		wait.Go(func() {
			get(limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(time.Minute) })), "/")
		})
		for range 59 {
			time.Sleep(time.Second)
			synctest.Wait()
			wantFree(t, limiter, "api", 2)
		}
		wait.Wait()
		wantFree(t, limiter, "api", 3)
	})
}

// A request that is held until its turn is in flight meanwhile, however long that is.
func TestARequestKeepsItsLeaseInTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := build(t, ratelimit.Config{
			Store: memstore.New(memstore.Config{}),
			Policies: []ratelimit.Policy{
				inFlight("api", 3, time.Second),
				{Name: "turns", Limits: ratelimit.Limits{algorithms.LeakyBucket{Capacity: 9, Rate: 1, Per: 10 * time.Second}}, Action: ratelimit.Delay},
			},
			Routes: ratelimit.Routes{"/": {"api", "turns"}}, Default: "api",
		})
		a := newArrivals(limiter)
		for i := range 4 {
			a.arrive(fmt.Sprint(i))
		}
		for range 9 {
			time.Sleep(time.Second)
			wantFree(t, limiter, "api", 0)
		}
		a.leave("3")
		wantFree(t, limiter, "api", 1)
		a.want(t, "0@0 3=503(1)@9000 1@10000 2@20000")
		wantFree(t, limiter, "api", 3)
		for _, cancel := range a.ctx {
			cancel()
		}
	})
}

// late is a store whose every second answer comes after some time.
type late struct {
	ratelimit.Store
	by    time.Duration
	takes atomic.Int64
}

func (s *late) Take(ctx context.Context, charges []algorithms.Charge, decisions []ratelimit.Decision) error {
	err := s.Store.Take(ctx, charges, decisions)
	if s.takes.Add(1)%2 == 0 {
		time.Sleep(s.by)
	}
	return err
}

// A request that ends while its lease is being renewed leaves nothing behind.
func TestALeaseReleasedDuringItsRenewalIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := build(t, ratelimit.Config{
			Store: &late{Store: memstore.New(memstore.Config{}), by: 2 * time.Second}, Timeout: 5 * time.Second,
			Policies: []ratelimit.Policy{inFlight("api", 3, 10*time.Second)},
		})
		lease, err := limiter.Acquire(t.Context(), peerKey, "api")
		if err != nil || !lease.Allowed {
			t.Fatal(lease, err)
		}
		time.Sleep(6 * time.Second) // the renewal of 5 s is under way
		lease.Release()
		wantFree(t, limiter, "api", 2)
		time.Sleep(time.Second)
		synctest.Wait()
		wantFree(t, limiter, "api", 3)
	})
}

// A renewal that fails is tried again, and a lease that ended meanwhile comes back.
func TestALeaseOutlivesAStoreThatIsAway(t *testing.T) {
	for _, away := range []time.Duration{7 * time.Second, 25 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			store := &faulty{Store: memstore.New(memstore.Config{})}
			limiter := build(t, ratelimit.Config{
				Store: store, Failure: ratelimit.FailClosed,
				Policies: []ratelimit.Policy{inFlight("api", 3, 10*time.Second)},
			})
			lease, err := limiter.Acquire(t.Context(), peerKey, "api")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			fault := isAway
			store.fault.Store(&fault)
			time.Sleep(away)
			store.heal()
			time.Sleep(11 * time.Second) // a renewal may find the breaker open, the next one doesn't
			synctest.Wait()
			wantFree(t, limiter, "api", 2)
			lease.Release()
			wantFree(t, limiter, "api", 3)
		})
	}
}

// holderEnv names the server to a copy of this program that holds leases until it is killed.
const holderEnv = "RATELIMIT_TEST_LEASE_HOLDER"

const holderLease = time.Second

func holderLimiter(t testing.TB, addr string) *ratelimit.Limiter {
	return build(t, ratelimit.Config{
		Store: redisOf(t, addr), Failure: ratelimit.FailClosed, Timeout: 5 * time.Second,
		Policies: []ratelimit.Policy{inFlight("api", 3, holderLease)},
	})
}

// A process that is killed frees what it held after the lease, and not as long as it lives.
func TestAKilledProcessFreesItsLeases(t *testing.T) {
	if addr := os.Getenv(holderEnv); addr != "" {
		limiter := holderLimiter(t, addr)
		for range 3 {
			if lease, err := limiter.Acquire(context.Background(), peerKey, "api"); err != nil || !lease.Allowed {
				t.Fatal(lease, err)
			}
		}
		fmt.Println("holding")
		select {}
	}

	server := redistest.Run(t)
	holder := exec.Command(os.Args[0], "-test.run=^TestAKilledProcessFreesItsLeases$")
	holder.Env = append(os.Environ(), holderEnv+"="+server.Addr)
	stdout, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Wait() }()
	defer func() { _ = holder.Process.Kill() }()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "holding\n" {
		t.Fatalf("the holder says %q (%v)", line, err)
	}

	limiter := holderLimiter(t, server.Addr)
	for range 5 {
		time.Sleep(holderLease / 2)
		wantFree(t, limiter, "api", 0)
	}
	killed := time.Now()
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for {
		d, err := limiter.Peek(context.Background(), peerKey, "api")
		if err != nil {
			t.Fatal(err)
		}
		if after := time.Since(killed); d.Remaining == 3 {
			t.Logf("free %v after the kill", after)
			return
		} else if after > holderLease+time.Second {
			t.Fatalf("%v after the kill of a holder with a lease of %v: %+v", after, holderLease, d)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// What a request costs it holds, of every policy; what it uses up of a rate stays used.
func TestLeasesBesideRates(t *testing.T) {
	store := memstore.New(memstore.Config{})
	both := ratelimit.Policy{Name: "both", Limits: append(perMinute(5), algorithms.Concurrency{Limit: 4, Lease: time.Minute})}
	export := ratelimit.Policy{Name: "export", Quota: "both", CostOf: func(r *http.Request) int64 { return int64(len(r.URL.Query().Get("n"))) }}
	failed := inFlight("failed", 9, time.Minute)
	failed.CountIf = func(status int) bool { return status != http.StatusOK }
	trial := inFlight("trial", 9, time.Minute)
	trial.Shadow = true
	limiter := build(t, ratelimit.Config{
		Store: store, Policies: []ratelimit.Policy{both, export, failed, trial},
		Routes: ratelimit.Routes{"/export": {"export", "failed", "trial"}}, Default: "both",
	})
	free := func(policy string, want int64) {
		t.Helper()
		key := algorithms.Charge{Key: "{ip:203.0.113.9}:" + policy, Algorithm: algorithms.Concurrency{Limit: 9, Lease: time.Minute}}
		var d [1]ratelimit.Decision
		if err := store.Peek(context.Background(), []algorithms.Charge{key}, d[:]); err != nil || d[0].Remaining != want {
			t.Errorf("%s: %d free (%v), want %d", policy, d[0].Remaining, err, want)
		}
	}
	status := 0
	h := limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		free("both", 6)
		free("failed", 8)
		free("trial", 8)
		if err := ratelimit.Refund(r.Context(), 1); err != nil {
			t.Error(err)
		}
		if err := ratelimit.Charge(r.Context(), 1, "failed"); err != nil {
			t.Error(err)
		}
		free("both", 6)
		free("failed", 8)
		w.WriteHeader(status)
	}))
	for _, status = range []int{http.StatusOK, http.StatusNotFound} {
		wantStatuses(t, []int{get(h, "/export?n=xxx").StatusCode}, status)
		free("both", 9)
		free("failed", 9)
		free("trial", 9)
	}
	wantStatuses(t, []int{get(h, "/export?n=xxx").StatusCode}, http.StatusTooManyRequests) // by the rate: nothing is held
	free("both", 9)
	free("failed", 9)
	free("trial", 9)
	// 2 x (3 - 1 refunded) of 5 are used up; the refused one used nothing.
	wantFree(t, limiter, "both", 1)
}

// While it admits, a limit on concurrency leaves the headers to a rate, whichever is
// further out; when it refuses, they speak of it, and of no reset.
func TestHeadersOfALimitOnConcurrency(t *testing.T) {
	busy, rate := inFlight("busy", 2, time.Minute), policy("rate", 100)
	one := policy("one", 100)
	one.Limits = append(one.Limits, busy.Limits...)
	stack := func(policies ...ratelimit.Policy) func(http.Handler) http.Handler {
		return func(h http.Handler) http.Handler {
			for _, p := range policies {
				h = build(t, ratelimit.Config{Policies: []ratelimit.Policy{p}}).Handler(h)
			}
			return h
		}
	}
	for name, limit := range map[string]func(http.Handler) http.Handler{
		"in one policy":    stack(one),
		"the rate outside": stack(busy, rate),
		"the rate inside":  stack(rate, busy),
	} {
		t.Run(name, func(t *testing.T) {
			var h http.Handler
			depth := 0
			h = limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				depth++
				second := depth == 2
				inner := get(h, "/")
				if second {
					wantStatuses(t, []int{inner.StatusCode}, http.StatusTooManyRequests)
					wantHeaders(t, inner.Header, "X-RateLimit-Limit", "2", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "", "Retry-After", "1")
				}
			}))
			resp := get(h, "/")
			wantStatuses(t, []int{resp.StatusCode}, http.StatusOK)
			wantHeaders(t, resp.Header, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "99")
			if resp.Header.Get("X-RateLimit-Reset") == "" {
				t.Error("no reset of the rate")
			}
		})
	}
	resp := get(stack(busy)(ok), "/")
	wantHeaders(t, resp.Header, "X-RateLimit-Limit", "2", "X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "", "Retry-After", "")
}

func TestAcquire(t *testing.T) {
	disabled := inFlight("disabled", 1, time.Minute)
	disabled.Disabled = true
	trial := inFlight("trial", 1, time.Minute)
	trial.Shadow = true
	limiter := build(t, ratelimit.Config{
		Default:  ratelimit.Unlimited,
		Policies: []ratelimit.Policy{inFlight("jobs", 2, time.Minute), policy("rate", 2), disabled, trial},
	})
	ctx, cancel := context.WithCancel(context.Background())
	acquire := func(policy string, allowed bool) *ratelimit.Lease {
		t.Helper()
		lease, err := limiter.Acquire(ctx, peerKey, policy)
		if err != nil || lease.Allowed != allowed {
			t.Fatalf("%s: %+v, %v; want allowed %t", policy, lease, err, allowed)
		}
		return lease
	}
	first, second, third := acquire("jobs", true), acquire("jobs", true), acquire("jobs", false)
	if third.RetryAfter != time.Second || third.Remaining != 0 || third.Decision.Lease != time.Minute {
		t.Errorf("refused: %+v", third.Decision)
	}
	third.Release() // holds nothing
	wantFree(t, limiter, "jobs", 0)
	cancel()
	first.Release()
	first.Release()
	wantFree(t, limiter, "jobs", 1)

	if err := limiter.Update([]ratelimit.Policy{inFlight("jobs", 2, time.Hour), policy("rate", 2), disabled, trial}); err != nil {
		t.Fatal(err)
	}
	wantFree(t, limiter, "jobs", 2) // another lease is another counter
	second.Release()
	if err := limiter.Update([]ratelimit.Policy{inFlight("jobs", 2, time.Minute), policy("rate", 2), disabled, trial}); err != nil {
		t.Fatal(err)
	}
	wantFree(t, limiter, "jobs", 2)

	ctx = context.Background()
	for range 2 {
		acquire("rate", true).Release()
		defer acquire("disabled", true).Release()
		defer acquire("trial", true).Release()
	}
	acquire("rate", false).Release() // a rate is used up
	if lease, err := limiter.Acquire(ctx, peerKey, "jobz"); err == nil || lease != nil {
		t.Errorf("a policy that isn't: %v, %v", lease, err)
	}
}
