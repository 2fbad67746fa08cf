package ratelimit

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/counter"
)

// denied is a store around a guard. It remembers the state that a refusal was decided on
// and asks the rule's own step: a request that the step refuses on that state, the store
// refuses too. So a client that keeps asking while over its limit costs the store about
// one question a second, whatever its rate.
//
// Why that is exact. A state read at a time t holds what was used until then. Since then
// others can only have used more, and every rule's usage at a time t' > t grows with the
// usage at t:
//
//   - fixed window: used stays until the window ends, then both states are empty;
//   - sliding window counter: used becomes previous, and both count with the same weight;
//   - token and leaky bucket: used falls by the same rate, but not below 0;
//   - log: entries leave one window after they came, and an entry more leaves later.
//
// What is held under a lease comes back at any moment, in any process. So a refusal of a
// limit on concurrency is never repeated from memory; another limit's is, beside one.
//
// The answer is that of the step, with Remaining, ResetAfter and RetryAfter as of now; of
// a log, whose whole state is too much to tell, only for the cost that was refused, and
// with more than one unit its Remaining can lag. How far now is on the store's clock is known to
// the time that the question took: the step is asked for the earliest it can be, and has
// to refuse beyond the latest.
//
// What can make a state hold less than it did: Settle and Reset. Those of this process
// drop it; those of another, a restart of the store with empty data and a clock set
// forward take effect within the recheck.
type denied struct {
	*guard
	recheck int64        // microseconds
	elapsed func() int64 // microseconds of a clock that is never set
	hasher  counter.Hasher
	sets    [deniedSets]deniedSet
}

// A refusal takes about 150 bytes; all of them no more than about a megabyte.
const (
	deniedSets = 1 << 10
	deniedWays = 6
	mostDenied = 8 // charges of a request, more are not remembered
)

// deniedSet holds the refusals whose hashes fall into it.
type deniedSet struct {
	mu      sync.Mutex
	changes uint32 // by Settle and Reset
	ways    *[deniedWays]denial
}

// denial is the state of a counter as a refusal told it. Times are microseconds, now on
// the store's clock, the others since the start of this process.
type denial struct {
	hash       [2]uint64
	state      algorithms.State
	now        int64
	sent, came int64
	fresh      int64 // until when it answers without asking the store again
	cost       int64 // that was refused or not
	limit      int64
}

// newDenied is the guard itself where remembering is turned off or would save nothing.
func newDenied(g *guard, recheck time.Duration) Store {
	if _, tells := g.store.(StateStore); !tells || recheck < 0 {
		return g
	}
	start := time.Now()
	return &denied{
		guard: g, recheck: recheck.Microseconds(), hasher: counter.NewHasher(),
		elapsed: func() int64 { return time.Since(start).Microseconds() },
	}
}

func (d *denied) Take(ctx context.Context, charges []algorithms.Charge, decisions []Decision) error {
	n := len(charges)
	if n == 0 || n > mostDenied || algorithms.Check(charges, decisions) != nil || ctx.Err() != nil {
		return d.guard.Take(ctx, charges, decisions)
	}
	var hashes [mostDenied][2]uint64
	var changes [mostDenied]uint32
	for i := range charges {
		hashes[i] = d.hasher.Hash(&charges[i])
	}
	sent := d.elapsed()
	answered, remembered := d.answer(charges, decisions, &hashes, &changes, sent)
	if answered {
		return nil
	}
	var states [mostDenied]algorithms.State
	told, err := d.takeState(ctx, charges, decisions, states[:n])
	if err != nil || !told {
		return err
	}
	if slices.ContainsFunc(decisions[:n], func(d Decision) bool { return !d.Allowed && d.Lease == 0 }) {
		d.remember(charges, decisions, &states, &hashes, &changes, sent)
	} else if remembered {
		d.drop(hashes[:n]) // these units were not used when it refused
	}
	return nil
}

// Settle is the guard's, and forgets what this process remembers of the counters.
func (d *denied) Settle(ctx context.Context, charges []algorithms.Charge) error {
	err := d.guard.Settle(ctx, charges)
	d.forget(charges)
	return err
}

// Reset is the guard's, and forgets what this process remembers of the counters.
func (d *denied) Reset(ctx context.Context, charges []algorithms.Charge) error {
	err := d.guard.Reset(ctx, charges)
	d.forget(charges)
	return err
}

