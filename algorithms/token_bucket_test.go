package algorithms

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTokenBucketLife(t *testing.T) {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	bucket := func(capacity, refill int64, per time.Duration) Algorithm {
		return TokenBucket{Capacity: capacity, Refill: refill, Per: per}
	}
	live(t, []life{
		{"drained, then refilling", bucket(10, 2, sec), []ask{
			{0, 0, pass(10, 0)},
			{0, 10, pass(0, 5*sec)},
			{250 * ms, 1, refuse(0, 4750*ms, 250*ms)},
			{500*ms - us, 1, refuse(0, 4500*ms+us, us)},
			{500 * ms, 1, pass(0, 5*sec)},
			{1700 * ms, 3, refuse(2, 3800*ms, 300*ms)},
			{1700 * ms, 11, refuse(2, 3800*ms, Never)},
			{10 * sec, 0, pass(10, 0)},
		}},
		{"a third of a second is not rounded", bucket(1, 3, sec), []ask{
			{0, 1, pass(0, 333334*us)},
			{333333 * us, 1, refuse(0, us, us)},
			{333334 * us, 1, pass(0, 333334*us)},
		}},
		{"B30 a tenth a second", bucket(1, 1, 10*sec), []ask{
			{0, 1, pass(0, 10*sec)},
			{2 * sec, 1, refuse(0, 8*sec, 8*sec)},
			{9900 * ms, 1, refuse(0, 100*ms, 100*ms)},
			{10 * sec, 1, pass(0, 10*sec)},
		}},
		{"B47 an older time refills nothing", bucket(1, 1, sec), []ask{
			{10 * sec, 1, pass(0, sec)},
			{9 * sec, 1, refuse(0, 2*sec, 2*sec)},
			{10001 * ms, 1, refuse(0, 999*ms, 999*ms)},
			{10999 * ms, 1, refuse(0, ms, ms)},
			{11 * sec, 1, pass(0, sec)},
		}},
		// The report's late packet is 10 s behind. Our clock is the store's and no
		// packet carries one, so that far behind (a recovery and a second, here 3 s)
		// means that it was set back; up to there nothing refills twice.
		{"B48 a late time does not rewind the bucket", bucket(4, 2, sec), []ask{
			{100 * sec, 4, pass(0, 2*sec)},
			{100 * sec, 1, refuse(0, 2*sec, 500*ms)},
			{97 * sec, 1, refuse(0, 5*sec, 3500*ms)},
			{100 * sec, 1, refuse(0, 2*sec, 500*ms)},
		}},
		{"B49 a clock set back an hour does not lock", bucket(5, 5, sec), []ask{
			{0, 5, pass(0, sec)},
			{-time.Hour, 1, refuse(0, sec, 200*ms)},
			{sec - time.Hour, 1, pass(4, 200*ms)},
		}},
		{"B51 a long rest fills the bucket exactly", bucket(1e6, 1e6, sec), []ask{
			{0, 1e6, pass(0, sec)},
			{12 * time.Hour, 1, pass(999_999, us)},
			{10 * year, 1, pass(999_999, us)},
		}},
		{"B51 a great rate", bucket(980_000_000, 980_000_000, 10*sec), []ask{
			{0, 980_000_000, pass(0, 10*sec)},
			{10 * year, 1, pass(979_999_999, us)},
		}},
		{"B52 65535 a second", bucket(65535, 65535, sec), []ask{
			{0, 10, pass(65525, 153*us)},
			{sec, 1, pass(65534, 16*us)},
		}},
		{"B53 2000 a second", bucket(2000, 2000, sec), []ask{
			{0, 2000, pass(0, sec)},
			{0, 1, refuse(0, sec, 500*us)},
		}},
		{"B53 one a day", bucket(1, 1, day), []ask{
			{0, 1, pass(0, day)},
			{day - sec, 1, refuse(0, sec, sec)},
			{day, 1, pass(0, day)},
		}},
		{"B53 a million an hour", bucket(1e6, 1e6, time.Hour), []ask{
			{0, 1, pass(999_999, 3600*us)},
			{0, 1, pass(999_998, 7200*us)},
		}},
		{"B53 a million a second", bucket(1e6, 1e6, sec), []ask{
			{0, 1, pass(999_999, us)},
			{0, 1, pass(999_998, 2*us)},
		}},
		{"B54 what is earned of a token shortens the wait", bucket(1, 1, sec), []ask{
			{0, 1, pass(0, sec)},
			{200 * ms, 1, refuse(0, 800*ms, 800*ms)},
		}},
		{"B54 5 in 300 s", bucket(5, 5, 300*sec), []ask{
			{0, 5, pass(0, 300*sec)},
			{59 * sec, 1, refuse(0, 241*sec, sec)},
		}},
		{"B56 six a minute are six at once", bucket(6, 6, time.Minute), []ask{
			{0, 6, pass(0, 60*sec)},
			{0, 1, refuse(0, 60*sec, 10*sec)},
		}},
		{"B58 a tenth a second, just drained", bucket(1, 1, 10*sec), []ask{
			{0, 1, pass(0, 10*sec)},
			{0, 1, refuse(0, 10*sec, 10*sec)},
			{0, 1, refuse(0, 10*sec, 10*sec)}, // asking takes nothing
		}},
	})
}

// A bucket is not a cap on a window: 17 at once and 17 in 30 s.
func TestB56_TokenBucketAdmitsItsCapacityAndItsRate(t *testing.T) {
	if got := answers(TokenBucket{Capacity: 17, Refill: 17, Per: 30 * sec}, every(sec/2, 60)...); count(got) != 33 {
		t.Errorf("60 tries in 30 s: %d admitted, want 33: %s", count(got), got)
	}
}

func TestB86_TokenBucketChangedNumbersReachTheKey(t *testing.T) {
	for _, test := range []struct {
		name string
		rule TokenBucket
		left int64
	}{
		{"raised", TokenBucket{Capacity: 20, Refill: 10, Per: time.Minute}, 11}, // 20 - 10 + 1.5
		{"lowered", TokenBucket{Capacity: 9, Refill: 10, Per: time.Minute}, 0},
		{"another rate", TokenBucket{Capacity: 10, Refill: 7, Per: time.Minute}, 1}, // 1.05
	} {
		k := key{rule: TokenBucket{Capacity: 10, Refill: 10, Per: time.Minute}}
		k.take(dawn, 10)
		k.rule = test.rule
		if d := k.take(dawn+9e6, 0); d.Limit != test.rule.Capacity || d.Remaining != test.left {
			t.Errorf("%s: %+v, want Limit %d, Remaining %d", test.name, d, test.rule.Capacity, test.left)
		}
	}
}

func TestTokenBucketWorstCaseIsItsBound(t *testing.T) {
	// Greed reaches it: the capacity at once and each token as it comes back.
	k := key{rule: TokenBucket{Capacity: 60, Refill: 60, Per: time.Minute}}
	for now := dawn; now <= dawn+60e6; {
		now += k.take(now, 1).RetryAfter.Microseconds()
	}
	if got := k.most(time.Minute + us); got != 120 {
		t.Errorf("%v: %d in its first minute, want 120", k.rule, got)
	}
	rapid.Check(t, func(t *rapid.T) {
		capacity, per := drawWindow(t)
		refill := rapid.Int64Range(1, 50).Draw(t, "refill")
		k := key{rule: TokenBucket{Capacity: capacity, Refill: refill, Per: per}}
		attack(t, &k)
		k.checkSpans(t, capacity, refill, per)
	})
}
