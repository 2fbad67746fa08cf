package redisstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
	"github.com/seed-601ed181/ratelimit/storetest"
)

// On servers that share the keys out, charges of several hash tags can't be one script;
// the suite holds all the same.
func TestStoreOnRing(t *testing.T) {
	one, two := redistest.Run(t), redistest.Run(t)
	var servers []*redis.Client
	for _, server := range []*redistest.Server{one, two} {
		client := redis.NewClient(&redis.Options{Addr: server.Addr})
		defer func() { _ = client.Close() }()
		servers = append(servers, client)
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": one.Addr, "two": two.Addr}, ContextTimeoutEnabled: true})
	defer func() { _ = ring.Close() }()
	storetest.Run(t, func(t *testing.T, start time.Time) (storetest.Store, func(time.Duration)) {
		for _, server := range servers {
			if err := server.FlushDB(context.Background()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		return openUnderClock(t, start, ring, servers...)
	})
}

// A limit per user beside a backstop per address, on two servers and from many
// goroutines: never one more than either limit, and all of it once nobody is in the way.
func TestLimitsOnTwoServersAreNeverPassed(t *testing.T) {
	one, two := redistest.Run(t), redistest.Run(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": one.Addr, "two": two.Addr}})
	defer func() { _ = ring.Close() }()
	store := New(ring)
	ctx := context.Background()
	hour := func(limit int64) algorithms.Algorithm {
		return algorithms.TokenBucket{Capacity: limit, Refill: 1, Per: 24 * time.Hour}
	}
	charges := func(user string) []algorithms.Charge {
		return []algorithms.Charge{
			{Key: "{user:" + user + "}:api", Algorithm: hour(40), Cost: 1},
			{Key: "{ip:192.0.2.1}:address", Algorithm: hour(50), Cost: 1},
		}
	}
	var mu sync.Mutex
	admitted := map[string]int{}
	var wait sync.WaitGroup
	for _, user := range []string{"ann", "ben", "cleo", "dan"} {
		for range 4 {
			wait.Go(func() {
				decisions := make([]algorithms.Decision, 2)
				for range 30 {
					if err := store.Take(ctx, charges(user), decisions); err != nil {
						t.Error(err)
						return
					}
					if decisions[0].Allowed && decisions[1].Allowed {
						mu.Lock()
						admitted[user]++
						mu.Unlock()
					}
				}
			})
		}
	}
	wait.Wait()
	total := 0
	decisions := make([]algorithms.Decision, 2)
	for user, n := range admitted {
		total += n
		if n > 40 {
			t.Errorf("%s was admitted %d times, limit 40", user, n)
		}
		// What the other server refused was given back.
		if err := store.Peek(ctx, charges(user)[:1], decisions[:1]); err != nil || decisions[0].Remaining != max(0, int64(40-n-1)) {
			t.Errorf("%s: %+v, %v; want %d left after one more", user, decisions[0], err, 40-n-1)
		}
	}
	if total != 50 {
		t.Errorf("%d admitted in all, want the 50 of the address", total)
	}
}
