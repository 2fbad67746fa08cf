package algorithms

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	sec = time.Second
	ms  = time.Millisecond
	us  = time.Microsecond
)

// dawn is a time at which every window of these tests begins: midnight UTC.
var dawn = time.Date(2025, 12, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// life is one key under one rule, as rows of time, cost and the whole answer. Go and
// Lua both have to live it.
type life struct {
	name string
	rule Algorithm
	asks []ask
}

type ask struct {
	at   time.Duration // after dawn
	cost int64
	want Decision // At and Limit are filled in
}

func pass(remaining int64, reset time.Duration) Decision {
	return Decision{Allowed: true, Remaining: remaining, ResetAfter: reset}
}

func hold(remaining int64, reset, delay time.Duration) Decision {
	return Decision{Allowed: true, Remaining: remaining, ResetAfter: reset, Delay: delay}
}

func refuse(remaining int64, reset, retry time.Duration) Decision {
	return Decision{Remaining: remaining, ResetAfter: reset, RetryAfter: retry}
}

func live(t *testing.T, lives []life) {
	for _, l := range lives {
		t.Run(l.name, func(t *testing.T) {
			k, chunk := key{rule: l.rule}, loadLua(t, ruleOf(l.rule))
			for _, ask := range l.asks {
				now, want := dawn+ask.at.Microseconds(), ask.want
				want.At, want.Limit = time.UnixMicro(now).UTC(), l.rule.Parameters()[0]
				if got := k.take(now, ask.cost); got != want {
					t.Errorf("at %v, cost %d:\n got %+v\nwant %+v", ask.at, ask.cost, got, want)
				}
				if got := chunk.take(l.rule, now, ask.cost); got != want {
					t.Errorf("Lua at %v, cost %d:\n got %+v\nwant %+v", ask.at, ask.cost, got, want)
				}
			}
		})
	}
}

// key is what a store remembers of a key, and every admission in it.
type key struct {
	rule     Algorithm
	state    State
	admitted []admission
}

type admission struct{ at, units int64 }

// take does with a step what a store does.
func (k *key) take(now, cost int64) Decision {
	next, d := k.rule.Step(k.state, now, cost)
	if d.Allowed && cost > 0 || next.At < k.state.At {
		k.state = next
	}
	if d.Allowed {
		k.admitted = append(k.admitted, admission{now, cost})
	}
	return d
}

// most is the largest sum of units in any span of the length: from one admission to
// less than length later.
func (k *key) most(length time.Duration) int64 {
	var most, sum int64
	first := 0
	for _, a := range k.admitted {
		for sum += a.units; k.admitted[first].at <= a.at-length.Microseconds(); first++ {
			sum -= k.admitted[first].units
		}
		most = max(most, sum)
	}
	return most
}

// checkSpans holds every span from one admission to another against
// burst + amount x T / per.
func (k *key) checkSpans(t rapid.TB, burst, amount int64, per time.Duration) {
	for i, from := range k.admitted {
		var sum int64
		for _, to := range k.admitted[i:] {
			if sum += to.units; (sum-burst)*per.Microseconds() > amount*(to.at-from.at) {
				t.Fatalf("%v: %d units in %v, more than %d + %d x T / %v", k.rule, sum, Microseconds(to.at-from.at), burst, amount, per)
			}
		}
	}
}

// attack asks at random moments and at the worst ones: together, at the last
// microsecond of a window and the first of the next, and as soon as it will pass.
func attack(t *rapid.T, k *key) {
	limit, edge := k.rule.Parameters()[0], k.rule.Shape().Window.Microseconds()
	now := dawn + rapid.Int64Range(0, edge).Draw(t, "start")
	for range rapid.IntRange(1, 150).Draw(t, "requests") {
		d := k.take(now, rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, limit)).Draw(t, "cost"))
		moves := []int64{0, 1, edge - 1 - now%edge, edge - now%edge, rapid.Int64Range(0, edge/limit+1).Draw(t, "gap"), rapid.Int64Range(0, 2*edge).Draw(t, "pause")}
		if !d.Allowed && d.RetryAfter != Never {
			moves = append(moves, d.RetryAfter.Microseconds(), d.RetryAfter.Microseconds(), d.RetryAfter.Microseconds())
		}
		now += rapid.SampledFrom(moves).Draw(t, "move")
	}
}

