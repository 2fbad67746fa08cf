package storetest

import (
	"testing"
	"time"
)

// The judge passes its own suite, where the suite doesn't need a store: concurrency
// and a clock set back are not its business.
func TestModelAgreesWithTheSuite(t *testing.T) {
	open := func(t *testing.T, start time.Time) (Store, func(time.Duration)) {
		now := start
		return &Model{Now: func() time.Time { return now }}, func(d time.Duration) { now = now.Add(d) }
	}
	testRetryAfter(t, open)
	testAllOrNothing(t, open)
	testChangedLimit(t, open)
	testSettle(t, open)
	testLeases(t, open)
	testBadCharges(t, open)
	testCancelled(t, open)
}
