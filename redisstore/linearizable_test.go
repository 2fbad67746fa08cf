package redisstore

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/internal/linearizable"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
	"github.com/seed-601ed181/ratelimit/storetest"
)

// Many more callers than lanes, so most calls travel together.
func TestConcurrentCallsAreLinearizable(t *testing.T) {
	t.Run("moving clock", func(t *testing.T) {
		ctx := context.Background()
		client := redis.NewClient(&redis.Options{Addr: redistest.Run(t).Addr, ContextTimeoutEnabled: true}) // its clock is ours
		defer func() { _ = client.Close() }()
		calls := 0
		linearizable.Moving(t, func(t *testing.T) storetest.Store {
			calls += linearizable.Calls
			must(t, client.FlushAll(ctx).Err())
			return New(client)
		})
		if scripts := calledScripts(t, client); scripts > calls*9/10 {
			t.Errorf("%d calls were %d scripts: they didn't travel together", calls, scripts)
		}
	})
	t.Run("standing clock", func(t *testing.T) { linearizable.Standing(t, openReal) })
}

// calledScripts is how many scripts the server was asked for by their digests.
func calledScripts(t *testing.T, client *redis.Client) (n int) {
	t.Helper()
	info := client.Info(context.Background(), "commandstats").Val()
	_, line, _ := strings.Cut(info, "cmdstat_evalsha:")
	if _, err := fmt.Sscanf(line, "calls=%d,", &n); err != nil {
		t.Fatalf("%v in %q", err, info)
	}
	return n
}
