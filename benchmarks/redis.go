package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	throttledredis "github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/redisstore"
)

const (
	store    = "ours: redisstore"
	limiter  = "ours: Limiter"
	ululeV3  = "ulule/limiter"
	redisV10 = "redis_rate"
	gcra     = "throttled"
)

// redisPeers are whom a decision on Redis is compared with.
var redisPeers = []string{ululeV3, redisV10, gcra}

// decide asks for one unit of a key.
type decide func(ctx context.Context, key string) (admitted bool, err error)

// redisContestant decides on Redis, or does the least that any decision there must.
type redisContestant struct {
	name string
	// open makes a limiter of so many units a minute for each key. What it returns
	// makes one decide for each goroutine; load has what of them there are.
	open func(client *redis.Client, limit int) (func(load) decide, error)
	// floor says that nothing is decided.
	floor bool
	// gathers says that two goroutines send the keys of all in single calls, so that the
	// time of one key means nothing.
	gathers bool
}

var redisContestants = []redisContestant{
	{name: store, open: openStore},
	{name: limiter, open: openLimiter},
	{name: ululeV3, open: openUlule},
	{name: redisV10, open: openRedisRate},
	{name: gcra, open: openThrottled},
	{name: "floor: PING", floor: true, open: openPing},
	{name: "floor: empty script", floor: true, open: openEmptyScript},
	{name: "floor: INCR of all keys in one script", floor: true, gathers: true, open: openGathered},
}

// shared is for a limiter whose goroutines need nothing of their own.
func shared(d decide) func(load) decide { return func(load) decide { return d } }

func openStore(client *redis.Client, limit int) (func(load) decide, error) {
	s := redisstore.New(client)
	rule := algorithms.SlidingWindowCounter{Limit: int64(limit), Window: time.Minute}
	return func(load) decide {
		charges := []algorithms.Charge{{Algorithm: rule, Cost: 1}}
		decisions := make([]algorithms.Decision, 1)
		return func(ctx context.Context, key string) (bool, error) {
			charges[0].Key = key
			err := s.Take(ctx, charges, decisions)
			return decisions[0].Allowed, err
		}
	}, nil
}

func openLimiter(client *redis.Client, limit int) (func(load) decide, error) {
	l, err := newLimiter(redisstore.New(client), ratelimit.ClientIP(), int64(limit))
	return shared(func(ctx context.Context, key string) (bool, error) {
		d, err := l.Take(ctx, ratelimit.Key{Kind: "user", ID: key}, "api")
		return d.Allowed, err
	}), err
}

func newLimiter(s ratelimit.Store, key ratelimit.KeyFunc, limit int64) (*ratelimit.Limiter, error) {
	return ratelimit.New(ratelimit.Config{
		Store:    s,
		Key:      key,
		Failure:  ratelimit.FailClosed, // what fell back to this process would be no decision on Redis
		Logger:   slog.New(slog.DiscardHandler),
		Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{algorithms.SlidingWindowCounter{Limit: limit, Window: time.Minute}}}},
	})
}

func openUlule(client *redis.Client, limit int) (func(load) decide, error) {
	s, err := ululeredis.NewStore(client)
	if err != nil {
		return nil, err
	}
	l := ulule.New(s, ulule.Rate{Period: time.Minute, Limit: int64(limit)})
	return shared(func(ctx context.Context, key string) (bool, error) {
		c, err := l.Get(ctx, key)
		return !c.Reached, err
	}), nil
}

func openRedisRate(client *redis.Client, limit int) (func(load) decide, error) {
	l, rate := redis_rate.NewLimiter(client), redis_rate.PerMinute(limit)
	return shared(func(ctx context.Context, key string) (bool, error) {
		result, err := l.Allow(ctx, key, rate)
		return err == nil && result.Allowed > 0, err
	}), nil
}

func openThrottled(client *redis.Client, limit int) (func(load) decide, error) {
	s, err := throttledredis.NewCtx(client, "throttled:")
	if err != nil {
		return nil, err
	}
	l, err := throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{MaxRate: throttled.PerMin(limit), MaxBurst: limit - 1})
	return shared(func(ctx context.Context, key string) (bool, error) {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return !limited, err
	}), err
}

func openPing(client *redis.Client, _ int) (func(load) decide, error) {
	return shared(func(ctx context.Context, _ string) (bool, error) {
		return true, client.Ping(ctx).Err()
	}), nil
}

func openEmptyScript(client *redis.Client, _ int) (func(load) decide, error) {
	digest, err := client.ScriptLoad(context.Background(), "return 0").Result()
	return shared(func(ctx context.Context, key string) (bool, error) {
		return true, client.EvalSha(ctx, digest, []string{key}).Err()
	}), err
}

// openGathered is what a limiter would do whose goroutines handed over their keys for
// nothing and whose script did nothing but count.
func openGathered(client *redis.Client, _ int) (func(load) decide, error) {
	digest, err := client.ScriptLoad(context.Background(), "for i = 1, #KEYS do redis.call('INCR', KEYS[i]) end return 0").Result()
	return func(l load) decide {
		var keys []string
		together := max(1, l.goroutines/2)
		return func(ctx context.Context, key string) (bool, error) {
			if keys = append(keys, key); len(keys) < together {
				return true, nil
			}
			err := client.EvalSha(ctx, digest, keys).Err()
			keys = keys[:0]
			return true, err
		}
	}, err
}

var errRefused = errors.New("refused far below the limit")
