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

// Redis is killed under 5,000 requests a second. Nobody gets a 5xx, and once the breaker
// is open nobody waits for it.
func TestKill(t *testing.T) {
	const perKey = 500
	mixed := func(i int) string { // every second request is of one of ten keys
		if i%2 == 0 {
			return fmt.Sprintf("few%d", i/2%10)
		}
		return fmt.Sprintf("many%d", i*7919%200000)
	}
	for _, test := range []struct {
		name    string
		key     func(int) string
		options redis.Options
	}{
		{"few keys", keys(10), redis.Options{ContextTimeoutEnabled: true}},
		{"many keys", mixed, redis.Options{ContextTimeoutEnabled: true}},
		{"few keys, default client", keys(10), redis.Options{}},
		{"many keys, default client", mixed, redis.Options{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := redistest.Run(t)
			test.options.Addr = server.Addr
			before := runtime.NumGoroutine()
			client := redis.NewClient(&test.options)
			one := newInstance(t, client, ratelimit.Config{}, limit(perKey))
			load := (&load{instances: []*instance{one}, rate: 5000, key: test.key}).start()

			time.Sleep(time.Second)
			server.Stop()
			killed := time.Now()
			time.Sleep(2 * time.Second)
			up := time.Now()
			must(t, server.Restart(0))
			one.store.from(time.Now())
			time.Sleep(2500 * time.Millisecond)
			all := load.stop()
			opened := time.Unix(0, one.opened.Load())
			healed := one.store.healed()
			must(t, client.Close())

			beyond, worst := all.beyond(perKey)
			row{"kill -9: " + test.name, all, fmt.Sprintf("%d, %d of a key", beyond, worst), short(healed)}.add(t)
			open := all.between(opened.Add(time.Millisecond), up)
			row{"- while the breaker is open", open, "", ""}.add(t)
			row{"- from the kill until then", all.between(killed, opened.Add(time.Millisecond)), "", ""}.add(t)
			if n := one.downs.Load(); n == 0 {
				t.Error("the breaker never opened")
			}
			atMost(t, "5xx", all.fiveHundreds(), 0)
			within(t, "p99 added while the breaker is open", open.added(0.99), time.Millisecond)
			within(t, "worst added", all.added(1), 200*time.Millisecond)
			within(t, "first decision by Redis", healed, 2*time.Second)
			// One limit in Redis, one in the memory of the process, one in the empty Redis.
			atMost(t, "beyond the limit of a key", worst, 2*perKey)
			goroutinesBack(t, before)
		})
	}
}

// Redis stands still and holds its connections. Each of 200 requests at once is answered
// within twice the time-out, later ones at once, and nothing piles up.
func TestStop(t *testing.T) {
	for _, test := range []struct {
		name    string
		options redis.Options
	}{
		{"", redis.Options{ContextTimeoutEnabled: true}},
		{", default client", redis.Options{}},
	} {
		t.Run("SIGSTOP"+test.name, func(t *testing.T) {
			const timeout = 100 * time.Millisecond // the default of Config.Timeout
			server := redistest.Run(t)
			test.options.Addr = server.Addr
			client := redis.NewClient(&test.options)
			t.Cleanup(func() { _ = client.Close() })
			one := newInstance(t, client, ratelimit.Config{}, limit(1000))
			one.atOnce(50, keys(50)) // connections are there
			before := runtime.NumGoroutine()

			must(t, server.Pause())
			defer func() { _ = server.Resume() }()
			first := one.atOnce(200, keys(200))
			row{"SIGSTOP: 200 at once" + test.name, first, "", ""}.add(t)
			var later results
			for range 20 {
				later = append(later, one.atOnce(200, keys(200))...)
				time.Sleep(50 * time.Millisecond)
			}
			row{"- 200 at once, 20 times, later", later, "", ""}.add(t)
			atMost(t, "goroutines while it stands still", runtime.NumGoroutine(), before+10)
			atMost(t, "connections while it stands still", int(client.PoolStats().TotalConns), 10)

			must(t, server.Resume())
			one.store.from(time.Now())
			after := (&load{instances: []*instance{one}, rate: 500, key: keys(1000)}).run(2500 * time.Millisecond)
			healed := one.store.healed()
			row{"- SIGCONT", after, "", short(healed)}.add(t)

			all := append(append(first, later...), after...)
			atMost(t, "answers other than 200", len(all)-all.count(http.StatusOK), 0)
			within(t, "worst added at first", first.added(1), 2*timeout)
			within(t, "worst added later", later.added(1), timeout/2)
			within(t, "first decision by Redis", healed, 2*time.Second)
			goroutinesBack(t, before)
		})
	}
}

// Redis restarts with empty data under load, three times. Each time a key gets at most
// its limit anew, and then the limit holds again. Under FailLocal the process adds at
// most one limit of its own, however often Redis is away within a window.
func TestRestartWithEmptyData(t *testing.T) {
	const perKey, users, restarts = 1000, 4, 3
	for _, test := range []struct {
		mode  ratelimit.FailureMode
		local int
	}{
		{ratelimit.FailClosed, 0},
		{ratelimit.FailLocal, perKey},
	} {
		t.Run(test.mode.String(), func(t *testing.T) {
			server := redistest.Run(t)
			client := connect(t, server.Addr)
			one := newInstance(t, client, ratelimit.Config{Failure: test.mode}, limit(perKey))
			load := (&load{instances: []*instance{one}, rate: 3000, key: keys(users)}).start()
			var healed time.Duration
			for range restarts {
				time.Sleep(1500 * time.Millisecond)
				must(t, server.Restart(100*time.Millisecond))
				one.store.from(time.Now())
				redistest.Eventually(t, "Redis decides", func() bool { return one.store.healed() >= 0 })
				healed = max(healed, one.store.healed())
			}
			time.Sleep(3 * time.Second)
			end := time.Now()
			all := load.stop()

			beyond, worst := all.beyond(perKey)
			row{fmt.Sprintf("%d restarts with empty data, %v", restarts, test.mode), all, fmt.Sprintf("%d, %d of a key", beyond, worst), short(healed)}.add(t)
			atMost(t, "beyond the limit of a key", worst, restarts*perKey+test.local)
			last := all.between(end.Add(-500*time.Millisecond), end)
			if n := last.count(http.StatusTooManyRequests); n != len(last) || n == 0 {
				t.Errorf("the limit holds again: %s, want 429 only", last.statuses())
			}
			if test.mode == ratelimit.FailLocal {
				atMost(t, "5xx", all.fiveHundreds(), 0)
			}
			within(t, "first decision by Redis", healed, 2*time.Second)
			everyKeyExpires(t, client)
		})
	}
}