// drawWindow draws the numbers of a small rule.
func drawWindow(t *rapid.T) (limit int64, window time.Duration) {
	return rapid.Int64Range(1, 20).Draw(t, "limit"), Microseconds(rapid.OneOf(rapid.Just(int64(1000)), rapid.Int64Range(1000, 5000)).Draw(t, "window"))
}

// answers asks for one unit at each time: + admitted, - refused.
func answers(rule Algorithm, times ...time.Duration) string {
	k, out := key{rule: rule}, make([]byte, len(times))
	for i, at := range times {
		out[i] = '-'
		if k.take(dawn+at.Microseconds(), 1).Allowed {
			out[i] = '+'
		}
	}
	return string(out)
}

// every is n times, a gap apart.
func every(gap time.Duration, n int) []time.Duration {
	times := make([]time.Duration, n)
	for i := range times {
		times[i] = time.Duration(i) * gap
	}
	return times
}

// all is every kind of rule with the same numbers.
func all(limit int64, window time.Duration) []Algorithm {
	return []Algorithm{
		SlidingWindowCounter{Limit: limit, Window: window},
		TokenBucket{Capacity: limit, Refill: limit, Per: window},
		FixedWindow{Limit: limit, Window: window},
		SlidingWindowLog{Limit: limit, Window: window},
		LeakyBucket{Capacity: limit, Rate: limit, Per: window},
		Concurrency{Limit: limit, Lease: window},
	}
}

func ruleOf(a Algorithm) Rule {
	rules := Rules()
	return rules[slices.IndexFunc(rules, func(r Rule) bool { return r.Example.Shape().Format == a.Shape().Format })]
}

func TestEveryRuleIsRegistered(t *testing.T) {
	rules := Rules()
	for _, rule := range rules {
		for _, suffix := range []string{".go", "_test.go"} {
			if _, err := os.Stat(rule.Name + suffix); err != nil {
				t.Errorf("rule %s: %v", rule.Name, err)
			}
		}
		if err := rule.Example.Validate(); err != nil {
			t.Errorf("rule %s: example: %v", rule.Name, err)
		}
	}
	if got, want := len(rules), len(all(1, sec)); got != want {
		t.Errorf("%d rules registered, these tests know %d", got, want)
	}
	chunks, _ := filepath.Glob("*.lua")
	for _, file := range chunks {
		chunk, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		used := strings.Contains(LuaConstants(), string(chunk))
		for _, rule := range rules {
			used = used || strings.Contains(rule.Lua, string(chunk))
		}
		if !used {
			t.Errorf("%s: in no rule of Rules()", file)
		}
	}
}

