package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Limiter decides requests by the policies of its [Config]. Make it with [New]. It is
// safe for concurrent use and holds no goroutine.
//
// Its methods take a Key and the name of a policy and decide outside HTTP what
// [Limiter.Handler] decides for a request. They return an error for a policy that
// doesn't exist, and when the store couldn't decide, except under [FailLocal].
type Limiter struct {
	config  *compiled
	store   *guard
	nextLog atomic.Int64
	missed  atomic.Int64
}

// New checks the configuration and makes a limiter. The error joins a [ConfigError] for
// every mistake there is. It asks the store nothing, so the store may be away.
func New(config Config) (*Limiter, error) {
	c, err := config.compile()
	if err != nil {
		return nil, err
	}
	l := &Limiter{config: c}
	l.store = newGuard(c, func(ctx context.Context, err error) { l.failed(ctx, Event{Err: err}) })
	return l, nil
}

// Take charges the key with one request under the policy. Of several limits the
// decision is the tightest one's.
func (l *Limiter) Take(ctx context.Context, key Key, policy string) (Decision, error) {
	p, err := l.policy(policy)
	if err != nil {
		return Decision{}, err
	}
	return l.TakeN(ctx, key, policy, p.cost)
}

// TakeN charges the key with n units, at least 0, under the policy, whatever its Cost.
func (l *Limiter) TakeN(ctx context.Context, key Key, policy string, n int64) (Decision, error) {
	return l.one(key, policy, n, func(b *batch) error { return l.store.Take(ctx, b.charges, b.decisions) })
}

// Peek tells where the key stands under the policy and changes nothing.
func (l *Limiter) Peek(ctx context.Context, key Key, policy string) (Decision, error) {
	return l.one(key, policy, 0, func(b *batch) error { return l.store.Peek(ctx, b.charges, b.decisions) })
}

// Settle corrects what was charged, after the fact and without ever refusing: n > 0
// charges n units more, n < 0 gives them back.
func (l *Limiter) Settle(ctx context.Context, key Key, policy string, n int64) error {
	_, err := l.one(key, policy, n, func(b *batch) error { return l.store.Settle(ctx, b.charges) })
	return err
}

// Reset forgets what the key has used under the policy, and so under every policy of
// the same quota.
func (l *Limiter) Reset(ctx context.Context, key Key, policy string) error {
	_, err := l.one(key, policy, 0, func(b *batch) error { return l.store.Reset(ctx, b.charges) })
	return err
}

func (l *Limiter) one(key Key, name string, n int64, ask func(*batch) error) (Decision, error) {
	p, err := l.policy(name)
	if err != nil {
		return Decision{}, err
	}
	b := newBatch(key.orAnonymous().canonical(l.config.HashKey), key.Tier, []demand{{p.quota, n, name}})
	defer b.free()
	if err := ask(b); err != nil {
		return Decision{}, err
	}
	return b.decisions[tightest(b.decisions)], nil
}

func (l *Limiter) policy(name string) (*policy, error) {
	p, ok := l.config.policies[name]
	if !ok {
		return nil, fmt.Errorf("ratelimit: there is no policy %q in Config.Policies", name)
	}
	return p, nil
}

// batch is the charges of one decision and their answers.
type batch struct {
	charges   []Charge
	decisions []Decision
	policies  []string // of each charge
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// newBatch makes the charges of one identity. Its hash tag keeps all of them in one
// slot of a cluster: "{user:42}:api".
func newBatch(identity, tier string, demands []demand) *batch {
	b := batches.Get().(*batch)
	for _, d := range demands {
		key := "{" + identity + "}:" + d.name
		for _, a := range d.limitsOf(tier) {
			b.charges = append(b.charges, Charge{Key: key, Algorithm: a, Cost: d.cost})
			b.decisions = append(b.decisions, Decision{})
			b.policies = append(b.policies, d.policy)
		}
	}
	return b
}

func (b *batch) free() {
	clear(b.charges) // keeps no key alive
	b.charges, b.decisions, b.policies = b.charges[:0], b.decisions[:0], b.policies[:0]
	batches.Put(b)
}

// failed reports what went wrong to the hook, each time, and to the log, at most once
// every ten seconds with how often.
func (l *Limiter) failed(ctx context.Context, event Event) {
	if hook := l.config.Hooks.Failed; hook != nil {
		hook(ctx, event)
	}
	const pause = 10 * time.Second
	now, next := time.Now().UnixNano(), l.nextLog.Load()
	if now < next || !l.nextLog.CompareAndSwap(next, now+int64(pause)) {
		l.missed.Add(1)
		return
	}
	l.config.Logger.ErrorContext(ctx, "ratelimit: can't decide as configured",
		"error", event.Err, "failure_mode", l.config.Failure.String(), "failures_since_last_report", l.missed.Swap(0)+1)
}

func (k Key) orAnonymous() Key {
	if k.ID == "" {
		return anonymous
	}
	return k
}
