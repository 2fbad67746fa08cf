package algorithms

import (
	_ "embed"
	"time"
)

//go:embed counter.lua
var counterLua string

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
	// Lua is its half of a Redis script: the local functions
	//
	//	read(key) -> at, used, extra
	//	step(at, used, extra, now, cost, p1, p2, p3)
	//	  -> allowed, remaining, reset, retry, delay, at, used, extra
	//	settle(at, used, extra, now, units, taken, p1, p2, p3) -> reset, at, used, extra
	//	write(key, ttl, at, used, extra)
	//
	// where p1, p2, p3 are the Parameters, times are microseconds (ttl milliseconds)
	// and a retry of -1 is [Never]. Only read and write call Redis.
	Lua string
}

// Rules lists every kind of algorithm, the default one first.
func Rules() []Rule {
	return []Rule{
		{"sliding_window_counter", SlidingWindowCounter{Limit: 100, Window: time.Minute}, counterLua + slidingWindowCounterLua},
		{"token_bucket", TokenBucket{Capacity: 20, Refill: 1, Per: time.Second}, counterLua + tokenBucketLua},
		{"fixed_window", FixedWindow{Limit: 100, Window: time.Minute}, counterLua + fixedWindowLua},
		{"sliding_window_log", SlidingWindowLog{Limit: 100, Window: time.Minute}, slidingWindowLogLua},
		{"leaky_bucket", LeakyBucket{Capacity: 20, Rate: 10, Per: time.Second}, counterLua + tokenBucketLua + leakyBucketLua},
	}
}