// The wrong values of every field of every rule, B31 (zero and negative) and B50 (a
// rate of zero that admitted everything) among them.
func TestValidateNamesEveryWrongField(t *testing.T) {
	const (
		minute = time.Minute
		tiny   = ms - us
		split  = ms + 1 // a fraction of a microsecond
		huge   = maxWindow + us
	)
	for _, test := range []struct {
		rule Algorithm
		want string // the wrong fields
	}{
		{SlidingWindowCounter{1, ms}, ""},
		{SlidingWindowCounter{4, maxWindow}, ""},
		{SlidingWindowCounter{5, maxWindow}, "Limit"},
		{SlidingWindowCounter{}, "Limit Window"},
		{SlidingWindowCounter{0, minute}, "Limit"},
		{SlidingWindowCounter{-1, minute}, "Limit"},
		{SlidingWindowCounter{math.MaxInt64, minute}, "Limit"},
		{SlidingWindowCounter{math.MinInt64, math.MinInt64}, "Limit Window"},
		{SlidingWindowCounter{10, 0}, "Window"},
		{SlidingWindowCounter{10, -sec}, "Window"},
		{SlidingWindowCounter{10, tiny}, "Window"},
		{SlidingWindowCounter{10, split}, "Window"},
		{SlidingWindowCounter{1, huge}, "Window"},
		{FixedWindow{maxExact, maxWindow}, ""},
		{FixedWindow{maxExact + 1, ms}, "Limit"},
		{FixedWindow{0, minute}, "Limit"},
		{FixedWindow{-1, 0}, "Limit Window"},
		{FixedWindow{math.MaxInt64, huge}, "Window Limit"},
		{FixedWindow{10, -sec}, "Window"},
		{FixedWindow{10, split}, "Window"},
		{SlidingWindowLog{1_000_000, maxWindow}, ""},
		{SlidingWindowLog{1_000_001, minute}, "Limit"},
		{SlidingWindowLog{0, minute}, "Limit"},
		{SlidingWindowLog{-1, -sec}, "Limit Window"},
		{SlidingWindowLog{10, tiny}, "Window"},
		{SlidingWindowLog{10, split}, "Window"},
		{TokenBucket{maxExact, maxExact, 1024 * us}, ""},
		{TokenBucket{1, 1, maxWindow}, ""},
		{TokenBucket{}, "Capacity Refill Per"},
		{TokenBucket{0, 1, sec}, "Capacity"},
		{TokenBucket{-1, 1, sec}, "Capacity"},
		{TokenBucket{1, 0, sec}, "Refill"},
		{TokenBucket{1, -1, sec}, "Refill"},
		{TokenBucket{1, maxExact + 1, sec}, "Refill"},
		{TokenBucket{1, math.MinInt64, sec}, "Refill"},
		{TokenBucket{1, 1, 0}, "Per"},
		{TokenBucket{1, 1, -sec}, "Per"},
		{TokenBucket{1, 1, split}, "Per"},
		{TokenBucket{1, 1, huge}, "Per"},
		{TokenBucket{maxExact / 1_000_000, 1, sec}, ""},
		{TokenBucket{maxExact/1_000_000 + 1, 1, sec}, "Capacity"},
		{TokenBucket{math.MaxInt64, 3, sec}, "Capacity"},
		{LeakyBucket{1, 1, maxWindow, 0}, ""},
		{LeakyBucket{5, 1, sec, 4}, ""},
		{LeakyBucket{5, 1, sec, 5}, "Burst"},
		{LeakyBucket{5, 1, sec, -1}, "Burst"},
		{LeakyBucket{}, "Capacity Rate Per"},
		{LeakyBucket{-1, -1, -1, 0}, "Capacity Rate Per"},
		{LeakyBucket{1, maxExact + 1, sec, 0}, "Rate"},
		{LeakyBucket{maxExact/1_000_000 + 1, 1, sec, 0}, "Capacity"},
		{LeakyBucket{1, 1, split, 0}, "Per"},
		{Concurrency{100_000, maxWindow}, ""},
		{Concurrency{100_001, minute}, "Limit"},
		{Concurrency{}, "Limit Lease"},
		{Concurrency{-1, -sec}, "Limit Lease"},
		{Concurrency{10, tiny}, "Lease"},
		{Concurrency{10, split}, "Lease"},
		{Concurrency{10, huge}, "Lease"},
	} {
		var fields []string
		for _, err := range unjoin(test.rule.Validate()) {
			var field *FieldError
			if !errors.As(err, &field) {
				t.Fatalf("%#v: %v is no FieldError", test.rule, err)
			}
			fields = append(fields, field.Field)
		}
		if got := strings.Join(fields, " "); got != test.want {
			t.Errorf("%#v: wrong fields %q, want %q", test.rule, got, test.want)
		}
	}
}

func TestValidateSaysWhatToWrite(t *testing.T) {
	for _, test := range []struct {
		rule  Algorithm
		value any // of the first
		want  string
	}{
		{SlidingWindowCounter{Limit: 10}, time.Duration(0),
			"SlidingWindowCounter: Window must be between 1ms and 613200h0m0s, got 0s"},
		{SlidingWindowCounter{Limit: 200_000, Window: 24 * time.Hour}, int64(200_000),
			"SlidingWindowCounter: Limit must be <= 104249 for a window of 24h0m0s so that Limit x Window stays exact (within 2^53 microseconds); take a shorter window, FixedWindow or TokenBucket, got 200000"},
		{FixedWindow{Limit: -1, Window: sec + 1}, int64(-1),
			"FixedWindow: Limit must be >= 1, got -1\nFixedWindow: Window must be whole microseconds, got 1.000000001s"},
		{SlidingWindowLog{Limit: 2_000_000, Window: sec}, int64(2_000_000),
			"SlidingWindowLog: Limit must be <= 1000000 because each unit may be remembered; take a SlidingWindowCounter, got 2000000"},
		{TokenBucket{Capacity: 1, Per: sec}, int64(0),
			"TokenBucket: Refill must be between 1 and 2^53, got 0"},
		{LeakyBucket{Capacity: 1e12, Rate: 7, Per: time.Hour}, int64(1e12),
			"LeakyBucket: Capacity must be <= 2501999 so that 7 per 1h0m0s stays exact (within 2^53); take a Rate that shares a larger divisor with Per, got 1000000000000"},
		{Concurrency{Limit: 200_000, Lease: sec}, int64(200_000),
			"Concurrency: Limit must be <= 100000 because each unit in flight is remembered; let a unit stand for more, got 200000"},
	} {
		err := test.rule.Validate()
		if err == nil || err.Error() != test.want {
			t.Errorf("%#v:\n got %v\nwant %s", test.rule, err, test.want)
			continue
		}
		var field *FieldError
		if errors.As(err, &field); field.Value != test.value {
			t.Errorf("%#v: Value %v (%[2]T), want %v (%[3]T)", test.rule, field.Value, test.value)
		}
	}
}