// answer decides the charges if one of them is still refused for sure. Of the others,
// if there are, the states have to be known too. remembered says that any of them is.
func (d *denied) answer(charges []algorithms.Charge, decisions []Decision, hashes *[mostDenied][2]uint64, changes *[mostDenied]uint32, now int64) (answered, remembered bool) {
	refused, known := false, true
	for i := range charges {
		k, refuses := d.step(&charges[i], &decisions[i], hashes[i], &changes[i], now)
		remembered = remembered || k != unknown
		refused, known = refused || refuses, known && k == current
	}
	return refused && known, remembered
}

// knowledge is what is remembered of a counter.
type knowledge int

const (
	unknown knowledge = iota
	outdated
	current
)

// step decides one charge on the state remembered of its counter, if there is any.
func (d *denied) step(charge *algorithms.Charge, decision *Decision, hash [2]uint64, changes *uint32, now int64) (_ knowledge, refuses bool) {
	set := d.set(hash)
	set.mu.Lock()
	*changes = set.changes
	way := set.find(hash)
	switch {
	case way == nil:
		set.mu.Unlock()
		return unknown, false
	case len(way.state.Log) > 0 && (way.cost != charge.Cost || way.limit != charge.Algorithm.Parameters()[0]):
		set.mu.Unlock()
		return outdated, false
	case now >= way.fresh:
		// This caller asks the store again; the others need not until it had time to.
		way.fresh = now + defaultTimeout.Microseconds()
		set.mu.Unlock()
		return outdated, false
	}
	state, at, uncertain := way.state, way.now+now-way.came, way.came-way.sent
	set.mu.Unlock()

	if _, *decision = charge.Algorithm.Step(state, at, charge.Cost); !decision.Allowed {
		return current, decision.Lease == 0 && decision.RetryAfter > algorithms.Microseconds(uncertain)
	}
	// Should another charge refuse, this one stands as it stood.
	_, *decision = charge.Algorithm.Step(state, at, 0)
	decision.Allowed, decision.RetryAfter = true, 0
	return current, false
}

// remember keeps the states that a refusal was decided on, unless they were changed since.
func (d *denied) remember(charges []algorithms.Charge, decisions []Decision, states *[mostDenied]algorithms.State,
	hashes *[mostDenied][2]uint64, changes *[mostDenied]uint32, sent int64) {
	came := d.elapsed()
	for i := range charges {
		set := d.set(hashes[i])
		set.mu.Lock()
		if set.changes == changes[i] {
			*set.room(hashes[i]) = denial{
				hash: hashes[i], state: states[i], now: decisions[i].At.UnixMicro(), sent: sent, came: came,
				fresh: came + d.recheck, cost: charges[i].Cost, limit: charges[i].Algorithm.Parameters()[0],
			}
		}
		set.mu.Unlock()
	}
}

func (d *denied) drop(hashes [][2]uint64) {
	for _, hash := range hashes {
		set := d.set(hash)
		set.mu.Lock()
		if way := set.find(hash); way != nil {
			*way = denial{}
		}
		set.mu.Unlock()
	}
}

// forget drops what is remembered, and what is being asked.
func (d *denied) forget(charges []algorithms.Charge) {
	for i := range charges {
		if charges[i].Algorithm == nil {
			continue
		}
		hash := d.hasher.Hash(&charges[i])
		set := d.set(hash)
		set.mu.Lock()
		set.changes++
		if way := set.find(hash); way != nil {
			*way = denial{}
		}
		set.mu.Unlock()
	}
}

func (d *denied) set(hash [2]uint64) *deniedSet { return &d.sets[hash[0]%deniedSets] }

func (s *deniedSet) find(hash [2]uint64) *denial {
	if s.ways == nil {
		return nil
	}
	for i := range s.ways {
		if s.ways[i].hash == hash {
			return &s.ways[i]
		}
	}
	return nil
}

// room is the place of the hash, or a free one, or the one that was refused longest ago.
func (s *deniedSet) room(hash [2]uint64) *denial {
	if s.ways == nil {
		s.ways = new([deniedWays]denial)
	}
	oldest := &s.ways[0]
	for i := range s.ways {
		way := &s.ways[i]
		if way.hash == hash {
			return way
		}
		if way.hash == (denial{}).hash && oldest.hash != (denial{}).hash || way.came < oldest.came {
			oldest = way
		}
	}
	return oldest
}
