//go:build chaos

package chaos

import (
	"fmt"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
)

// The network between a service and Redis is cut, slow, half open or resets connections.
// Within the time-out Redis decides; beyond it the process does, and nobody waits longer.
func TestNetwork(t *testing.T) {
	const perKey, users, timeout = 1000, 200, 100 * time.Millisecond
	both := func(kind, attributes string) func(*testing.T, *proxy) {
		return func(t *testing.T, p *proxy) {
			p.poison(t, "upstream", kind, attributes)
			p.poison(t, "downstream", kind, attributes)
		}
	}
	cure := func(_ *testing.T, p *proxy) { p.cure() }
	for _, test := range []struct {
		name       string
		harm, heal func(*testing.T, *proxy)
		options    redis.Options
		local      float64       // the most of the requests that Redis doesn't decide meanwhile
		healsIn    time.Duration // the first decision by Redis
	}{
		{"network cut",
			func(_ *testing.T, p *proxy) { p.Stop() },
			func(t *testing.T, p *proxy) { must(t, p.Start()) },
			redis.Options{ContextTimeoutEnabled: true}, 1, 2 * time.Second},
		{"latency 20 ms",
			func(t *testing.T, p *proxy) { p.poison(t, "downstream", "latency", `{"latency": 20}`) },
			cure, redis.Options{ContextTimeoutEnabled: true}, 0, 2 * time.Second},
		// A decision that leaves with the next round trip takes up to two of them, which
		// here is the whole time-out.
		{"latency 50 ms",
			func(t *testing.T, p *proxy) { p.poison(t, "downstream", "latency", `{"latency": 50}`) },
			cure, redis.Options{ContextTimeoutEnabled: true}, 0.2, 2 * time.Second},
		{"latency 500 ms",
			func(t *testing.T, p *proxy) { p.poison(t, "downstream", "latency", `{"latency": 500}`) },
			cure, redis.Options{ContextTimeoutEnabled: true}, 1, 2 * time.Second},
		{"half-open connections", both("timeout", `{"timeout": 0}`),
			cure, redis.Options{ContextTimeoutEnabled: true}, 1, 2 * time.Second},
		// A client that ignores deadlines holds a dead connection for its ReadTimeout. What
		// Store.Warnings tells is how to mend it; 1 s is the most that it says nothing of.
		{"half-open connections, ReadTimeout 1 s", both("timeout", `{"timeout": 0}`),
			cure, redis.Options{ReadTimeout: time.Second}, 1, 3 * time.Second},
		{"connections reset", both("reset_peer", `{"timeout": 0}`),
			cure, redis.Options{ContextTimeoutEnabled: true}, 1, 2 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := redistest.Run(t)
			before := runtime.NumGoroutine()
			p := newProxy(t, server.Addr)
			test.options.Addr = p.Listen
			client := redis.NewClient(&test.options)
			one := newInstance(t, client, ratelimit.Config{}, limit(perKey))
			load := (&load{instances: []*instance{one}, rate: 2000, key: keys(users)}).start()
			time.Sleep(time.Second)

			failures := one.failures.Load()
			harmed := time.Now()
			test.harm(t, p)
			time.Sleep(2 * time.Second)
			cured := time.Now()
			connections := int(client.PoolStats().TotalConns)
			test.heal(t, p)
			one.store.from(time.Now())
			time.Sleep(3 * time.Second)
			all := load.stop()
			failures = one.failures.Load() - failures
			healed := one.store.healed()
			must(t, client.Close())
			p.Stop()

			_, worst := all.beyond(perKey)
			during := all.between(harmed, cured)
			row{test.name, all, fmt.Sprintf("%d of a key", max(0, worst)), short(healed)}.add(t)
			row{"- meanwhile", during, "", ""}.add(t)
			atMost(t, "answers other than 200", len(all)-all.count(http.StatusOK), 0)
			within(t, "worst added", all.added(1), 2*timeout)
			if test.local < 1 {
				atMost(t, "decisions without Redis", int(failures), int(test.local*float64(len(during))))
			} else {
				if failures == 0 {
					t.Error("nothing failed: the network was never harmed")
				}
				// The first ones wait for the time-out, later ones for nothing.
				within(t, "median added meanwhile", during.added(0.5), time.Millisecond)
			}
			atMost(t, "connections at the end of it", connections, 20)
			within(t, "first decision by Redis", healed, test.healsIn)
			goroutinesBack(t, before)
		})
	}
}

// B76: more callers than connections. With two connections and a Redis that takes 20 ms,
// each of 500 requests at once is answered soon, and who finds no connection in time is
// answered as the failure mode says.
func TestB76_PoolExhausted(t *testing.T) {
	const users, timeout = 500, 100 * time.Millisecond
	for _, test := range []struct {
		mode  ratelimit.FailureMode
		delay int // milliseconds that Redis takes
	}{
		{ratelimit.FailLocal, 20},
		{ratelimit.FailClosed, 20},
		{ratelimit.FailOpen, 20},
		{ratelimit.FailLocal, 65}, // two round trips don't fit the time-out
		{ratelimit.FailClosed, 65},
		{ratelimit.FailOpen, 65},
	} {
		name := fmt.Sprintf("B76: 500 at once, 2 connections, Redis %d ms, %v", test.delay, test.mode)
		t.Run(name, func(t *testing.T) {
			server := redistest.Run(t)
			p := newProxy(t, server.Addr)
			client := redis.NewClient(&redis.Options{Addr: p.Listen, PoolSize: 2, ContextTimeoutEnabled: true})
			t.Cleanup(func() { _ = client.Close() })
			one := newInstance(t, client, ratelimit.Config{Failure: test.mode, Timeout: timeout}, limit(1000))
			one.atOnce(50, keys(50)) // connections are there, the scripts too
			if n := one.failures.Load(); n > 0 {
				t.Fatalf("%d failures before the latency", n)
			}
			decided := one.store.decided

			p.poison(t, "downstream", "latency", fmt.Sprintf(`{"latency": %d}`, test.delay))
			all := one.atOnce(users, keys(users))
			decided = one.store.decided - decided
			failed := int(one.failures.Load())
			row{name, all, "", ""}.add(t)
			t.Logf("%d decided by Redis, %d by the failure mode", decided, failed)

			within(t, "worst added", all.added(1), 300*time.Millisecond)
			if decided+failed != users {
				t.Errorf("%d + %d answers, want %d", decided, failed, users)
			}
			if test.delay == 65 && (decided == 0 || failed == 0) {
				t.Error("want some decided by Redis and some by the failure mode")
			}
			closed := 0
			if test.mode == ratelimit.FailClosed {
				closed = failed
			}
			if all.count(http.StatusServiceUnavailable) != closed || all.count(http.StatusOK) != users-closed {
				t.Errorf("answers %s, want 503 for %d and 200 for the others", all.statuses(), closed)
			}
			atMost(t, "connections", int(client.PoolStats().TotalConns), 2)
		})
	}
}
