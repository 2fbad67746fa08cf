package algorithms

import (
	_ "embed"
	"errors"
	"fmt"
	"math/bits"
	"time"
)

// SlidingWindowCounter admits Limit units per Window, estimating the sliding window
// from two fixed ones: all of the current window and the share of the previous one
// that still overlaps. At 40 % of the current window it counts the current units and
// 60 % of the previous. It is the default choice for an API.
//
// Cost: three integers a key; constant time.
//
// What it gets wrong: it takes the previous window's units as evenly spread. Over any
// span T up to a window a client gets at most
//
//	Limit + Limit x T / Window units,
//
// so fewer than 2 x Limit over a whole window: Limit at the very end of one window and
// the rest, no faster than the rate, through the next. Unlike a fixed window it never
// admits more than Limit at once. The other way round it can refuse a client whose
// previous units all came at the start of their window.
//
// The estimate is not rounded: it compares
//
//	previous x (Window - elapsed) <= (Limit - current - cost) x Window
//
// in whole numbers, so Limit x Window must stay within 2^53 microseconds: 150 million
// a minute, 2.5 million an hour, 104,249 a day.
type SlidingWindowCounter struct {
	// Limit is the number of units a window, at least 1.
	Limit int64
	// Window is its length: whole microseconds, from 1 ms to 70 years.
	Window time.Duration
}

//go:embed sliding_window_counter.lua
var slidingWindowCounterLua string

// Validate implements [Algorithm].
func (a SlidingWindowCounter) Validate() error {
	errs := checkWindow("SlidingWindowCounter", a.Limit, a.Window)
	if high, low := bits.Mul64(uint64(a.Limit), uint64(a.Window.Microseconds())); errs == nil && (high > 0 || low > maxExact) {
		errs = append(errs, &FieldError{"SlidingWindowCounter", "Limit", a.Limit,
			fmt.Sprintf("must be <= %d for a window of %v so that Limit x Window stays exact (within 2^53 microseconds); take a shorter window, FixedWindow or TokenBucket",
				maxExact/a.Window.Microseconds(), a.Window)})
	}
	return errors.Join(errs...)
}

func (a SlidingWindowCounter) String() string {
	return fmt.Sprintf("%d per %v (sliding window counter)", a.Limit, a.Window)
}

// Shape implements [Algorithm]: the window.
func (a SlidingWindowCounter) Shape() Shape { return Shape{"sw2", a.Window} }

// Parameters implements [Algorithm]: limit, window in microseconds.
func (a SlidingWindowCounter) Parameters() [3]int64 {
	return [3]int64{a.Limit, a.Window.Microseconds()}
}

// Step implements [Algorithm].
func (a SlidingWindowCounter) Step(s State, now, cost int64) (State, Decision) {
	var d Decision
	a.Apply(&s, &d, now, cost)
	return s, d
}

// Apply implements [Algorithm].
func (a SlidingWindowCounter) Apply(s *State, d *Decision, now, cost int64) {
	limit, window := a.Limit, a.Window.Microseconds()
	at := roll(s, now, window)
	elapsed := at - s.At
	overlap := s.Previous * (window - elapsed)
	room := limit - s.Used

	d.begin(now, limit)
	switch {
	case cost > limit:
		d.RetryAfter = Never
	case cost > room:
		// Only the next window can admit it, where what is now current weighs less
		// with every microsecond.
		d.RetryAfter = Microseconds(s.At + 2*window - (limit-cost)*window/s.Used - now)
	case overlap > (room-cost)*window:
		d.RetryAfter = Microseconds(s.At + window - (room-cost)*window/s.Previous - now)
	default:
		d.Allowed = true
		s.Used += cost
		room -= cost
	}

	if left := room*window - overlap; room > 0 && left > 0 {
		d.Remaining = left / window
	}
	switch {
	case s.Used > 0:
		d.ResetAfter = Microseconds(s.At + 2*window - now)
	case s.Previous > 0:
		d.ResetAfter = Microseconds(s.At + window - now)
	}
}

// Share implements [Algorithm].
func (a SlidingWindowCounter) Share(n, cost int64) Algorithm {
	a.Limit = shareOf(a.Limit, n, cost)
	return a
}

// Restore implements [Algorithm]: extra is the units of the window before.
func (a SlidingWindowCounter) Restore(at, used, extra, _ int64) State {
	most := maxExact / a.Window.Microseconds() // more was never stored, and would not multiply
	return State{At: at, Used: min(used, most), Previous: min(extra, most)}
}

// Settle implements [Algorithm]. Units taken at an unknown time go back to the current
// window first, then to the previous one.
func (a SlidingWindowCounter) Settle(s State, now, units, taken int64) State {
	window := a.Window.Microseconds()
	roll(&s, now, window)
	if units > 0 {
		s.Used = min(s.Used+min(units, maxExact), maxExact/window)
		return s
	}
	units = max(units, -maxExact)
	switch start := taken - taken%window; {
	case taken == 0:
		s.Previous = max(0, s.Previous+min(0, s.Used+units))
		s.Used = max(0, s.Used+units)
	case start == s.At:
		s.Used = max(0, s.Used+units)
	case start == s.At-window:
		s.Previous = max(0, s.Previous+units)
	}
	return s
}

// Pace implements [Algorithm].
func (a SlidingWindowCounter) Pace(d Decision) (window, effective time.Duration) {
	return paceWindow(d, a.Window)
}

func (SlidingWindowCounter) sealed() {}

// roll moves the state to the window that holds now and returns the time to decide
// at: now, or the start of the stored window when the clock is a little behind it.
func roll(s *State, now, window int64) (at int64) {
	start := now - now%window
	switch {
	case start == s.At:
	case start > s.At:
		s.Previous = 0
		if start-s.At == window {
			s.Previous = s.Used
		}
		s.At, s.Used = start, 0
	case s.At-now > 2*window+clockSlack:
		s.At = start
	default:
		now = s.At
	}
	return now
}
