package memstore_test

import (
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit/internal/linearizable"
	"github.com/seed-601ed181/ratelimit/memstore"
	"github.com/seed-601ed181/ratelimit/storetest"
)

func TestConcurrentCallsAreLinearizable(t *testing.T) {
	t.Run("moving clock", func(t *testing.T) {
		linearizable.Moving(t, func(*testing.T) storetest.Store { return memstore.New(memstore.Config{}) })
	})
	t.Run("standing clock", func(t *testing.T) {
		linearizable.Standing(t, func(_ *testing.T, start time.Time) (storetest.Store, func(time.Duration)) {
			now := start
			store := memstore.New(memstore.Config{Clock: func() time.Time { return now }})
			return store, func(d time.Duration) { now = now.Add(d) }
		})
	})
}
