package algorithms

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSlidingWindowLogLife(t *testing.T) {
	log := func(limit int64, window time.Duration) Algorithm {
		return SlidingWindowLog{Limit: limit, Window: window}
	}
	live(t, []life{
		{"entries leave one by one", log(10, 60*sec), []ask{
			{0, 0, pass(10, 0)},
			{0, 4, pass(6, 60*sec)},
			{10 * sec, 6, pass(0, 60*sec)},
			{20 * sec, 4, refuse(0, 50*sec, 40*sec)},
			{20 * sec, 5, refuse(0, 50*sec, 50*sec)},
			{20 * sec, 11, refuse(0, 50*sec, Never)},
			{60*sec - us, 1, refuse(0, 10*sec+us, us)},
			{60 * sec, 4, pass(0, 60*sec)}, // an entry aged exactly one window has left
			{70 * sec, 0, pass(6, 50*sec)},
			{120 * sec, 0, pass(10, 0)},
		}},
		{"B26 traffic does not prolong the window", log(3, 60*sec), []ask{
			{0, 1, pass(2, 60*sec)},
			{59 * sec, 1, pass(1, 60*sec)},
			{118 * sec, 1, pass(1, 60*sec)},
			{177 * sec, 1, pass(1, 60*sec)},
		}},
		{"B40 no edge", log(10, 60*sec), []ask{
			{59900 * ms, 10, pass(0, 60*sec)},
			{60100 * ms, 1, refuse(0, 59800*ms, 59800*ms)},
		}},
		{"B43 what has expired is dropped before counting", log(3, 10*sec), []ask{
			{0, 3, pass(0, 10*sec)},
			{10001 * ms, 1, pass(2, 10*sec)},
		}},
		{"B44 entries of one microsecond are entries", log(3, 10*sec), []ask{
			{0, 1, pass(2, 10*sec)},
			{0, 1, pass(1, 10*sec)},
			{0, 1, pass(0, 10*sec)},
			{0, 1, refuse(0, 10*sec, 10*sec)},
		}},
		{"B47 a clock a little behind forgets nothing", log(2, 10*sec), []ask{
			{0, 1, pass(1, 10*sec)},
			{5 * sec, 1, pass(0, 10*sec)},
			{4 * sec, 1, refuse(0, 11*sec, 6*sec)},
			{10 * sec, 1, pass(0, 10*sec)},
		}},
		{"B49 a clock set back an hour does not lock", log(2, 10*sec), []ask{
			{0, 2, pass(0, 10*sec)},
			{-time.Hour, 1, refuse(0, 10*sec, 10*sec)},
			{10*sec - time.Hour, 1, pass(1, 10*sec)},
		}},
		{"B59 the wait comes from the oldest entry", log(2, 60*sec), []ask{
			{0, 1, pass(1, 60*sec)},
			{10 * sec, 1, pass(0, 60*sec)},
			{20 * sec, 1, refuse(0, 50*sec, 40*sec)},
		}},
	})
}

func TestB27_SlidingWindowLogDoesNotRememberRefusals(t *testing.T) {
	k := key{rule: SlidingWindowLog{Limit: 10, Window: 600 * sec}}
	for i, at := range every(30*sec, 40) {
		k.take(dawn+at.Microseconds(), 1)
		if len(k.state.Log) > 10 {
			t.Fatalf("%d entries under a limit of 10", len(k.state.Log))
		}
		if n := len(k.admitted); i == 19 && n != 10 || i == 39 && n != 20 {
			t.Errorf("%d of the first %d admitted, want half", n, i+1)
		}
	}
}

func TestB42_SlidingWindowLogRecoversUnderSteadyTraffic(t *testing.T) {
	got := answers(SlidingWindowLog{Limit: 5, Window: 10 * sec}, every(sec, 20)...)
	if want := "+++++-----+++++-----"; got != want {
		t.Errorf("one request a second: %s, want %s", got, want)
	}
}

func TestB56_SlidingWindowLogCapsAWindow(t *testing.T) {
	if got := answers(SlidingWindowLog{Limit: 17, Window: 30 * sec}, every(sec/2, 60)...); count(got) != 17 {
		t.Errorf("60 tries in a window: %s, want 17 admitted", got)
	}
}

func TestB58_SlidingWindowLogWaitIsWhatIsLeft(t *testing.T) {
	k := key{rule: SlidingWindowLog{Limit: 10, Window: time.Minute}}
	for _, at := range every(2*sec, 10) {
		k.take(dawn+at.Microseconds(), 1)
	}
	if d := k.take(dawn+20e6, 1); d.Allowed || d.RetryAfter != 40*sec {
		t.Errorf("the eleventh at 20 s: %+v, want RetryAfter 40s", d)
	}
}

// No span of one window holds more than the limit, and the log no more entries.
func TestSlidingWindowLogWorstCaseIsTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit, window := drawWindow(t)
		k := key{rule: SlidingWindowLog{Limit: limit, Window: window}}
		attack(t, &k)
		if got := k.most(window); got > limit {
			t.Fatalf("%v: %d in a span of one window", k.rule, got)
		}
		if got := int64(len(k.state.Log)); got > limit {
			t.Fatalf("%v: %d entries", k.rule, got)
		}
	})
}
