package ratelimit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
)

func TestMistakesOfAPolicyThatDelays(t *testing.T) {
	queue := tenASecond(5)
	const oneQueue = "must be one algorithms.LeakyBucket: a policy of its quota has Action: Delay, and only that hands out turns"
	for _, tc := range []struct {
		name     string
		policies []ratelimit.Policy
		want     []string
	}{
		{"as it should be", []ratelimit.Policy{
			{Name: "a", Limits: queue, Action: ratelimit.Delay, MaxWait: 100 * time.Millisecond, Tiers: map[string]ratelimit.Limits{"pro": tenASecond(50)}},
			{Name: "b", Quota: "a", Cost: 2, Action: ratelimit.Delay, Shadow: true},
			{Name: "c", Quota: "a"},
		}, nil},
		{"another rule", []ratelimit.Policy{{Name: "a", Limits: perMinute(5), Action: ratelimit.Delay}},
			[]string{`Policies["a"].Limits ` + oneQueue + `, got "[5 per 1m0s (fixed window)]"`}},
		{"another rule beside it", []ratelimit.Policy{{Name: "a", Limits: append(tenASecond(5), perMinute(5)...), Action: ratelimit.Delay}},
			[]string{`Policies["a"].Limits ` + oneQueue + `, got "[5 queued, draining 10 per 1s (leaky bucket) 5 per 1m0s (fixed window)]"`}},
		{"in a tier", []ratelimit.Policy{{Name: "a", Limits: queue, Action: ratelimit.Delay, Tiers: map[string]ratelimit.Limits{"pro": perMinute(5)}}},
			[]string{`Policies["a"].Tiers["pro"] ` + oneQueue + `, got "[5 per 1m0s (fixed window)]"`}},
		{"in the policy that states the limits", []ratelimit.Policy{{Name: "a", Limits: perMinute(5)}, {Name: "b", Quota: "a", Action: ratelimit.Delay}},
			[]string{`Policies["a"].Limits ` + oneQueue + `, got "[5 per 1m0s (fixed window)]"`}},
		{"no action", []ratelimit.Policy{{Name: "a", Limits: queue, Action: 2}},
			[]string{`Policies["a"].Action must be Refuse or Delay, got 2`}},
		{"MaxWait", []ratelimit.Policy{
			{Name: "a", Limits: queue, Action: ratelimit.Delay, MaxWait: -1},
			{Name: "b", Limits: queue, MaxWait: time.Second},
			{Name: "c", Limits: queue, Action: ratelimit.Delay, MaxWait: 99 * time.Millisecond},
		}, []string{
			`Policies["a"].MaxWait must be >= 0 (0 means as long as the queue is), got -1ns`,
			`Policies["b"].MaxWait must be left out without Action: Delay, got 1s`,
			`Policies["c"].MaxWait must be at least a turn, or nothing is ever held: 100ms, got 99ms`,
		}},
		{"CountIf", []ratelimit.Policy{{Name: "a", Limits: queue, Action: ratelimit.Delay, CountIf: func(int) bool { return true }}},
			[]string{`Policies["a"].CountIf must be left out, as a policy of its quota has Action: Delay: a turn that was used can't be given back`}},
		{"CountIf in another policy of the quota", []ratelimit.Policy{
			{Name: "a", Limits: queue, Action: ratelimit.Delay},
			{Name: "b", Quota: "a", CountIf: func(int) bool { return true }},
			{Name: "c", Limits: queue, CountIf: func(int) bool { return true }},
		}, []string{`Policies["b"].CountIf must be left out, as a policy of its quota has Action: Delay: a turn that was used can't be given back`}},
		{"no limits at all", []ratelimit.Policy{{Name: "a", Action: ratelimit.Delay}},
			[]string{`Policies["a"].Limits is required: a limit and its window, such as algorithms.SlidingWindowCounter{Limit: 100, Window: time.Minute}`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ratelimit.New(ratelimit.Config{
				Store: exampleStore(), Key: ratelimit.ClientIP(), Policies: tc.policies, Default: ratelimit.Unlimited,
			})
			if got := mistakes(t, err); !slices.Equal(got, tc.want) {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
	_, err := ratelimit.New(ratelimit.Config{Store: exampleStore(), Key: ratelimit.ClientIP(), Policies: []ratelimit.Policy{policy("a", 1)}, MaxWaiting: -1})
	if got, want := mistakes(t, err), []string{"MaxWaiting must be >= 0: how many may wait at once (0 means 10,000), got -1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestActionsHaveNames(t *testing.T) {
	for action, want := range map[ratelimit.Action]string{ratelimit.Refuse: "refuse", ratelimit.Delay: "delay", 7: "Action(7)"} {
		if got := action.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The numbers of a queue with an awkward rate, and at the ends of what there can be.
func TestPeekAndTakeSeeTheQueueThatMaxWaitLeaves(t *testing.T) {
	for _, tc := range []struct {
		queue   algorithms.LeakyBucket
		maxWait time.Duration
		cost, n int64
		limit   int64
	}{
		{algorithms.LeakyBucket{Capacity: 100, Rate: 3, Per: time.Second}, time.Second, 1, 1, 4},
		{algorithms.LeakyBucket{Capacity: 100, Rate: 3, Per: time.Second}, 999 * time.Millisecond, 1, 1, 3},
		{algorithms.LeakyBucket{Capacity: 3, Rate: 3, Per: time.Second}, time.Second, 1, 1, 3},
		{algorithms.LeakyBucket{Capacity: 100, Rate: 3, Per: time.Second}, time.Second, 5, 5, 8},
		{algorithms.LeakyBucket{Capacity: 100, Rate: 3, Per: time.Second}, time.Second, 5, 7, 10},
		{algorithms.LeakyBucket{Capacity: 100, Rate: 3, Per: time.Second}, time.Second, 5, 0, 8},
		{algorithms.LeakyBucket{Capacity: 1 << 40, Rate: 1 << 50, Per: time.Millisecond}, 1 << 62, 1, 1, 1 << 40},
		{algorithms.LeakyBucket{Capacity: 4, Rate: 1, Per: 70 * 365 * 24 * time.Hour}, 71 * 365 * 24 * time.Hour, 1, 1, 2},
	} {
		limiter := build(t, one(ratelimit.Policy{Name: "api", Limits: ratelimit.Limits{tc.queue}, Action: ratelimit.Delay, MaxWait: tc.maxWait, Cost: tc.cost}))
		d, err := limiter.TakeN(t.Context(), acme, "api", tc.n)
		if err != nil || d.Limit != tc.limit {
			t.Errorf("%v within %v, %d units: limit %d, want %d (%v)", tc.queue, tc.maxWait, tc.n, d.Limit, tc.limit, err)
		}
		peeked, err := limiter.Peek(t.Context(), acme, "api")
		if want := tc.limit - tc.n + tc.cost; tc.n > 0 && tc.limit < tc.queue.Capacity && (err != nil || peeked.Limit != want) {
			t.Errorf("%v within %v, peeked at: limit %d, want %d (%v)", tc.queue, tc.maxWait, peeked.Limit, want, err)
		}
	}
}
