package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

// FailureMode says what happens to requests while the store can't decide. Whatever it
// is, a store failure is never a 429.
type FailureMode int

const (
	// FailLocal decides with the same limits in the memory of this process: each
	// instance then admits up to the limit by itself, or its part of it with
	// Config.Instances. Should that memory be full too, the request passes.
	FailLocal FailureMode = iota
	// FailOpen lets requests through, without headers.
	FailOpen
	// FailClosed answers 503 with Retry-After.
	FailClosed
)

var failureModes = [...]string{FailLocal: "local", FailOpen: "open", FailClosed: "closed"}

func (m FailureMode) valid() bool { return m >= 0 && int(m) < len(failureModes) }

// String returns local, open or closed.
func (m FailureMode) String() string {
	if !m.valid() {
		return fmt.Sprintf("FailureMode(%d)", int(m))
	}
	return failureModes[m]
}

// MarshalText implements encoding.TextMarshaler, for flags and configuration files.
func (m FailureMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *FailureMode) UnmarshalText(text []byte) error {
	for mode, name := range failureModes {
		if name == string(text) {
			*m = FailureMode(mode)
			return nil
		}
	}
	return fmt.Errorf("ratelimit: failure mode must be local, open or closed, got %q", text)
}

// guard is a store around another one. It waits for that one no longer than a time-out,
// not at all while that one is down, and asks a local one instead if it has it.
type guard struct {
	store     Store
	timeout   time.Duration
	breaker   *breaker // nil for a store in this process, which can't be away
	local     Store
	instances int64
	failed    func(ctx context.Context, err error, down bool)
}

func newGuard(c *compiled, failed func(context.Context, error, bool), changed func(error, time.Duration)) *guard {
	g := &guard{store: c.Store, timeout: c.Timeout, breaker: &breaker{changed: changed}, instances: int64(c.Instances), failed: failed}
	if inProcess(c.Store) {
		g.timeout, g.breaker = -1, nil
	}
	if c.Failure == FailLocal {
		g.local = memstore.New(memstore.Config{})
	}
	return g
}

func inProcess(s Store) bool {
	_, ok := s.(*memstore.Store)
	return ok
}

func (g *guard) Take(ctx context.Context, charges []algorithms.Charge, decisions []Decision) error {
	_, err := g.ask(ctx, take, charges, decisions, nil)
	return err
}

// takeState is Take and says whether the store told the states.
func (g *guard) takeState(ctx context.Context, charges []algorithms.Charge, decisions []Decision, states []algorithms.State) (told bool, err error) {
	return g.ask(ctx, takeState, charges, decisions, states)
}

func (g *guard) Peek(ctx context.Context, charges []algorithms.Charge, decisions []Decision) error {
	_, err := g.ask(ctx, peek, charges, decisions, nil)
	return err
}

func (g *guard) Settle(ctx context.Context, charges []algorithms.Charge) error {
	_, err := g.ask(ctx, settle, charges, nil, nil)
	return err
}

func (g *guard) Reset(ctx context.Context, charges []algorithms.Charge) error {
	_, err := g.ask(ctx, reset, charges, nil, nil)
	return err
}

// question is a method of Store; some have no decisions, most no states.
type question = func(context.Context, Store, []algorithms.Charge, []Decision, []algorithms.State) error

func take(ctx context.Context, s Store, charges []algorithms.Charge, decisions []Decision, _ []algorithms.State) error {
	return s.Take(ctx, charges, decisions)
}

func takeState(ctx context.Context, s Store, charges []algorithms.Charge, decisions []Decision, states []algorithms.State) error {
	if s, ok := s.(StateStore); ok {
		return s.TakeState(ctx, charges, decisions, states)
	}
	return s.Take(ctx, charges, decisions)
}

func peek(ctx context.Context, s Store, charges []algorithms.Charge, decisions []Decision, _ []algorithms.State) error {
	return s.Peek(ctx, charges, decisions)
}

func settle(ctx context.Context, s Store, charges []algorithms.Charge, _ []Decision, _ []algorithms.State) error {
	return s.Settle(ctx, charges)
}

func reset(ctx context.Context, s Store, charges []algorithms.Charge, _ []Decision, _ []algorithms.State) error {
	return s.Reset(ctx, charges)
}

// ask says whether the store answered, and not the local one.
func (g *guard) ask(ctx context.Context, ask question, charges []algorithms.Charge, decisions []Decision, states []algorithms.State) (answered bool, err error) {
	err = g.breaker.down()
	down := err != nil
	if !down {
		err = g.askStore(ctx, ask, charges, decisions, states)
		if err == nil {
			g.breaker.succeeded()
			return true, nil
		}
		if mistake := check(charges, decisions); mistake != nil {
			return false, mistake // of the caller, not of the store
		}
	}
	if ctx.Err() != nil {
		// The caller left or ran out of time; that says nothing about the store.
		return false, errors.Join(ctx.Err(), err)
	}
	if !down {
		g.breaker.failed(err)
	}
	g.failed(ctx, err, down)
	g.probe(ask, charges)
	if g.local == nil {
		return false, err
	}
	return false, ask(ctx, g.local, share(charges, g.instances), decisions, states)
}

func check(charges []algorithms.Charge, decisions []Decision) error {
	if decisions == nil {
		return algorithms.CheckCounters(charges)
	}
	return algorithms.Check(charges, decisions)
}

func (g *guard) askStore(ctx context.Context, ask question, charges []algorithms.Charge, decisions []Decision, states []algorithms.State) error {
	if g.timeout < 0 {
		return ask(ctx, g.store, charges, decisions, states)
	}
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	return ask(ctx, g.store, charges, decisions, states)
}

// probe asks a store that is down, when the time has come, the question it was not asked.
// Nobody waits for it.
func (g *guard) probe(ask question, charges []algorithms.Charge) {
	if !g.breaker.probes() {
		return
	}
	charges = slices.Clone(charges) // the caller's may change
	go func() {
		defer g.breaker.pause()
		ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
		defer cancel()
		n := len(charges)
		decisions := make([]Decision, n)
		err := g.askStore(ctx, ask, charges, decisions, make([]algorithms.State, n))
		if err == nil {
			g.breaker.succeeded()
			if held := leased(charges, decisions); held != nil {
				_ = g.askStore(ctx, settle, held, nil, nil) // nobody else would give it back
			}
		}
	}()
}

// share is the part of each limit that one of several instances admits by itself, rounded
// up. A limit that can't be divided stays whole.
func share(charges []algorithms.Charge, instances int64) []algorithms.Charge {
	if instances <= 1 {
		return charges
	}
	charges = slices.Clone(charges)
	for i := range charges {
		if isBlock(charges[i].Key) {
			continue // its rule holds a time, and each instance blocks for all of it
		}
		part := charges[i].Algorithm.Share(instances, charges[i].Cost)
		if part.Validate() == nil {
			charges[i].Algorithm = part
		}
	}
	return charges
}
