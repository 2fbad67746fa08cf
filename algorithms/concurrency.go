package algorithms

import (
	_ "embed"
	"errors"
	"fmt"
	"time"
)

// Concurrency admits requests while fewer than Limit units are in flight. Units are held,
// not used up: whoever took them gives them back when its request ends (Settle, with the
// decision's At), or takes them anew before Lease is over ([Renewal]). A holder that
// crashed does neither, and what it held is free once Lease has passed.
//
// Choose it beside a rate, where a client's slow requests fill the service however few
// they are: uploads, exports, reports.
//
// Cost: an entry for each unit held (in Redis 40 bytes, above 128 units 130; in memory 16
// for those taken at once); O(log n) time and, to take n units in Redis, n entries.
// Refused requests leave no entry.
//
// What it gets wrong: nothing while holders renew in time. A holder that doesn't, because
// it stood still or couldn't reach the store for Lease, is no longer counted until it
// renews again.
//
// Of its decisions RetryAfter is a guess, at most a second: when a request ends nobody
// can know. ResetAfter is the latest that all units are free, and At never lies before
// that of a unit in flight, whatever the clock.
type Concurrency struct {
	// Limit is the number of units in flight, from 1 to 100,000.
	Limit int64
	// Lease is how long a holder that crashed keeps its units: whole microseconds, from
	// 1 ms to 70 years. Seconds to a minute are usual; shorter than what a renewal may
	// take, the store's time-out above all, lets more through than Limit.
	Lease time.Duration
}

const (
	// maxHeld bounds what one key can make us remember.
	maxHeld = 100_000
	// askAgain is when a refused request is told to ask again at the latest.
	askAgain = time.Second
)

//go:embed concurrency.lua
var concurrencyLua string

// Renewal is the rule that takes the units of a lease anew: it draws on the same counter
// and refuses nobody. Take first, then Settle what was held before: so others see too many
// units for a moment, never too few. It is nil for a rule whose units are used up.
func Renewal(a Algorithm) Algorithm {
	if c, ok := a.(Concurrency); ok {
		c.Limit = maxHeld
		return c
	}
	return nil
}

// Validate implements [Algorithm].
func (a Concurrency) Validate() error {
	var errs []error
	switch {
	case a.Limit < 1:
		errs = append(errs, &FieldError{"Concurrency", "Limit", a.Limit, "must be >= 1"})
	case a.Limit > maxHeld:
		errs = append(errs, &FieldError{"Concurrency", "Limit", a.Limit,
			"must be <= 100000 because each unit in flight is remembered; let a unit stand for more"})
	}
	if err := checkDuration("Concurrency", "Lease", a.Lease); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (a Concurrency) String() string {
	return fmt.Sprintf("%d in flight, leased for %v (concurrency)", a.Limit, a.Lease)
}

// Shape implements [Algorithm]: the lease.
func (a Concurrency) Shape() Shape { return Shape{"cc1", a.Lease} }

// Parameters implements [Algorithm]: limit, lease in microseconds.
func (a Concurrency) Parameters() [3]int64 {
	return [3]int64{a.Limit, a.Lease.Microseconds()}
}

// Step implements [Algorithm].
func (a Concurrency) Step(s State, now, cost int64) (State, Decision) {
	var d Decision
	a.Apply(&s, &d, now, cost)
	return s, d
}

// Apply implements [Algorithm].
func (a Concurrency) Apply(s *State, d *Decision, now, cost int64) {
	limit, lease := a.Limit, a.Lease.Microseconds()
	forget(s, now, lease)
	now = max(now, s.At) // units are found again by their time, so that is the decision's
	used := s.Used - s.Previous

	d.begin(now, limit)
	d.Lease = a.Lease
	d.Allowed = cost <= limit-used
	if d.Allowed && cost > 0 {
		used += cost
		remember(s, now, cost)
	}

	d.Remaining = max(0, limit-used)
	if used > 0 {
		d.ResetAfter = Microseconds(s.At + lease - now)
	}
	switch {
	case cost > limit:
		d.RetryAfter = Never
	case !d.Allowed:
		d.RetryAfter = min(d.ResetAfter, askAgain)
	}
}

// Share implements [Algorithm].
func (a Concurrency) Share(n, cost int64) Algorithm {
	a.Limit = shareOf(a.Limit, n, cost)
	return a
}

// Restore implements [Algorithm]: used is the units in flight, at when the newest of
// them was taken.
func (a Concurrency) Restore(at, used, _, _ int64) State {
	if used == 0 {
		return State{At: at}
	}
	return State{At: at, Used: used, Log: []Entry{{at, used}}}
}

// Settle implements [Algorithm]. Units are given back exactly: of those taken at that
// time, or none.
func (a Concurrency) Settle(s State, now, units, taken int64) State {
	if units > 0 {
		forget(&s, now, a.Lease.Microseconds())
		if units = min(units, maxHeld-(s.Used-s.Previous)); units <= 0 {
			return s
		}
	}
	return SlidingWindowLog{Limit: a.Limit, Window: a.Lease}.Settle(s, now, units, taken)
}

// Pace implements [Algorithm]: no time stands for units in flight, so both are 0.
func (Concurrency) Pace(Decision) (window, effective time.Duration) { return 0, 0 }

func (Concurrency) sealed() {}
