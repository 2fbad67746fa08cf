package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
	"github.com/seed-601ed181/ratelimit/storetest"
)

// A guard keeps the contract of the store in it, and of the local one when that fails.
func TestGuardIsAStore(t *testing.T) {
	away := func(context.Context) error { return errors.New("away") }
	for _, tc := range []struct {
		name  string
		guard func(*memstore.Store) *guard
	}{
		{"in process", func(s *memstore.Store) *guard { return guarded(s, FailLocal, 0, nil) }},
		{"in process, closed", func(s *memstore.Store) *guard { return guarded(s, FailClosed, 0, nil) }},
		{"with a time-out", func(s *memstore.Store) *guard { return guarded(struct{ Store }{s}, FailOpen, time.Minute, nil) }},
		{"without a time-out", func(s *memstore.Store) *guard { return guarded(struct{ Store }{s}, FailOpen, -1, nil) }},
		{"local, the store is away", func(s *memstore.Store) *guard {
			g := guarded(failing{fault: away}, FailLocal, time.Minute, nil)
			g.local = s
			return g
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T, start time.Time) (storetest.Store, func(time.Duration)) {
				now := start
				store := memstore.New(memstore.Config{Clock: func() time.Time { return now }})
				return tc.guard(store), func(d time.Duration) { now = now.Add(d) }
			})
		})
	}
}

// guarded is the guard that a limiter of that Config has. failures may be nil.
func guarded(store Store, mode FailureMode, timeout time.Duration, failures *[]error) *guard {
	c := &compiled{Config: Config{Store: store, Failure: mode, Timeout: timeout}}
	return newGuard(c, func(_ context.Context, err error, _ bool) {
		if failures != nil {
			*failures = append(*failures, err)
		}
	}, func(error, time.Duration) {})
}

// failing is a store that can't decide anything.
type failing struct{ fault func(context.Context) error }

func (s failing) Take(ctx context.Context, _ []algorithms.Charge, _ []Decision) error {
	return s.fault(ctx)
}
func (s failing) Peek(ctx context.Context, _ []algorithms.Charge, _ []Decision) error {
	return s.fault(ctx)
}
func (s failing) Settle(ctx context.Context, _ []algorithms.Charge) error { return s.fault(ctx) }
func (s failing) Reset(ctx context.Context, _ []algorithms.Charge) error  { return s.fault(ctx) }

// questions are the methods of a guard on one charge of a window of three.
var questions = []struct {
	name string
	ask  func(context.Context, *guard) error
}{
	{"Take", func(ctx context.Context, g *guard) error { _, err := ask(ctx, g.Take, 1); return err }},
	{"Peek", func(ctx context.Context, g *guard) error { _, err := ask(ctx, g.Peek, 1); return err }},
	{"Settle", func(ctx context.Context, g *guard) error { return g.Settle(ctx, charge(1)) }},
	{"Reset", func(ctx context.Context, g *guard) error { return g.Reset(ctx, charge(0)) }},
}

func charge(cost int64) []algorithms.Charge {
	return []algorithms.Charge{{Key: "k", Algorithm: algorithms.SlidingWindowLog{Limit: 3, Window: 24 * time.Hour}, Cost: cost}}
}

func ask(ctx context.Context, method func(context.Context, []algorithms.Charge, []Decision) error, cost int64) (Decision, error) {
	decisions := make([]Decision, 1)
	err := method(ctx, charge(cost), decisions)
	return decisions[0], err
}

func TestGuardLeavesAStoreThatHangs(t *testing.T) {
	hangs := failing{func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("hung: %w", ctx.Err()) }}
	for _, mode := range []FailureMode{FailLocal, FailOpen, FailClosed} {
		for _, q := range questions {
			t.Run(mode.String()+" "+q.name, func(t *testing.T) {
				var failures []error
				g := guarded(hangs, mode, 2*time.Millisecond, &failures)
				start := time.Now()
				err := q.ask(context.Background(), g)
				if took := time.Since(start); took < 2*time.Millisecond || took > time.Second {
					t.Errorf("took %v", took)
				}
				if (err == nil) != (mode == FailLocal) {
					t.Errorf("got %v", err)
				}
				if len(failures) != 1 || !errors.Is(failures[0], context.DeadlineExceeded) || !strings.Contains(failures[0].Error(), "hung") {
					t.Errorf("reported %v", failures)
				}
			})
		}
	}
}

