package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/redisstore"
	"github.com/seed-601ed181/ratelimit/storetest"
)

// asked is a store that tells states, on a clock that the test moves. It counts the
// questions that came to it.
type asked struct {
	StateStore
	takes  atomic.Int64
	server *miniredis.Miniredis
	now    time.Time
}

func newAsked(t testing.TB, start time.Time) *asked {
	server := miniredis.RunT(t)
	server.SetTime(start)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return &asked{StateStore: redisstore.New(client), server: server, now: start}
}

func (s *asked) advance(d time.Duration) {
	s.now = s.now.Add(d)
	s.server.SetTime(s.now)
	s.server.FastForward(max(0, d))
}

func (s *asked) TakeState(ctx context.Context, charges []algorithms.Charge, decisions []Decision, states []algorithms.State) error {
	s.takes.Add(1)
	return s.StateStore.TakeState(ctx, charges, decisions, states)
}

// remembering is what a limiter puts around the store, with a clock of the test's own.
func remembering(store Store) (d *denied, elapsed *atomic.Int64) {
	c := &compiled{Config: Config{Store: store, Failure: FailClosed, Timeout: time.Minute}}
	d = newDenied(newGuard(c, func(context.Context, error, bool) {}, func(error, time.Duration) {}), time.Second).(*denied)
	elapsed = new(atomic.Int64)
	d.elapsed = elapsed.Load
	return d, elapsed
}

// What remembers refusals keeps the contract of the store in it. The one exception: a
// clock set back takes effect after the recheck.
func TestDeniedIsAStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T, start time.Time) (storetest.Store, func(time.Duration)) {
		store := newAsked(t, start)
		d, elapsed := remembering(store)
		return d, func(by time.Duration) {
			store.advance(by)
			if by < 0 {
				by = 2 * time.Second
			}
			elapsed.Add(by.Microseconds())
		}
	})
}

var deniedRules = []algorithms.Algorithm{
	algorithms.SlidingWindowCounter{Limit: 10, Window: time.Minute},
	algorithms.TokenBucket{Capacity: 10, Refill: 3, Per: 7 * time.Second},
	algorithms.FixedWindow{Limit: 10, Window: 20 * time.Second},
	algorithms.SlidingWindowLog{Limit: 10, Window: 20 * time.Second},
	algorithms.LeakyBucket{Capacity: 10, Rate: 1, Per: time.Second},
}

// The same arrivals get the same decisions, to the last field, whether refusals are
// remembered or not; of a log, for more than one unit, all but Remaining. Another process
// that asks too may be admitted where we are answered from memory, never the other way
// round, and lets us wait longer than we were told, never shorter.
func TestRememberedRefusalsAreThoseOfTheStore(t *testing.T) {
	for _, others := range []bool{false, true} {
		for _, rule := range deniedRules {
			t.Run(fmt.Sprintf("%v/others=%v", rule, others), func(t *testing.T) {
				random := rand.New(rand.NewPCG(1, 2))
				start := time.UnixMicro(1_764_584_707_000_123)
				store, plain := newAsked(t, start), newAsked(t, start)
				d, elapsed := remembering(store)
				log := len(rule.Restore(1, 1, 0, 1).Log) > 0
				const arrivals = 1000
				refused := 0
				for i := range arrivals {
					gap := time.Duration(random.IntN(200)) * time.Millisecond
					if random.IntN(50) == 0 {
						gap = time.Duration(random.IntN(40)) * time.Second
					}
					store.advance(gap)
					plain.advance(gap)
					elapsed.Add(gap.Microseconds())
					cost := int64(1)
					if random.IntN(3) == 0 {
						cost = random.Int64N(12)
					}
					charges := []algorithms.Charge{{Key: "k", Algorithm: rule, Cost: cost}}
					if others && random.IntN(4) == 0 {
						_, _ = one(t, store.StateStore, charges), one(t, plain, charges)
						continue
					}
					got, want := one(t, d, charges), one(t, plain, charges)
					if !want.Allowed {
						refused++
					}
					if log && cost > 1 && !got.Allowed {
						got.Remaining = want.Remaining
					}
					if others && !want.Allowed && !got.Allowed {
						if got.RetryAfter > want.RetryAfter || got.Remaining < want.Remaining {
							t.Fatalf("arrival %d, cost %d:\ngot  %+v\nwant %+v", i, cost, got, want)
						}
						got = want
					}
					if got != want {
						t.Fatalf("arrival %d, cost %d:\ngot  %+v\nwant %+v", i, cost, got, want)
					}
				}
				if saved := arrivals - int(store.takes.Load()); refused < arrivals/4 || saved < refused/3 {
					t.Errorf("%d refusals, %d answered from memory", refused, saved)
				}
			})
		}
	}
}

func one(t *testing.T, s Store, charges []algorithms.Charge) Decision {
	t.Helper()
	var decisions [1]Decision
	if err := s.Take(context.Background(), charges, decisions[:]); err != nil {
		t.Fatal(err)
	}
	return decisions[0]
}

