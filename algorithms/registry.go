package algorithms

import (
	_ "embed"
	"time"
)

//go:embed window.lua
var windowLua string

//go:embed bucket.lua
var bucketLua string

//go:embed constants.lua
var constantsLua string

// LuaConstants is what the Lua of every [Rule] needs in scope.
func LuaConstants() string { return constantsLua }

// Rule is a kind of algorithm as the registry lists it. Tables, suites and scripts are
// made from this list, so a new rule is its files and one line here.
type Rule struct {
	// Name is the name of its files: Name.go, Name.lua.
	Name string
	// Example is a valid value of it.
	Example Algorithm
	// Lua is its half of a Redis script. With the Parameters in scope as p1, p2 and p3,
	// the time as now and ttl(reset), the milliseconds a key lives, it makes the local
	// functions
	//
	//	read(key) -> at, used, extra
	//	step(at, used, extra, now, cost) -> allowed, reset, at, used, extra
	//	settle(at, used, extra, now, units, taken) -> reset, at, used, extra
	//	write(key, reset, at, used, extra, was_at, was_used, was_extra)
	//
	// where times are microseconds and reset is the time until the
	// counter is as good as new. A step whose state is no three integers returns, after
	// the rest, the three that [Algorithm] Restore takes. Only read and write call Redis.
	Lua string
}

// Rules lists every kind of algorithm, the default one first.
func Rules() []Rule {
	return []Rule{
		{"sliding_window_counter", SlidingWindowCounter{Limit: 100, Window: time.Minute}, windowLua + slidingWindowCounterLua},
		{"token_bucket", TokenBucket{Capacity: 20, Refill: 1, Per: time.Second}, bucketLua + tokenBucketLua},
		{"fixed_window", FixedWindow{Limit: 100, Window: time.Minute}, windowLua + fixedWindowLua},
		{"sliding_window_log", SlidingWindowLog{Limit: 100, Window: time.Minute}, slidingWindowLogLua},
		{"leaky_bucket", LeakyBucket{Capacity: 20, Rate: 10, Per: time.Second}, bucketLua + tokenBucketLua},
		{"concurrency", Concurrency{Limit: 20, Lease: time.Minute}, concurrencyLua},
	}
}
