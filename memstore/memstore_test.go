package memstore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
	"github.com/seed-601ed181/ratelimit/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T, start time.Time) (storetest.Store, func(time.Duration)) {
		now := start
		store := memstore.New(memstore.Config{Clock: func() time.Time { return now }})
		return store, func(d time.Duration) { now = now.Add(d) }
	})
}

// subject is a store with a clock in the test's hand.
type subject struct {
	*memstore.Store
	now time.Time
}

func open(maxKeys int) *subject {
	s := &subject{now: time.Date(2025, 12, 1, 0, 0, 0, 0, time.UTC)}
	s.Store = memstore.New(memstore.Config{MaxKeys: maxKeys, Clock: func() time.Time { return s.now }})
	return s
}

func (s *subject) take(t *testing.T, key string, a algorithms.Algorithm, cost int64) algorithms.Decision {
	t.Helper()
	var decisions [1]algorithms.Decision
	if err := s.Take(context.Background(), []algorithms.Charge{{Key: key, Algorithm: a, Cost: cost}}, decisions[:]); err != nil {
		t.Fatalf("Take %d of %q under %v: %v", cost, key, a, err)
	}
	return decisions[0]
}

// all is every kind of rule with the same numbers.
func all(limit int64, window time.Duration) []algorithms.Algorithm {
	return []algorithms.Algorithm{
		algorithms.SlidingWindowCounter{Limit: limit, Window: window},
		algorithms.TokenBucket{Capacity: limit, Refill: limit, Per: window},
		algorithms.FixedWindow{Limit: limit, Window: window},
		algorithms.SlidingWindowLog{Limit: limit, Window: window},
		algorithms.Concurrency{Limit: limit, Lease: window},
		algorithms.LeakyBucket{Capacity: limit, Rate: limit, Per: window},
	}
}

func window(limit int64) algorithms.Algorithm {
	return algorithms.FixedWindow{Limit: limit, Window: time.Minute}
}

func charge(key string, a algorithms.Algorithm, cost int64) algorithms.Charge {
	return algorithms.Charge{Key: key, Algorithm: a, Cost: cost}
}

func TestB35_ConcurrentFirstHitsShareOneCounter(t *testing.T) {
	s := open(0)
	for _, rule := range all(10, time.Minute) {
		var admitted atomic.Int64
		var wait sync.WaitGroup
		start := make(chan struct{})
		for range 200 {
			wait.Go(func() {
				<-start
				if s.take(t, "k", rule, 1).Allowed {
					admitted.Add(1)
				}
			})
		}
		close(start)
		if wait.Wait(); admitted.Load() != 10 {
			t.Errorf("%v: %d of 200 admitted, want 10", rule, admitted.Load())
		}
	}
}

func TestB36_EveryIntervalAdmitsTheLimit(t *testing.T) {
	s := open(0)
	for interval := range 5 {
		admitted := 0
		for range 92 {
			if s.take(t, "k", window(60), 1).Allowed {
				admitted++
			}
			s.now = s.now.Add(time.Minute / 92)
		}
		if admitted != 60 {
			t.Errorf("interval %d: %d admitted, want 60", interval+1, admitted)
		}
		s.now = s.now.Truncate(time.Second).Add(time.Second) // 92 does not divide a minute
	}
}

// A million keys take their bytes, and give them back once they have recovered, with
// nothing but requests of one other key to sweep them. Every shard is searched once in
// 10 s, so that much later than two windows it is certain.
func TestB37_KeysThatStayAwayAreReclaimed(t *testing.T) {
	const keys = 1_000_000
	rule := algorithms.SlidingWindowCounter{Limit: 100, Window: time.Minute}
	before := heap()
	s := open(2 * keys)
	for i := range keys {
		s.take(t, strconv.Itoa(i), rule, 1)
	}
	perKey := float64(heap()-before) / keys
	t.Logf("%.1f bytes a key", perKey)
	if s.Len() != keys || perKey >= 90 {
		t.Errorf("%d keys of %d, %.1f bytes each, want all and fewer than 90", s.Len(), keys, perKey)
	}
	for range 2 * (2*60 + 11) {
		s.now = s.now.Add(time.Second / 2)
		s.take(t, "one", rule, 1)
	}
	if got := s.Len(); got != 1 {
		t.Errorf("%d keys held, want 1", got)
	}
	if left := heap() - before; left > 1<<20 {
		t.Errorf("%d bytes held for one key", left)
	}
	runtime.KeepAlive(s)
}