// One client in a loop costs the store a question a second.
func TestAStuckClientCostsAQuestionASecond(t *testing.T) {
	store := newAsked(t, time.UnixMicro(1_764_584_700_000_000))
	d, elapsed := remembering(store)
	charges := []algorithms.Charge{
		{Key: "{k}:second", Algorithm: algorithms.TokenBucket{Capacity: 1000, Refill: 1000, Per: time.Second}, Cost: 1},
		{Key: "{k}:hour", Algorithm: algorithms.FixedWindow{Limit: 5, Window: time.Hour}, Cost: 1},
	}
	decisions := make([]Decision, 2)
	const seconds, rate = 20, 1000
	for i := range seconds * rate {
		if err := d.Take(context.Background(), charges, decisions); err != nil {
			t.Fatal(err)
		}
		if wanted := i < 5; decisions[1].Allowed != wanted || !decisions[0].Allowed {
			t.Fatalf("request %d: %+v", i, decisions)
		}
		if left := time.Hour - store.now.Sub(store.now.Truncate(time.Hour)); i >= 5 && decisions[1].RetryAfter != left {
			t.Fatalf("request %d: retry after %v, want %v", i, decisions[1].RetryAfter, left)
		}
		store.advance(time.Second / rate)
		elapsed.Add(int64(time.Second/rate) / 1000)
	}
	if n := store.takes.Load(); n > 5+1+seconds {
		t.Errorf("the store was asked %d times", n)
	}
}

// A question that took long leaves it open how late it is on the store's clock: what could
// pass by then is asked again.
func TestNoRefusalIsRememberedBeyondWhatIsSure(t *testing.T) {
	store := newAsked(t, time.UnixMicro(1_764_584_700_000_000))
	var elapsed *atomic.Int64
	var d *denied
	d, elapsed = remembering(slow{store, func() { elapsed.Add(300_000) }})
	d.recheck = time.Hour.Microseconds()
	charges := []algorithms.Charge{{Key: "k", Algorithm: algorithms.FixedWindow{Limit: 1, Window: 10 * time.Second}, Cost: 1}}
	one(t, d, charges)
	one(t, d, charges)
	for _, at := range []struct {
		after time.Duration // since the refusal came
		asks  bool
	}{{0, false}, {9690 * time.Millisecond, false}, {20 * time.Millisecond, true}} {
		elapsed.Add(at.after.Microseconds())
		before := store.takes.Load()
		one(t, d, charges)
		if asked := store.takes.Load() > before; asked != at.asks {
			t.Errorf("%v later: asked %t, want %t", at.after, asked, at.asks)
		}
	}
}

// slow is a store whose answers come late.
type slow struct {
	*asked
	late func()
}

func (s slow) TakeState(ctx context.Context, charges []algorithms.Charge, decisions []Decision, states []algorithms.State) error {
	err := s.asked.TakeState(ctx, charges, decisions, states)
	s.late()
	return err
}

// What this process gives back or forgets counts at once, also when a question of before
// is answered after it; what another does, after the recheck.
func TestSettleAndResetEndWhatIsRemembered(t *testing.T) {
	rule := algorithms.FixedWindow{Limit: 2, Window: time.Hour}
	charges := []algorithms.Charge{{Key: "k", Algorithm: rule, Cost: 2}}
	back := []algorithms.Charge{{Key: "k", Algorithm: rule, Cost: -2}}
	ctx := context.Background()
	for name, undo := range map[string]func(Store) error{
		"settle": func(s Store) error { return s.Settle(ctx, back) },
		"reset":  func(s Store) error { return s.Reset(ctx, charges) },
	} {
		store := newAsked(t, time.UnixMicro(1_764_584_700_000_000))
		d, elapsed := remembering(store)
		one(t, d, charges)
		if one(t, d, charges).Allowed {
			t.Fatal("admitted twice")
		}
		if err := undo(d); err != nil {
			t.Fatal(err)
		}
		if !one(t, d, charges).Allowed {
			t.Errorf("%s of our own: still refused", name)
		}
		one(t, d, charges) // refused, remembered

		if err := undo(store.StateStore); err != nil {
			t.Fatal(err)
		}
		elapsed.Add(1e6 - 1)
		if one(t, d, charges).Allowed {
			t.Errorf("%s of another process: known at once, which is no memory", name)
		}
		elapsed.Add(1)
		if !one(t, d, charges).Allowed {
			t.Errorf("%s of another process: still refused after the recheck", name)
		}
	}

	store := newAsked(t, time.UnixMicro(1_764_584_700_000_000))
	var d *denied
	var once sync.Once
	d, _ = remembering(slow{store, func() {
		if store.takes.Load() == 2 {
			once.Do(func() { _ = d.Reset(ctx, charges) })
		}
	}})
	one(t, d, charges)
	one(t, d, charges) // refused, and forgotten before the answer arrives
	if !one(t, d, charges).Allowed {
		t.Error("a refusal from before the reset was remembered after it")
	}
}

