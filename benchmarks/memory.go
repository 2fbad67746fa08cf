package main

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	throttledmemory "github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

const (
	ourMemory = "ours: memstore"
	goLimiter = "go-limiter"
	chiRate   = "httprate"
	xTimeRate = "x/time/rate in a map"
)

var memoryPeers = []string{goLimiter, gcra, xTimeRate, ululeV3, chiRate}

// memoryLimit is a minute's units of a key, which no run uses up.
const memoryLimit = 100_000_000

// memoryContestant decides in this process. open makes room for so many keys where a
// limiter has a bound; what it returns makes one decide for each goroutine.
type memoryContestant struct {
	name string
	open func(keys int) func() func(key string) bool
}

var memoryContestants = []memoryContestant{
	{ourMemory, func(keys int) func() func(string) bool {
		s := memstore.New(memstore.Config{MaxKeys: 2 * keys})
		rule := algorithms.SlidingWindowCounter{Limit: memoryLimit, Window: time.Minute}
		return func() func(string) bool {
			charges := []algorithms.Charge{{Algorithm: rule, Cost: 1}}
			decisions := make([]algorithms.Decision, 1)
			return func(key string) bool {
				charges[0].Key = key
				return s.Take(context.Background(), charges, decisions) == nil && decisions[0].Allowed
			}
		}
	}},
	{limiter, func(keys int) func() func(string) bool {
		l := must(newLimiter(memstore.New(memstore.Config{MaxKeys: 2 * keys}), ratelimit.ClientIP(), memoryLimit))
		return everyone(func(key string) bool {
			d, err := l.Take(context.Background(), ratelimit.Key{Kind: "user", ID: key}, "api")
			return err == nil && d.Allowed
		})
	}},
	{goLimiter, func(int) func() func(string) bool {
		s := must(memorystore.New(&memorystore.Config{Tokens: memoryLimit, Interval: time.Minute}))
		return everyone(func(key string) bool {
			_, _, _, ok, err := s.Take(context.Background(), key)
			return ok && err == nil
		})
	}},
	{gcra, func(keys int) func() func(string) bool {
		l := newThrottled(keys, memoryLimit)
		return everyone(func(key string) bool {
			limited, _, err := l.RateLimitCtx(context.Background(), key, 1)
			return !limited && err == nil
		})
	}},
	{xTimeRate, func(int) func() func(string) bool {
		var mu sync.RWMutex
		limiters := make(map[string]*rate.Limiter)
		return everyone(func(key string) bool {
			mu.RLock()
			l := limiters[key]
			mu.RUnlock()
			if l == nil {
				mu.Lock()
				if l = limiters[key]; l == nil {
					l = rate.NewLimiter(memoryLimit/60, memoryLimit)
					limiters[key] = l
				}
				mu.Unlock()
			}
			return l.Allow()
		})
	}},
	{ululeV3, func(int) func() func(string) bool {
		l := ulule.New(ululememory.NewStore(), ulule.Rate{Period: time.Minute, Limit: memoryLimit})
		return everyone(func(key string) bool {
			c, err := l.Get(context.Background(), key)
			return !c.Reached && err == nil
		})
	}},
	{chiRate, func(int) func() func(string) bool {
		l := httprate.NewRateLimiter(memoryLimit, time.Minute, httprate.WithResponseHeaders(httprate.ResponseHeaders{}))
		return func() func(string) bool {
			w, r := newDiscard(), must(http.NewRequest("GET", "/", nil))
			return func(key string) bool { return !l.OnLimit(w, r, key) }
		}
	}},
}

// everyone is for a limiter whose goroutines need nothing of their own.
func everyone(decide func(string) bool) func() func(string) bool {
	return func() func(string) bool { return decide }
}

func newThrottled(keys, limit int) *throttled.GCRARateLimiterCtx {
	s := must(throttledmemory.NewCtx(max(65536, 2*keys)))
	return must(throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{MaxRate: throttled.PerMin(limit), MaxBurst: limit - 1}))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
