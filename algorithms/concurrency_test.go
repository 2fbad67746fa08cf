package algorithms

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestConcurrencyLife(t *testing.T) {
	leased := func(d Decision) Decision {
		d.Lease = time.Minute
		return d
	}
	two := Concurrency{Limit: 2, Lease: time.Minute}
	live(t, []life{
		{"leases that nobody gives back end by themselves", two, []ask{
			{0, 0, leased(pass(2, 0))},
			{0, 1, leased(pass(1, 60*sec))},
			{20 * sec, 1, leased(pass(0, 60*sec))},
			{30 * sec, 1, leased(refuse(0, 50*sec, sec))},
			{60*sec - us, 1, leased(refuse(0, 20*sec+us, sec))},
			{60 * sec, 1, leased(pass(0, 60*sec))},
			{80*sec - 300*ms, 2, leased(refuse(0, 40*sec+300*ms, sec))},
			{120*sec - 300*ms, 2, leased(refuse(1, 300*ms, 300*ms))}, // nothing is held longer
			{120 * sec, 2, leased(pass(0, 60*sec))},
		}},
		{"more than the limit never passes", two, []ask{
			{0, 3, leased(refuse(2, 0, Never))},
		}},
	})
}

// Of requests that end in any order, many in one microsecond, each gives back its own
// units and no others; what crashed ones hold is free after the lease.
func TestConcurrencyHoldsWhatIsInFlight(t *testing.T) {
	type request struct{ at, cost int64 }
	rapid.Check(t, func(t *rapid.T) {
		k := key{rule: Concurrency{Limit: rapid.Int64Range(1, 8).Draw(t, "limit"), Lease: time.Second}}
		limit, now := k.rule.Parameters()[0], dawn
		var flying []request
		held := func() (sum int64) {
			for _, r := range flying {
				sum += r.cost
			}
			return sum
		}
		end := func(i int) {
			k.state = k.rule.Settle(k.state, now, -flying[i].cost, flying[i].at)
			flying = append(flying[:i], flying[i+1:]...)
		}
		for range rapid.IntRange(1, 60).Draw(t, "moves") {
			now += rapid.SampledFrom([]int64{0, 0, 1, 1000}).Draw(t, "gap")
			if len(flying) > 0 && rapid.Bool().Draw(t, "ends") {
				end(rapid.IntRange(0, len(flying)-1).Draw(t, "which"))
				continue
			}
			r := request{now, rapid.Int64Range(1, limit).Draw(t, "cost")}
			d := k.take(now, r.cost)
			if d.Allowed != (held()+r.cost <= limit) {
				t.Fatalf("cost %d with %d held: %+v", r.cost, held(), d)
			}
			if d.Allowed {
				flying = append(flying, r)
			}
			if d.Remaining != limit-held() {
				t.Fatalf("%+v with %d held", d, held())
			}
		}
		for len(flying) > 1 {
			end(0)
		}
		if d := k.take(now, 0); d.Remaining != limit-held() {
			t.Fatalf("%+v with %d held", d, held())
		}
		if d := k.take(now+1e6, 0); d.Remaining != limit {
			t.Fatalf("%+v a lease after the last one crashed", d)
		}
	})
}

// A clock a little behind, as of a replica that took over: what was taken meanwhile is
// given back all the same, by the time that its decision tells.
func TestConcurrencyGivesBackWhatAClockBehindTook(t *testing.T) {
	rule := Concurrency{Limit: 2, Lease: time.Minute}
	k := key{rule: rule}
	first := k.take(dawn, 1)
	second := k.take(dawn-(10*sec).Microseconds(), 1)
	if !second.Allowed || second.At.Before(first.At) {
		t.Fatalf("ten seconds behind: %+v", second)
	}
	for i, d := range []Decision{second, first} {
		k.state = rule.Settle(k.state, dawn-1, -1, d.At.UnixMicro())
		if d := k.take(dawn-1, 0); d.Remaining != int64(i+1) {
			t.Errorf("after %d given back: %+v", i+1, d)
		}
	}
}

// Units are given back of those of that time or not at all: not those of another request,
// and not twice.
func TestConcurrencyGivesBackNoUnitsOfOthers(t *testing.T) {
	rule := Concurrency{Limit: 10, Lease: time.Minute}
	k := key{rule: rule}
	k.take(dawn, 3)
	k.take(dawn+1, 2)
	for _, back := range []struct{ units, taken, remaining int64 }{
		{-3, dawn + 2, 5}, {-9, dawn + 1, 7}, {-2, dawn + 1, 7}, {-1, dawn, 8}, {-1, dawn - 1, 8}, {-9, dawn, 10},
	} {
		k.state = rule.Settle(k.state, dawn+5, back.units, back.taken)
		if d := k.take(dawn+5, 0); d.Remaining != back.remaining {
			t.Errorf("after %+v: Remaining %d", back, d.Remaining)
		}
	}
}

func TestRenewalRefusesNobody(t *testing.T) {
	rule := Concurrency{Limit: 1, Lease: time.Minute}
	k := key{rule: rule}
	was := k.take(dawn, 1)
	renewal := key{rule: Renewal(rule), state: k.state}
	d := renewal.take(dawn+30e6, 1)
	if err := renewal.rule.Validate(); err != nil || !d.Allowed || renewal.rule.Shape() != rule.Shape() {
		t.Fatalf("renewed: %+v, %v", d, err)
	}
	k.state = rule.Settle(renewal.state, dawn+30e6, -1, was.At.UnixMicro())
	if d := k.take(dawn+60e6, 1); d.Allowed || d.ResetAfter != 30*sec {
		t.Errorf("a lease after it was taken: %+v, want it held for another half", d)
	}
	for _, rule := range all(1, time.Minute) {
		if _, ok := rule.(Concurrency); !ok && Renewal(rule) != nil {
			t.Errorf("%v: there is nothing to renew", rule)
		}
	}
}

func TestConcurrencyChargesNoMoreThanItRemembers(t *testing.T) {
	rule := Concurrency{Limit: 1, Lease: time.Minute}
	k := key{rule: rule}
	for range 3 {
		k.state = rule.Settle(k.state, dawn, 1<<60, 0)
	}
	k.state = rule.Settle(k.state, dawn, -maxHeld, 0)
	if d := k.take(dawn, 1); !d.Allowed {
		t.Errorf("%+v", d)
	}
}
