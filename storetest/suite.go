package storetest

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// testModel lives random lives: rules, costs, gaps, settlements, several charges at a
// time. The seed is printed on failure by the running number of the life.
func testModel(t *testing.T, open Open) {
	lives := 150
	if testing.Short() {
		lives = 20
	}
	for life := range lives {
		s := newSubject(t, open)
		random := rand.New(rand.NewPCG(uint64(life), 0))
		rules := []algorithms.Algorithm{randomRule(random), randomRule(random)}
		var times []time.Time
		for request := range 40 {
			s.advance(randomGap(random, rules[0]))
			if s.now.Year() > 2200 {
				break // times stay exact until 2255
			}
			var charges []algorithms.Charge
			for i, rule := range rules[:1+random.IntN(2)] {
				charges = append(charges, algorithms.Charge{
					Key: string(rune('a' + i)), Algorithm: rule, Cost: randomCost(random, limitOf(rule)),
				})
			}
			if random.IntN(8) == 0 {
				charges[0].Cost -= random.Int64N(limitOf(rules[0]) + 1)
				if len(times) > 0 && random.IntN(2) == 0 {
					charges[0].At = times[random.IntN(len(times))]
				}
				ok(t, s.Settle(context.Background(), charges[:1]))
				ok(t, s.model.Settle(context.Background(), charges[:1]))
				continue
			}
			decide, judge := s.Take, s.model.Take
			if random.IntN(8) == 0 {
				decide, judge = s.Peek, s.model.Peek
			}
			got, want := make([]algorithms.Decision, len(charges)), make([]algorithms.Decision, len(charges))
			ok(t, judge(context.Background(), charges, want))
			ok(t, decide(context.Background(), charges, got))
			times = append(times, got[0].At)
			if !slices.Equal(got, want) {
				t.Fatalf("life %d, request %d at %d: %v\nstore %+v\nmodel %+v", life, request, s.now.UnixMicro(), charges, got, want)
			}
		}
	}
}

func randomRule(random *rand.Rand) algorithms.Algorithm {
	limits := []int64{1 + random.Int64N(5), 1 + random.Int64N(100), 1 + random.Int64N(10_000)}
	windows := []time.Duration{
		time.Millisecond, time.Second, time.Minute, time.Hour, 24 * time.Hour,
		algorithms.Microseconds(1000 + random.Int64N(10_000_000)),
	}
	limit, window := limits[random.IntN(len(limits))], windows[random.IntN(len(windows))]
	rate := limits[random.IntN(len(limits))]
	rules := []algorithms.Algorithm{
		algorithms.SlidingWindowCounter{Limit: limit, Window: window},
		algorithms.TokenBucket{Capacity: limit, Refill: rate, Per: window},
		algorithms.FixedWindow{Limit: limit, Window: window},
		algorithms.SlidingWindowLog{Limit: limit, Window: window},
		algorithms.LeakyBucket{Capacity: limit, Rate: rate, Per: window, Burst: random.Int64N(limit)},
		algorithms.Concurrency{Limit: min(limit, 100), Lease: window},
	}
	return rules[random.IntN(len(rules))]
}

func randomCost(random *rand.Rand, limit int64) int64 {
	switch random.IntN(4) {
	case 0:
		return 1
	case 1:
		return random.Int64N(limit + 2)
	}
	return random.Int64N(1 + (limit+4)/5)
}

// randomGap is a burst, a share of the rule's scale, or one of its edges.
func randomGap(random *rand.Rand, a algorithms.Algorithm) time.Duration {
	_, full := a.Step(algorithms.State{}, suiteStart.UnixMicro(), limitOf(a))
	scale := full.ResetAfter.Microseconds()
	gaps := []int64{0, random.Int64N(5), random.Int64N(scale/10 + 1), random.Int64N(scale + 1), scale, scale - 1, scale / 2, 3 * scale}
	return algorithms.Microseconds(gaps[random.IntN(len(gaps))])
}

// testFirstAnswer asks once under each of 10,000 rates a minute: the answer leaves
// limit - cost, to the unit.
func testFirstAnswer(t *testing.T, open Open) {
	s := newSubject(t, open)
	const batch = 25
	decisions := make([]algorithms.Decision, 6*batch)
	for from := int64(1); from <= 10_000; from += batch {
		var charges []algorithms.Charge
		for limit := from; limit < from+batch; limit++ {
			for _, a := range []algorithms.Algorithm{
				algorithms.SlidingWindowCounter{Limit: limit, Window: time.Minute},
				algorithms.TokenBucket{Capacity: limit, Refill: limit, Per: time.Minute},
				algorithms.FixedWindow{Limit: limit, Window: time.Minute},
				algorithms.SlidingWindowLog{Limit: limit, Window: time.Minute},
				algorithms.LeakyBucket{Capacity: limit, Rate: limit, Per: time.Minute},
				algorithms.Concurrency{Limit: limit, Lease: time.Minute},
			} {
				cost := min(1+limit%3, limit)
				charges = append(charges, algorithms.Charge{Key: "{first}:" + strconv.FormatInt(limit, 10), Algorithm: a, Cost: cost})
			}
		}
		ok(t, s.Take(context.Background(), charges, decisions))
		for i, charge := range charges {
			if want := limitOf(charge.Algorithm) - charge.Cost; !decisions[i].Allowed || decisions[i].Remaining != want {
				t.Fatalf("%v: first answer to cost %d: %+v, want Remaining %d", charge.Algorithm, charge.Cost, decisions[i], want)
			}
		}
	}
}