func TestTheEarlierDeadlineCounts(t *testing.T) {
	hangs := failing{func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
	for _, timeout := range []time.Duration{-1, time.Hour} {
		var failures []error
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		_, err := ask(ctx, guarded(hangs, FailLocal, timeout, &failures).Take, 1)
		// The caller ran out of time, which says nothing about the store: B77.
		if !errors.Is(err, context.DeadlineExceeded) || len(failures) != 0 {
			t.Errorf("time-out %v: got %v, reported %v", timeout, err, failures)
		}
	}
}

func TestTheInProcessStoreHasNoTimeout(t *testing.T) {
	if g := guarded(memstore.New(memstore.Config{}), FailClosed, time.Nanosecond, nil); g.timeout >= 0 {
		t.Errorf("it is %v", g.timeout)
	}
}

func TestB77_TheErrorOfACancelledCallIsBoth(t *testing.T) {
	broken := errors.New("broken pipe")
	for _, mode := range []FailureMode{FailLocal, FailOpen, FailClosed} {
		for _, q := range questions {
			var failures []error
			ctx, cancel := context.WithCancel(context.Background())
			store := failing{func(context.Context) error { cancel(); return broken }}
			err := q.ask(ctx, guarded(store, mode, time.Minute, &failures))
			if !errors.Is(err, context.Canceled) || !errors.Is(err, broken) {
				t.Errorf("%s %s: got %v, want both errors", mode, q.name, err)
			}
			if len(failures) != 0 {
				t.Errorf("%s %s: reported %v", mode, q.name, failures)
			}
		}
	}
}

// Settle and Reset reach the local counters that Take used.
func TestLocalCountersAreSettledAndReset(t *testing.T) {
	ctx := context.Background()
	var failures []error
	g := guarded(failing{func(context.Context) error { return errors.New("away") }}, FailLocal, time.Minute, &failures)
	steps := []struct {
		name      string
		do        func() error
		remaining int64
	}{
		{"take 2", func() error { _, err := ask(ctx, g.Take, 2); return err }, 1},
		{"charge 1 more", func() error { return g.Settle(ctx, charge(1)) }, 0},
		{"give 2 back", func() error { return g.Settle(ctx, charge(-2)) }, 2},
		{"reset", func() error { return g.Reset(ctx, charge(0)) }, 3},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		d, err := ask(ctx, g.Peek, 0)
		if err != nil || d.Remaining != step.remaining {
			t.Errorf("%s: %d left, want %d (%v)", step.name, d.Remaining, step.remaining, err)
		}
	}
	if len(failures) != 2*len(steps) {
		t.Errorf("reported %d failures for %d questions", len(failures), 2*len(steps))
	}
}

func TestFailureModeIsText(t *testing.T) {
	for _, mode := range []FailureMode{FailLocal, FailOpen, FailClosed} {
		text, err := mode.MarshalText()
		if err != nil || string(text) != mode.String() {
			t.Errorf("%d: got %s, %v", int(mode), text, err)
		}
		back := FailureMode(-1)
		if err := back.UnmarshalText(text); err != nil || back != mode {
			t.Errorf("%s: got %v, %v", text, back, err)
		}
	}
	for _, bad := range []string{"", "Open", "open ", "FailureMode(1)", "off"} {
		mode := FailClosed
		err := mode.UnmarshalText([]byte(bad))
		if want := fmt.Sprintf("ratelimit: failure mode must be local, open or closed, got %q", bad); err == nil || err.Error() != want {
			t.Errorf("%q: got error %v, want %s", bad, err, want)
		}
		if mode != FailClosed {
			t.Errorf("%q: changed the mode to %v", bad, mode)
		}
	}
	if got := FailureMode(9).String(); got != "FailureMode(9)" {
		t.Errorf("got %s", got)
	}
	var zero FailureMode
	if zero != FailLocal {
		t.Errorf("the zero mode is %v", zero)
	}
}

// A share of a block would last as many times as long as there are instances.
func TestABlockIsAsLongWhileTheStoreIsAway(t *testing.T) {
	failures := []error(nil)
	g := guarded(failing{fault: func(context.Context) error { return errors.New("away") }}, FailLocal, time.Minute, &failures)
	g.instances = 3
	p := &policy{Policy: Policy{Name: "login", Penalty: Penalty{Refusals: 1, Window: time.Minute, Block: time.Hour}}}
	for _, charge := range []algorithms.Charge{
		{Key: blockKey(p, "user:1"), Algorithm: p.Penalty.block()},
		pauseOfCounter("{user:1}:login"),
	} {
		over := charge
		over.Cost = 1 + charge.Algorithm.Parameters()[0]
		var d [1]Decision
		if err := g.Settle(t.Context(), []algorithms.Charge{over}); err != nil {
			t.Fatal(err)
		}
		if err := g.Take(t.Context(), []algorithms.Charge{charge}, d[:]); err != nil {
			t.Fatal(err)
		}
		if most := charge.Algorithm.(algorithms.TokenBucket).Per; d[0].Allowed || d[0].RetryAfter > most {
			t.Errorf("%s: allowed %v, for %v, want at most %v", charge.Key, d[0].Allowed, d[0].RetryAfter, most)
		}
	}
}