// Logs stand beside the table; a sweep frees their memory too.
func TestSweepFreesTheLogs(t *testing.T) {
	before := heap()
	s := open(0)
	for i := range 100_000 {
		s.take(t, strconv.Itoa(i), algorithms.SlidingWindowLog{Limit: 3, Window: time.Minute}, 1)
	}
	s.now = s.now.Add(time.Minute)
	s.Sweep()
	if left := heap() - before; s.Len() != 0 || left > 1<<20 {
		t.Errorf("%d keys and %d bytes held after all have recovered", s.Len(), left)
	}
	runtime.KeepAlive(s)
}

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func TestB38_TheCapHolds(t *testing.T) {
	for _, maxKeys := range []int{-1, 1, 100, 10_000} {
		s, most := open(maxKeys), max(1, maxKeys)
		for i := range 10 * most {
			s.take(t, strconv.Itoa(i), window(10), 1)
			if i%997 == 0 && s.Len() > most {
				t.Fatalf("MaxKeys %d: %d keys held", maxKeys, s.Len())
			}
		}
		if got := s.Len(); got > most || got < most*9/10 {
			t.Errorf("MaxKeys %d: %d keys held", maxKeys, got)
		}
	}
}

// A flood of ten times the cap pushes out what is little used, never who is being
// limited: who has nothing left, or asked for more than is left, alone or in a call
// of two.
func TestALimitedKeySurvivesAFlood(t *testing.T) {
	const maxKeys = 2000
	s, each := open(maxKeys), maxKeys/20
	for i := range each {
		n := strconv.Itoa(i)
		s.take(t, "spent "+n, window(3), 3)
		s.take(t, "refused "+n, window(1000), 1)
		s.take(t, "refused "+n, window(1000), 1000)
		s.take(t, "both "+n, window(1000), 1)
		charges := []algorithms.Charge{charge("both "+n, window(1000), 1000), charge("other", window(1000), 1)}
		if err := s.Take(context.Background(), charges, make([]algorithms.Decision, 2)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 * maxKeys {
		s.take(t, strconv.Itoa(i), window(100), 1)
	}
	for i := range each {
		for key, limit := range map[string]int64{"spent ": 3, "refused ": 1000, "both ": 1000} {
			if d := s.take(t, key+strconv.Itoa(i), window(limit), limit); d.Allowed {
				t.Fatalf("%q was forgotten: %+v", key, d)
			}
		}
	}
}

// Of those not limited the more used stays: a client half through its limit against
// ten times the cap of first requests.
func TestAMuchUsedKeySurvivesAFlood(t *testing.T) {
	s := open(2000)
	s.take(t, "half", window(100), 50)
	for i := range 20_000 {
		s.take(t, strconv.Itoa(i), window(100), 1)
	}
	if d := s.take(t, "half", window(100), 0); d.Remaining != 50 {
		t.Errorf("a key half through its limit was forgotten: %+v", d)
	}
}

func (s *subject) forget(t *testing.T, key string) {
	if err := s.Reset(context.Background(), []algorithms.Charge{charge(key, window(3), 0)}); err != nil {
		t.Fatal(err)
	}
}

// full is a store at its cap, every key limited.
func full(t *testing.T, maxKeys int) *subject {
	s := open(maxKeys)
	for i := range maxKeys {
		s.take(t, strconv.Itoa(i), window(3), 3)
	}
	return s
}

func TestErrFullWhenAllAreLimited(t *testing.T) {
	s, ctx := full(t, 100), context.Background()
	decisions := make([]algorithms.Decision, 1)
	fresh := []algorithms.Charge{charge("new", window(3), 1)}
	if err := s.Take(ctx, fresh, decisions); !errors.Is(err, memstore.ErrFull) {
		t.Errorf("Take of a new key: %v, want ErrFull", err)
	}
	if err := s.Settle(ctx, fresh); !errors.Is(err, memstore.ErrFull) {
		t.Errorf("Settle of a new key: %v, want ErrFull", err)
	}
	if err := s.Peek(ctx, fresh, decisions); err != nil || !decisions[0].Allowed {
		t.Errorf("Peek of a new key: %+v, %v, want it admitted", decisions[0], err)
	}
	for i := range 100 {
		if d := s.take(t, strconv.Itoa(i), window(3), 1); d.Allowed {
			t.Fatalf("key %d was forgotten: %+v", i, d)
		}
	}
	s.now = s.now.Add(time.Minute) // all have recovered
	if d := s.take(t, "new", window(3), 1); !d.Allowed {
		t.Errorf("a new key after recovery: %+v", d)
	}
}

// Several charges are one unit at the cap too: where the second finds no room, the
// first is not counted.
func TestErrFullCountsNothing(t *testing.T) {
	s, ctx := full(t, 10), context.Background()
	s.forget(t, "0")
	s.take(t, "known", window(10), 5)
	charges := []algorithms.Charge{charge("known", window(10), 5), charge("new", window(10), 1)}
	if err := s.Take(ctx, charges, make([]algorithms.Decision, 2)); !errors.Is(err, memstore.ErrFull) {
		t.Errorf("Take: %v, want ErrFull", err)
	}
	if d := s.take(t, "known", window(10), 0); d.Remaining != 5 {
		t.Errorf("after ErrFull: %+v, want Remaining 5", d)
	}
}

// The new counters of one call do not push each other out.
func TestChargesOfOneCallMakeRoomForEachOther(t *testing.T) {
	s, ctx := full(t, 10), context.Background()
	s.forget(t, "0")
	s.forget(t, "1")
	s.take(t, "other", window(10), 2) // one place is free, and this one can go
	charges := []algorithms.Charge{charge("a", window(10), 1), charge("b", window(10), 1)}
	if err := s.Take(ctx, charges, make([]algorithms.Decision, 2)); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b"} {
		if d := s.take(t, key, window(10), 0); d.Remaining != 9 {
			t.Errorf("%s was admitted, and then %+v, want Remaining 9", key, d)
		}
	}
}

func TestClockIsTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subject{Store: memstore.New(memstore.Config{})}
		if d := s.take(t, "k", algorithms.TokenBucket{Capacity: 1, Refill: 1, Per: time.Second}, 1); !d.At.Equal(time.Now()) {
			t.Errorf("decided at %v, want %v", d.At, time.Now())
		}
		time.Sleep(time.Second - time.Microsecond)
		if d := s.take(t, "k", algorithms.TokenBucket{Capacity: 1, Refill: 1, Per: time.Second}, 1); d.Allowed || d.RetryAfter != time.Microsecond {
			t.Errorf("a microsecond early: %+v", d)
		}
		time.Sleep(time.Microsecond)
		if d := s.take(t, "k", algorithms.TokenBucket{Capacity: 1, Refill: 1, Per: time.Second}, 1); !d.Allowed {
			t.Errorf("a second later: %+v", d)
		}
	})
}