// testRetryAfter is the strongest property of a refusal: one microsecond before
// RetryAfter the same request is still refused, and then it is admitted. Where it is a
// guess, because requests end when they like, that holds for ResetAfter and the limit.
func testRetryAfter(t *testing.T, open Open) {
	for _, rule := range algorithms.Rules() {
		s := newSubject(t, open)
		limit := limitOf(rule.Example)
		for i := range limit + 3 {
			s.take(t, "k", rule.Example, 1+i%3)
			s.advance(137 * time.Microsecond)
		}
		for _, cost := range []int64{limit, 1, limit / 2} {
			d := s.take(t, "k", rule.Example, cost)
			if d.Allowed {
				continue
			}
			if d.Lease > 0 {
				cost, d.RetryAfter = limit, d.ResetAfter
			}
			s.advance(d.RetryAfter - time.Microsecond)
			if early := s.take(t, "k", rule.Example, cost); early.Allowed || early.RetryAfter != time.Microsecond {
				t.Errorf("%s: a microsecond before RetryAfter: %+v, want a refusal with RetryAfter 1µs", rule.Name, early)
			}
			s.advance(time.Microsecond)
			if then := s.take(t, "k", rule.Example, cost); !then.Allowed {
				t.Errorf("%s: after waiting exactly %v: %+v, want it admitted", rule.Name, d.RetryAfter, then)
			}
		}
	}
}

func testAllOrNothing(t *testing.T, open Open) {
	ctx := context.Background()
	s := newSubject(t, open)
	minute := algorithms.SlidingWindowCounter{Limit: 3, Window: time.Minute}
	hour := algorithms.TokenBucket{Capacity: 10, Refill: 10, Per: time.Hour}
	charges := []algorithms.Charge{{Key: "{u}", Algorithm: minute, Cost: 1}, {Key: "{u}", Algorithm: hour, Cost: 1}}
	decisions := make([]algorithms.Decision, 2)
	for range 5 {
		ok(t, s.Take(ctx, charges, decisions))
	}
	if decisions[0].Allowed || !decisions[1].Allowed || decisions[1].Remaining != 7 {
		t.Errorf("3 a minute and 10 an hour, 5 requests: %+v, want the first to refuse and the second to have 7 left", decisions)
	}
	if d := s.take(t, "{u}", hour, 0); d.Remaining != 7 {
		t.Errorf("a refused unit was counted by the rule that admitted it: %+v, want Remaining 7", d)
	}
}

func testChangedLimit(t *testing.T, open Open) {
	for _, change := range []struct {
		name         string
		before, now  algorithms.Algorithm
		spend, cost  int64
		wantLimit    int64
		wantRemains  int64
		wantRefusals bool
	}{
		{"B86 fixed window raised", algorithms.FixedWindow{Limit: 10, Window: time.Minute}, algorithms.FixedWindow{Limit: 20, Window: time.Minute}, 10, 1, 20, 9, false},
		{"sliding counter raised", algorithms.SlidingWindowCounter{Limit: 10, Window: time.Minute}, algorithms.SlidingWindowCounter{Limit: 20, Window: time.Minute}, 10, 1, 20, 9, false},
		{"sliding counter lowered", algorithms.SlidingWindowCounter{Limit: 10, Window: time.Minute}, algorithms.SlidingWindowCounter{Limit: 5, Window: time.Minute}, 8, 1, 5, 0, true},
		{"log lowered", algorithms.SlidingWindowLog{Limit: 10, Window: time.Minute}, algorithms.SlidingWindowLog{Limit: 9, Window: time.Minute}, 8, 1, 9, 0, false},
		{"concurrency lowered", algorithms.Concurrency{Limit: 10, Lease: time.Minute}, algorithms.Concurrency{Limit: 9, Lease: time.Minute}, 8, 1, 9, 0, false},
		{"bucket raised", algorithms.TokenBucket{Capacity: 10, Refill: 1, Per: time.Hour}, algorithms.TokenBucket{Capacity: 15, Refill: 1, Per: time.Hour}, 10, 1, 15, 4, false},
		{"bucket refills faster", algorithms.TokenBucket{Capacity: 10, Refill: 1, Per: time.Hour}, algorithms.TokenBucket{Capacity: 10, Refill: 7, Per: time.Hour}, 8, 1, 10, 1, false},
		{"another window starts anew", algorithms.FixedWindow{Limit: 10, Window: time.Minute}, algorithms.FixedWindow{Limit: 10, Window: time.Hour}, 10, 1, 10, 9, false},
		{"another algorithm starts anew", algorithms.FixedWindow{Limit: 10, Window: time.Minute}, algorithms.SlidingWindowCounter{Limit: 10, Window: time.Minute}, 10, 1, 10, 9, false},
	} {
		s := newSubject(t, open)
		s.advance(time.Minute - time.Duration(s.now.UnixNano())%time.Minute)
		s.take(t, "k", change.before, change.spend)
		s.advance(10 * time.Second)
		d := s.take(t, "k", change.now, change.cost)
		if d.Allowed == change.wantRefusals || d.Limit != change.wantLimit || d.Remaining != change.wantRemains {
			t.Errorf("%s: %+v, want Limit %d, Remaining %d", change.name, d, change.wantLimit, change.wantRemains)
		}
	}
}

