package ratelimit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	// failuresToOpen in a row and the store counts as down. Fewer may be a slow moment;
	// each of them costs a request the time-out.
	failuresToOpen = 5
	// probeEvery is the pause before a store that is down is asked again, give or take
	// half of it, so that the instances of a service don't all ask at once when it comes
	// back.
	probeEvery = 300 * time.Millisecond
	// probeTimeout bounds a probe where Config.Timeout doesn't.
	probeTimeout = time.Second
)

// breaker notices that a store is down, so that requests don't wait for it, and that it
// is up again. It has no goroutine: the requests that it spares lend their questions to
// probes. A nil breaker never opens. It is ours because the core links nothing but the
// standard library, and since a closed one should cost a request two atomic loads.
type breaker struct {
	changed func(down error, after time.Duration) // down is nil when it is up again

	failures  atomic.Int64 // in a row
	open      atomic.Pointer[outage]
	nextProbe atomic.Int64 // never while one is under way
}

// outage is what a store that is down answers.
type outage struct {
	err   error
	since time.Time
}

// down is the error of a store that need not be asked now.
func (b *breaker) down() error {
	if b == nil {
		return nil
	}
	if o := b.open.Load(); o != nil {
		return o.err
	}
	return nil
}

func (b *breaker) succeeded() {
	if b == nil {
		return
	}
	if b.failures.Load() != 0 {
		b.failures.Store(0)
	}
	if o := b.open.Load(); o != nil && b.open.CompareAndSwap(o, nil) {
		b.changed(nil, time.Since(o.since))
	}
}

// failed counts an error of the store.
func (b *breaker) failed(err error) {
	if b == nil || b.open.Load() != nil || b.failures.Add(1) < failuresToOpen {
		return
	}
	o := &outage{since: time.Now(), err: fmt.Errorf("ratelimit: the store is not asked, it failed %d times in a row: %w", failuresToOpen, err)}
	b.pause()
	if b.open.CompareAndSwap(nil, o) {
		b.changed(err, 0)
	}
}

// probes says to one caller, until there is a pause, that the store should be asked again.
func (b *breaker) probes() bool {
	if b == nil || b.open.Load() == nil {
		return false
	}
	next := b.nextProbe.Load()
	return time.Now().UnixNano() >= next && b.nextProbe.CompareAndSwap(next, math.MaxInt64)
}

func (b *breaker) pause() {
	b.nextProbe.Store(time.Now().UnixNano() + int64(probeEvery)/2 + rand.Int64N(int64(probeEvery)))
}
