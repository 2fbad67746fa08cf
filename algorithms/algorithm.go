// Package algorithms holds the rules of rate limiting as pure logic: no I/O, no clock.
//
// A rule is an immutable value such as
//
//	SlidingWindowCounter{Limit: 100, Window: time.Minute}
//
// and decides with a step: a pure function of the stored state, the time and the
// cost. What a step admits and stores is written twice, in Go here and in the Lua file
// beside it, with the same names in the same order, so that memory and Redis agree. The
// numbers of the answer are computed in Go alone, from the state that was decided on.
//
// # Units
//
// Time is whole microseconds since the Unix epoch. Windows are aligned to the epoch:
// a window of a minute begins when the Unix time is a multiple of 60 s, whatever the
// time zone. Arithmetic is integer. Redis computes in double precision, which holds
// every integer up to 2^53, so a rule whose numbers would pass 2^53 is refused by
// Validate; below that, both give the same answer to the last digit.
//
// Everything here is safe for concurrent use, but a State belongs to one caller.
package algorithms

import (
	"fmt"
	"math"
	"time"
)

// Never is the RetryAfter of a request that no wait would admit: its cost is above
// the limit.
const Never time.Duration = math.MaxInt64

// Algorithm is a rule with its numbers. It is sealed: the rules of this package are
// the only ones, and [Rules] lists them.
//
// Step and Settle need a rule that passed Validate and may divide by zero otherwise.
type Algorithm interface {
	// Validate returns nil, or a [FieldError] for each field that is wrong, joined.
	Validate() error
	// String says the rule for people, such as "100 per 1m0s (sliding window counter)".
	String() string
	// Shape says which stored state this rule can go on with.
	Shape() Shape
	// Parameters are the numbers the Lua step takes, in its order.
	Parameters() [3]int64
	// Step decides one request of cost units (>= 0) at now. The returned state counts
	// the request if the decision admits it. If it refuses, the returned state counts
	// nothing and need not be stored, unless its At is below the given one: then the
	// clock was set back, and storing it keeps the key from being locked out.
	Step(state State, now, cost int64) (State, Decision)
	// Apply is Step in place: state becomes the returned one, decision the answer. It is
	// for whoever decides often, since a State and a Decision are costly to copy.
	Apply(state *State, decision *Decision, now, cost int64)
	// Share is the part of the rule that one of n instances (>= 1) admits by itself:
	// limits are rounded up and stay large enough for one request of cost, if it fits
	// the whole. A rate is divided exactly, so a bucket's Per grows.
	Share(n, cost int64) Algorithm
	// Restore makes the state that a Lua step of this rule told of: the three numbers
	// in its reply, and the cost it decided. Step gives the same decision on it. For
	// that cost, and except for a log for every other, it still does when asked later.
	Restore(at, used, extra, cost int64) State
	// Settle gives units back (negative) or charges more (positive), never refusing.
	// Counts stop at zero and at the largest exact number. Units go back to the window
	// that held them at the time taken, if it still counts; 0 stands for the latest.
	// The given state is used up.
	Settle(state State, now, units, taken int64) State
	// Pace puts a decision of this rule into time, for clients that spread their
	// requests: within effective they should use no more than d.Remaining units, and
	// within window no more than the whole limit. Both are rounded up; window is
	// at least a microsecond, effective between 0 and window.
	//
	// Both are 0 for a rule that no time stands for.
	//
	// For a window rule they are its Window and what of it is ahead until nothing
	// counts any more; for a bucket the times in which all of it and in which
	// d.Remaining come back. They say nothing of when a refused request passes.
	Pace(d Decision) (window, effective time.Duration)

	sealed()
}

// Decision is the answer to one charge. The durations are whole microseconds and
// rounded up: at now+RetryAfter, not a microsecond earlier, the request passes.
type Decision struct {
	// At is when it was decided, by the store's clock.
	At time.Time
	// Allowed says whether the rule admits the request.
	Allowed bool
	// Limit is the most units the key can have at once: the limit of a window, the
	// capacity of a bucket.
	Limit int64
	// Remaining is how many units are left after this decision, rounded down,
	// between 0 and Limit.
	Remaining int64
	// ResetAfter is the time until the key is as good as new if nobody asks again.
	ResetAfter time.Duration
	// RetryAfter is 0 when allowed; otherwise the exact wait until a request of this
	// cost would pass if nobody else came, or [Never].
	RetryAfter time.Duration
	// Delay is how long a leaky bucket holds the request before its turn; 0 for
	// every other rule.
	Delay time.Duration
	// Lease is how long units of a [Concurrency] are held unless they are given back; 0
	// for every other rule. With it ResetAfter is the latest, and RetryAfter a guess.
	Lease time.Duration
}

