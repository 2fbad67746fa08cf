package redisstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
)

// What a client costs Redis, key and value, for sizing:
//
//	go test -run MemoryPerKey -v ./redisstore
func TestMemoryPerKey(t *testing.T) {
	ctx := context.Background()
	client := realRedis(t)
	store := New(client)
	const used = 50
	for _, rule := range rulesOf(t, 100, time.Hour) {
		for range used {
			take(t, store, "{user:12345678}:api", rule.Example, 1)
		}
		bytes := client.MemoryUsage(ctx, store.name(&charge("{user:12345678}:api", rule.Example, 1)[0])).Val()
		most := int64(200)
		switch rule.Name {
		case "sliding_window_log":
			most = 200 * used
		case "concurrency":
			most = 50 * used
		}
		if bytes == 0 || bytes > most {
			t.Errorf("%s: %d bytes, want 1 to %d", rule.Name, bytes, most)
		}
		t.Logf("%-24s %5d bytes after %d requests", rule.Name, bytes, used)
	}
}

// A Redis that is full is an error, never a refusal; what writes nothing is answered. A
// log goes on: it forgets before it adds, and Redis lets a script that has written finish.
func TestB71_FullRedisIsAnError(t *testing.T) {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: redistest.Run(t, "--maxmemory-policy", "noeviction").Addr})
	defer func() { _ = client.Close() }()
	store := New(client)
	for _, rule := range rulesOf(t, 5, steady()) {
		must(t, client.ConfigSet(ctx, "maxmemory", "0").Err())
		take(t, store, "k", rule.Example, 2)
		must(t, client.ConfigSet(ctx, "maxmemory", "1").Err())
		if rule.Name == "sliding_window_log" {
			if d := take(t, store, "k", rule.Example, 1); !d.Allowed || d.Remaining != 2 {
				t.Errorf("%s: %+v, want it counted with 2 left", rule.Name, d)
			}
			continue
		}
		for _, cost := range []int64{1, 2} {
			err := store.Take(ctx, charge("k", rule.Example, cost), make([]algorithms.Decision, 1))
			if err == nil || !strings.Contains(err.Error(), "OOM") {
				t.Errorf("%s, cost %d: error %v, want OOM", rule.Name, cost, err)
			}
		}
		if d := take(t, store, "k", rule.Example, 4); d.Allowed || d.Remaining != 3 {
			t.Errorf("%s: %+v, want a refusal with 3 left", rule.Name, d)
		}
		if d := take(t, store, "k", rule.Example, 0); d.Remaining != 3 {
			t.Errorf("%s: %d left, want 3: what failed was counted", rule.Name, d.Remaining)
		}
	}
}

// Under an eviction policy counters go before their time, without an error, and their
// clients start anew.
func TestB72_EvictionForgetsCountersWithoutAnError(t *testing.T) {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: redistest.Run(t, "--maxmemory-policy", "volatile-lru").Addr})
	defer func() { _ = client.Close() }()
	store := New(client)
	rule := algorithms.FixedWindow{Limit: 3, Window: steady()}
	take(t, store, "k", rule, 3)
	if d := take(t, store, "k", rule, 1); d.Allowed {
		t.Fatalf("before any eviction: %+v, want a refusal", d)
	}
	must(t, client.ConfigSet(ctx, "maxmemory", "1").Err())
	_ = client.Do(ctx, "set", "filler", "x", "px", "60000").Err() // refused, once all that can go has gone
	must(t, client.ConfigSet(ctx, "maxmemory", "0").Err())
	if d := take(t, store, "k", rule, 1); !d.Allowed || d.Remaining != 2 {
		t.Errorf("after its eviction: %+v, want it allowed with 2 left", d)
	}
}
