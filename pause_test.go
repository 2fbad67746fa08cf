package ratelimit

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
	"github.com/seed-601ed181/ratelimit/memstore"
	"github.com/seed-601ed181/ratelimit/redisstore"
)

// However many instances are told different things at once, the pause ends with the latest
// of them, up to 2 ms of rounding later, and never earlier.
func TestPausesOfOneMomentDoNotAddUp(t *testing.T) {
	for _, tc := range []struct {
		name  string
		store func(t *testing.T) Store
	}{
		{"memory", func(*testing.T) Store { return memstore.New(memstore.Config{}) }},
		{"redis", func(t *testing.T) Store {
			client := redis.NewClient(&redis.Options{Addr: redistest.Run(t).Addr, ContextTimeoutEnabled: true})
			t.Cleanup(func() { _ = client.Close() })
			return redisstore.New(client)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store := tc.store(t)
			var instances [3]*Limiter
			for i := range instances {
				limiter, err := New(Config{
					Store: store, Key: ClientIP(), Timeout: 10 * time.Second, Logger: slog.New(slog.DiscardHandler),
					Policies: []Policy{{Name: "api", Limits: Limits{algorithms.LeakyBucket{Capacity: 10, Rate: 10, Per: time.Second}}}},
				})
				if err != nil {
					t.Fatal(err)
				}
				instances[i] = limiter
			}
			c, err := instances[0].caller(Key{Kind: "host", ID: "example.com:443"}, "api", nil)
			if err != nil {
				t.Fatal(err)
			}
			counter := counterKey(new(strings.Builder), c.policy, c.identity)
			const longest = 90 * time.Second
			earliest := time.Now()
			var group sync.WaitGroup
			for i := range 90 {
				group.Go(func() {
					// 37 and 90 have no common divisor: each length once, the longest somewhere among them.
					length := longest - time.Duration(i*37%90)*time.Second
					if _, err := instances[i%len(instances)].pause(context.Background(), counter, length); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
			latest := time.Now()
			pause, err := instances[2].askPause(context.Background(), c)
			if err != nil || pause == nil {
				t.Fatalf("got %v, %v, want a pause", pause, err)
			}
			end := time.Now().Add(pause.left)
			if end.Before(earliest.Add(longest)) || pause.left > longest+pauseCharge*pauseUnit {
				t.Errorf("%v are left of a pause of %v that was asked for %v to %v ago", pause.left, longest, time.Since(latest), time.Since(earliest))
			}
		})
	}
}
