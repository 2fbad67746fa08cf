package ratelimit

import (
	"testing"
	"testing/synctest"
	"time"
)

// Who is turned away is told how long it would have been, even if the one who knew has
// left before it reads that.
func TestWhoIsTurnedAwayKnowsHowLongItWouldBe(t *testing.T) {
	for name, early := range map[string]bool{"as it comes": false, "while it waits": true} {
		synctest.Test(t, func(t *testing.T) {
			askers := newAskers(newLines(10))
			first, late := new(asker), &asker{deadline: time.Now().Add(time.Second)}
			askers.join("k", first)
			if early {
				askers.join("k", late)
			}
			askers.refused("k", time.Now().Add(time.Hour))
			if !early {
				askers.join("k", late)
			}
			askers.leave("k", first)
			<-late.tooLate
			if got := time.Until(late.until); got != time.Hour {
				t.Errorf("%s: it would wait %v, want 1h", name, got)
			}
			askers.leave("k", late)
			if len(askers.byKey) > 0 || askers.lines.count() > 0 {
				t.Errorf("%s: left behind %v, %d wait", name, askers.byKey, askers.lines.count())
			}
		})
	}
}
