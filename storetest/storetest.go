// Package storetest proves a store. Whoever writes one calls [Run] from a test, as one
// calls testing/fstest for a file system:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T, start time.Time) (storetest.Store, func(time.Duration)) {
//			now := start
//			store := mystore.New(func() time.Time { return now })
//			return store, func(d time.Duration) { now = now.Add(d) }
//		})
//	}
//
// The judge is [Model], which decides by the definitions in exact arithmetic.
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// Store is the contract under test: ratelimit.Store, spelled out here so that a store
// need not import the root package.
type Store interface {
	Take(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision) error
	Peek(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision) error
	Settle(ctx context.Context, charges []algorithms.Charge) error
	Reset(ctx context.Context, charges []algorithms.Charge) error
}

// Open makes a new empty store whose clock stands at start until the returned function
// moves it forward. It cleans up through t.
type Open func(t *testing.T, start time.Time) (store Store, advance func(time.Duration))

// Run runs the whole suite, each test on a store of its own.
func Run(t *testing.T, open Open) {
	t.Run("every rule decides as the model", func(t *testing.T) { testModel(t, open) })
	t.Run("the first answer of every rate", func(t *testing.T) { testFirstAnswer(t, open) })
	t.Run("waiting exactly RetryAfter passes", func(t *testing.T) { testRetryAfter(t, open) })
	t.Run("several charges are one unit", func(t *testing.T) { testAllOrNothing(t, open) })
	t.Run("a changed limit keeps the count", func(t *testing.T) { testChangedLimit(t, open) })
	t.Run("a clock set back locks nobody out", func(t *testing.T) { testClockSetBack(t, open) })
	t.Run("keys are any bytes and never meet", func(t *testing.T) { testKeys(t, open) })
	t.Run("peek, settle and reset", func(t *testing.T) { testSettle(t, open) })
	t.Run("leases end when given back, or by themselves", func(t *testing.T) { testLeases(t, open) })
	t.Run("bad charges are errors and count nothing", func(t *testing.T) { testBadCharges(t, open) })
	t.Run("a cancelled context counts nothing", func(t *testing.T) { testCancelled(t, open) })
	t.Run("B34 concurrent requests never pass the limit", func(t *testing.T) { testConcurrent(t, open) })
}

// subject is a store with the model beside it, on one clock.
type subject struct {
	Store
	model   *Model
	advance func(time.Duration)
	now     time.Time
}

var suiteStart = time.UnixMicro(1_764_584_707_000_123)

func newSubject(t *testing.T, open Open) *subject {
	t.Helper()
	s := &subject{now: suiteStart}
	store, advance := open(t, suiteStart)
	s.Store = store
	s.model = &Model{Now: func() time.Time { return s.now }}
	s.advance = func(d time.Duration) {
		s.now = s.now.Add(d)
		advance(d)
	}
	return s
}

// take asks for one charge and fails the test when the store couldn't decide.
func (s *subject) take(t *testing.T, key string, a algorithms.Algorithm, cost int64) algorithms.Decision {
	t.Helper()
	decisions := make([]algorithms.Decision, 1)
	if err := s.Take(context.Background(), []algorithms.Charge{{Key: key, Algorithm: a, Cost: cost}}, decisions); err != nil {
		t.Fatalf("Take %d of %q under %v: %v", cost, key, a, err)
	}
	return decisions[0]
}
