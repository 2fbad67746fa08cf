package linearizable

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
	"github.com/seed-601ed181/ratelimit/storetest"
)

// The proof that a check can fail: a few calls of stores with the faults of the field.
func TestBrokenStoresAreFound(t *testing.T) {
	broken := map[string]func(storetest.Store) storetest.Store{
		"reads, thinks, writes": func(s storetest.Store) storetest.Store { return &thinking{Store: s} },
		"peeks at a stale replica": func(s storetest.Store) storetest.Store {
			return &stale{Store: s, seen: make(map[string]algorithms.Decision)}
		},
		"loses every third take": func(s storetest.Store) storetest.Store { return &forgetful{Store: s} },
		"admits part of a unit":  func(s storetest.Store) storetest.Store { return partial{s} },
	}
	for rule, rules := range rules() {
		for name, breaks := range broken {
			t.Run(name+"/"+rule, func(t *testing.T) {
				const most = 20
				for seed := range uint64(most) {
					store := memstore.New(memstore.Config{Clock: func() time.Time { return time.UnixMicro(1_764_584_707_000_123) }})
					history := record(t, breaks(store), rules, load{callers: 4, calls: 40, seed: seed, now: 1})
					if judge(rules, history) == porcupine.Illegal {
						return
					}
				}
				t.Errorf("%d histories of a broken store passed for linearizable", most)
			})
		}
	}
}

// thinking decides on what it read a moment ago.
type thinking struct{ storetest.Store }

func (s *thinking) Take(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision) error {
	if err := s.Peek(ctx, charges, decisions); err != nil {
		return err
	}
	time.Sleep(time.Millisecond)
	for i := range decisions {
		if !decisions[i].Allowed {
			return nil
		}
	}
	return s.Settle(ctx, charges)
}

// stale answers a peek as it answered the same before.
type stale struct {
	storetest.Store
	mu   sync.Mutex
	seen map[string]algorithms.Decision
}

func (s *stale) Peek(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range charges {
		same := fmt.Sprint(charges[i])
		if _, ok := s.seen[same]; !ok {
			if err := s.Store.Peek(ctx, charges[i:i+1], decisions[i:i+1]); err != nil {
				return err
			}
			s.seen[same] = decisions[i]
		}
		decisions[i] = s.seen[same]
	}
	return nil
}

type forgetful struct {
	storetest.Store
	mu    sync.Mutex
	takes int
}

func (s *forgetful) Take(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision) error {
	s.mu.Lock()
	s.takes++
	third := s.takes%3 == 0
	s.mu.Unlock()
	if third {
		return s.Peek(ctx, charges, decisions)
	}
	return s.Store.Take(ctx, charges, decisions)
}

// partial decides the charges of a unit one by one.
type partial struct{ storetest.Store }

func (s partial) Take(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision) error {
	for i := range charges {
		if err := s.Store.Take(ctx, charges[i:i+1], decisions[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}