// Requests a little above the limit, so that all of it happens: admitted, refused, a
// window that turns. A log allocates for its entries, but not on every tenth request.
func TestKnownKeysAllocateNothing(t *testing.T) {
	ctx := context.Background()
	for _, rule := range all(100, time.Minute) {
		most := 0.001 // strays of the test itself
		switch rule.(type) {
		case algorithms.SlidingWindowLog, algorithms.Concurrency:
			most = 0.1
		}
		three := []algorithms.Charge{charge("k", rule, 1), charge("l", rule, 1), charge("m", rule, 1)}
		one, back := three[:1], []algorithms.Charge{charge("k", rule, -1)}
		decisions := make([]algorithms.Decision, 3)
		s := open(0)
		for name, call := range map[string]func() error{
			"Take":       func() error { return s.Take(ctx, one, decisions) },
			"Take of 3":  func() error { return s.Take(ctx, three, decisions) },
			"Peek":       func() error { return s.Peek(ctx, one, decisions) },
			"Peek of 3":  func() error { return s.Peek(ctx, three, decisions) },
			"Settle":     func() error { return errors.Join(s.Settle(ctx, one), s.Settle(ctx, back)) },
			"Reset of 3": func() error { return s.Reset(ctx, three) },
		} {
			s = open(0)
			for range 64 {
				s.Take(ctx, three, decisions)
			}
			step := func() {
				if strings.HasPrefix(name, "Take") { // what is only asked would recover
					s.now = s.now.Add(500 * time.Millisecond)
				}
				if err := call(); err != nil {
					t.Fatal(err)
				}
			}
			step()
			if got := testing.AllocsPerRun(1, func() {
				for range 1000 {
					step()
				}
			}) / 1000; got > most {
				t.Errorf("%v: %s: %v allocations, want at most %v", rule, name, got, most)
			}
		}
	}
}

