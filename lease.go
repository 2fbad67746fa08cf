package ratelimit

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// Lease is what [Limiter.Acquire] decided, and what it holds if the decision admits.
// Release it in any case. It is safe for concurrent use.
type Lease struct {
	Decision

	ctx   context.Context // never cancelled: who has gone must not go on holding
	store Store

	mu       sync.Mutex
	held     []algorithms.Charge // as they are given back: by the time they were taken
	timer    *time.Timer
	released bool
}

// Acquire is [Limiter.Take] for work with a beginning and an end: what it takes under an
// [algorithms.Concurrency] of the policy is held until Release, however long that is; what
// it takes under other rules is used up. It doesn't wait: a refusal is a Lease that holds
// nothing.
//
//	lease, err := limiter.Acquire(ctx, key, "export")
//	if err != nil {
//		return err
//	}
//	defer lease.Release()
//	if !lease.Allowed {
//		return errBusy
//	}
//
// The units of a process that crashes are free after the rule's Lease. Until then a
// running one takes them anew, half a Lease before they end. Under a plain Take they
// would end with the rule's Lease and count no more, whatever goes on.
func (l *Limiter) Acquire(ctx context.Context, key Key, policy string) (*Lease, error) {
	var held, lease *Lease
	defer func() {
		if lease == nil { // also as a hook panics
			held.Release()
		}
	}()
	d, err := l.take(ctx, key, policy, nil, func(s Store, ctx context.Context, charges []algorithms.Charge, decisions []Decision) error {
		err := s.Take(ctx, charges, decisions)
		if err == nil {
			held = leaseOf(ctx, s, charges, decisions)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if held == nil {
		held = new(Lease)
	}
	held.Decision, lease = d, held
	return lease, nil
}

// Release gives back what the lease holds. It works when the context of Acquire has ended,
// waits for the store no longer than Config.Timeout, and does nothing the second time. If
// the store is away, the units are free after the rule's Lease.
func (l *Lease) Release() {
	if l == nil {
		return
	}
	l.mu.Lock()
	held := l.held
	l.held, l.released = nil, true
	l.mu.Unlock()
	if len(held) > 0 {
		l.timer.Stop()
		_ = l.store.Settle(l.ctx, held) // the guard reports failures
	}
}

// leaseOf makes the lease of what a unit of charges has taken, nil if there is nothing to
// give back.
func leaseOf(ctx context.Context, store Store, charges []algorithms.Charge, decisions []Decision) *Lease {
	held := leased(charges, decisions)
	if held == nil {
		return nil
	}
	l := &Lease{ctx: context.WithoutCancel(ctx), store: store, held: held}
	l.mu.Lock() // the timer may be faster than its assignment
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(renewEvery(held), l.renew)
	return l
}

// leased is what has to be given back of a decided unit.
func leased(charges []algorithms.Charge, decisions []Decision) []algorithms.Charge {
	var held []algorithms.Charge
	for i, charge := range charges {
		d := &decisions[i]
		if !d.Allowed {
			return nil // and nothing was taken
		}
		if d.Lease > 0 && charge.Cost > 0 {
			charge.Cost, charge.At = -charge.Cost, d.At
			held = append(held, charge)
		}
	}
	return held
}

// renewEvery leaves half of the shortest lease to try again.
func renewEvery(held []algorithms.Charge) time.Duration {
	shortest := held[0].Algorithm.Shape().Window
	for _, charge := range held {
		shortest = min(shortest, charge.Algorithm.Shape().Window)
	}
	return shortest / 2
}

// renew takes what is held anew and gives back what was taken before. If the lease was
// released meanwhile, it is the new that nobody holds.
func (l *Lease) renew() {
	l.mu.Lock()
	held := l.held
	l.mu.Unlock()
	if len(held) == 0 {
		return
	}

	anew := slices.Clone(held)
	for i := range anew {
		anew[i].Algorithm, anew[i].Cost = algorithms.Renewal(anew[i].Algorithm), -anew[i].Cost
	}
	decisions := make([]Decision, len(anew))
	var surplus []algorithms.Charge
	if err := l.store.Take(l.ctx, anew, decisions); err == nil { // else there is time to try again
		surplus = leased(anew, decisions)
	}

	l.mu.Lock()
	if !l.released {
		if surplus != nil {
			l.held, surplus = surplus, l.held
		}
		l.timer.Reset(renewEvery(held))
	}
	l.mu.Unlock()
	if surplus != nil {
		_ = l.store.Settle(l.ctx, surplus)
	}
}
