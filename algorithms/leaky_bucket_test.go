package algorithms

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestLeakyBucketLife(t *testing.T) {
	bucket := func(capacity, rate int64, per time.Duration) Algorithm {
		return LeakyBucket{Capacity: capacity, Rate: rate, Per: per}
	}
	live(t, []life{
		{"each waits for those before it", bucket(3, 10, sec), []ask{
			{0, 1, hold(2, 100*ms, 0)},
			{0, 1, hold(1, 200*ms, 100*ms)},
			{50 * ms, 1, hold(0, 250*ms, 150*ms)},
			{50 * ms, 1, refuse(0, 250*ms, 50*ms)},
			{50 * ms, 4, refuse(0, 250*ms, Never)},
			{100*ms - us, 1, refuse(0, 200*ms+us, us)},
			{100 * ms, 1, hold(0, 300*ms, 200*ms)},
			{250 * ms, 0, hold(1, 150*ms, 150*ms)}, // what a request would wait now
			{400 * ms, 3, hold(0, 300*ms, 0)},
		}},
		{"a third of a second is rounded up", bucket(3, 3, sec), []ask{
			{0, 1, hold(2, 333334*us, 0)},
			{0, 1, hold(1, 666667*us, 333334*us)},
			{0, 1, hold(0, sec, 666667*us)},
		}},
		{"B30 a tenth a second", bucket(1, 1, 10*sec), []ask{
			{0, 1, hold(0, 10*sec, 0)},
			{2 * sec, 1, refuse(0, 8*sec, 8*sec)},
			{9900 * ms, 1, refuse(0, 100*ms, 100*ms)},
			{10 * sec, 1, hold(0, 10*sec, 0)},
		}},
		{"a burst leaves at once, the rest at the rate", LeakyBucket{Capacity: 4, Rate: 10, Per: sec, Burst: 2}, []ask{
			{0, 1, hold(3, 100*ms, 0)},
			{0, 1, hold(2, 200*ms, 0)},
			{0, 1, hold(1, 300*ms, 0)},
			{0, 1, hold(0, 400*ms, 100*ms)},
			{0, 1, refuse(0, 400*ms, 100*ms)},
			{150 * ms, 1, hold(0, 350*ms, 50*ms)},
			{250 * ms, 1, hold(0, 350*ms, 50*ms)},
			{550 * ms, 1, hold(2, 150*ms, 0)},
		}},
		{"B47 an older time drains nothing", bucket(2, 1, sec), []ask{
			{10 * sec, 1, hold(1, sec, 0)},
			{9 * sec, 1, hold(0, 3*sec, 2*sec)}, // its turn is still at 11 s
			{10 * sec, 1, refuse(0, 2*sec, sec)},
		}},
		{"B49 a clock set back an hour does not lock", bucket(5, 5, sec), []ask{
			{0, 5, hold(0, sec, 0)},
			{-time.Hour, 1, refuse(0, sec, 200*ms)},
			{sec - time.Hour, 1, hold(4, 200*ms, 0)},
		}},
	})
}

// Full to the brim it lets out its rate, not a new capacity each period.
func TestB56_LeakyBucketKeepsItsRate(t *testing.T) {
	if got := answers(LeakyBucket{Capacity: 3, Rate: 3, Per: sec}, every(100*ms, 100)...); count(got) != 32 {
		t.Errorf("one request per 100 ms for 10 s: %d admitted, want 32: %s", count(got), got)
	}
}

func TestLeakyBucketWorstCaseIsAnEvenStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity, per := drawWindow(t)
		rule := LeakyBucket{Capacity: capacity, Rate: rapid.Int64Range(1, 50).Draw(t, "rate"), Per: per}
		k, now := key{rule: rule}, dawn
		var turns []int64
		for range rapid.IntRange(1, 100).Draw(t, "requests") {
			now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 2*per.Microseconds()/rule.Rate)).Draw(t, "gap")
			if d := k.take(now, 1); d.Allowed {
				turns = append(turns, now+d.Delay.Microseconds())
			}
			// In the queue: those whose turn is not over, a turn being Per/Rate long.
			queued := int64(0)
			for _, turn := range turns {
				if (now-turn)*rule.Rate < per.Microseconds()-rule.Rate {
					queued++
				}
			}
			if queued > capacity {
				t.Fatalf("%v: %d queued", rule, queued)
			}
		}
		for i := range turns {
			for j := range i { // at least Per/Rate apart, to the microsecond
				if n := int64(i - j); (turns[i]-turns[j]+1)*rule.Rate <= n*per.Microseconds()-rule.Rate {
					t.Fatalf("%v: turns %d apart are %d µs apart", rule, n, turns[i]-turns[j])
				}
			}
		}
		k.checkSpans(t, capacity, rule.Rate, per)
	})
}