func unjoin(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return nil
}

func TestCheckSaysWhatIsWrong(t *testing.T) {
	good := FixedWindow{Limit: 10, Window: time.Minute}
	for _, test := range []struct {
		name    string
		charges []Charge
		room    int
		want    string
	}{
		{"two counters of one key", []Charge{{Key: "k", Algorithm: good, Cost: 1}, {Key: "k", Algorithm: SlidingWindowCounter{10, time.Minute}, Cost: 0}}, 2, ""},
		{"no room", []Charge{{Key: "k", Algorithm: good, Cost: 1}, {Key: "l", Algorithm: good, Cost: 1}}, 1, "ratelimit: 2 charges need as many decisions, got room for 1"},
		{"B55 negative cost", []Charge{{Key: "k", Algorithm: good, Cost: -1}}, 1, "ratelimit: charge: Cost must be >= 0, got -1 (Settle gives units back)"},
		{"no rule", []Charge{{Key: "k"}}, 1, "ratelimit: charge: Algorithm is required, got nil"},
		{"a wrong rule", []Charge{{Key: "k", Algorithm: FixedWindow{Window: sec}, Cost: 1}}, 1, "ratelimit: charge: FixedWindow: Limit must be >= 1, got 0"},
		{"one counter twice", []Charge{{Key: "k", Algorithm: good, Cost: 1}, {Key: "k", Algorithm: FixedWindow{20, time.Minute}, Cost: 1}}, 2, "ratelimit: charges 0 and 1 are of the same counter, add their costs"},
	} {
		got := ""
		if err := Check(test.charges, make([]Decision, test.room)); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestStringSaysTheRule(t *testing.T) {
	want := []string{
		"10 per 1m0s (sliding window counter)",
		"10 at once, refilling 10 per 1m0s (token bucket)",
		"10 per 1m0s (fixed window)",
		"10 in any 1m0s (sliding window log)",
		"10 queued, draining 10 per 1m0s (leaky bucket)",
		"10 in flight, leased for 1m0s (concurrency)",
	}
	for i, rule := range all(10, time.Minute) {
		if got := rule.String(); got != want[i] {
			t.Errorf("%T: %q, want %q", rule, got, want[i])
		}
	}
}

func TestB45_LimitThreeIsThreeAndRemainingCountsDownToZero(t *testing.T) {
	for _, rule := range all(3, time.Minute) {
		k := key{rule: rule}
		for i, want := range []int64{2, 1, 0, 0, 0} {
			if d := k.take(dawn, 1); d.Allowed != (i < 3) || d.Remaining != want {
				t.Errorf("%v: request %d: allowed %v, Remaining %d, want %v, %d", rule, i+1, d.Allowed, d.Remaining, i < 3, want)
			}
		}
	}
}

func TestB55_RefusedCostIsNotTaken(t *testing.T) {
	for _, rule := range all(10, time.Minute) {
		k := key{rule: rule}
		for _, row := range []struct {
			cost    int64
			allowed bool
			left    int64
		}{{8, true, 2}, {5, false, 2}, {1, true, 1}, {0, true, 1}, {0, true, 1}, {0, true, 1}, {11, false, 1}, {math.MaxInt64, false, 1}} {
			d := k.take(dawn, row.cost)
			if d.Allowed != row.allowed || d.Remaining != row.left || (d.RetryAfter == Never) != (row.cost > 10) {
				t.Errorf("%v: cost %d: %+v, want allowed %v, Remaining %d", rule, row.cost, d, row.allowed, row.left)
			}
		}
	}
}

// The waits of the report for every rule that knows its wait: asked that long before a unit is free, the
// answer is that long, and whoever waits it is admitted.
func TestB57_RetryAfterIsTheWait(t *testing.T) {
	const window = 10 * sec
	for _, rule := range all(1, window) {
		free := window
		if _, ok := rule.(SlidingWindowCounter); ok {
			free = 2 * window // one unit of one fades only when its window is a window ago
		}
		for _, wait := range []time.Duration{200 * ms, sec, 1500 * ms} {
			k := key{rule: rule}
			k.take(dawn, 1)
			want := wait
			if rule.Shape().Format == "cc1" {
				want = min(wait, askAgain)
			}
			if d := k.take(dawn+(free-wait).Microseconds(), 1); d.Allowed || d.RetryAfter != want {
				t.Errorf("%v: asked %v early: %+v, want RetryAfter %v", rule, wait, d, want)
			}
			if d := k.take(dawn+free.Microseconds(), 1); !d.Allowed {
				t.Errorf("%v: after waiting %v: %+v, want it admitted", rule, wait, d)
			}
		}
	}
}

// TestDecisionsAreSound lives random lives, settlements of any size and a clock that
// jumps among them: no answer is out of its range, a refusal holds at every moment
// before RetryAfter and ends exactly then, and at ResetAfter the key is as good as new.
// A limit on concurrency doesn't know when it ends, but says no wait above a second.
func TestDecisionsAreSound(t *testing.T) {
	for _, rule := range Rules() {
		t.Run(rule.Name, rapid.MakeCheck(func(t *rapid.T) {
			a := drawRule(t, rule.Name)
			k := key{rule: a}
			limit, now := a.Parameters()[0], dawn+rapid.Int64Range(0, 1e9).Draw(t, "start")
			for range rapid.IntRange(1, 30).Draw(t, "requests") {
				if gap := drawGap(t, a); now+gap > 1e15 && now+gap < maxExact/2 {
					now += gap
				}
				if rapid.IntRange(0, 9).Draw(t, "settle") == 0 {
					units := rapid.SampledFrom([]int64{math.MinInt64, -limit, -1, 0, 1, limit, math.MaxInt64}).Draw(t, "units")
					k.state = a.Settle(k.state, now, units, 0)
				}
				cost := rapid.Int64Range(0, limit).Draw(t, "cost")
				d := k.take(now, cost)
				if d.Remaining < 0 || d.Remaining > limit || d.ResetAfter < 0 || d.Delay < 0 || d.RetryAfter < 0 || d.Allowed != (d.RetryAfter == 0) {
					t.Fatalf("%v: cost %d: %+v", a, cost, d)
				}
				reset, retry, now := d.ResetAfter.Microseconds(), d.RetryAfter.Microseconds(), d.At.UnixMicro()
				if reset >= maxExact || d.RetryAfter >= Microseconds(maxExact) {
					continue // as long as can be said
				}
				if _, new := a.Step(k.state, now+reset, limit); !new.Allowed {
					t.Fatalf("%v: %+v, yet after ResetAfter %+v", a, d, new)
				}
				if d.Lease > 0 && d.RetryAfter > min(d.ResetAfter, askAgain) {
					t.Fatalf("%v: cost %d: %+v", a, cost, d)
				}
				if d.Allowed || d.Lease > 0 {
					continue
				}
				for _, early := range []int64{retry - 1, rapid.Int64Range(0, retry-1).Draw(t, "early")} {
					if _, d := a.Step(k.state, now+early, cost); d.Allowed || d.RetryAfter != Microseconds(retry-early) {
						t.Fatalf("%v: cost %d: %+v, %v before RetryAfter", a, cost, d, Microseconds(retry-early))
					}
				}
				if _, d := a.Step(k.state, now+retry, cost); !d.Allowed {
					t.Fatalf("%v: cost %d: %+v after waiting %v", a, cost, d, Microseconds(retry))
				}
			}
		}))
	}
}

// The largest debt there is and a clock years behind: a duration stops at the longest,
// it does not turn negative.
func TestDurationsDoNotOverflow(t *testing.T) {
	const decade = int64(10 * 365 * 86400e6)
	for _, rule := range []Algorithm{
		TokenBucket{Capacity: 7300, Refill: 1, Per: 24 * time.Hour},
		LeakyBucket{Capacity: 7300, Rate: 1, Per: 24 * time.Hour},
	} {
		state := rule.Settle(State{}, dawn, math.MaxInt64, 0)
		if _, d := rule.Step(state, dawn-decade, 1); d.ResetAfter <= 0 || d.RetryAfter <= 0 {
			t.Errorf("%v: %+v", rule, d)
		}
	}
}

// A log grows with what it admits, so there the allocations are spread over the
// entries.
// What a client may use in how much time: a window rule until nothing of it counts any
// more, at most its window; a bucket at its rate.
func TestPaceIsTheSteadyRate(t *testing.T) {
	for _, tc := range []struct {
		rule              Algorithm
		remaining         int64
		reset             time.Duration
		window, effective time.Duration
	}{
		{FixedWindow{Limit: 100, Window: time.Minute}, 99, 50 * sec, time.Minute, 50 * sec},
		{FixedWindow{Limit: 100, Window: time.Minute}, 100, 0, time.Minute, 0},
		{FixedWindow{Limit: 100, Window: time.Minute}, 100, -sec, time.Minute, 0},
		{FixedWindow{Limit: 100, Window: ms}, 99, Never, ms, ms},
		{SlidingWindowCounter{Limit: 100, Window: time.Minute}, 99, 119 * sec, time.Minute, time.Minute},
		{SlidingWindowCounter{Limit: 100, Window: time.Minute}, 99, 30 * sec, time.Minute, 30 * sec},
		{SlidingWindowLog{Limit: 100, Window: time.Minute}, 99, 30 * sec, time.Minute, 30 * sec},
		{TokenBucket{Capacity: 100, Refill: 10, Per: sec}, 100, 0, 10 * sec, 10 * sec},
		{TokenBucket{Capacity: 100, Refill: 10, Per: sec}, 40, 6 * sec, 10 * sec, 4 * sec},
		{TokenBucket{Capacity: 100, Refill: 10, Per: sec}, 0, 10 * sec, 10 * sec, 0},
		{TokenBucket{Capacity: 100, Refill: 10, Per: sec}, -1, 11 * sec, 10 * sec, 0},
		{TokenBucket{Capacity: 100, Refill: 10, Per: sec}, math.MaxInt64, 0, 10 * sec, 10 * sec},
		{TokenBucket{Capacity: 1, Refill: 3, Per: sec}, 1, 0, 333_334 * us, 333_334 * us},
		{TokenBucket{Capacity: 1, Refill: 5_000_000, Per: sec}, 1, 0, us, us},
		{TokenBucket{Capacity: maxExact, Refill: 1000, Per: ms}, maxExact, 0, maxExact * us, maxExact * us},
		{LeakyBucket{Capacity: 20, Rate: 10, Per: sec}, 5, 1500 * ms, 2 * sec, 500 * ms},
		{Concurrency{Limit: 20, Lease: time.Minute}, 5, 30 * sec, 0, 0},
	} {
		if err := tc.rule.Validate(); err != nil {
			t.Fatal(err)
		}
		window, effective := tc.rule.Pace(Decision{Remaining: tc.remaining, ResetAfter: tc.reset})
		if window != tc.window || effective != tc.effective {
			t.Errorf("%v with %d left: got %v, %v, want %v, %v", tc.rule, tc.remaining, window, effective, tc.window, tc.effective)
		}
	}
}

func TestStepAllocatesNothing(t *testing.T) {
	for _, rule := range all(1000, sec) {
		k, now := key{rule: rule}, dawn
		most := 0.001 // strays of the test itself
		switch rule.(type) {
		case SlidingWindowLog, Concurrency:
			most = 0.1
			k.state, _ = rule.Step(k.state, now, 1)
		}
		got := testing.AllocsPerRun(1, func() {
			for range 10_000 {
				now += 990 // some are refused
				if next, d := rule.Step(k.state, now, 1); d.Allowed {
					k.state = next
				}
			}
		}) / 10_000
		if got > most {
			t.Errorf("%v: %v allocations a step, want at most %v", rule, got, most)
		}
	}
}
