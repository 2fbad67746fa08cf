package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

// callers wait for one key, each on a goroutine of its own: "name@ms" is when Wait lets
// one go on, "name!why@ms" when it returns an error.
type callers struct {
	*events
	limiter *ratelimit.Limiter
	ctx     map[string]context.CancelFunc
}

var acme = ratelimit.Key{Kind: "tenant", ID: "acme"}

func newCallers(limiter *ratelimit.Limiter) *callers {
	return &callers{events: newEvents(), limiter: limiter, ctx: make(map[string]context.CancelFunc)}
}

func (c *callers) wait(name string, n int64) { c.waitUntil(name, n, 0) }

// waitUntil waits with a deadline so far away; 0 means none.
func (c *callers) waitUntil(name string, n int64, deadline time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	if deadline > 0 {
		ctx, cancel = context.WithTimeout(context.Background(), deadline)
	}
	c.ctx[name] = cancel
	go func() {
		err := c.limiter.WaitN(ctx, acme, "api", n)
		var refused *ratelimit.WaitError
		switch {
		case err == nil:
			c.note("%s", name)
		case errors.As(err, &refused) && errors.Is(err, context.DeadlineExceeded):
			c.note("%s!deadline", name)
		case errors.As(err, &refused):
			c.note("%s!refused(%v)", name, refused.RetryAfter)
		default:
			c.note("%s!%v", name, err)
		}
	}()
	synctest.Wait()
}

func (c *callers) leave(name string) {
	c.ctx[name]()
	synctest.Wait()
}

