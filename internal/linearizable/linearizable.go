// Package linearizable proves that a store under concurrent calls decides as if each
// call happened at one moment between its beginning and its end. It records histories
// and gives them to porcupine, with the rules' own steps as the model.
package linearizable

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/storetest"
)

// Calls is how many calls a store of [Moving] gets.
const Calls = 32 * 6

// Moving lets callers take and peek in stores whose clock moves, while windows turn and
// buckets fill. The time of a call is the one its decision tells.
func Moving(t *testing.T, open func(t *testing.T) storetest.Store) {
	eachRule(t, func(t *testing.T, rules []algorithms.Algorithm, seed uint64) []porcupine.Operation {
		return record(t, open(t), rules, load{callers: 32, calls: Calls / 32, seed: seed})
	})
}

// Standing lets callers also settle, which tells no time: the clock stands while calls
// are under way and jumps between rounds.
func Standing(t *testing.T, open storetest.Open) {
	eachRule(t, func(t *testing.T, rules []algorithms.Algorithm, seed uint64) []porcupine.Operation {
		random := rand.New(rand.NewPCG(seed, 1))
		now := time.UnixMicro(1_764_584_707_000_123)
		store, advance := open(t, now)
		var history []porcupine.Operation
		for round := range uint64(8) {
			l := load{callers: 24, calls: 2, seed: seed + round, settles: true, now: now.UnixMicro()}
			history = append(history, record(t, store, rules, l)...)
			gap := algorithms.Microseconds(random.Int64N(window.Microseconds()))
			now = now.Add(gap)
			advance(gap)
		}
		return history
	})
}

const (
	keys   = 3
	limit  = 20
	window = 20 * time.Millisecond
	enough = 5 * time.Second // to judge a history
)

// rules are two limits of each key: a call charges the first, or both as one unit.
func rules() map[string][]algorithms.Algorithm {
	longer := algorithms.FixedWindow{Limit: 2 * limit, Window: 3 * window}
	return map[string][]algorithms.Algorithm{
		"sliding window counter": {algorithms.SlidingWindowCounter{Limit: limit, Window: window}, longer},
		"token bucket":           {algorithms.TokenBucket{Capacity: limit, Refill: limit, Per: window}, longer},
		"fixed window":           {algorithms.FixedWindow{Limit: limit, Window: window}, longer},
		"sliding window log":     {algorithms.SlidingWindowLog{Limit: limit, Window: window}, longer},
		"leaky bucket":           {algorithms.LeakyBucket{Capacity: limit, Rate: limit, Per: window}, longer},
		"concurrency":            {algorithms.Concurrency{Limit: limit, Lease: window}, longer},
	}
}

func eachRule(t *testing.T, history func(t *testing.T, rules []algorithms.Algorithm, seed uint64) []porcupine.Operation) {
	if len(rules()) != len(algorithms.Rules()) {
		t.Errorf("histories of %d rules, want all %d", len(rules()), len(algorithms.Rules()))
	}
	for name, rules := range rules() {
		t.Run(name, func(t *testing.T) {
			const histories, most = 3, 9 // one whose calls overlap too much takes too long to judge
			judged := 0
			for range most {
				seed := rand.Uint64()
				if judged += check(t, rules, seed, history(t, rules, seed)); judged == histories {
					return
				}
			}
			t.Errorf("of %d histories %d could be judged, want %d", most, judged, histories)
		})
	}
}

// check is how many histories were judged, 1 or 0.
func check(t *testing.T, rules []algorithms.Algorithm, seed uint64, history []porcupine.Operation) int {
	t.Helper()
	switch judge(rules, history) {
	case porcupine.Illegal:
		t.Errorf("seed %d: no order explains the %d calls under %v", seed, len(history), rules)
	case porcupine.Unknown:
		return 0
	}
	return 1
}

// call is the input of an operation, its decisions the output.
type call struct {
	key   string
	kind  kind
	costs []int64 // of the first rules
	at    int64   // of a settlement
}

type kind int

const (
	take kind = iota
	peek
	settle
)

// load is what callers do at a time, each so many calls.
type load struct {
	callers, calls int
	seed           uint64
	settles        bool
	now            int64 // of a clock that stands, 0: the clock of this machine
}

// record lets callers loose on the store and returns what they saw.
func record(t *testing.T, store storetest.Store, rules []algorithms.Algorithm, l load) []porcupine.Operation {
	t.Helper()
	histories := make([][]porcupine.Operation, l.callers)
	var callers sync.WaitGroup
	for i := range l.callers {
		callers.Go(func() {
			random := rand.New(rand.NewPCG(l.seed, uint64(i)))
			for range l.calls {
				c := randomCall(random, len(rules), l)
				called := time.Now().UnixMicro()
				decisions, err := c.ask(store, rules)
				returned := time.Now().UnixMicro()
				if err != nil {
					t.Errorf("seed %d: %+v: %v", l.seed, c, err)
					return
				}
				histories[i] = append(histories[i], porcupine.Operation{
					ClientId: i, Input: c, Call: max(called, toldBy(decisions, l)), Output: decisions, Return: returned,
				})
			}
		})
	}
	callers.Wait()
	return slices.Concat(histories...)
}

