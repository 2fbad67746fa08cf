package ratelimit

import (
	"testing"
	"time"
)

func TestADecisionIsPutBetweenItsQuestionAndItsAnswer(t *testing.T) {
	const ms = time.Millisecond
	type answer struct {
		at, sent, came time.Duration // since some time by the store's clock, and twice by ours
		want           time.Duration // when it was decided, by ours
	}
	for _, tc := range []struct {
		name    string
		answers []answer
	}{
		{"the first came at once, for all we know", []answer{{0, 1000 * ms, 1010 * ms, 1010 * ms}}},
		{"a later one is known to have taken longer", []answer{
			{0, 1000 * ms, 1002 * ms, 1002 * ms},
			{100 * ms, 1095 * ms, 1110 * ms, 1102 * ms},
		}},
		{"a quicker one shows more", []answer{
			{0, 1000 * ms, 1010 * ms, 1010 * ms},
			{100 * ms, 1095 * ms, 1102 * ms, 1102 * ms},
			{200 * ms, 1195 * ms, 1210 * ms, 1202 * ms},
		}},
		{"the store's clock is set forward", []answer{
			{0, 1000 * ms, 1002 * ms, 1002 * ms},
			{time.Hour, 1100 * ms, 1105 * ms, 1105 * ms},
			{time.Hour + 100*ms, 1199 * ms, 1210 * ms, 1205 * ms},
		}},
		{"the store's clock is set back", []answer{
			{time.Hour, 1000 * ms, 1002 * ms, 1002 * ms},
			{0, 1100 * ms, 1105 * ms, 1105 * ms},
			{100 * ms, 1199 * ms, 1210 * ms, 1205 * ms},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c storeClock
			ours := time.Now()
			theirs := time.UnixMicro(ours.Add(-1000 * ms).UnixMicro())
			for i, a := range tc.answers {
				got := c.when(theirs.Add(a.at), ours.Add(a.sent), ours.Add(a.came)).Sub(ours)
				if got != a.want {
					t.Errorf("answer %d: %v, want %v", i, got, a.want)
				}
			}
		})
	}
}