func (c *callers) peek(t *testing.T) ratelimit.Decision {
	t.Helper()
	d, err := c.limiter.Peek(context.Background(), acme, "api")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func bucket(capacity int64) ratelimit.Limits {
	return ratelimit.Limits{algorithms.TokenBucket{Capacity: capacity, Refill: 10, Per: time.Second}}
}

func window(limit int64) ratelimit.Limits {
	return ratelimit.Limits{algorithms.SlidingWindowLog{Limit: limit, Window: time.Second}}
}

func TestWait(t *testing.T) {
	api := func(limits ratelimit.Limits) ratelimit.Policy { return ratelimit.Policy{Name: "api", Limits: limits} }
	four := func(c *callers) {
		for i := range 4 {
			c.wait(fmt.Sprint(i), 1)
		}
	}
	for _, tc := range []struct {
		name   string
		config ratelimit.Config
		do     func(c *callers)
		want   string
	}{
		{"leaky bucket: an even stream, in the order of arrival", one(api(tenASecond(10))), four, "0@0 1@100 2@200 3@300"},
		{"token bucket: what there is, then in the order of arrival", one(api(bucket(2))), four, "0@0 1@0 2@100 3@200"},
		{"log: as the entries leave", one(api(window(2))), four, "0@0 1@0 2@1000 3@1000"},
		{"several limits: the tightest", one(api(append(bucket(2), perMinute(3)...))), four, "0@0 1@0 2@100 3@60000"},

		{"leaky bucket: those behind who gives up move up", one(api(tenASecond(10))), func(c *callers) {
			four(c)
			c.leave("1")
		}, "0@0 1!context canceled@0 2@100 3@200"},
		{"token bucket: those behind who gives up move up", one(api(bucket(1))), func(c *callers) {
			four(c)
			c.leave("1")
			c.leave("2")
		}, "0@0 1!context canceled@0 2!context canceled@0 3@100"},
		{"leaky bucket: the next arrival has the turn of who gave up", one(api(tenASecond(2))), func(c *callers) {
			c.wait("0", 1)
			c.wait("1", 1)
			c.leave("1")
			c.wait("2", 1)
		}, "0@0 1!context canceled@0 2@100"},

		{"leaky bucket: the queue is full", one(api(tenASecond(2))), four, "0@0 2!refused(100ms)@0 3!refused(100ms)@0 1@100"},
		{"leaky bucket: later than MaxWait", one(ratelimit.Policy{
			Name: "api", Limits: tenASecond(10), Action: ratelimit.Delay, MaxWait: 100 * time.Millisecond,
		}), four, "0@0 2!refused(100ms)@0 3!refused(100ms)@0 1@100"},
		{"leaky bucket: a cost that never fits", one(api(tenASecond(2))), func(c *callers) { c.wait("0", 3) },
			fmt.Sprintf("0!refused(%v)@0", ratelimit.Never)},
		{"token bucket: a cost that never fits", one(api(bucket(2))), func(c *callers) { c.wait("0", 3) },
			fmt.Sprintf("0!refused(%v)@0", ratelimit.Never)},
		{"a cost of nothing waits for nothing", one(api(tenASecond(2))), func(c *callers) {
			four(c)
			c.wait("free", 0)
		}, "0@0 2!refused(100ms)@0 3!refused(100ms)@0 free@0 1@100"},

		{"leaky bucket: a deadline in time", one(api(tenASecond(10))), func(c *callers) {
			c.wait("0", 1)
			c.waitUntil("1", 1, 100*time.Millisecond+time.Microsecond)
		}, "0@0 1@100"},
		{"leaky bucket: a deadline within a turn", one(api(tenASecond(10))), func(c *callers) {
			c.wait("0", 1)
			time.Sleep(30 * time.Millisecond) // the next turn is in 70 ms
			c.waitUntil("1", 1, 69*time.Millisecond)
			c.waitUntil("2", 1, 71*time.Millisecond)
		}, "0@0 1!deadline@30 2@100"},
		{"leaky bucket: a deadline too early takes no turn", one(api(tenASecond(10))), func(c *callers) {
			c.wait("0", 1)
			c.waitUntil("1", 1, 99*time.Millisecond)
			c.wait("2", 1)
		}, "0@0 1!deadline@0 2@100"},
		{"token bucket: a deadline too early takes no token", one(api(bucket(1))), func(c *callers) {
			c.wait("0", 1)
			c.waitUntil("1", 1, 99*time.Millisecond)
			c.waitUntil("2", 1, 101*time.Millisecond)
		}, "0@0 1!deadline@0 2@100"},
		{"token bucket: a deadline that those before make too early", one(api(bucket(1))), func(c *callers) {
			c.wait("0", 1)
			c.wait("1", 1)
			c.waitUntil("2", 1, 250*time.Millisecond)
			c.waitUntil("3", 1, 250*time.Millisecond) // clear when 2 has gone and it asks, at 200 ms
			c.waitUntil("4", 1, 90*time.Millisecond)  // clear at once
			c.waitUntil("5", 1, 150*time.Millisecond) // clear when 1 has gone
		}, "0@0 4!deadline@0 1@100 5!deadline@100 2@200 3!deadline@200"},

		{"no more wait than may: leaky bucket", withWaiting(2, api(tenASecond(10))), four, "0@0 3!refused(100ms)@0 1@100 2@200"},
		{"no more wait than may: token bucket", withWaiting(2, api(bucket(1))), four, "0@0 3!refused(100ms)@0 1@100 2@200"},

		{"on trial", one(ratelimit.Policy{Name: "api", Limits: tenASecond(1), Action: ratelimit.Delay, Shadow: true}), four, "0@0 1@0 2@0 3@0"},
		{"for no key yet", one(ratelimit.Policy{Name: "api", Limits: tenASecond(1), EnforcePercent: 1}), four, "0@0 1@0 2@0 3@0"},
		{"disabled", one(ratelimit.Policy{Name: "api", Limits: bucket(1), Disabled: true}), four, "0@0 1@0 2@0 3@0"},

		{"store away, local: leaky bucket", away(ratelimit.FailLocal, api(tenASecond(10))), four, "0@0 1@100 2@200 3@300"},
		{"store away, local: token bucket", away(ratelimit.FailLocal, api(bucket(1))), four, "0@0 1@100 2@200 3@300"},
		{"store away, open: leaky bucket", away(ratelimit.FailOpen, api(tenASecond(10))), four, "0@0 1@0 2@0 3@0"},
		{"store away, open: token bucket", away(ratelimit.FailOpen, api(bucket(1))), four, "0@0 1@0 2@0 3@0"},
		{"store away, closed: leaky bucket", away(ratelimit.FailClosed, api(tenASecond(10))), func(c *callers) { c.wait("0", 1) }, "0!" + errAway.Error() + "@0"},
		{"store away, closed: token bucket", away(ratelimit.FailClosed, api(bucket(1))), func(c *callers) { c.wait("0", 1) }, "0!" + errAway.Error() + "@0"},
		{"limits that can't be", one(ratelimit.Policy{
			Name: "api", Limits: tenASecond(3),
			LimitsOf: func(context.Context, ratelimit.Key) (ratelimit.Limits, error) { return ratelimit.Limits{}, nil },
		}), func(c *callers) { c.wait("0", 1) }, fmt.Sprintf("0!refused(%v)@0", ratelimit.Never)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if tc.config.Store == nil {
					tc.config.Store = memstore.New(memstore.Config{})
				}
				c := newCallers(build(t, tc.config))
				tc.do(c)
				time.Sleep(time.Hour)
				c.want(t, tc.want)
				if n := c.limiter.Waiting(); n != 0 {
					t.Errorf("at the end %d wait", n)
				}
				for _, cancel := range c.ctx {
					cancel()
				}
			})
		})
	}
}

func withWaiting(n int, p ratelimit.Policy) ratelimit.Config {
	config := one(p)
	config.MaxWaiting = n
	return config
}