// toldBy is the time that the decisions tell. The store read its clock, which is that of
// this machine, during the call, so the call didn't happen before; that leaves the judge
// few orders to try.
func toldBy(decisions []algorithms.Decision, l load) int64 {
	if l.now != 0 {
		return 0
	}
	return decisions[0].At.UnixMicro()
}

func randomCall(random *rand.Rand, rules int, l load) call {
	c := call{key: strconv.Itoa(random.IntN(keys)), costs: make([]int64, 1)}
	if random.IntN(3) == 0 {
		c.costs = make([]int64, rules)
	}
	switch n := random.IntN(8); {
	case n == 0:
		c.kind = peek
	case n == 1 && l.settles:
		c.kind, c.at = settle, l.now
	}
	for i := range c.costs {
		if c.costs[i] = random.Int64N(3); c.kind == settle {
			c.costs[i] -= 2
		}
	}
	return c
}

func (c call) ask(store storetest.Store, rules []algorithms.Algorithm) ([]algorithms.Decision, error) {
	charges := make([]algorithms.Charge, len(c.costs))
	for i := range charges {
		charges[i] = algorithms.Charge{Key: "{" + c.key + "}", Algorithm: rules[i], Cost: c.costs[i]}
	}
	decisions := make([]algorithms.Decision, len(charges))
	var err error
	switch c.kind {
	case take:
		err = store.Take(context.Background(), charges, decisions)
	case peek:
		err = store.Peek(context.Background(), charges, decisions)
	case settle:
		err = store.Settle(context.Background(), charges)
	}
	return decisions, err
}

// judge looks for an order of the calls that explains the history.
func judge(rules []algorithms.Algorithm, history []porcupine.Operation) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(model(rules), history, enough)
}

// model is a key: a state for each rule. Keys have nothing to do with each other.
func model(rules []algorithms.Algorithm) porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			parts := make([][]porcupine.Operation, keys)
			for _, op := range history {
				i, err := strconv.Atoi(op.Input.(call).key)
				if err != nil {
					panic(err)
				}
				parts[i] = append(parts[i], op)
			}
			return parts
		},
		Init: func() any { return make([]algorithms.State, len(rules)) },
		Step: func(state, input, output any) (bool, any) {
			return step(rules, state.([]algorithms.State), input.(call), output.([]algorithms.Decision))
		},
		Equal: func(a, b any) bool {
			return slices.EqualFunc(a.([]algorithms.State), b.([]algorithms.State), equal)
		},
		Hash: func(state any) uint64 {
			var sum uint64
			for _, s := range state.([]algorithms.State) {
				sum = sum*31 + uint64(s.Used)
			}
			return sum
		},
	}
}

// step decides the call on the states, at the time that its decisions tell, and says
// whether the store decided the same.
func step(rules []algorithms.Algorithm, was []algorithms.State, c call, got []algorithms.Decision) (bool, []algorithms.State) {
	states, stepped := clone(was), clone(was)
	if c.kind == settle {
		for i, units := range c.costs {
			states[i] = rules[i].Settle(states[i], c.at, units, 0)
			states[i], _ = rules[i].Step(states[i], c.at, 0) // a log takes in what was added
		}
		return true, states
	}
	admitted := true
	want := make([]algorithms.Decision, len(c.costs))
	for i, cost := range c.costs {
		stepped[i], want[i] = rules[i].Step(stepped[i], got[i].At.UnixMicro(), cost)
		admitted = admitted && want[i].Allowed
	}
	for i := range want {
		if !admitted && want[i].Allowed { // it stands as it stood
			_, want[i] = rules[i].Step(clone(was)[i], got[i].At.UnixMicro(), 0)
			want[i].Allowed, want[i].RetryAfter = true, 0
		}
		if admitted && c.kind == take && c.costs[i] > 0 {
			states[i] = stepped[i]
		}
	}
	return slices.Equal(got, want), states
}

// clone keeps the steps, which may use up a log, from changing a state that the search
// comes back to.
func clone(states []algorithms.State) []algorithms.State {
	states = slices.Clone(states)
	for i := range states {
		states[i].Log = slices.Clone(states[i].Log)
	}
	return states
}

func equal(a, b algorithms.State) bool {
	return a.At == b.At && a.Used == b.Used && a.Previous == b.Previous && a.Unit == b.Unit &&
		a.Added == b.Added && slices.Equal(a.Log, b.Log)
}
