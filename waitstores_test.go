package ratelimit_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
	"github.com/seed-601ed181/ratelimit/memstore"
	"github.com/seed-601ed181/ratelimit/redisstore"
)

// What the tests with a clock of their own show of waiting in memory, on a real server and
// its clock: a turn is 20 ms here, and nobody is early.
func TestWaitingOnEveryStore(t *testing.T) {
	const turn = 20 * time.Millisecond
	limits := map[string]ratelimit.Limits{
		"leaky bucket": {algorithms.LeakyBucket{Capacity: 100, Rate: 50, Per: time.Second}},
		"token bucket": {algorithms.TokenBucket{Capacity: 1, Refill: 50, Per: time.Second}},
		"log":          {algorithms.SlidingWindowLog{Limit: 1, Window: turn}},
	}
	stores := map[string]func(t *testing.T) ratelimit.Store{
		"memory": func(*testing.T) ratelimit.Store { return memstore.New(memstore.Config{}) },
		"Redis": func(t *testing.T) ratelimit.Store {
			client := redis.NewClient(&redis.Options{Addr: redistest.Run(t).Addr, ContextTimeoutEnabled: true})
			t.Cleanup(func() { _ = client.Close() })
			return redisstore.New(client)
		},
	}
	for where, store := range stores {
		t.Run(where, func(t *testing.T) {
			store := store(t)
			for rule, limits := range limits {
				t.Run(rule, func(t *testing.T) {
					t.Parallel()
					limiter := build(t, ratelimit.Config{
						Store: store, Failure: ratelimit.FailClosed, Timeout: 5 * time.Second,
						Policies: []ratelimit.Policy{{Name: "api", Limits: limits}},
					})
					waitOnStore(t, limiter, ratelimit.Key{ID: rule}, turn)
				})
			}
		})
	}
}

func waitOnStore(t *testing.T, limiter *ratelimit.Limiter, key ratelimit.Key, turn time.Duration) {
	const callers = 6
	var wentOn atomic.Int64
	var wait sync.WaitGroup
	begin := time.Now()
	for i := range callers {
		ctx, giveUp := context.WithCancel(t.Context())
		defer giveUp()
		if i == 2 {
			time.AfterFunc(turn/4, giveUp)
		}
		wait.Go(func() {
			switch err := limiter.Wait(ctx, key, "api"); {
			case err == nil:
				wentOn.Add(1)
			case !errors.Is(err, context.Canceled):
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if n := wentOn.Load(); n < callers-1 || time.Since(begin) < time.Duration(n-1)*turn {
		t.Errorf("%d of %d went on within %v, want at most one each %v", n, callers, time.Since(begin), turn)
	}

	tooEarly, cancel := context.WithTimeout(t.Context(), time.Microsecond)
	defer cancel()
	if err := limiter.Wait(t.Context(), key, "api"); err != nil {
		t.Error(err)
	}
	before, err := limiter.Peek(t.Context(), key, "api")
	if err != nil {
		t.Fatal(err)
	}
	if err := limiter.Wait(tooEarly, key, "api"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a deadline too early: %v", err)
	}
	after, err := limiter.Peek(t.Context(), key, "api")
	if err != nil || after.ResetAfter > before.ResetAfter {
		t.Errorf("a deadline too early took something: %+v, before %+v (%v)", after, before, err)
	}
}