func testClockSetBack(t *testing.T, open Open) {
	for _, rule := range algorithms.Rules() {
		s := newSubject(t, open)
		limit := limitOf(rule.Example)
		first := s.take(t, "k", rule.Example, limit)
		s.advance(-time.Hour)
		if d := s.take(t, "k", rule.Example, 1); d.Allowed {
			t.Errorf("%s: B47 an hour set back gave quota: %+v", rule.Name, d)
		}
		s.advance(first.ResetAfter + 2*time.Minute)
		if d := s.take(t, "k", rule.Example, limit); !d.Allowed {
			t.Errorf("%s: B49 still locked a full recovery after the clock was set back: %+v", rule.Name, d)
		}
	}
}

func testKeys(t *testing.T, open Open) {
	s := newSubject(t, open)
	a := algorithms.FixedWindow{Limit: 1, Window: time.Hour}
	keys := []string{
		"a", "A", "a ", " a", "a\x00", "\x00", "", "a:b", "a:", "{a}", "{a", "a}", "}{", "{}", "{}a", "*", "a\r\nb", "\xff\xfe", "ключ",
		strings.Repeat("k", 10_000), strings.Repeat("k", 10_001),
	}
	for range 2 {
		for _, key := range keys {
			d := s.take(t, key, a, 1)
			if want := s.model.counters[counterID{key, a.Shape()}] == nil; d.Allowed != want {
				t.Errorf("key %.20q: allowed %v, want %v", key, d.Allowed, want)
			}
			s.model.counter(algorithms.Charge{Key: key, Algorithm: a})
		}
	}
}

func testSettle(t *testing.T, open Open) {
	ctx := context.Background()
	for _, rule := range algorithms.Rules() {
		s := newSubject(t, open)
		s.advance(time.Minute - time.Duration(s.now.UnixNano())%time.Minute)
		limit := limitOf(rule.Example)
		charge := []algorithms.Charge{{Key: "k", Algorithm: rule.Example, Cost: 5}}
		decisions := make([]algorithms.Decision, 1)
		remaining := func(want int64, after string) {
			t.Helper()
			if d := s.take(t, "k", rule.Example, 0); d.Remaining != want {
				t.Errorf("%s: Remaining %d after %s, want %d", rule.Name, d.Remaining, after, want)
			}
		}
		ok(t, s.Take(ctx, charge, decisions))
		ok(t, s.Peek(ctx, charge, decisions))
		if !decisions[0].Allowed || decisions[0].Remaining != limit-10 {
			t.Errorf("%s: peek of 5 after taking 5: %+v, want Remaining %d", rule.Name, decisions[0], limit-10)
		}
		remaining(limit-5, "peeking")
		charge[0].Cost = -2
		ok(t, s.Settle(ctx, charge))
		remaining(limit-3, "giving 2 back")
		charge[0].Cost = limit
		ok(t, s.Settle(ctx, charge))
		remaining(0, "charging a whole limit more")
		charge[0].Cost = -10 * limit
		ok(t, s.Settle(ctx, charge))
		remaining(limit, "giving more back than was taken")
		s.take(t, "k", rule.Example, limit)
		ok(t, s.Reset(ctx, charge))
		remaining(limit, "reset")
	}
}

