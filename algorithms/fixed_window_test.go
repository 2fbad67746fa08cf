package algorithms

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // America/New_York on any machine

	"pgregory.net/rapid"
)

func count(answers string) int { return strings.Count(answers, "+") }

func TestFixedWindowLife(t *testing.T) {
	minute := func(limit int64) Algorithm { return FixedWindow{Limit: limit, Window: time.Minute} }
	live(t, []life{
		{"drained, then a new window", minute(10), []ask{
			{0, 0, pass(10, 0)},
			{sec, 4, pass(6, 59*sec)},
			{30 * sec, 7, refuse(6, 30*sec, 30*sec)},
			{30 * sec, 6, pass(0, 30*sec)},
			{60*sec - us, 1, refuse(0, us, us)},
			{60*sec - us, 11, refuse(0, us, Never)},
			{60 * sec, 10, pass(0, 60*sec)},
		}},
		{"B26 traffic does not prolong the window", minute(3), []ask{
			{0, 1, pass(2, 60*sec)},
			{59 * sec, 1, pass(1, sec)},
			{118 * sec, 1, pass(2, 2*sec)},
			{177 * sec, 1, pass(2, 3*sec)},
		}},
		{"B33 the window ends with the minute", minute(5), []ask{
			{58700 * ms, 5, pass(0, 1300*ms)},
			{60100 * ms, 1, pass(4, 59900*ms)},
		}},
		{"B47 a clock a little behind opens no window", minute(10), []ask{
			{60 * sec, 10, pass(0, 60*sec)},
			{59 * sec, 1, refuse(0, 61*sec, 61*sec)},
			{61 * sec, 1, refuse(0, 59*sec, 59*sec)},
		}},
		{"B49 a clock set back an hour does not lock", minute(10), []ask{
			{0, 10, pass(0, 60*sec)},
			{10*sec - time.Hour, 1, refuse(0, 50*sec, 50*sec)},
			{60*sec - time.Hour, 1, pass(9, 60*sec)},
		}},
		{"B58 the wait is what is left of the window", minute(10), []ask{
			{18 * sec, 10, pass(0, 42*sec)},
			{20 * sec, 1, refuse(0, 40*sec, 40*sec)},
		}},
		{"B60 at the stated reset it passes", FixedWindow{Limit: 2, Window: 30 * sec}, []ask{
			{400 * ms, 2, pass(0, 29600*ms)},
			{30 * sec, 1, pass(1, 30*sec)},
		}},
	})
}

// The edge is what a fixed window gets wrong, and all of it: twice the limit within
// two microseconds.
func TestB40_FixedWindowWorstCaseIsTwiceTheLimit(t *testing.T) {
	k := key{rule: FixedWindow{Limit: 10, Window: time.Minute}}
	for range 11 {
		k.take(dawn-1, 1)
	}
	for range 11 {
		k.take(dawn, 1)
	}
	if got := k.most(2 * us); got != 20 {
		t.Errorf("%d in two microseconds, want 20", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		limit, window := drawWindow(t)
		k := key{rule: FixedWindow{Limit: limit, Window: window}}
		attack(t, &k)
		if got := k.most(window); got > 2*limit {
			t.Fatalf("%v: %d in a span of one window", k.rule, got)
		}
	})
}

func TestB86_FixedWindowRaisedLimitReachesTheKey(t *testing.T) {
	k := key{rule: FixedWindow{Limit: 10, Window: time.Minute}}
	for range 12 {
		k.take(dawn, 1)
	}
	k.rule = FixedWindow{Limit: 20, Window: time.Minute}
	if d := k.take(dawn+10e6, 1); !d.Allowed || d.Limit != 20 || d.Remaining != 9 {
		t.Errorf("after raising 10 to 20: %+v, want Limit 20, Remaining 9", d)
	}
}

// A day is 86,400 s from midnight UTC, also on the days of 25 and 23 hours in New York
// and on both of their 01:30.
func TestB87_DayDoesNotFollowTheTimeZone(t *testing.T) {
	zone, err := time.LoadLocation("America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	rule := FixedWindow{Limit: 10, Window: 24 * time.Hour}
	twice := time.Date(2026, 11, 1, 1, 30, 0, 0, zone)
	for _, test := range []struct {
		at    time.Time
		reset time.Duration
	}{
		{twice, 18*time.Hour + 30*time.Minute}, // 05:30 UTC
		{twice.Add(time.Hour), 17*time.Hour + 30*time.Minute},
		{time.Date(2026, 11, 1, 18, 59, 59, 0, zone), sec},
		{time.Date(2026, 11, 1, 19, 0, 0, 0, zone), 24 * time.Hour},
		{time.Date(2026, 3, 8, 1, 30, 0, 0, zone), 17*time.Hour + 30*time.Minute}, // 06:30 UTC
		{time.Date(2026, 3, 8, 3, 30, 0, 0, zone), 16*time.Hour + 30*time.Minute},
	} {
		if _, d := rule.Step(State{}, test.at.UnixMicro(), 1); d.ResetAfter != test.reset || d.At.Location() != time.UTC {
			t.Errorf("%v: %+v, want ResetAfter %v", test.at, d, test.reset)
		}
	}
}
