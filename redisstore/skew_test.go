package redisstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// B48: the clock of an instance changes no decision. In the bubble of synctest it is
// the year 2000, outside it is today; both share every counter to the unit.
func TestClientClockChangesNothing(t *testing.T) {
	realRedis(t)
	ctx := context.Background()
	for _, rule := range algorithms.Rules() {
		limit := rule.Example.Parameters()[0]
		charges := []algorithms.Charge{{Key: "skew", Algorithm: rule.Example, Cost: limit/2 - 1}}
		ask := func() algorithms.Decision {
			client := redis.NewClient(&redis.Options{Addr: redisAddr, ContextTimeoutEnabled: true})
			defer func() { _ = client.Close() }()
			decisions := make([]algorithms.Decision, 1)
			if err := New(client).Take(ctx, charges, decisions); err != nil {
				t.Fatalf("%s: %v", rule.Name, err)
			}
			return decisions[0]
		}
		first := ask()
		var skewed algorithms.Decision
		synctest.Test(t, func(t *testing.T) {
			if year := time.Now().Year(); year != 2000 {
				t.Fatalf("the bubble's clock shows %d", year)
			}
			skewed = ask()
		})
		third := ask()
		if !first.At.Truncate(time.Minute).Equal(third.At.Truncate(time.Minute)) {
			continue // a window turned in between
		}
		if !first.Allowed || !skewed.Allowed || third.Allowed {
			t.Errorf("%s: takes of %d from %d: %v, %v (skewed), %v; want true, true, false",
				rule.Name, charges[0].Cost, limit, first.Allowed, skewed.Allowed, third.Allowed)
		}
		if gap := skewed.At.Sub(first.At); gap < 0 || gap > time.Minute {
			t.Errorf("%s: the skewed instance's decision is dated %v, the other's %v", rule.Name, skewed.At, first.At)
		}
	}
}
