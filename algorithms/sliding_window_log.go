package algorithms

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"
)

// SlidingWindowLog admits Limit units in any span of one Window, exactly: it remembers
// when each request was admitted and forgets it one Window later.
//
// Cost: an entry for each request of the last window, at most Limit of them (16 bytes
// in memory, about 90 in Redis); O(log n) time. Refused requests leave no entry.
//
// What it gets wrong: nothing; over any span of one window it admits at most
//
//	Limit units.
//
// Its memory grows with the traffic it admits. Choose it for small limits that must
// hold exactly, such as logins.
type SlidingWindowLog struct {
	// Limit is the number of units a window, from 1 to 1,000,000.
	Limit int64
	// Window is its length: whole microseconds, from 1 ms to 70 years.
	Window time.Duration
}

// maxLog bounds what one key can make us remember.
const maxLog = 1_000_000

//go:embed sliding_window_log.lua
var slidingWindowLogLua string

// Validate implements [Algorithm].
func (a SlidingWindowLog) Validate() error {
	errs := checkWindow("SlidingWindowLog", a.Limit, a.Window)
	if a.Limit > maxLog {
		errs = append(errs, &FieldError{"SlidingWindowLog", "Limit", a.Limit,
			"must be <= 1000000 because each unit may be remembered; take a SlidingWindowCounter"})
	}
	return errors.Join(errs...)
}

func (a SlidingWindowLog) String() string {
	return fmt.Sprintf("%d in any %v (sliding window log)", a.Limit, a.Window)
}

// Shape implements [Algorithm]: the window.
func (a SlidingWindowLog) Shape() Shape { return Shape{"sl1", a.Window} }

// Parameters implements [Algorithm]: limit, window in microseconds.
func (a SlidingWindowLog) Parameters() [3]int64 {
	return [3]int64{a.Limit, a.Window.Microseconds()}
}

// Step implements [Algorithm].
func (a SlidingWindowLog) Step(s State, now, cost int64) (State, Decision) {
	var d Decision
	a.Apply(&s, &d, now, cost)
	return s, d
}

// Apply implements [Algorithm].
func (a SlidingWindowLog) Apply(s *State, d *Decision, now, cost int64) {
	limit, window := a.Limit, a.Window.Microseconds()
	forget(s, now, window)
	at := max(now, s.At)
	used := s.Used - s.Previous

	d.begin(now, limit)
	switch {
	case cost > limit:
		d.RetryAfter = Never
	case used+cost > limit:
		target := s.Previous + used + cost - limit
		first := sort.Search(len(s.Log), func(i int) bool { return s.Log[i].Total >= target })
		d.RetryAfter = Microseconds(s.Log[first].At + window - now)
	default:
		d.Allowed = true
		if cost > 0 {
			used += cost
			remember(s, at, cost)
		}
	}

	d.Remaining = max(0, limit-used)
	if used > 0 {
		d.ResetAfter = Microseconds(s.At + window - now)
	}
}

// Share implements [Algorithm].
func (a SlidingWindowLog) Share(n, cost int64) Algorithm {
	a.Limit = shareOf(a.Limit, n, cost)
	return a
}

// Restore implements [Algorithm]: extra is the time of the entry with which enough for
// cost will have left, 0 if it fits. The log is made of that entry and the newest, so it
// answers for this cost only.
func (a SlidingWindowLog) Restore(at, used, extra, cost int64) State {
	s := State{At: at, Used: used}
	if leaving := used + cost - a.Limit; extra > 0 && 0 < leaving && leaving < used {
		s.Log = append(s.Log, Entry{extra, leaving})
	}
	if used > 0 {
		s.Log = append(s.Log, Entry{at, used})
	}
	return s
}

// Settle implements [Algorithm]. Units taken at an unknown time go back from the newest
// entries; others from the entry of that time, which those after it follow.
func (a SlidingWindowLog) Settle(s State, now, units, taken int64) State {
	forget(&s, now, a.Window.Microseconds())
	if units > 0 {
		remember(&s, max(now, s.At), min(units, maxLog))
		return s
	}
	units = max(units, -maxExact)
	last := len(s.Log)
	if taken != 0 {
		last = sort.Search(len(s.Log), func(i int) bool { return s.Log[i].At > taken })
	}
	for last--; last >= 0 && units < 0 && (taken == 0 || s.Log[last].At == taken); last-- {
		before := s.Previous
		if last > 0 {
			before = s.Log[last-1].Total
		}
		back := min(s.Log[last].Total-before, -units)
		units += back
		s.Used -= back
		for i := last; i < len(s.Log); i++ {
			s.Log[i].Total -= back
		}
		if s.Log[last].Total == before {
			s.Log = slices.Delete(s.Log, last, last+1)
		}
	}
	if len(s.Log) == 0 {
		return State{}
	}
	s.At = s.Log[len(s.Log)-1].At
	return s
}

// Pace implements [Algorithm].
func (a SlidingWindowLog) Pace(d Decision) (window, effective time.Duration) {
	return paceWindow(d, a.Window)
}

func (SlidingWindowLog) sealed() {}

// forget drops the entries that are one window old at now.
func forget(s *State, now, window int64) {
	if s.Added != (Entry{}) {
		s.Log, s.Added = append(s.Log, s.Added), Entry{}
	}
	if len(s.Log) == 0 {
		*s = State{}
		return
	}
	floor := max(now, s.At) - window
	first := sort.Search(len(s.Log), func(i int) bool { return s.Log[i].At > floor })
	switch {
	case first == len(s.Log):
		*s = State{At: s.At}
		return
	case first > 0:
		s.Previous = s.Log[first-1].Total
		s.Log = s.Log[first:]
	}
	if s.At-now > window+clockSlack {
		// The clock was set back: what was used counts as used now.
		used := s.Used - s.Previous
		*s = State{At: now, Used: used, Log: []Entry{{At: now, Total: used}}}
	}
}

// remember adds an entry to a state that forget has seen.
func remember(s *State, now, cost int64) {
	s.At = now
	s.Used += cost
	s.Added = Entry{now, s.Used}
}
