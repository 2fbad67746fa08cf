package algorithms

import (
	_ "embed"
	"errors"
	"fmt"
	"time"
)

// FixedWindow admits Limit units in each window of the clock.
//
// Cost: two integers a key; constant time.
//
// What it gets wrong: the edge. Limit units at the end of one window and Limit at the
// start of the next are both admitted, so a span of one window can hold up to
//
//	2 x Limit units.
//
// Every client's window turns at the same moment, so those who wait come back at once.
// Choose it to match somebody else's fixed windows, such as a monthly allowance.
type FixedWindow struct {
	// Limit is the number of units a window, at least 1.
	Limit int64
	// Window is its length: whole microseconds, from 1 ms to 70 years.
	Window time.Duration
}

//go:embed fixed_window.lua
var fixedWindowLua string

// Validate implements [Algorithm].
func (a FixedWindow) Validate() error {
	errs := checkWindow("FixedWindow", a.Limit, a.Window)
	if a.Limit > maxExact {
		errs = append(errs, &FieldError{"FixedWindow", "Limit", a.Limit, "must be <= 2^53"})
	}
	return errors.Join(errs...)
}

func (a FixedWindow) String() string {
	return fmt.Sprintf("%d per %v (fixed window)", a.Limit, a.Window)
}

// Shape implements [Algorithm]: the window.
func (a FixedWindow) Shape() Shape { return Shape{"fw2", a.Window} }

// Parameters implements [Algorithm]: limit, window in microseconds.
func (a FixedWindow) Parameters() [3]int64 {
	return [3]int64{a.Limit, a.Window.Microseconds()}
}

// Step implements [Algorithm].
func (a FixedWindow) Step(s State, now, cost int64) (State, Decision) {
	var d Decision
	a.Apply(&s, &d, now, cost)
	return s, d
}

// Apply implements [Algorithm].
func (a FixedWindow) Apply(s *State, d *Decision, now, cost int64) {
	limit, window := a.Limit, a.Window.Microseconds()
	roll(s, now, window)
	s.Previous = 0

	d.begin(now, limit)
	switch {
	case cost > limit:
		d.RetryAfter = Never
	case cost > limit-s.Used:
		d.RetryAfter = Microseconds(s.At + window - now)
	default:
		d.Allowed = true
		s.Used += cost
	}

	d.Remaining = max(0, limit-s.Used)
	if s.Used > 0 {
		d.ResetAfter = Microseconds(s.At + window - now)
	}
}

// Share implements [Algorithm].
func (a FixedWindow) Share(n, cost int64) Algorithm {
	a.Limit = shareOf(a.Limit, n, cost)
	return a
}

// Restore implements [Algorithm].
func (a FixedWindow) Restore(at, used, _, _ int64) State { return State{At: at, Used: used} }

// Settle implements [Algorithm]. Units of a window that has ended are not given back.
func (a FixedWindow) Settle(s State, now, units, taken int64) State {
	window := a.Window.Microseconds()
	roll(&s, now, window)
	s.Previous = 0
	if units < 0 && taken != 0 && taken-taken%window != s.At {
		return s
	}
	units = max(-maxExact, min(units, maxExact))
	s.Used = max(0, min(s.Used+units, maxExact))
	return s
}

// Pace implements [Algorithm].
func (a FixedWindow) Pace(d Decision) (window, effective time.Duration) {
	return paceWindow(d, a.Window)
}

func (FixedWindow) sealed() {}