// A changed limit asks the same state.
func TestARaisedLimitPassesAtOnce(t *testing.T) {
	for _, rule := range deniedRules {
		store := newAsked(t, time.UnixMicro(1_764_584_700_000_000))
		d, _ := remembering(store)
		charges := []algorithms.Charge{{Key: "k", Algorithm: rule, Cost: 10}}
		one(t, d, charges)
		charges[0].Cost = 1
		first, remembered := one(t, d, charges), one(t, d, charges)
		if first.Allowed || remembered.Allowed {
			t.Fatalf("%v: admitted 11", rule)
		}
		switch a := rule.(type) {
		case algorithms.SlidingWindowCounter:
			a.Limit++
			charges[0].Algorithm = a
		case algorithms.TokenBucket:
			a.Capacity++
			charges[0].Algorithm = a
		case algorithms.FixedWindow:
			a.Limit++
			charges[0].Algorithm = a
		case algorithms.SlidingWindowLog:
			a.Limit++
			charges[0].Algorithm = a
		case algorithms.LeakyBucket:
			a.Capacity++
			charges[0].Algorithm = a
		}
		if !one(t, d, charges).Allowed {
			t.Errorf("%v: still refused under the raised limit", charges[0].Algorithm)
		}
	}
}

// A million refused keys take no more room than a few thousand.
func TestRememberedRefusalsAreBounded(t *testing.T) {
	refusing := told{algorithms.State{At: 1_764_584_700_000_000, Used: 1}}
	d, _ := remembering(refusing)
	charges := []algorithms.Charge{{Algorithm: algorithms.FixedWindow{Limit: 1, Window: time.Hour}, Cost: 1}}
	decisions := make([]Decision, 1)
	fill := func(keys int) {
		for i := range keys {
			charges[0].Key = fmt.Sprint(i)
			if err := d.Take(context.Background(), charges, decisions); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(20 * deniedSets * deniedWays)
	held := 0
	for i := range d.sets {
		for _, way := range d.sets[i].ways {
			if way.hash != [2]uint64{} {
				held++
			}
		}
	}
	if held != deniedSets*deniedWays {
		t.Errorf("%d refusals are remembered, want a full table of %d", held, deniedSets*deniedWays)
	}
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = fmt.Sprint("again", i)
	}
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		charges[0].Key = keys[i%len(keys)]
		i++
		_ = d.Take(context.Background(), charges, decisions)
	}); n > 3 { // the guard's time-out
		t.Errorf("%v allocations a refused request", n)
	}
}

// told is a store that tells one state whatever it is asked.
type told struct{ state algorithms.State }

func (s told) TakeState(_ context.Context, charges []algorithms.Charge, decisions []Decision, states []algorithms.State) error {
	for i := range charges {
		states[i] = s.state
		_, decisions[i] = charges[i].Algorithm.Step(s.state, s.state.At+1, charges[i].Cost)
	}
	return nil
}
func (s told) Take(context.Context, []algorithms.Charge, []Decision) error { return errTold }
func (s told) Peek(context.Context, []algorithms.Charge, []Decision) error { return errTold }
func (s told) Settle(context.Context, []algorithms.Charge) error           { return errTold }
func (s told) Reset(context.Context, []algorithms.Charge) error            { return errTold }

var errTold = errors.New("only TakeState is asked")

// Many ask at the moment of the recheck: one of them asks the store.
func TestOneRequestRechecks(t *testing.T) {
	store := newAsked(t, time.UnixMicro(1_764_584_700_000_000))
	d, elapsed := remembering(store)
	charges := []algorithms.Charge{{Key: "k", Algorithm: algorithms.FixedWindow{Limit: 1, Window: time.Hour}, Cost: 1}}
	one(t, d, charges)
	one(t, d, charges)
	for range 5 {
		elapsed.Add(time.Second.Microseconds())
		before := store.takes.Load()
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				if one(t, d, slices.Clone(charges)).Allowed {
					t.Error("admitted")
				}
			})
		}
		all.Wait()
		if n := store.takes.Load() - before; n != 1 {
			t.Errorf("%d of 64 asked the store, want 1", n)
		}
	}
}

// A refusal of who waits for a short time only says nothing to who waits longer: both see
// one queue, of different lengths.
func TestARefusalForAShortWaitIsNoneForALongOne(t *testing.T) {
	queue := algorithms.LeakyBucket{Capacity: 5, Rate: 1, Per: time.Second}
	store := newAsked(t, time.UnixMicro(1_764_584_700_000_000))
	d, _ := remembering(store)
	for i, step := range []struct {
		most    time.Duration
		allowed bool
		retry   time.Duration
		asks    bool
	}{
		{0, true, 0, true},
		{0, false, time.Second, true}, // remembered
		{0, false, time.Second, false},
		{time.Second, true, 0, true}, // the second turn, so nothing is remembered any more
		{time.Second, false, time.Second, true},
		{0, false, 2 * time.Second, false},
		{time.Hour, true, 0, true},
	} {
		before := store.takes.Load()
		got := one(t, d, []algorithms.Charge{{Key: "k", Algorithm: within(queue, step.most, 1), Cost: 1}})
		if asked := store.takes.Load() > before; got.Allowed != step.allowed || got.RetryAfter != step.retry || asked != step.asks {
			t.Errorf("step %d: asked %v, got %+v, want %+v", i, asked, got, step)
		}
	}
}