func away(mode ratelimit.FailureMode, p ratelimit.Policy) ratelimit.Config {
	config := one(p)
	config.Store, config.Failure = newFaulty(isAway), mode
	return config
}

// What Wait refuses at once has taken nothing, whatever the rule.
func TestADeadlineTooEarlyTakesNothing(t *testing.T) {
	for _, limits := range []ratelimit.Limits{tenASecond(10), bucket(1), window(1), perMinute(1),
		{algorithms.SlidingWindowCounter{Limit: 1, Window: time.Second}}} {
		t.Run(fmt.Sprint(limits), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newCounting(memstore.New(memstore.Config{}))
				c := newCallers(build(t, ratelimit.Config{Store: store, Policies: []ratelimit.Policy{{Name: "api", Limits: limits}}}))
				c.wait("first", 1)
				before := c.peek(t)
				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
				defer cancel()
				begin := time.Now()
				err := c.limiter.Wait(ctx, acme, "api")
				if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 0 {
					t.Errorf("got %v after %v", err, time.Since(begin))
				}
				if after := c.peek(t); after != before {
					t.Errorf("it took something: %+v, before %+v", after, before)
				}
				cancel()
				asked := store.calls
				if err := c.limiter.Wait(ctx, acme, "api"); err == nil || store.calls != asked {
					t.Errorf("a context that has ended: %v, %d questions", err, store.calls-asked)
				}
			})
		})
	}
}

// An error of Wait says what is wrong, with the numbers and the mend.
func TestWhatWaitErrorsSay(t *testing.T) {
	delays := ratelimit.Policy{Name: "send", Limits: tenASecond(3), Action: ratelimit.Delay}
	patient := delays
	patient.MaxWait = 100 * time.Millisecond
	bursts := patient
	bursts.Limits = ratelimit.Limits{algorithms.LeakyBucket{Capacity: 5, Rate: 10, Per: time.Second, Burst: 2}}
	for _, tc := range []struct {
		config ratelimit.Config
		before int // callers that are admitted or wait
		n      int64
		left   time.Duration
		want   string
	}{
		{one(delays), 2, 1, 150 * time.Millisecond, `ratelimit: waiting for policy "send" takes 200ms, but the deadline is in 150ms; ask again in 100ms`},
		{one(delays), 3, 1, time.Minute, `ratelimit: waiting for policy "send" takes 300ms, but its queue of 3 is full; ask again in 100ms`},
		{one(patient), 2, 1, time.Minute, `ratelimit: waiting for policy "send" takes 200ms, but its MaxWait is 100ms; ask again in 100ms`},
		{one(bursts), 4, 1, time.Minute, `ratelimit: waiting for policy "send" takes 200ms, but its MaxWait is 100ms; ask again in 100ms`},
		{one(delays), 0, 4, time.Minute, `ratelimit: waiting for policy "send" is in vain: a cost of 4 is above its limit of 3`},
		{one(delays), 0, math.MaxInt64, time.Minute, `ratelimit: waiting for policy "send" is in vain: a cost of 9223372036854775807 is above its limit of 3`},
		{withWaiting(1, delays), 2, 1, time.Minute, `ratelimit: waiting for policy "send" takes 100ms, but 1 wait in this process already (Config.MaxWaiting); ask again in 100ms`},
		{one(ratelimit.Policy{Name: "send", Limits: bucket(3)}), 3, 2, 150 * time.Millisecond, `ratelimit: waiting for policy "send" takes 200ms, but the deadline is in 150ms; ask again in 200ms`},
		{one(ratelimit.Policy{Name: "send", Limits: bucket(3)}), 3, 4, time.Minute, `ratelimit: waiting for policy "send" is in vain: a cost of 4 is above its limit of 3`},
		{withWaiting(1, ratelimit.Policy{Name: "send", Limits: bucket(3)}), 4, 1, time.Minute, `ratelimit: waiting for policy "send" takes 100ms, but 1 wait in this process already (Config.MaxWaiting); ask again in 100ms`},
	} {
		synctest.Test(t, func(t *testing.T) {
			tc.config.Store = memstore.New(memstore.Config{})
			limiter := build(t, tc.config)
			for range tc.before {
				go func() {
					if err := limiter.Wait(context.Background(), acme, "send"); err != nil {
						t.Error(err)
					}
				}()
				synctest.Wait()
			}
			ctx, cancel := context.WithTimeout(context.Background(), tc.left)
			defer cancel()
			err := limiter.WaitN(ctx, acme, "send", tc.n)
			if err == nil || err.Error() != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
			if deadline := strings.Contains(tc.want, "deadline"); errors.Is(err, context.DeadlineExceeded) != deadline {
				t.Errorf("%v: wraps context.DeadlineExceeded: %v", err, !deadline)
			}
			time.Sleep(time.Minute) // the others go
		})
	}
}

