package ratelimit

import (
	"sync"
	"time"
)

// storeClock puts decisions of a store onto the clock of this process. A decision was made
// somewhere between the question and the answer; what the quickest answer so far shows of
// the two clocks narrows that down, so that instances whose answers take differently long
// agree on the turns. Nothing is believed that would put a decision outside of that span:
// clocks that jump or drift, or another store, cost no more precision than it is long.
type storeClock struct {
	mu    sync.Mutex
	ahead time.Duration // this process's clock less the store's, as the quickest answer shows it
	known bool
}

// when is when the store decided, at by its own clock, what was asked at sent and came at
// came.
func (c *storeClock) when(at, sent, came time.Time) time.Time {
	ahead := came.Sub(at)
	c.mu.Lock()
	defer c.mu.Unlock()
	late := ahead - c.ahead
	if !c.known || late < 0 || late > came.Sub(sent) {
		c.ahead, c.known = ahead, true
		return came
	}
	return came.Add(-late)
}
