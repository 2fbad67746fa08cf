package ratelimit

import (
	"fmt"
	"math"
	"math/bits"
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
	queue.Capacity = min(queue.Capacity, min(units, maxCost)+unitsIn(queue, most))
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
