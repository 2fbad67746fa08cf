//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
)

// 10,000 random keys a second cost no more memory than those of the time a counter lives,
// two windows, in Redis, and nothing in the process.
func TestRandomKeys(t *testing.T) {
	const rate, seconds = 10000, 8
	const window = time.Second
	ctx := context.Background()
	client := connect(t, redistest.Run(t).Addr)
	one := newInstance(t, client, ratelimit.Config{}, algorithms.SlidingWindowCounter{Limit: 10, Window: window})
	load := (&load{instances: []*instance{one}, rate: rate, key: func(int) string { return fmt.Sprintf("r%x", rand.Uint64()) }}).start()
	most := 0
	for range 2 * seconds {
		time.Sleep(500 * time.Millisecond)
		most = max(most, int(client.DBSize(ctx).Val()))
		everyKeyExpires(t, client)
	}
	all := load.stop()
	row{fmt.Sprintf("%d random keys a second", rate), all, fmt.Sprintf("- (%d keys at most)", most), ""}.add(t)

	// One window more for keys that have expired and that Redis has not yet come across.
	atMost(t, "keys in Redis", most, rate*3)
	if len(all) < rate*seconds*9/10 {
		t.Errorf("%d requests, want %d: the load was not there", len(all), rate*seconds)
	}
	atMost(t, "answers other than 200", len(all)-all.count(http.StatusOK), 0)
	atMost(t, "store failures", int(one.failures.Load()), 0)
	within(t, "median added", all.added(0.5), 10*time.Millisecond)
	redistest.Eventually(t, "all keys are gone", func() bool { return client.DBSize(ctx).Val() == 0 })

	all, load.results, one.store.admitted = nil, nil, nil // ours, not the limiter's
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	atMost(t, "bytes in the process", int(memory.HeapAlloc), 64<<20)
	runtime.KeepAlive(one)
}

// A client that is stuck far over its limit costs Redis a question a second, and is
// admitted exactly as often as where each request asks.
func TestStuckClient(t *testing.T) {
	const perKey, requests, workers = 100, 100000, 64
	admitted := make(map[bool]int)
	for _, remembers := range []bool{true, false} {
		client := connect(t, redistest.Run(t).Addr)
		config, name := ratelimit.Config{}, "stuck client"
		if !remembers {
			config.Recheck, name = -1, "- where each request asks"
		}
		one := newInstance(t, client, config, limit(perKey))
		all := make(results, requests)
		var working sync.WaitGroup
		for w := range workers {
			working.Go(func() {
				for i := w; i < requests; i += workers {
					all[i] = one.ask("stuck")
				}
			})
		}
		working.Wait()
		_, worst := all.beyond(perKey)
		commands := calls(t, client)
		row{name, all, fmt.Sprintf("%d (%d scripts run)", worst, commands), ""}.add(t)
		if remembers {
			atMost(t, "scripts run", commands, 499)
		}
		atMost(t, "store failures", int(one.failures.Load()), 0)
		admitted[remembers] = all.count(http.StatusOK)
	}
	if admitted[true] != admitted[false] || admitted[true] != perKey {
		t.Errorf("%d admitted, %d where each request asks, want %d", admitted[true], admitted[false], perKey)
	}
}
