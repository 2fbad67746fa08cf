package ratelimit

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

// outages is a store that answers, hangs or fails, and counts the questions.
type outages struct {
	Store
	state atomic.Int32 // up, hanging or failing
	asked atomic.Int64
}

const (
	up = iota
	hanging
	refusing
)

var errRefusing = errors.New("connection refused")

func (s *outages) Take(ctx context.Context, charges []algorithms.Charge, decisions []Decision) error {
	s.asked.Add(1)
	switch s.state.Load() {
	case hanging:
		<-ctx.Done()
		return ctx.Err()
	case refusing:
		return errRefusing
	}
	return s.Store.Take(ctx, charges, decisions)
}

// outageLimiter is a limiter of 1000 a minute on such a store, how often its hooks heard that
// it is down, and for how long it was.
func outageLimiter(t *testing.T, mode FailureMode) (l *Limiter, s *outages, downs, ups *atomic.Int64) {
	t.Helper()
	s, downs, ups = &outages{Store: memstore.New(memstore.Config{})}, new(atomic.Int64), new(atomic.Int64)
	l, err := New(Config{
		Store: s, Key: ClientIP(), Failure: mode,
		Policies: []Policy{{Name: "p", Limits: Limits{algorithms.FixedWindow{Limit: 1000, Window: time.Minute}}}},
		Logger:   slog.New(slog.DiscardHandler),
		Hooks: Hooks{
			StoreDown: func(error) { downs.Add(1) },
			StoreUp:   func(after time.Duration) { ups.Add(int64(after)) },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return l, s, downs, ups
}

// A store that hangs costs a few requests the time-out and the rest nothing; it is asked
// again now and then, beside the requests, and heals by itself.
func TestAnOutageCostsNothing(t *testing.T) {
	for _, state := range []int32{hanging, refusing} {
		for _, mode := range []FailureMode{FailLocal, FailOpen, FailClosed} {
			synctest.Test(t, func(t *testing.T) {
				l, s, downs, ups := outageLimiter(t, mode)
				key := Key{Kind: "user", ID: "1"}
				take := func() (time.Duration, error) {
					start := time.Now()
					_, err := l.Take(t.Context(), key, "p")
					return time.Since(start), err
				}
				if _, err := take(); err != nil {
					t.Fatal(err)
				}

				s.state.Store(state)
				for i := range 1000 {
					took, err := take()
					if (err != nil) != (mode != FailLocal) {
						t.Fatalf("request %d: %v", i, err)
					}
					if limit := time.Duration(0); i >= failuresToOpen && took != limit || took > defaultTimeout {
						t.Fatalf("request %d took %v", i, took)
					}
					time.Sleep(10 * time.Millisecond)
				}
				// 10 s at a probe each 0.15 to 0.45 s, and if it hangs the time-out later.
				if n := s.asked.Load() - 1 - failuresToOpen; n < 16 || n > 70 {
					t.Errorf("asked %d times while down", n)
				}
				if downs.Load() != 1 || ups.Load() != 0 {
					t.Errorf("told of %d outages, ended after %d", downs.Load(), ups.Load())
				}

				s.state.Store(up)
				healed := time.Now()
				for s := s.asked.Load(); ups.Load() == 0; {
					if _, _ = take(); time.Since(healed) > defaultTimeout+2*probeEvery {
						t.Fatalf("not asked again %v after it was back, %d probes", time.Since(healed), s)
					}
					time.Sleep(10 * time.Millisecond)
				}
				before := s.asked.Load()
				for range 10 {
					if _, err := take(); err != nil {
						t.Error(err)
					}
				}
				if n := s.asked.Load() - before; n != 10 {
					t.Errorf("%d of 10 requests reached it after it was back", n)
				}
				if d := time.Duration(ups.Load()); d < 9*time.Second || d > 12*time.Second {
					t.Errorf("it was down for %v", d)
				}
				time.Sleep(defaultTimeout) // a last probe
			})
		}
	}
}

// Single failures don't open it, whatever their number.
func TestSingleFailuresAreNoOutage(t *testing.T) {
	l, s, downs, _ := outageLimiter(t, FailLocal)
	for i := range 100 {
		s.state.Store(up)
		if i%failuresToOpen != 0 {
			s.state.Store(refusing)
		}
		if _, err := l.Take(t.Context(), Key{Kind: "user", ID: "1"}, "p"); err != nil {
			t.Fatal(err)
		}
	}
	if downs.Load() != 0 || s.asked.Load() != 100 {
		t.Errorf("told of %d outages, asked %d times of 100", downs.Load(), s.asked.Load())
	}
}

// B77: callers who leave, and mistakes of callers, say nothing about the store.
func TestB77_CallersDoNotOpenTheBreaker(t *testing.T) {
	l, s, downs, _ := outageLimiter(t, FailClosed)
	s.state.Store(hanging)
	for range 10 * failuresToOpen {
		ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
		if _, err := l.Take(ctx, Key{Kind: "user", ID: "1"}, "p"); err == nil {
			t.Error("no error")
		}
		cancel()
	}
	s.state.Store(up)
	for range 10 * failuresToOpen {
		if _, err := l.TakeN(t.Context(), Key{Kind: "user", ID: "1"}, "p", -1); err == nil {
			t.Error("no error for a negative cost")
		}
	}
	if _, err := l.Take(t.Context(), Key{Kind: "user", ID: "1"}, "p"); err != nil || downs.Load() != 0 {
		t.Errorf("got %v, told of %d outages", err, downs.Load())
	}
}

// With Instances each admits its part of the limit while the store is away.
func TestInstancesShareTheLimitWhileTheStoreIsAway(t *testing.T) {
	s := &outages{Store: memstore.New(memstore.Config{})}
	s.state.Store(refusing)
	for _, tc := range []struct {
		rule      algorithms.Algorithm
		cost      int64
		instances int
		want      int
	}{
		{algorithms.FixedWindow{Limit: 10, Window: time.Hour}, 1, 0, 10},
		{algorithms.FixedWindow{Limit: 10, Window: time.Hour}, 1, 1, 10},
		{algorithms.FixedWindow{Limit: 10, Window: time.Hour}, 1, 4, 3},
		{algorithms.FixedWindow{Limit: 10, Window: time.Hour}, 8, 4, 1},
		{algorithms.FixedWindow{Limit: 10, Window: time.Hour}, 11, 4, 0},
		{algorithms.SlidingWindowCounter{Limit: 10, Window: time.Hour}, 1, 100, 1},
		{algorithms.SlidingWindowLog{Limit: 10, Window: time.Hour}, 1, 5, 2},
		{algorithms.TokenBucket{Capacity: 10, Refill: 1, Per: time.Hour}, 1, 3, 4},
		{algorithms.LeakyBucket{Capacity: 10, Rate: 1, Per: time.Hour}, 1, 3, 4},
		{algorithms.Concurrency{Limit: 10, Lease: time.Hour}, 1, 3, 4},
	} {
		l, err := New(Config{
			Store: s, Key: ClientIP(), Instances: tc.instances, Logger: slog.New(slog.DiscardHandler),
			Policies: []Policy{{Name: "p", Limits: Limits{tc.rule}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		admitted := 0
		for range 20 {
			d, err := l.TakeN(t.Context(), Key{Kind: "user", ID: "1"}, "p", tc.cost)
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed {
				admitted++
			}
		}
		if admitted != tc.want {
			t.Errorf("%v, cost %d, %d instances: %d admitted, want %d", tc.rule, tc.cost, tc.instances, admitted, tc.want)
		}
	}
}

// The question that found the store up again was asked for nobody: what it took under a
// lease is given back.
func TestAProbeHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, s, _, _ := outageLimiter(t, FailLocal)
		c := &compiled{Config: Config{Store: s, Timeout: time.Minute}}
		g := newGuard(c, func(context.Context, error, bool) {}, func(error, time.Duration) {})
		charges := []algorithms.Charge{{Key: "k", Algorithm: algorithms.Concurrency{Limit: 9, Lease: time.Hour}, Cost: 1}}
		var d [1]Decision
		s.state.Store(refusing)
		for range failuresToOpen {
			if err := g.Take(t.Context(), charges, d[:]); err != nil {
				t.Fatal(err)
			}
		}
		s.state.Store(up)
		for asked := s.asked.Load(); s.asked.Load() == asked; {
			time.Sleep(probeEvery)
			if err := g.Take(t.Context(), charges, d[:]); err != nil || d[0].Remaining == 8 {
				t.Fatal(d, err, "not decided by the local store")
			}
			synctest.Wait()
		}
		if err := s.Store.Peek(t.Context(), charges, d[:]); err != nil || d[0].Remaining != 8 {
			t.Errorf("the probe holds what nobody uses: %+v, %v", d, err)
		}
	})
}
