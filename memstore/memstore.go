// Package memstore keeps counters in the memory of one process: for a service of one
// instance, for tests, and as the fallback while a shared store is away.
//
// It is sharded, stores its counters in place without pointers, and allocates nothing
// on Take but for the entries of a log or of requests in flight and when the table
// grows. It starts no goroutine: what has fully recovered is reclaimed in passing, a
// shard at a time.
package memstore

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/counter"
)

// ErrFull is the error for a new key when the store is at MaxKeys and the keys that
// could make room are all being limited. A key that is being limited is never
// forgotten in favour of a new one.
var ErrFull = errors.New("ratelimit: memstore: full of keys that are being limited; raise MaxKeys")

// Config is the configuration of a [Store]. The zero Config is ready to use.
type Config struct {
	// MaxKeys is the most counters held, a counter being one key under one rule: about
	// 60 bytes each, and for a sliding window log or a limit on concurrency some 130 more
	// and 16 an entry. 0 means 1,000,000; negative means 1. At the cap a new counter
	// takes the place of the least used of a few others, see [ErrFull]. Counters
	// spread over shards by hash, so the first may give way a little below the cap.
	MaxKeys int
	// Clock tells the time. nil means the monotonic clock of the process, set to the
	// wall clock once in New, so that a wall clock that jumps changes nothing.
	Clock func() time.Time
}

// Store is a store in memory. Make it with [New]. It is safe for concurrent use.
type Store struct {
	shards []shard
	hasher counter.Hasher
	clock  func() time.Time
	start  time.Time

	nextSweep  atomic.Int64
	sweepShard atomic.Uint32
}

const (
	maxShards      = 64
	defaultMaxKeys = 1_000_000
	// sweepEvery is how often every shard is searched for counters to reclaim, in
	// microseconds.
	sweepEvery = int64(10 * time.Second / time.Microsecond)
)

// New makes an empty store.
func New(config Config) *Store {
	maxKeys := config.MaxKeys
	if maxKeys == 0 {
		maxKeys = defaultMaxKeys
	}
	maxKeys = max(1, maxKeys)
	// A shard holds at least 128 keys, so that a small cap is not cut into slivers.
	shards := min(maxShards, 1<<(bits.Len(uint(max(1, maxKeys/128)))-1))
	s := &Store{
		shards: make([]shard, shards),
		hasher: counter.NewHasher(),
		clock:  config.Clock,
		start:  time.Now(),
	}
	for i := range s.shards {
		s.shards[i].maxKeys = maxKeys / shards
	}
	return s
}

// Take decides the charges as one unit: every charge admits and is counted, or none is.
func (s *Store) Take(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision) error {
	return s.decide(ctx, charges, decisions, true)
}

// Peek decides as Take would, and counts nothing.
func (s *Store) Peek(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision) error {
	return s.decide(ctx, charges, decisions, false)
}

// Settle gives units back (negative Cost) or charges more (positive), never refusing. No
// other call sees some of the charges settled and others not.
func (s *Store) Settle(_ context.Context, charges []algorithms.Charge) error {
	if err := algorithms.CheckCounters(charges); err != nil {
		return err
	}
	now := s.now()
	var few [8]int
	held := s.lock(charges, few[:0])
	defer s.unlock(held)
	var errs error
	for i := range charges {
		charge := &charges[i]
		shard, hash := s.find(charge)
		state := charge.Algorithm.Settle(shard.load(hash), now, charge.Cost, charge.Taken())
		state, decision := charge.Algorithm.Step(state, now, 0)
		if decision.ResetAfter == 0 {
			shard.forget(hash)
		} else if err := shard.reserve(hash, now); err != nil {
			errs = err
		} else {
			shard.store(hash, &state, &decision, now)
		}
	}
	return errs
}

// Reset forgets the counters of the charges.
func (s *Store) Reset(_ context.Context, charges []algorithms.Charge) error {
	if err := algorithms.CheckCounters(charges); err != nil {
		return err
	}
	for i := range charges {
		shard, hash := s.find(&charges[i])
		shard.mu.Lock()
		shard.forget(hash)
		shard.mu.Unlock()
	}
	return nil
}

// Len is the number of counters held, those not yet reclaimed included.
func (s *Store) Len() int {
	n := 0
	for i := range s.shards {
		s.shards[i].mu.Lock()
		n += s.shards[i].keys
		s.shards[i].mu.Unlock()
	}
	return n
}