// However many wait for a key, one of them asks the store, and when it can be admitted.
func TestWaitersOfAKeyAreNoHerd(t *testing.T) {
	for name, limits := range map[string]ratelimit.Limits{"token bucket": bucket(1), "leaky bucket": tenASecond(1000)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newCounting(memstore.New(memstore.Config{}))
				limiter := build(t, ratelimit.Config{Store: store, Policies: []ratelimit.Policy{{Name: "api", Limits: limits}}})
				const waiters = 500
				var admitted atomic.Int64
				for range waiters {
					go func() {
						if limiter.Wait(context.Background(), acme, "api") == nil {
							admitted.Add(1)
						}
					}()
				}
				time.Sleep(waiters * 100 * time.Millisecond)
				synctest.Wait()
				if admitted.Load() != waiters || store.calls > 2*waiters {
					t.Errorf("%d admitted with %d questions, want %d with at most two each", admitted.Load(), store.calls, waiters)
				}
			})
		})
	}
}

func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCallers(build(t, ratelimit.Config{Store: memstore.New(memstore.Config{}), Policies: []ratelimit.Policy{{Name: "api", Limits: tenASecond(5)}}}))
		reserve := func(n int64) *ratelimit.Reservation {
			t.Helper()
			r, err := c.limiter.ReserveN(context.Background(), acme, "api", n)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		wantDelay := func(name string, r *ratelimit.Reservation, want time.Duration) {
			t.Helper()
			if got := r.Delay(); got != want {
				t.Errorf("%s: delay %v, want %v", name, got, want)
			}
		}
		now, two, last := reserve(1), reserve(2), reserve(1)
		c.wait("waiter", 1)
		wantDelay("the first", now, 0)
		wantDelay("the second", two, 100*time.Millisecond)
		wantDelay("the third", last, 300*time.Millisecond)
		if _, err := c.limiter.Reserve(context.Background(), acme, "api"); err == nil ||
			err.Error() != `ratelimit: waiting for policy "api" takes 500ms, but its queue of 5 is full; ask again in 100ms` {
			t.Errorf("a full queue: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
		wantDelay("the third, later", last, 250*time.Millisecond)

		last.Cancel() // the waiter has it, and its own is spare
		last.Cancel()
		wantDelay("who comes next", reserve(1), 350*time.Millisecond)
		two.Cancel()
		wantDelay("nothing", reserve(0), 0)
		c.wait("next", 1) // the spare turn of two units, behind the waiter's
		time.Sleep(time.Second)
		now.Cancel() // it has come long ago
		wantDelay("a free queue", reserve(1), 0)
		c.want(t, "waiter@100 next@300")
	})
}

func TestReserveNeedsALimitThatHandsOutTurns(t *testing.T) {
	for _, tc := range []struct {
		policy ratelimit.Policy
		key    string
		n      int64
		want   string
	}{
		{ratelimit.Policy{Name: "api", Limits: bucket(2)}, "api", 1, `ratelimit: policy "api" hands out no turns to reserve; make its limit one algorithms.LeakyBucket, or use Wait`},
		{ratelimit.Policy{Name: "api", Limits: append(tenASecond(2), perMinute(2)...)}, "api", 1, `ratelimit: policy "api" hands out no turns to reserve; make its limit one algorithms.LeakyBucket, or use Wait`},
		{ratelimit.Policy{Name: "api", Limits: tenASecond(2)}, "nope", 1, `ratelimit: there is no policy "nope" in Config.Policies`},
		{ratelimit.Policy{Name: "api", Limits: tenASecond(2)}, "api", -1, `ratelimit: n must be >= 0, got -1; use Settle to give units back`},
		{ratelimit.Policy{Name: "api", Limits: bucket(2), Disabled: true}, "api", 1, ""},
		{ratelimit.Policy{Name: "api", Limits: tenASecond(2), Shadow: true}, "api", 99, ""},
	} {
		limiter := build(t, one(tc.policy))
		r, err := limiter.ReserveN(context.Background(), acme, tc.key, tc.n)
		if got := fmt.Sprint(err); err != nil && got != tc.want || err == nil && (tc.want != "" || r.Delay() != 0) {
			t.Errorf("%+v: got %v, want %s", tc.policy, err, tc.want)
		}
		if tc.want == "" {
			r.Cancel() // of nothing
		} else if err := limiter.WaitN(context.Background(), acme, tc.key, tc.n); tc.n < 0 && (err == nil || err.Error() != tc.want) {
			t.Errorf("WaitN(%d): got %v", tc.n, err)
		}
	}
}
