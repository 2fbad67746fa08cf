package algorithms

import (
	"errors"
	"fmt"
	"time"
)

// LeakyBucket is a queue that drains at a constant rate: Rate units every Per, at most
// Capacity of them in the queue. A decision that admits carries the Delay after which
// the request's turn comes; whoever waits that long sends an even stream downstream.
//
// Choose it in front of what needs a constant rate: another service's quota, a pool of
// workers. A token bucket says how much burst a client may send; a leaky bucket says
// how even the outflow is.
//
// Cost: three integers a key; constant time.
//
// What it gets wrong: nothing, if the caller waits for Delay. A caller that doesn't
// wait sees a token bucket, with up to
//
//	Capacity + Rate x T / Per units over any span T.
//
// Its arithmetic and its bounds are those of [TokenBucket].
type LeakyBucket struct {
	// Capacity is the most units in the queue, the one being served included. At least 1.
	Capacity int64
	// Rate is how many units leave every Per. At least 1.
	Rate int64
	// Per is the time for Rate units: whole microseconds, from 1 ms to 70 years.
	Per time.Duration
	// Burst is how many units in the queue may be ahead of one that isn't delayed: from 0,
	// an even stream, to Capacity - 1. With it Burst + 1 units leave at once after a pause,
	// such as the parts of a page, and the rest at the rate. It changes Delay alone, not
	// what is admitted; nginx's limit_req calls it delay.
	Burst int64
}

// Validate implements [Algorithm].
func (a LeakyBucket) Validate() error {
	err := checkBucket("LeakyBucket", "Rate", a.Capacity, a.Rate, a.Per)
	if a.Burst < 0 || a.Burst > 0 && a.Burst >= a.Capacity {
		err = errors.Join(err, &FieldError{"LeakyBucket", "Burst", a.Burst, "must be from 0 to Capacity - 1: what is more would never be delayed"})
	}
	return err
}

func (a LeakyBucket) String() string {
	if a.Burst > 0 {
		return fmt.Sprintf("%d queued, %d of them not delayed, draining %d per %v (leaky bucket)", a.Capacity, a.Burst, a.Rate, a.Per)
	}
	return fmt.Sprintf("%d queued, draining %d per %v (leaky bucket)", a.Capacity, a.Rate, a.Per)
}

// Shape implements [Algorithm]: Per. A bucket with another Rate or Capacity goes on
// from what is in it; a unit partly drained at another rate may count as not drained.
func (a LeakyBucket) Shape() Shape { return Shape{"lb1", a.Per} }

// Parameters implements [Algorithm]: capacity, parts drained a microsecond, parts a unit.
func (a LeakyBucket) Parameters() [3]int64 {
	refill, unit := reduce(a.Rate, a.Per)
	return [3]int64{a.Capacity, refill, unit}
}

// Step implements [Algorithm].
func (a LeakyBucket) Step(s State, now, cost int64) (State, Decision) {
	var d Decision
	a.Apply(&s, &d, now, cost)
	return s, d
}

// Apply implements [Algorithm].
func (a LeakyBucket) Apply(s *State, d *Decision, now, cost int64) {
	refill, unit := reduce(a.Rate, a.Per)
	drain(s, now, a.Capacity, refill, unit)
	var delay time.Duration
	if ahead := s.Used - a.Burst*unit; ahead > 0 {
		delay = Microseconds(s.At - now + ceilDiv(ahead, refill))
	}
	fill(s, d, now, cost, a.Capacity, refill, unit)
	if d.Allowed {
		d.Delay = delay
	}
}

// Share implements [Algorithm].
func (a LeakyBucket) Share(n, cost int64) Algorithm {
	a.Capacity, a.Per, a.Burst = shareOf(a.Capacity, n, cost), a.Per*time.Duration(n), a.Burst/n
	return a
}

// Restore implements [Algorithm]: extra is the parts of a token in used.
func (a LeakyBucket) Restore(at, used, extra, _ int64) State {
	return State{At: at, Used: used, Unit: extra}
}

// Settle implements [Algorithm].
func (a LeakyBucket) Settle(s State, now, units, _ int64) State {
	refill, unit := reduce(a.Rate, a.Per)
	return settleBucket(s, now, units, a.Capacity, refill, unit)
}

// Pace implements [Algorithm].
func (a LeakyBucket) Pace(d Decision) (window, effective time.Duration) {
	refill, unit := reduce(a.Rate, a.Per)
	return paceBucket(d, a.Capacity, refill, unit)
}

func (LeakyBucket) sealed() {}