// Sweep reclaims every counter that has fully recovered. Requests do this in passing;
// call it from a ticker of your own to free memory while no requests come.
func (s *Store) Sweep() {
	for i := range s.shards {
		s.shards[i].sweep(s.now())
	}
}

func (s *Store) decide(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision, write bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := algorithms.Check(charges, decisions); err != nil {
		return err
	}
	now := s.now()
	s.sweepInPassing(now)
	if len(charges) == 1 {
		return s.decideOne(&charges[0], &decisions[0], now, write)
	}
	return s.decideAll(charges, decisions, now, write)
}

func (s *Store) decideOne(charge *algorithms.Charge, decision *algorithms.Decision, now int64, write bool) error {
	shard, hash := s.find(charge)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	return shard.decide(hash, charge, decision, now, write)
}

// decideAll holds the locks of all shards concerned, taken in order, from the first
// read to the last write.
func (s *Store) decideAll(charges []algorithms.Charge, decisions []algorithms.Decision, now int64, write bool) error {
	var few [8]int
	held := s.lock(charges, few[:0])
	defer s.unlock(held)

	var space [8]algorithms.State
	states := space[:]
	if len(charges) > len(space) {
		states = make([]algorithms.State, len(charges))
	}
	allowed := true
	for i := range charges {
		shard, hash := s.find(&charges[i])
		states[i], decisions[i] = charges[i].Algorithm.Step(shard.load(hash), now, charges[i].Cost)
		allowed = allowed && decisions[i].Allowed
	}
	if allowed && write {
		if err := s.reserveAll(charges, now); err != nil {
			return err
		}
	}

	for i := range charges {
		shard, hash := s.find(&charges[i])
		if !allowed && decisions[i].Allowed {
			// It would have passed: it stands as it stood.
			states[i], decisions[i] = charges[i].Algorithm.Step(shard.load(hash), now, 0)
			decisions[i].Allowed, decisions[i].RetryAfter = true, 0
		}
		if !write {
			continue
		}
		if allowed && charges[i].Cost > 0 || states[i].At < shard.load(hash).At {
			shard.store(hash, &states[i], &decisions[i], now)
		} else if !decisions[i].Allowed {
			shard.markLimited(hash)
		}
	}
	return nil
}

// lock locks the shards of all charges and returns their numbers.
func (s *Store) lock(charges []algorithms.Charge, held []int) []int {
	for i := range charges {
		if n := s.shardNumber(s.hasher.Hash(&charges[i])); !slices.Contains(held, n) {
			held = append(held, n)
		}
	}
	slices.Sort(held)
	for _, n := range held {
		s.shards[n].mu.Lock()
	}
	return held
}

func (s *Store) unlock(held []int) {
	for _, n := range held {
		s.shards[n].mu.Unlock()
	}
}

// reserveAll makes room for all charges that will be stored, or for none.
func (s *Store) reserveAll(charges []algorithms.Charge, now int64) error {
	for i := range charges {
		if charges[i].Cost == 0 {
			continue
		}
		shard, hash := s.find(&charges[i])
		if err := shard.reserve(hash, now); err != nil {
			for j := range i {
				shard, hash := s.find(&charges[j])
				shard.release(hash)
			}
			return err
		}
	}
	return nil
}

func (s *Store) now() int64 {
	if s.clock != nil {
		return s.clock().UnixMicro()
	}
	return s.start.UnixMicro() + time.Since(s.start).Microseconds()
}

func (s *Store) shardNumber(hash [2]uint64) int { return int(hash[1]>>1) & (len(s.shards) - 1) }

func (s *Store) find(charge *algorithms.Charge) (*shard, [2]uint64) {
	hash := s.hasher.Hash(charge)
	return s.shard(hash), hash
}

func (s *Store) shard(hash [2]uint64) *shard { return &s.shards[s.shardNumber(hash)] }

// sweepInPassing searches one shard when its turn has come, and a few more when time has
// passed without requests.
func (s *Store) sweepInPassing(now int64) {
	turn := sweepEvery / int64(len(s.shards))
	next := s.nextSweep.Load()
	if now < next && next-now <= turn { // further ahead, the clock was set back
		return
	}
	if !s.nextSweep.CompareAndSwap(next, now+turn) {
		return
	}
	const most = 4
	for range min(most, int64(len(s.shards)), 1+max(0, now-next)/turn) {
		n := int(s.sweepShard.Add(1)) % len(s.shards)
		s.shards[n].sweep(now)
	}
}
