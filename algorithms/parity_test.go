package algorithms

import (
	_ "embed"
	"fmt"
	"testing"
	"time"

	lua "github.com/yuin/gopher-lua"
	"pgregory.net/rapid"
)

//go:embed testdata/log.lua
var testLogLua string

//go:embed testdata/concurrency.lua
var testConcurrencyLua string

// sortedSets stand for those of Redis, of the rules that store one.
var sortedSets = map[string]string{"sliding_window_log": testLogLua, "concurrency": testConcurrencyLua}

// luaRule is a chunk loaded in process, with the state its last step returned.
type luaRule struct {
	vm              *lua.LState
	rule            *lua.LFunction // makes step and settle for given parameters
	at, used, extra lua.LValue
	open            *lua.LFunction // of a sorted set: reads what is stored
	change          *lua.LFunction // of a sorted set: applies a change to it
}

func loadLua(t testing.TB, rule Rule) *luaRule {
	vm := lua.NewState()
	r := &luaRule{vm: vm}
	source := LuaConstants() + "return function(p1, p2, p3, now)\n" + rule.Lua + "return step, settle\nend"
	if err := vm.DoString(source); err != nil {
		t.Fatalf("%s: %v", rule.Name, err)
	}
	r.rule = vm.ToFunction(-1)
	vm.Pop(1)
	if set, ok := sortedSets[rule.Name]; ok {
		if err := vm.DoString(set); err != nil {
			t.Fatal(err)
		}
		r.change, r.open = vm.ToFunction(-1), vm.ToFunction(-2)
		vm.Pop(2)
	}
	r.reset(rule)
	return r
}

func (r *luaRule) reset(rule Rule) {
	r.at, r.used, r.extra = lua.LNumber(0), lua.LNumber(0), lua.LNumber(0)
	if r.open != nil {
		r.used = r.vm.NewTable()
	}
}

func (r *luaRule) call(f *lua.LFunction, results int, args ...lua.LValue) []lua.LValue {
	if err := r.vm.CallByParam(lua.P{Fn: f, NRet: results, Protect: true}, args...); err != nil {
		panic(err)
	}
	out := make([]lua.LValue, results)
	for i := range out {
		out[i] = r.vm.Get(i - results)
	}
	r.vm.Pop(results)
	return out
}

// of makes the two functions of the chunk for the rule's parameters.
func (r *luaRule) of(a Algorithm, now int64) (step, settle *lua.LFunction) {
	p := a.Parameters()
	made := r.call(r.rule, 2, lua.LNumber(p[0]), lua.LNumber(p[1]), lua.LNumber(p[2]), lua.LNumber(now))
	return made[0].(*lua.LFunction), made[1].(*lua.LFunction)
}

func (r *luaRule) args(numbers ...int64) []lua.LValue {
	at, used := r.at, r.used
	if log, ok := used.(*lua.LTable); ok {
		opened := r.call(r.open, 2, log)
		at, used = opened[0], opened[1]
	}
	args := []lua.LValue{at, used, r.extra}
	for _, n := range numbers {
		args = append(args, lua.LNumber(n))
	}
	return args
}

func (r *luaRule) store(at, used, extra lua.LValue) {
	if log, ok := r.used.(*lua.LTable); ok {
		r.call(r.change, 0, log, used)
		return
	}
	r.at, r.used, r.extra = at, used, extra
}

// take mirrors what a store does with a step: the Lua admits, and the rest of the
// decision is made from the state that the reply tells of.
func (r *luaRule) take(a Algorithm, now, cost int64) Decision {
	step, _ := r.of(a, now)
	args := r.args(now, cost)
	out := r.call(step, 8, args...)
	allowed := out[0] == lua.LTrue
	if allowed && cost > 0 || out[2].(lua.LNumber) < args[0].(lua.LNumber) {
		r.store(out[2], out[3], out[4])
	}
	seen := args[:3]
	if out[5] != lua.LNil {
		seen = out[5:]
	}
	n := func(i int) int64 { return int64(seen[i].(lua.LNumber)) }
	_, d := a.Step(a.Restore(n(0), n(1), n(2), cost), now, cost)
	d.Allowed = allowed
	return d
}

func (r *luaRule) give(a Algorithm, now, units, taken int64) time.Duration {
	_, settle := r.of(a, now)
	out := r.call(settle, 4, r.args(now, units, taken)...)
	r.store(out[1], out[2], out[3])
	return Microseconds(int64(out[0].(lua.LNumber)))
}

