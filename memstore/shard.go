package memstore

import (
	"maps"
	"math"
	"math/bits"
	"sync"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// shard is a hash table with linear probing. Its slots hold no pointers, so the
// garbage collector never walks them.
type shard struct {
	mu      sync.Mutex
	slots   []slot
	keys    int
	maxKeys int
	// logs holds the entries of sliding window logs, which don't fit a slot.
	logs map[[2]uint64][]algorithms.Entry
	// state is what decide works on: here a rule can be given it without an allocation.
	state algorithms.State

	_ [64]byte // keeps neighbours' locks off this cache line
}

// slot is one counter in 48 bytes.
type slot struct {
	hash     [2]uint64
	at, used int64
	// extra is the state's Previous or, negated, its Unit: no rule uses both.
	extra int64
	// until is the time of full recovery shifted left by 8; below it the use, a scale
	// of 0 to limited, and above that the flag of a log.
	until int64
}

const (
	minSlots = 16

	limited  = 0x7f
	logged   = 0x80
	reserved = math.MaxInt64 &^ logged // limited for ever
)

func (sl *slot) recovered(now int64) bool { return sl.until>>8 <= now }

func (sl *slot) use() int64 { return sl.until & limited }

// decide decides a charge that stands by itself.
func (s *shard) decide(hash [2]uint64, charge *algorithms.Charge, d *algorithms.Decision, now int64, write bool) error {
	i, found := s.find(hash)
	s.state = algorithms.State{}
	if found {
		s.loadFrom(i, &s.state)
	}
	before := s.state.At
	charge.Algorithm.Apply(&s.state, d, now, charge.Cost)
	switch {
	case !write:
	case d.Allowed && charge.Cost > 0 || s.state.At < before:
		if !found {
			var err error
			if i, err = s.insert(hash, now); err != nil {
				return err
			}
		}
		s.storeIn(i, &s.state, d, now)
	case !d.Allowed && found:
		s.slots[i].until |= limited
	}
	s.state.Log = nil // keeps no log alive
	return nil
}

func (s *shard) load(hash [2]uint64) (state algorithms.State) {
	if i, ok := s.find(hash); ok {
		s.loadFrom(i, &state)
	}
	return state
}

// loadFrom fills an empty state from a slot.
func (s *shard) loadFrom(i int, state *algorithms.State) {
	sl := &s.slots[i]
	state.At, state.Used = sl.at, sl.used
	if sl.extra < 0 {
		state.Unit = -sl.extra
	} else {
		state.Previous = sl.extra
	}
	if sl.until&logged != 0 {
		state.Log = s.logs[sl.hash]
	}
}

// store keeps the state for a key that has a slot, see reserve.
func (s *shard) store(hash [2]uint64, state *algorithms.State, d *algorithms.Decision, now int64) {
	if i, ok := s.find(hash); ok {
		s.storeIn(i, state, d, now)
	}
}

func (s *shard) storeIn(i int, state *algorithms.State, d *algorithms.Decision, now int64) {
	if d.ResetAfter == 0 {
		s.remove(i)
		return
	}
	sl := &s.slots[i]
	sl.at, sl.used, sl.extra = state.At, state.Used, state.Previous-state.Unit
	sl.until = (now + d.ResetAfter.Microseconds()) << 8
	if d.Remaining == 0 {
		sl.until |= limited
	} else {
		sl.until |= int64(float64(d.Limit-d.Remaining) / float64(d.Limit) * (limited - 1))
	}
	if state.Added != (algorithms.Entry{}) {
		state.Log = append(state.Log, state.Added)
	}
	if state.Log != nil {
		sl.until |= logged
		if s.logs == nil {
			s.logs = make(map[[2]uint64][]algorithms.Entry)
		}
		s.logs[sl.hash] = state.Log
	}
}

// reserve makes sure that the key has a slot, so that storing it can't fail. Until it is
// stored the slot is never taken to make room for another.
func (s *shard) reserve(hash [2]uint64, now int64) error {
	if i, ok := s.find(hash); ok {
		s.slots[i].until = max(s.slots[i].until, (now+1)<<8) | limited
		return nil
	}
	i, err := s.insert(hash, now)
	if err == nil {
		s.slots[i].until = reserved
	}
	return err
}

// release frees a slot that was reserved and not stored.
func (s *shard) release(hash [2]uint64) {
	if i, ok := s.find(hash); ok && s.slots[i].until == reserved {
		s.remove(i)
	}
}

// markLimited notes that the key is being refused, which keeps it from being forgotten.
func (s *shard) markLimited(hash [2]uint64) {
	if i, ok := s.find(hash); ok {
		s.slots[i].until |= limited
	}
}

func (s *shard) forget(hash [2]uint64) {
	if i, ok := s.find(hash); ok {
		s.remove(i)
	}
}

// sweep reclaims what has recovered, and the table's memory when most of it did.
func (s *shard) sweep(now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.keys
	for i := 0; i < len(s.slots); {
		if s.slots[i].hash[1] != 0 && s.slots[i].recovered(now) {
			s.remove(i) // another slot may have moved here
			continue
		}
		i++
	}
	if s.keys < before && s.keys < len(s.slots)/4 && len(s.slots) > minSlots {
		s.resize(s.keys * 3 / 2)
	}
}

// insert finds a slot for a new key, growing the table or making room in it.
func (s *shard) insert(hash [2]uint64, now int64) (int, error) {
	if s.keys >= s.maxKeys {
		if err := s.makeRoom(hash, now); err != nil {
			return 0, err
		}
	} else if s.keys >= len(s.slots)*7/8 {
		s.resize(len(s.slots) + len(s.slots)/4)
	}
	i, _ := s.find(hash)
	s.slots[i] = slot{hash: hash}
	s.keys++
	return i, nil
}

// makeRoom removes the least used of a few keys, or one that has recovered, but never
// one that is being limited.
func (s *shard) makeRoom(hash [2]uint64, now int64) error {
	const sample = 16
	victim, use := -1, int64(limited)
	i := s.home(hash)
	for seen := 0; seen < min(sample, s.keys); i = s.next(i) {
		sl := &s.slots[i]
		if sl.hash[1] == 0 {
			continue
		}
		seen++
		if sl.recovered(now) {
			victim = i
			break
		}
		if sl.use() < use {
			victim, use = i, sl.use()
		}
	}
	if victim < 0 {
		return ErrFull
	}
	s.remove(victim)
	return nil
}

// find returns the slot of the key, or the free one where it would go.
func (s *shard) find(hash [2]uint64) (int, bool) {
	if len(s.slots) == 0 {
		return 0, false
	}
	for i := s.home(hash); ; i = s.next(i) {
		switch s.slots[i].hash {
		case hash:
			return i, true
		case [2]uint64{}:
			return i, false
		}
	}
}

// remove empties a slot and moves those behind it that would no longer be found.
func (s *shard) remove(i int) {
	if s.slots[i].until&logged != 0 {
		delete(s.logs, s.slots[i].hash)
	}
	s.keys--
	for j := s.next(i); s.slots[j].hash != [2]uint64{}; j = s.next(j) {
		home := s.home(s.slots[j].hash)
		if between := (i < j && (home <= i || home > j)) || (i > j && home <= i && home > j); between {
			s.slots[i] = s.slots[j]
			i = j
		}
	}
	s.slots[i] = slot{}
}

func (s *shard) resize(size int) {
	if size < len(s.slots) {
		logs := make(map[[2]uint64][]algorithms.Entry, len(s.logs)) // a map does not shrink
		maps.Copy(logs, s.logs)
		s.logs = logs
	}
	old := s.slots
	s.slots = make([]slot, max(size, minSlots))
	for i := range old {
		if old[i].hash[1] != 0 {
			j, _ := s.find(old[i].hash)
			s.slots[j] = old[i]
		}
	}
}

// home spreads the hash over any number of slots (Lemire, "Fast random integer
// generation in an interval", 2019).
func (s *shard) home(hash [2]uint64) int {
	high, _ := bits.Mul64(hash[0], uint64(len(s.slots)))
	return int(high)
}

func (s *shard) next(i int) int {
	if i++; i == len(s.slots) {
		return 0
	}
	return i
}
