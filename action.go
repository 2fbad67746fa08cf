package ratelimit

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// Action is what a policy does with a request that comes too early.
type Action int

const (
	// Refuse answers 429 with Retry-After.
	Refuse Action = iota
	// Delay holds the request until its turn comes and then lets it through, so that
	// the outflow is an even stream over all instances: the store hands out the turns.
	// It answers 429 at once when the queue is full, when the wait would pass
	// Policy.MaxWait or the deadline of the request's context (that of
	// http.TimeoutHandler outside of the limiter, for one), or when Config.MaxWaiting
	// wait already. The limits must be one [algorithms.LeakyBucket], whose Capacity is how
	// many units the queue holds.
	//
	// A request that comes under several policies that delay waits for the latest of
	// its turns. One that costs nothing doesn't wait. What it takes under other policies
	// it takes when it comes, and with [algorithms.Concurrency] it is in flight while it
	// is held. Its headers say how things stood when it came.
	//
	// A held request leaves at once when its context ends, which is when the client
	// goes away; net/http notices that of a request without a body, or whose body was
	// read. It is answered 503, in case somebody still listens. Its turn goes to the
	// next in the same line: those behind move up, and if nobody is, the next arrival
	// of this process has it. A turn that nobody takes is lost: it isn't given back to
	// the store, because another instance may have been told a later one by then, and
	// two requests would leave at one instant.
	//
	// http.Server.Shutdown waits for held requests, which leave at their turns.
	//
	// Units given back, by Refund or Settle, make the store hand out a turn twice.
	Delay
)

var actions = [...]string{Refuse: "refuse", Delay: "delay"}

func (a Action) valid() bool { return a >= 0 && int(a) < len(actions) }

// String returns refuse or delay.
func (a Action) String() string {
	if !a.valid() {
		return fmt.Sprintf("Action(%d)", int(a))
	}
	return actions[a]
}

// checkAction checks what of a policy concerns its action alone.
func checkAction(path string, p Policy, mistake func(string, any, string)) {
	if !p.Action.valid() {
		mistake(path+".Action", int(p.Action), "must be Refuse or Delay")
	}
	if p.MaxWait < 0 {
		mistake(path+".MaxWait", p.MaxWait, "must be >= 0 (0 means as long as the queue is)")
	}
	if p.MaxWait != 0 && p.Action != Delay {
		mistake(path+".MaxWait", p.MaxWait, "must be left out without Action: Delay")
	}
}

// checkQueues refuses limits that hand out no turns in a quota of which a policy delays.
func checkQueues(path string, q *quota, mistake func(string, any, string)) {
	check := func(path string, limits Limits) {
		if err := limits.checkQueue(path); err != nil && len(limits) > 0 {
			mistake(err.Path, err.Value, err.Reason)
		}
	}
	check(path+".Limits", q.limits)
	for _, tier := range slices.Sorted(maps.Keys(q.tiers)) {
		check(fmt.Sprintf("%s.Tiers[%q]", path, tier), q.tiers[tier])
	}
}

// checkMaxWait refuses a wait in which no turn comes.
func checkMaxWait(path string, most time.Duration, q *quota, mistake func(string, any, string)) {
	for _, limits := range append([]Limits{q.limits}, slices.Collect(maps.Values(q.tiers))...) {
		queue, ok := limits.queue()
		if ok && queue.Validate() == nil && most > 0 && unitsIn(queue, most) == 0 {
			mistake(path, most, fmt.Sprintf("must be at least a turn, or nothing is ever held: %v", timeFor(queue, 1)))
			return
		}
	}
}

// checkQueue says what is wrong with limits of a policy that delays.
func (l Limits) checkQueue(path string) *ConfigError {
	if _, ok := l.queue(); ok {
		return nil
	}
	return &ConfigError{path, fmt.Sprint(l), "must be one algorithms.LeakyBucket: a policy of its quota has Action: Delay, and only that hands out turns"}
}

// queue is the bucket of limits that hand out turns.
func (l Limits) queue() (algorithms.LeakyBucket, bool) {
	if len(l) != 1 {
		return algorithms.LeakyBucket{}, false
	}
	queue, ok := l[0].(algorithms.LeakyBucket)
	return queue, ok
}

// within is the queue as a request sees it that waits no longer than most: it is full
// where a turn would be later. So the store itself refuses what would wait too long, and
// as the shape of the bucket doesn't depend on its capacity, the counter is the same.
func within(queue algorithms.LeakyBucket, most time.Duration, units int64) algorithms.LeakyBucket {
	queue.Capacity = min(queue.Capacity, min(units, maxCost)+queue.Burst+unitsIn(queue, most))
	return queue
}

// unitsIn is how many units leave the queue in so long, rounded down, at most maxCost.
func unitsIn(queue algorithms.LeakyBucket, span time.Duration) int64 {
	high, low := bits.Mul64(uint64(max(0, span)), uint64(queue.Rate))
	if high >= uint64(queue.Per) {
		return maxCost
	}
	n, _ := bits.Div64(high, low, uint64(queue.Per))
	return int64(min(n, maxCost))
}

// timeFor is how long so many units take to leave the queue, rounded up.
func timeFor(queue algorithms.LeakyBucket, units int64) time.Duration {
	high, low := bits.Mul64(uint64(max(0, units)), uint64(queue.Per))
	if high >= uint64(queue.Rate) {
		return forever
	}
	n, rest := bits.Div64(high, low, uint64(queue.Rate))
	if rest > 0 {
		n++
	}
	return time.Duration(min(n, uint64(forever)))
}

// forever is longer than anything waits, and can be added to a time.
const forever = time.Duration(math.MaxInt64 / 2)