// Shape is what a counter depends on besides its key. A rule goes on counting where
// a rule of the same shape left off; a different shape is a different counter. So a
// changed Limit, Capacity, Refill or Rate keeps the count; a changed Window or Per
// starts anew.
type Shape struct {
	// Format names the rule and the version of its stored state, such as "sw1".
	Format string
	// Window is the Window of a window rule, the Per of a bucket, the Lease of units in
	// flight.
	Window time.Duration
}

// State is what is remembered of one key under one rule. The zero State is a key
// never seen. Each rule uses the fields it needs.
type State struct {
	// At is the start of the current window, the time of a bucket's last refill, or
	// the time of the newest log entry.
	At int64
	// Used is the units of the current window, or what a bucket has given out, in
	// 1/Unit tokens.
	Used int64
	// Previous is the units of the window before (sliding window counter), or of the
	// entries that have left the log.
	Previous int64
	// Unit is how many parts make a token in Used.
	Unit int64
	// Log holds the entries of a sliding window log, oldest first.
	Log []Entry
	// Added is an entry that a step admitted. It comes after those in Log; whoever
	// stores the state appends it, or leaves that to the next step.
	Added Entry
}

// Entry is one admitted request in a sliding window log.
type Entry struct {
	// At is when it was admitted.
	At int64
	// Total is the sum of all costs up to and including this entry.
	Total int64
}

// FieldError is a field of a rule with a value that can't be.
type FieldError struct {
	// Algorithm and Field name the place, Value what stands there.
	Algorithm, Field string
	Value            any
	// Reason says what the value must be.
	Reason string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %s %s, got %v", e.Algorithm, e.Field, e.Reason, e.Value)
}

const (
	// maxExact is the largest integer up to which a double holds every integer.
	maxExact = 1 << 53
	// minWindow is the resolution of a Redis expiry.
	minWindow = time.Millisecond
	// maxWindow keeps a time two windows from now below maxExact for a century.
	maxWindow = 70 * 365 * 24 * time.Hour
	// clockSlack is how far behind the stored time a clock may be, beyond a full
	// recovery, before the stored time gives way. Two clock readings taken out of
	// order must not refill a bucket twice; a clock set back must not lock it.
	clockSlack = int64(time.Second / time.Microsecond)
)

// shareOf is an n-th of a limit, rounded up, but room for one request that fits the limit.
func shareOf(limit, n, cost int64) int64 {
	return max(limit/n+min(1, limit%n), min(cost, limit))
}

func ceilDiv(a, b int64) int64 {
	return (a + b - 1) / b
}

// begin is the answer of a step at now, as yet without its numbers.
func (d *Decision) begin(now, limit int64) {
	*d = Decision{At: time.UnixMicro(now).UTC(), Limit: limit}
}

// Microseconds is a duration of n microseconds, or of 2^53 if that is less: what a debt
// of centuries comes to must not overflow.
func Microseconds(n int64) time.Duration {
	return time.Duration(min(n, maxExact)) * time.Microsecond
}

// paceWindow is the Pace all window rules share.
func paceWindow(d Decision, window time.Duration) (whole, effective time.Duration) {
	return window, max(0, min(d.ResetAfter, window))
}

// checkWindow is the validation all window rules share.
func checkWindow(algorithm string, limit int64, window time.Duration) []error {
	var errs []error
	if limit < 1 {
		errs = append(errs, &FieldError{algorithm, "Limit", limit, "must be >= 1"})
	}
	if err := checkDuration(algorithm, "Window", window); err != nil {
		errs = append(errs, err)
	}
	return errs
}

func checkDuration(algorithm, field string, d time.Duration) error {
	switch {
	case d < minWindow || d > maxWindow:
		return &FieldError{algorithm, field, d, fmt.Sprintf("must be between %v and %v", minWindow, maxWindow)}
	case d%time.Microsecond != 0:
		return &FieldError{algorithm, field, d, "must be whole microseconds"}
	}
	return nil
}