// testLeases holds units as requests do that end in another order than they came.
func testLeases(t *testing.T, open Open) {
	ctx := context.Background()
	s := newSubject(t, open)
	rule := algorithms.Concurrency{Limit: 5, Lease: time.Minute}
	first := s.take(t, "k", rule, 1)
	s.advance(10 * time.Second)
	second, third := s.take(t, "k", rule, 2), s.take(t, "k", rule, 1) // at one moment
	s.advance(10 * time.Second)
	fourth := s.take(t, "k", rule, 1)
	if d := s.take(t, "k", rule, 1); !fourth.Allowed || d.Allowed || d.RetryAfter != time.Second || d.Lease != rule.Lease {
		t.Errorf("the sixth unit of five: %+v, want a refusal for a second", d)
	}
	for _, end := range []struct {
		name            string
		taken           time.Time
		cost, remaining int64
	}{
		{"the second", second.At, 2, 2}, {"the third", third.At, 1, 3}, {"the third again", third.At, 1, 3},
		{"one that never was", first.At.Add(time.Microsecond), 1, 3}, {"the fourth", fourth.At, 1, 4},
	} {
		ok(t, s.Settle(ctx, []algorithms.Charge{{Key: "k", Algorithm: rule, Cost: -end.cost, At: end.taken}}))
		if d := s.take(t, "k", rule, 0); d.Remaining != end.remaining {
			t.Errorf("%s ends: %+v, want Remaining %d", end.name, d, end.remaining)
		}
	}
	s.advance(40*time.Second - time.Microsecond)
	if d := s.take(t, "k", rule, 0); d.Remaining != 4 || d.ResetAfter != time.Microsecond {
		t.Errorf("a microsecond before the lease of the first ends: %+v", d)
	}
	s.advance(time.Microsecond)
	if d := s.take(t, "k", rule, 5); !d.Allowed {
		t.Errorf("all leases are over: %+v, want it admitted", d)
	}
}

func testBadCharges(t *testing.T, open Open) {
	ctx := context.Background()
	s := newSubject(t, open)
	good := algorithms.FixedWindow{Limit: 10, Window: time.Minute}
	for name, bad := range map[string]algorithms.Charge{
		"B55 negative cost": {Key: "k", Algorithm: good, Cost: -1},
		"no algorithm":      {Key: "k", Cost: 1},
		"invalid algorithm": {Key: "k", Algorithm: algorithms.FixedWindow{Limit: 10}, Cost: 1},
	} {
		charges := []algorithms.Charge{{Key: "other", Algorithm: good, Cost: 1}, bad}
		if err := s.Take(ctx, charges, make([]algorithms.Decision, 2)); err == nil {
			t.Errorf("%s: Take returned no error", name)
		}
		if err := s.Peek(ctx, charges, make([]algorithms.Decision, 2)); err == nil {
			t.Errorf("%s: Peek returned no error", name)
		}
	}
	twice := []algorithms.Charge{{Key: "other", Algorithm: good, Cost: 1}, {Key: "other", Algorithm: good, Cost: 1}}
	if err := s.Take(ctx, twice, make([]algorithms.Decision, 2)); err == nil {
		t.Error("the same counter twice in one call returned no error")
	}
	if err := s.Take(ctx, twice[:1], nil); err == nil {
		t.Error("fewer decisions than charges returned no error")
	}
	if d := s.take(t, "other", good, 0); d.Remaining != 10 {
		t.Errorf("a bad call was counted: %+v", d)
	}
	ok(t, s.Take(ctx, nil, nil))
}

func testCancelled(t *testing.T, open Open) {
	s := newSubject(t, open)
	a := algorithms.FixedWindow{Limit: 10, Window: time.Minute}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Take(cancelled, []algorithms.Charge{{Key: "k", Algorithm: a, Cost: 1}}, make([]algorithms.Decision, 1)); err == nil {
		t.Error("Take with a cancelled context returned no error")
	}
	if d := s.take(t, "k", a, 0); d.Remaining != 10 {
		t.Errorf("a cancelled call was counted: %+v", d)
	}
}

func testConcurrent(t *testing.T, open Open) {
	for _, rule := range algorithms.Rules() {
		s := newSubject(t, open)
		limit := limitOf(rule.Example)
		var admitted atomic.Int64
		var wait sync.WaitGroup
		for range 16 {
			wait.Go(func() {
				decisions := make([]algorithms.Decision, 1)
				for range limit/8 + 2 {
					if err := s.Take(context.Background(), []algorithms.Charge{{Key: "k", Algorithm: rule.Example, Cost: 1}}, decisions); err != nil {
						t.Errorf("%s: %v", rule.Name, err)
						return
					}
					if decisions[0].Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		wait.Wait()
		if got := admitted.Load(); got != limit {
			t.Errorf("%s: %d of %d concurrent requests admitted, want exactly %d", rule.Name, got, 16*(limit/8+2), limit)
		}
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
