package algorithms

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSlidingWindowCounterLife(t *testing.T) {
	minute := func(limit int64) Algorithm { return SlidingWindowCounter{Limit: limit, Window: time.Minute} }
	live(t, []life{
		{"drained, then fading", minute(10), []ask{
			{0, 0, pass(10, 0)},
			{0, 10, pass(0, 120*sec)},
			{30 * sec, 1, refuse(0, 90*sec, 36*sec)},  // at 66 s a tenth of the ten has faded
			{30 * sec, 10, refuse(0, 90*sec, 90*sec)}, // all of them at 120 s
			{66 * sec, 1, pass(0, 114*sec)},
			{66 * sec, 1, refuse(0, 114*sec, 6*sec)},
			{66 * sec, 11, refuse(0, 114*sec, Never)},
			{90 * sec, 0, pass(4, 90*sec)}, // 10 - 1 - half of 10
			{180 * sec, 10, pass(0, 120*sec)},
		}},
		{"an entry of two windows ago is gone", minute(10), []ask{
			{59 * sec, 10, pass(0, 61*sec)},
			{120*sec - us, 0, pass(9, us)},
			{120 * sec, 0, pass(10, 0)},
		}},
		{"B26 traffic does not prolong the window", minute(3), []ask{
			{0, 1, pass(2, 120*sec)},
			{59 * sec, 1, pass(1, 61*sec)},
			{118 * sec, 1, pass(1, 62*sec)},
			{177 * sec, 1, pass(1, 63*sec)},
		}},
		{"B40 the edge of a window admits nothing twice", minute(10), []ask{
			{59900 * ms, 10, pass(0, 60100*ms)},
			{60100 * ms, 1, refuse(0, 59900*ms, 5900*ms)},
			{60100 * ms, 10, refuse(0, 59900*ms, 59900*ms)},
		}},
		{"B41 the previous window counts by its share", minute(100), []ask{
			{59 * sec, 50, pass(50, 61*sec)},
			{66 * sec, 10, pass(45, 114*sec)},
			{66 * sec, 1, pass(44, 114*sec)},
		}},
		{"B47 a clock a little behind neither fades nor refills", minute(10), []ask{
			{65 * sec, 10, pass(0, 115*sec)},
			{59 * sec, 1, refuse(0, 121*sec, 67*sec)},
			{65 * sec, 1, refuse(0, 115*sec, 61*sec)},
		}},
		// The clock is the store's, so one that is more than a recovery and a second
		// behind was set back, and the count moves with it.
		{"B49 a clock set back an hour does not lock", minute(10), []ask{
			{65 * sec, 10, pass(0, 115*sec)},
			{65*sec - time.Hour, 1, refuse(0, 115*sec, 61*sec)},
			{126*sec - time.Hour, 1, pass(0, 114*sec)},
		}},
	})
}

func TestB27_SlidingWindowCounterDoesNotCountRefusals(t *testing.T) {
	got := answers(SlidingWindowCounter{Limit: 10, Window: 600 * sec}, every(30*sec, 40)...)
	if first, all := count(got[:20]), count(got); first != 10 || all != 19 {
		t.Errorf("%s: %d of the first 20 admitted and %d of 40, want 10 and 19", got, first, all)
	}
}

func TestB42_SlidingWindowCounterRecoversUnderSteadyTraffic(t *testing.T) {
	got := answers(SlidingWindowCounter{Limit: 5, Window: 10 * sec}, every(sec, 20)...)
	if want := "+++++-------+-+-+-+-"; got != want {
		t.Errorf("one request a second: %s, want %s", got, want)
	}
}

func TestB56_SlidingWindowCounterCapsAWindow(t *testing.T) {
	if got := answers(SlidingWindowCounter{Limit: 17, Window: 30 * sec}, every(sec/2, 60)...); count(got) != 17 {
		t.Errorf("60 tries in a window: %s, want 17 admitted", got)
	}
}

func TestB86_SlidingWindowCounterRaisedLimitReachesTheKey(t *testing.T) {
	k := key{rule: SlidingWindowCounter{Limit: 10, Window: time.Minute}}
	k.take(dawn, 10)
	k.rule = SlidingWindowCounter{Limit: 20, Window: time.Minute}
	if d := k.take(dawn+10e6, 1); !d.Allowed || d.Limit != 20 || d.Remaining != 9 {
		t.Errorf("after raising 10 to 20: %+v, want Limit 20, Remaining 9", d)
	}
}

