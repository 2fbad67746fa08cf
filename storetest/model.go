package storetest

import (
	"context"
	"math/big"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// Model is a store that decides by the definitions: it keeps every admitted request
// with its time, computes in rational numbers, and finds each duration by searching
// for the moment, never by a formula. It is slow and grows without bound; it is the
// judge of all others.
//
// It expects time to go forward. Not safe for concurrent use.
type Model struct {
	// Now is the clock. Required. Microseconds count, the rest is cut.
	Now func() time.Time

	counters map[counterID]*counter
}

type counterID struct {
	key   string
	shape algorithms.Shape
}

// counter is the history of one key under rules of one shape.
type counter struct {
	admitted []admission

	// Buckets: the exact level at the time of the last change, and the rate since.
	level, rate *big.Rat
	at          int64
}

type admission struct{ at, units int64 }

// Take implements [Store].
func (m *Model) Take(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision) error {
	if err := m.Peek(ctx, charges, decisions); err != nil {
		return err
	}
	for i := range charges {
		if !decisions[i].Allowed {
			return nil
		}
	}
	for _, charge := range charges {
		m.counter(charge).add(m.Now().UnixMicro(), charge.Cost)
	}
	return nil
}

// Peek implements [Store].
func (m *Model) Peek(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := algorithms.Check(charges, decisions); err != nil {
		return err
	}
	now, allowed := m.Now().UnixMicro(), true
	for i, charge := range charges {
		decisions[i] = m.decide(charge, now)
		allowed = allowed && decisions[i].Allowed
	}
	for i, charge := range charges {
		if !allowed && decisions[i].Allowed {
			// It would have passed, but is not counted: it stands as it stood.
			charge.Cost = 0
			decisions[i] = m.decide(charge, now)
			decisions[i].Allowed, decisions[i].RetryAfter = true, 0
		}
	}
	return nil
}

// Settle implements [Store].
func (m *Model) Settle(_ context.Context, charges []algorithms.Charge) error {
	now := m.Now().UnixMicro()
	for _, charge := range charges {
		c := m.counter(charge)
		if charge.Cost >= 0 {
			c.add(now, charge.Cost)
		} else {
			c.giveBack(charge.Algorithm, now, -charge.Cost, charge.Taken())
		}
	}
	return nil
}

// Reset implements [Store].
func (m *Model) Reset(_ context.Context, charges []algorithms.Charge) error {
	for _, charge := range charges {
		delete(m.counters, counterID{charge.Key, charge.Algorithm.Shape()})
	}
	return nil
}

func (m *Model) counter(charge algorithms.Charge) *counter {
	id := counterID{charge.Key, charge.Algorithm.Shape()}
	c, ok := m.counters[id]
	if !ok {
		c = &counter{level: new(big.Rat)}
		if m.counters == nil {
			m.counters = make(map[counterID]*counter)
		}
		m.counters[id] = c
	}
	c.setRate(charge.Algorithm)
	return c
}

func (m *Model) decide(charge algorithms.Charge, now int64) algorithms.Decision {
	a, c := charge.Algorithm, m.counter(charge)
	limit := limitOf(a)
	concurrency, held := a.(algorithms.Concurrency)
	fits := func(t int64) bool {
		used := c.used(a, t)
		return used.Add(used, whole(charge.Cost)).Cmp(whole(limit)) <= 0
	}

	d := algorithms.Decision{At: time.UnixMicro(now).UTC(), Limit: limit, Allowed: fits(now)}
	used := c.used(a, now)
	if d.Allowed {
		if queue, ok := a.(algorithms.LeakyBucket); ok {
			burst := whole(queue.Burst)
			d.Delay = algorithms.Microseconds(first(now, func(t int64) bool { return c.used(a, t).Cmp(burst) <= 0 }) - now)
		}
		used.Add(used, whole(charge.Cost))
	} else if charge.Cost > limit {
		d.RetryAfter = algorithms.Never
	} else {
		d.RetryAfter = algorithms.Microseconds(first(now, fits) - now)
	}

	after := c
	if d.Allowed {
		after = c.clone()
		after.add(now, charge.Cost)
	}
	d.ResetAfter = algorithms.Microseconds(first(now, func(t int64) bool { return after.used(a, t).Sign() == 0 }) - now)
	if held {
		// When a request ends nobody knows: ask again in a second, or when all leases are over.
		d.Lease = concurrency.Lease
		if !d.Allowed && d.RetryAfter != algorithms.Never {
			d.RetryAfter = min(d.ResetAfter, time.Second)
		}
	}
	if left := new(big.Rat).Sub(whole(limit), used); left.Sign() > 0 {
		d.Remaining = new(big.Int).Quo(left.Num(), left.Denom()).Int64()
	}
	return d
}

// used is how many units count at time t by the definition of the rule, if nothing
// more is admitted.
func (c *counter) used(a algorithms.Algorithm, t int64) *big.Rat {
	sum := new(big.Rat)
	switch a := a.(type) {
	case algorithms.FixedWindow:
		window := a.Window.Microseconds()
		for _, e := range c.admitted {
			if e.at/window == t/window {
				sum.Add(sum, whole(e.units))
			}
		}
	case algorithms.SlidingWindowLog:
		sum.Set(c.since(t - a.Window.Microseconds()))
	case algorithms.Concurrency:
		sum.Set(c.since(t - a.Lease.Microseconds()))
	case algorithms.SlidingWindowCounter:
		window := a.Window.Microseconds()
		overlap := big.NewRat(window-t%window, window)
		for _, e := range c.admitted {
			switch t/window - e.at/window {
			case 0:
				sum.Add(sum, whole(e.units))
			case 1:
				sum.Add(sum, new(big.Rat).Mul(whole(e.units), overlap))
			}
		}
	default:
		drained := new(big.Rat).Mul(c.rate, whole(t-c.at))
		if sum.Sub(c.level, drained); sum.Sign() < 0 {
			sum.SetInt64(0)
		}
	}
	return sum
}

// since is what was admitted after time t.
func (c *counter) since(t int64) *big.Rat {
	sum := new(big.Rat)
	for _, e := range c.admitted {
		if e.at > t {
			sum.Add(sum, whole(e.units))
		}
	}
	return sum
}

func (c *counter) add(now, units int64) {
	if c.rate == nil {
		c.admitted = append(c.admitted, admission{now, units})
		return
	}
	c.level = c.used(nil, now)
	c.level.Add(c.level, whole(units))
	c.at = now
}

// giveBack undoes admissions that still count, down to nothing: those of the window, or
// of the moment, that held the time taken, or the newest.
func (c *counter) giveBack(a algorithms.Algorithm, now, units, taken int64) {
	if c.rate != nil {
		c.level = c.used(nil, now)
		c.level.Sub(c.level, whole(units))
		if c.level.Sign() < 0 {
			c.level.SetInt64(0)
		}
		c.at = now
		return
	}
	for i := len(c.admitted) - 1; i >= 0 && units > 0; i-- {
		e := &c.admitted[i]
		if taken != 0 && !together(a, e.at, taken) {
			continue
		}
		alone := counter{admitted: []admission{*e}}
		if e.units > 0 && alone.used(a, now).Sign() == 0 && !previousWindow(a, e.at, now) {
			return
		}
		back := min(units, e.units)
		e.units -= back
		units -= back
	}
}

// together says whether units of two moments are given back alike.
func together(a algorithms.Algorithm, one, other int64) bool {
	switch a.(type) {
	case algorithms.SlidingWindowLog, algorithms.Concurrency:
		return one == other
	}
	window := a.Shape().Window.Microseconds()
	return one/window == other/window
}

// previousWindow says whether at lies in the window before now's, which a sliding
// window counter still counts in part, if only just.
func previousWindow(a algorithms.Algorithm, at, now int64) bool {
	counter, ok := a.(algorithms.SlidingWindowCounter)
	return ok && now/counter.Window.Microseconds()-at/counter.Window.Microseconds() == 1
}

// setRate takes over the rate of a bucket. A token partly earned at the old rate
// counts as not earned.
func (c *counter) setRate(a algorithms.Algorithm) {
	var rate *big.Rat
	switch a := a.(type) {
	case algorithms.TokenBucket:
		rate = big.NewRat(a.Refill, a.Per.Microseconds())
	case algorithms.LeakyBucket:
		rate = big.NewRat(a.Rate, a.Per.Microseconds())
	default:
		return
	}
	if c.rate != nil && c.rate.Denom().Cmp(rate.Denom()) != 0 {
		up := new(big.Int).Add(c.level.Num(), new(big.Int).Sub(c.level.Denom(), big.NewInt(1)))
		c.level.SetInt(up.Quo(up, c.level.Denom()))
	}
	c.rate = rate
}

func (c *counter) clone() *counter {
	return &counter{append([]admission(nil), c.admitted...), new(big.Rat).Set(c.level), c.rate, c.at}
}

// first finds the first microsecond from now on at which ok holds; ok never turns
// false again.
func first(now int64, ok func(t int64) bool) int64 {
	if ok(now) {
		return now
	}
	step := int64(1)
	for !ok(now + step) {
		step *= 2
	}
	low, high := now+step/2, now+step // ok(low) is false, or low is now
	for low+1 < high {
		if middle := low + (high-low)/2; ok(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

func limitOf(a algorithms.Algorithm) int64 {
	switch a := a.(type) {
	case algorithms.SlidingWindowCounter:
		return a.Limit
	case algorithms.FixedWindow:
		return a.Limit
	case algorithms.SlidingWindowLog:
		return a.Limit
	case algorithms.Concurrency:
		return a.Limit
	case algorithms.TokenBucket:
		return a.Capacity
	case algorithms.LeakyBucket:
		return a.Capacity
	}
	panic("storetest: the model does not know " + a.String())
}

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }
