package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

// FailureMode says what happens to requests while the store can't decide. Whatever it
// is, a store failure is never a 429.
type FailureMode int

const (
	// FailLocal decides with the same limits in the memory of this process: each
	// instance then admits up to the limit by itself. Should that memory be full too,
	// the request passes.
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

// guard is a store that waits for another one no longer than a time-out and, when that
// one fails, asks a local one if it has it.
type guard struct {
	Store
	timeout time.Duration
	local   Store
	failed  func(context.Context, error)
}

func newGuard(c *compiled, failed func(context.Context, error)) *guard {
	g := &guard{Store: c.Store, timeout: c.Timeout, failed: failed}
	if _, inProcess := c.Store.(*memstore.Store); inProcess {
		g.timeout = -1
	}
	if c.Failure == FailLocal {
		g.local = memstore.New(memstore.Config{})
	}
	return g
}

func (g *guard) Take(ctx context.Context, charges []algorithms.Charge, decisions []Decision) error {
	return g.ask(ctx, Store.Take, charges, decisions)
}

func (g *guard) Peek(ctx context.Context, charges []algorithms.Charge, decisions []Decision) error {
	return g.ask(ctx, Store.Peek, charges, decisions)
}

func (g *guard) Settle(ctx context.Context, charges []algorithms.Charge) error {
	return g.ask(ctx, settle, charges, nil)
}

func (g *guard) Reset(ctx context.Context, charges []algorithms.Charge) error {
	return g.ask(ctx, reset, charges, nil)
}

// question is a method of Store; those without decisions take none.
type question = func(Store, context.Context, []algorithms.Charge, []Decision) error

func settle(s Store, ctx context.Context, charges []algorithms.Charge, _ []Decision) error {
	return s.Settle(ctx, charges)
}

func reset(s Store, ctx context.Context, charges []algorithms.Charge, _ []Decision) error {
	return s.Reset(ctx, charges)
}

func (g *guard) ask(ctx context.Context, ask question, charges []algorithms.Charge, decisions []Decision) error {
	err := g.askStore(ctx, ask, charges, decisions)
	if err == nil {
		return nil
	}
	if decisions != nil {
		if mistake := algorithms.Check(charges, decisions); mistake != nil {
			return mistake // of the caller, not of the store
		}
	}
	if ctx.Err() != nil {
		// The caller left or ran out of time; that says nothing about the store.
		return errors.Join(ctx.Err(), err)
	}
	g.failed(ctx, err)
	if g.local == nil {
		return err
	}
	return ask(g.local, ctx, charges, decisions)
}

func (g *guard) askStore(ctx context.Context, ask question, charges []algorithms.Charge, decisions []Decision) error {
	if g.timeout < 0 {
		return ask(g.Store, ctx, charges, decisions)
	}
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	return ask(g.Store, ctx, charges, decisions)
}
