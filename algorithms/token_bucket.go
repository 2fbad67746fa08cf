package algorithms

import (
	_ "embed"
	"errors"
	"fmt"
	"time"
)

// TokenBucket holds up to Capacity tokens and refills Refill of them every Per, a
// little each microsecond. A request takes Cost tokens. It starts full.
//
// Choose it where clients send batches, and size Capacity by the largest batch you
// expect, not by the steady rate.
//
// Cost: three integers a key; constant time.
//
// What it gets wrong: it is not a cap on a window. Over any span T a client gets up to
//
//	Capacity + Refill x T / Per units,
//
// so {Capacity: 60, Refill: 60, Per: time.Minute} admits up to 120 in its first minute.
//
// The refill is exact. Refill/Per is reduced by its greatest common divisor to r/u, a
// token is split into u parts, and r parts come back every microsecond; 3 per second,
// 1000 per day and 1,000,000 per second are all whole numbers. Capacity x u must stay
// within 2^53.
type TokenBucket struct {
	// Capacity is the most tokens the bucket holds: the largest burst. At least 1.
	Capacity int64
	// Refill is how many tokens come back every Per. At least 1.
	Refill int64
	// Per is the time for Refill tokens: whole microseconds, from 1 ms to 70 years.
	Per time.Duration
}

//go:embed token_bucket.lua
var tokenBucketLua string

// Validate implements [Algorithm].
func (a TokenBucket) Validate() error {
	return checkBucket("TokenBucket", "Refill", a.Capacity, a.Refill, a.Per)
}

func (a TokenBucket) String() string {
	return fmt.Sprintf("%d at once, refilling %d per %v (token bucket)", a.Capacity, a.Refill, a.Per)
}

// Shape implements [Algorithm]: Per. A bucket with another Refill or Capacity goes on
// from what is in it; a token partly earned at another rate may count as not earned.
func (a TokenBucket) Shape() Shape { return Shape{"tb1", a.Per} }

// Parameters implements [Algorithm]: capacity, parts refilled a microsecond, parts a token.
func (a TokenBucket) Parameters() [3]int64 {
	refill, unit := reduce(a.Refill, a.Per)
	return [3]int64{a.Capacity, refill, unit}
}

// Step implements [Algorithm].
func (a TokenBucket) Step(s State, now, cost int64) (State, Decision) {
	var d Decision
	a.Apply(&s, &d, now, cost)
	return s, d
}

// Apply implements [Algorithm].
func (a TokenBucket) Apply(s *State, d *Decision, now, cost int64) {
	refill, unit := reduce(a.Refill, a.Per)
	drain(s, now, a.Capacity, refill, unit)
	fill(s, d, now, cost, a.Capacity, refill, unit)
}

// Share implements [Algorithm].
func (a TokenBucket) Share(n, cost int64) Algorithm {
	a.Capacity, a.Per = shareOf(a.Capacity, n, cost), a.Per*time.Duration(n)
	return a
}

// Restore implements [Algorithm]: extra is the parts of a token in used.
func (a TokenBucket) Restore(at, used, extra, _ int64) State {
	return State{At: at, Used: used, Unit: extra}
}

// Settle implements [Algorithm]. Charging more can leave the bucket in debt, which is
// refilled first. When tokens were taken makes no difference: a bucket that was full
// again in between gets back more than it should, at most the units.
func (a TokenBucket) Settle(s State, now, units, _ int64) State {
	refill, unit := reduce(a.Refill, a.Per)
	return settleBucket(s, now, units, a.Capacity, refill, unit)
}

// Pace implements [Algorithm].
func (a TokenBucket) Pace(d Decision) (window, effective time.Duration) {
	refill, unit := reduce(a.Refill, a.Per)
	return paceBucket(d, a.Capacity, refill, unit)
}

func (TokenBucket) sealed() {}

// drain takes out what has come back since the state was stored.
func drain(s *State, now, capacity, refill, unit int64) {
	if s.Unit != unit {
		if s.Unit > 0 {
			s.Used = min(ceilDiv(s.Used, s.Unit), maxExact/unit) * unit
		}
		s.Unit = unit
	}
	recovery := ceilDiv(s.Used, refill)
	elapsed := now - s.At
	switch {
	case elapsed >= recovery:
		s.At, s.Used = now, 0
	case elapsed >= 0:
		s.At, s.Used = now, s.Used-elapsed*refill
	case -elapsed > ceilDiv(capacity*unit, refill)+clockSlack:
		s.At = now
	}
}

// fill decides on a state that was drained at now.
func fill(s *State, d *Decision, now, cost, capacity, refill, unit int64) {
	ahead := s.At - now
	d.begin(now, capacity)
	switch {
	case cost > capacity:
		d.RetryAfter = Never
	case s.Used > (capacity-cost)*unit:
		d.RetryAfter = Microseconds(ahead + ceilDiv(s.Used-(capacity-cost)*unit, refill))
	default:
		d.Allowed = true
		s.Used += cost * unit
	}

	d.Remaining = max(0, capacity*unit-s.Used) / unit
	if s.Used > 0 {
		d.ResetAfter = Microseconds(ahead + ceilDiv(s.Used, refill))
	}
}

func settleBucket(s State, now, units, capacity, refill, unit int64) State {
	drain(&s, now, capacity, refill, unit)
	most := maxExact / unit
	s.Used = max(0, min(s.Used+max(-most, min(units, most))*unit, most*unit))
	return s
}

// paceBucket is the Pace both buckets share.
func paceBucket(d Decision, capacity, refill, unit int64) (window, effective time.Duration) {
	remaining := max(0, min(d.Remaining, capacity))
	return Microseconds(ceilDiv(capacity*unit, refill)), Microseconds(ceilDiv(remaining*unit, refill))
}

// reduce returns the parts that come back every microsecond and the parts of a token.
func reduce(amount int64, per time.Duration) (refill, unit int64) {
	a, b := amount, per.Microseconds()
	for b != 0 {
		a, b = b, a%b
	}
	return amount / a, per.Microseconds() / a
}

// checkBucket is the validation both buckets share; rate names the field of amount.
func checkBucket(algorithm, rate string, capacity, amount int64, per time.Duration) error {
	var errs []error
	if capacity < 1 {
		errs = append(errs, &FieldError{algorithm, "Capacity", capacity, "must be >= 1"})
	}
	if amount < 1 || amount > maxExact {
		errs = append(errs, &FieldError{algorithm, rate, amount, "must be between 1 and 2^53"})
	}
	if err := checkDuration(algorithm, "Per", per); err != nil {
		errs = append(errs, err)
	}
	if errs == nil {
		_, unit := reduce(amount, per)
		if capacity > maxExact/unit {
			errs = append(errs, &FieldError{algorithm, "Capacity", capacity,
				fmt.Sprintf("must be <= %d so that %d per %v stays exact (within 2^53); take a %s that shares a larger divisor with Per", maxExact/unit, amount, per, rate)})
		}
	}
	return errors.Join(errs...)
}
