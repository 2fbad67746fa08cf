package memstore_test

import (
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit/memstore"
	"github.com/seed-601ed181/ratelimit/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T, start time.Time) (storetest.Store, func(time.Duration)) {
		now := start
		store := memstore.New(memstore.Config{Clock: func() time.Time { return now }})
		return store, func(d time.Duration) { now = now.Add(d) }
	})
}