// TestGoStepEqualsLuaStep runs the same random life of one key through both halves of
// each rule: every field of every decision is the same, also with a clock that jumps
// back, a limit that changes and settlements.
func TestGoStepEqualsLuaStep(t *testing.T) {
	for _, rule := range Rules() {
		chunk := loadLua(t, rule)
		t.Run(rule.Name, rapid.MakeCheck(func(t *rapid.T) {
			chunk.reset(rule)
			a := drawRule(t, rule.Name)
			var state State
			var times []int64
			now := int64(1_764_584_707_000_000) + rapid.Int64Range(0, 1e9).Draw(t, "start")
			for range rapid.IntRange(1, 60).Draw(t, "requests") {
				if gap := drawGap(t, a); now+gap > 1e15 && now+gap < maxExact/2 {
					now += gap
				}
				if rapid.IntRange(0, 19).Draw(t, "relimit") == 0 {
					a = drawRelimit(t, a)
				}
				if rapid.IntRange(0, 9).Draw(t, "settle") == 0 {
					units := rapid.Int64Range(-2*a.Parameters()[0], 2*a.Parameters()[0]).Draw(t, "units")
					taken := int64(0)
					if len(times) > 0 && rapid.Bool().Draw(t, "of a time") {
						taken = rapid.SampledFrom(times).Draw(t, "taken")
					}
					state = a.Settle(state, now, units, taken)
					_, d := a.Step(state, now, 0)
					if reset := chunk.give(a, now, units, taken); reset != d.ResetAfter {
						t.Fatalf("%v: settle %d: Go resets after %v, Lua after %v", a, units, d.ResetAfter, reset)
					}
					continue
				}
				cost := rapid.Int64Range(0, a.Parameters()[0]+1).Draw(t, "cost")
				if rapid.Bool().Draw(t, "cheap") {
					cost = min(cost, 1+a.Parameters()[0]/10)
				}
				next, want := a.Step(state, now, cost)
				if want.Allowed && cost > 0 || next.At < state.At {
					state = next
				}
				times = append(times, want.At.UnixMicro())
				if got := chunk.take(a, now, cost); got != want {
					t.Fatalf("%v: cost %d at %d:\nGo  %+v\nLua %+v\nstate %+v", a, cost, now, want, got, state)
				}
			}
		}))
	}
}

func drawRule(t *rapid.T, name string) Algorithm {
	limit := rapid.OneOf(rapid.Int64Range(1, 12), rapid.Int64Range(1, 10_000), rapid.Int64Range(1, 100_000_000)).Draw(t, "limit")
	window := rapid.OneOf(
		rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Minute, time.Hour, 24 * time.Hour}),
		rapid.Map(rapid.Int64Range(1000, 1e8), Microseconds),
	).Draw(t, "window")
	var a Algorithm
	switch name {
	case "sliding_window_counter":
		a = SlidingWindowCounter{Limit: min(limit, maxExact/window.Microseconds()), Window: window}
	case "fixed_window":
		a = FixedWindow{Limit: limit, Window: window}
	case "sliding_window_log":
		a = SlidingWindowLog{Limit: min(limit, maxLog), Window: window}
	case "concurrency":
		a = Concurrency{Limit: min(limit, 300), Lease: window}
	case "token_bucket", "leaky_bucket":
		refill := rapid.OneOf(rapid.Int64Range(1, 12), rapid.Int64Range(1, 10_000), rapid.Int64Range(1, 1e9)).Draw(t, "refill")
		_, unit := reduce(refill, window)
		capacity := min(limit, maxExact/unit)
		if a = (TokenBucket{Capacity: capacity, Refill: refill, Per: window}); name == "leaky_bucket" {
			a = LeakyBucket{Capacity: capacity, Rate: refill, Per: window}
		}
	default:
		panic(fmt.Sprintf("parity_test: draw a %s", name))
	}
	if err := a.Validate(); err != nil {
		t.Fatal(err)
	}
	return a
}

// drawGap draws the microseconds between two requests: bursts, the scale of the rule,
// its edges, and now and then a clock set back.
func drawGap(t *rapid.T, a Algorithm) int64 {
	_, full := a.Step(State{}, 1e15, a.Parameters()[0])
	scale := full.ResetAfter.Microseconds()
	return rapid.OneOf(
		rapid.Int64Range(0, 3),
		rapid.Int64Range(0, scale/max(1, min(a.Parameters()[0], 50))+1),
		rapid.Int64Range(0, scale+1),
		rapid.SampledFrom([]int64{scale / 2, scale, scale + 1, 3 * scale, -1, -scale / 3, -2 * scale, -3600e6}),
	).Draw(t, "gap")
}

// drawRelimit changes what may change without starting a new counter.
func drawRelimit(t *rapid.T, a Algorithm) Algorithm {
	factor := rapid.Int64Range(1, 4).Draw(t, "factor")
	switch a := a.(type) {
	case SlidingWindowCounter:
		return SlidingWindowCounter{Limit: (a.Limit + factor - 1) / factor, Window: a.Window}
	case FixedWindow:
		return FixedWindow{Limit: (a.Limit + factor - 1) / factor, Window: a.Window}
	case SlidingWindowLog:
		return SlidingWindowLog{Limit: (a.Limit + factor - 1) / factor, Window: a.Window}
	case Concurrency:
		return Concurrency{Limit: (a.Limit + factor - 1) / factor, Lease: a.Lease}
	case TokenBucket:
		return TokenBucket{Capacity: (a.Capacity + factor - 1) / factor, Refill: a.Refill * factor, Per: a.Per}
	case LeakyBucket:
		return LeakyBucket{Capacity: (a.Capacity + factor - 1) / factor, Rate: a.Rate * factor, Per: a.Per}
	}
	return a
}