// The largest limits the doc comment states.
func TestSlidingWindowCounterLargestLimit(t *testing.T) {
	for window, largest := range map[time.Duration]int64{
		time.Minute: 150_119_987, time.Hour: 2_501_999, 24 * time.Hour: 104_249,
	} {
		if err := (SlidingWindowCounter{Limit: largest, Window: window}).Validate(); err != nil {
			t.Errorf("%d per %v: %v", largest, window, err)
		}
		if err := (SlidingWindowCounter{Limit: largest + 1, Window: window}).Validate(); err == nil {
			t.Errorf("%d per %v: no error", largest+1, window)
		}
	}
}

// The most that greed gets: the whole limit at the last microsecond of a window, then
// each unit as soon as it is given.
func TestSlidingWindowCounterWorstCase(t *testing.T) {
	for _, limit := range []int64{1, 2, 7, 100} {
		k := key{rule: SlidingWindowCounter{Limit: limit, Window: time.Minute}}
		for now := dawn - 1; now < dawn+300e6; {
			now += k.take(now, 1).RetryAfter.Microseconds()
		}
		if got, want := k.most(time.Minute), 2*limit-1; got != want {
			t.Errorf("limit %d: at most %d in a span of one window, want %d", limit, got, want)
		}
		t.Logf("limit %d: at most %d in any minute", limit, k.most(time.Minute))
		k.checkSpans(t, limit, limit, time.Minute)
	}
}

func TestSlidingWindowCounterNeverAboveItsBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit, window := drawWindow(t)
		k := key{rule: SlidingWindowCounter{Limit: limit, Window: window}}
		attack(t, &k)
		if got := k.most(window); got >= 2*limit {
			t.Fatalf("%v: %d in a span of one window", k.rule, got)
		}
		k.checkSpans(t, limit, limit, window)
	})
}

// The price of the estimate on steady random traffic, measured against an exact count
// of what was admitted, and bounded. Above the limit, where the exact count stands at
// the limit all the time, every error of the estimate decides a request otherwise;
// what counts there is how much passes: in all, and in the worst minute.
func TestSlidingWindowCounterErrorOnSteadyTraffic(t *testing.T) {
	const limit, window, requests = 100, int64(60e6), 200_000
	for _, test := range []struct {
		load            float64 // traffic, of the limit
		otherwise, err  float64 // decided otherwise, of all requests; mean error, of the limit
		passed          float64 // of the lesser of traffic and limit
		mostInOneMinute int64
	}{
		{0.5, 0, 0.03, 0.99, 100},
		{0.8, 0.015, 0.04, 0.99, 115},
		{1.5, 0.35, 0.02, 0.97, 115},
	} {
		random := rand.New(rand.NewPCG(1, 2))
		k := key{rule: SlidingWindowCounter{Limit: limit, Window: time.Minute}}
		now, first, otherwise, off := float64(dawn), 0, 0, 0.0
		for range requests {
			now += random.ExpFloat64() * float64(window) / limit / test.load
			at := int64(now)
			for first < len(k.admitted) && k.admitted[first].at <= at-window {
				first++
			}
			exact := len(k.admitted) - first
			s := k.state
			roll(&s, at, window)
			estimate := float64(s.Used) + float64(s.Previous)*float64(window-(at-s.At))/float64(window)
			off += math.Abs(estimate - float64(exact))
			if k.take(at, 1).Allowed != (exact < limit) {
				otherwise++
			}
		}
		passed := float64(len(k.admitted)) / (now - float64(dawn)) * float64(window) / limit / min(1, test.load)
		share, err, most := float64(otherwise)/requests, off/requests/limit, k.most(time.Minute)
		t.Logf("load %.1f: %.2f %% decided otherwise, off by %.2f %% of the limit, %.2f %% of what could pass, at most %d in a minute",
			test.load, 100*share, 100*err, 100*passed, most)
		if share > test.otherwise || err > test.err || passed < test.passed || most > test.mostInOneMinute {
			t.Errorf("load %.1f: out of its bounds %+v", test.load, test)
		}
	}
}