// New keys allocate when the table grows, by a quarter each time.
func TestNewKeysAllocateOnlyToGrow(t *testing.T) {
	const keys = 100_000
	names := make([]string, keys)
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	s := open(0)
	charges, decisions := []algorithms.Charge{charge("", window(10), 1)}, make([]algorithms.Decision, 1)
	next := 0
	got := testing.AllocsPerRun(1, func() { // runs twice
		for range keys / 2 {
			charges[0].Key = names[next]
			next++
			if err := s.Take(context.Background(), charges, decisions); err != nil {
				t.Fatal(err)
			}
		}
	}) / (keys / 2)
	if got > 0.01 {
		t.Errorf("%v allocations a new key", got)
	}
}

// Goroutines that charge the same keys together, in both orders, neither lock each
// other out nor pass a limit; and what one key counted, its pairs counted.
func TestPairsInBothOrdersNeverDeadlock(t *testing.T) {
	const keys, limit = 50, 40
	s, rule := open(0), window(limit)
	var counted [keys]atomic.Int64
	var wait sync.WaitGroup
	for worker := range 16 {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 0))
			decisions := make([]algorithms.Decision, 2)
			for range 500 {
				a, b := random.IntN(keys), random.IntN(keys-1)
				if b >= a {
					b++
				}
				charges := []algorithms.Charge{charge(strconv.Itoa(a), rule, 1), charge(strconv.Itoa(b), rule, 1)}
				if err := s.Take(context.Background(), charges, decisions); err != nil {
					t.Error(err)
					return
				}
				if decisions[0].Allowed && decisions[1].Allowed {
					counted[a].Add(1)
					counted[b].Add(1)
				}
			}
		})
	}
	wait.Wait()
	for i := range counted {
		d := s.take(t, strconv.Itoa(i), rule, 0)
		if got := counted[i].Load(); got > limit || limit-d.Remaining != got {
			t.Errorf("key %d: %d admitted under a limit of %d, Remaining %d", i, got, limit, d.Remaining)
		}
	}
}

// What was held and given back leaves nothing behind, in whatever order.
func TestLeasesGivenBackFreeTheirMemory(t *testing.T) {
	s, ctx := open(0), context.Background()
	rule := algorithms.Concurrency{Limit: 50, Lease: time.Minute}
	for key := range 100 {
		var taken []time.Time
		for range 50 {
			taken = append(taken, s.take(t, strconv.Itoa(key), rule, 1).At)
			s.now = s.now.Add(time.Microsecond)
		}
		for i := range taken {
			c := charge(strconv.Itoa(key), rule, -1)
			c.At = taken[(i*7)%len(taken)]
			if err := s.Settle(ctx, []algorithms.Charge{c}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := s.Len(); n != 0 {
		t.Errorf("%d counters held, want none", n)
	}
}
