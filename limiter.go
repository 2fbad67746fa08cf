package ratelimit

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// Limiter decides requests by the policies of its [Config]. Make it with [New]. It is
// safe for concurrent use and holds no goroutine; who waits has a timer, and a lease.
//
// Its methods take a Key and the name of a policy and decide outside HTTP what
// [Limiter.Handler] decides for a request. They return an error for a policy that
// doesn't exist, and when the store couldn't decide, except under [FailLocal].
type Limiter struct {
	config  atomic.Pointer[compiled]
	store   Store // the configured one, with what stands around it
	guard   Store // the same without the memory of refusals
	nextLog atomic.Int64
	missed  atomic.Int64
	watch   *watch
	lines   *lines
	askers  *askers
	clock   storeClock
	resting *resting

	update sync.Mutex
	stated map[string]bool // policies that For and NewTransport name
}

// New checks the configuration and makes a limiter. The error joins a [ConfigError] for
// every mistake there is. It asks the store nothing, so the store may be away.
func New(config Config) (*Limiter, error) {
	c, err := config.compile()
	if err != nil {
		return nil, err
	}
	l := &Limiter{stated: make(map[string]bool), watch: newWatch(c), lines: newLines(c.MaxWaiting)}
	l.askers = newAskers(l.lines)
	l.resting = newResting()
	l.config.Store(c)
	guard := newGuard(c, l.storeFailed, l.storeChanged)
	l.guard, l.store = guard, newDenied(guard, c.Recheck)
	return l, nil
}

// Update replaces the policies while requests are served: each request is decided
// wholly by the old or wholly by the new ones. Everything else of the Config stays. If
// there is any mistake, in the policies or in a route that names one no longer there,
// nothing changes and the error joins all of them.
//
// A counter goes on where its rule kept its shape: a changed Limit, Capacity, Refill or
// Rate keeps what clients have used, and neither forgives nor adds; a changed Window,
// Per or kind of rule, or a changed Quota, starts anew.
func (l *Limiter) Update(policies []Policy) error {
	l.update.Lock()
	defer l.update.Unlock()
	config := l.config.Load().Config
	config.Policies = policies
	c, err := config.compile()
	if err != nil {
		return err
	}
	for name := range l.stated {
		if c.policies[name] == nil {
			return &ConfigError{"Policies", name, "must go on holding the policy that For or NewTransport was given"}
		}
	}
	l.config.Store(c)
	return nil
}

// Take charges the key with one request under the policy. Of several limits the
// decision is the tightest one's. A policy that is Disabled or on trial for the key
// admits. Take doesn't wait: who is admitted by a leaky bucket should do so for the Delay
// of the decision, or call [Limiter.Wait] instead. What holds units while work goes on
// needs [Limiter.Acquire].
func (l *Limiter) Take(ctx context.Context, key Key, policy string) (Decision, error) {
	return l.take(ctx, key, policy, nil, Store.Take)
}

// TakeN charges the key with n units, at least 0, under the policy, whatever its Cost.
func (l *Limiter) TakeN(ctx context.Context, key Key, policy string, n int64) (Decision, error) {
	return l.take(ctx, key, policy, &n, Store.Take)
}

func (l *Limiter) take(ctx context.Context, key Key, name string, n *int64,
	take func(Store, context.Context, []algorithms.Charge, []Decision) error) (Decision, error) {
	return l.takeAs(ctx, l.config.Load(), key, name, n, take)
}

func (l *Limiter) takeAs(ctx context.Context, config *compiled, key Key, name string, n *int64,
	take func(Store, context.Context, []algorithms.Charge, []Decision) error) (Decision, error) {
	if p := config.policies[name]; p != nil && p.Disabled {
		return Decision{At: time.Now(), Allowed: true}, nil
	}
	d, identity, err := l.one(ctx, config, key, name, n, take)
	if err != nil {
		return Decision{}, err
	}
	shadow := !config.policies[name].enforced(identity)
	if hook := config.Hooks.decided(&d); hook != nil {
		hook(ctx, Event{Key: identity, Policy: name, Decision: d, Shadow: shadow})
	}
	if shadow {
		d.Allowed, d.RetryAfter = true, 0
	}
	return d, nil
}

// Peek tells where the key stands under the policy and changes nothing.
func (l *Limiter) Peek(ctx context.Context, key Key, policy string) (Decision, error) {
	d, _, err := l.one(ctx, l.config.Load(), key, policy, new(int64), Store.Peek)
	return d, err
}

// Settle corrects what was charged, after the fact and without ever refusing: n > 0
// charges n units more, n < 0 gives them back.
func (l *Limiter) Settle(ctx context.Context, key Key, policy string, n int64) error {
	_, _, err := l.one(ctx, l.config.Load(), key, policy, &n, func(s Store, ctx context.Context, charges []algorithms.Charge, _ []Decision) error {
		return s.Settle(ctx, charges)
	})
	return err
}

// Reset forgets what the key has used under the policy, and so under every policy of
// the same quota, and ends a block or a pause.
func (l *Limiter) Reset(ctx context.Context, key Key, policy string) error {
	_, _, err := l.one(ctx, l.config.Load(), key, policy, nil, func(s Store, ctx context.Context, charges []algorithms.Charge, _ []Decision) error {
		if len(charges) > 0 {
			charges = append(charges, pauseOfCounter(charges[0].Key))
		}
		return s.Reset(ctx, charges)
	})
	return err
}

// one asks about one key under one policy, and tells the key's identity; n is the cost,
// nil the policy's own.
func (l *Limiter) one(ctx context.Context, config *compiled, key Key, name string, n *int64,
	ask func(Store, context.Context, []algorithms.Charge, []Decision) error) (_ Decision, identity string, _ error) {
	p, ok := config.policies[name]
	if !ok {
		return Decision{}, "", noPolicy(name)
	}
	cost := p.cost(nil)
	if n != nil {
		cost = *n
	}
	key = key.orAnonymous()
	b := newBatch()
	defer b.free()
	var texts strings.Builder
	texts.Grow(2*(len(key.Kind)+len(":")+len(key.ID)) + len("{}:") + len(p.quota.name))
	identity = key.canonical(&texts, config.HashKey)
	l.charge(ctx, b, &texts, p, &key, identity, cost, false)
	if p.Action == Delay {
		for i := range b.charges {
			if most, delays := b.delays(i); delays && cost > 0 {
				b.shorten(i, most, cost)
			} else if delays && cost == 0 {
				b.shorten(i, most, p.cost(nil)) // to show what a request would find
			}
		}
	}
	if err := ask(l.store, ctx, b.charges, b.decisions); err != nil {
		return Decision{}, "", err
	}
	if _, d := b.tightest(0, b.enforced); d != nil {
		return *d, identity, nil
	}
	return Decision{}, identity, nil
}

func noPolicy(name string) error {
	return fmt.Errorf("ratelimit: there is no policy %q in Config.Policies", name)
}

// charge adds what the policy takes to the batch.
func (l *Limiter) charge(ctx context.Context, b *batch, texts *strings.Builder, p *policy, key *Key, identity string, cost int64, shadow bool) {
	limits, err := p.quota.limitsFor(ctx, identity, key)
	if err != nil {
		l.failed(ctx, Event{Key: identity, Policy: p.Name, Err: fmt.Errorf("ratelimit: Policies[%q].LimitsOf: %w", p.Name, err)})
	}
	b.add(texts, p, identity, limits, cost, shadow)
}

// storeFailed reports an error of the store; while it is down, to the hook only, because
// that it is down has been logged.
func (l *Limiter) storeFailed(ctx context.Context, err error, down bool) {
	l.watch.storeFailed(ctx, err)
	if down {
		l.tellFailed(ctx, Event{Err: err})
		return
	}
	l.failed(ctx, Event{Err: err})
}

// storeChanged reports, once each, that the store went down with an error or, without
// one, that it is up again.
func (l *Limiter) storeChanged(down error, after time.Duration) {
	config := l.config.Load()
	if down == nil {
		config.Logger.Info("ratelimit: the store is up again", "after", after)
		if config.Hooks.StoreUp != nil {
			config.Hooks.StoreUp(after)
		}
		return
	}
	config.Logger.Error("ratelimit: the store is down, requests don't wait for it", "error", down, "failure_mode", config.Failure.String())
	if config.Hooks.StoreDown != nil {
		config.Hooks.StoreDown(down)
	}
}

func (l *Limiter) tellFailed(ctx context.Context, event Event) {
	if hook := l.config.Load().Hooks.Failed; hook != nil {
		hook(ctx, event)
	}
}

// failed reports what went wrong to the hook, each time, and to the log, at most once
// every ten seconds with how often.
func (l *Limiter) failed(ctx context.Context, event Event) {
	config := l.config.Load()
	l.tellFailed(ctx, event)
	const pause = 10 * time.Second
	now, next := time.Now().UnixNano(), l.nextLog.Load()
	if now < next || !l.nextLog.CompareAndSwap(next, now+int64(pause)) {
		l.missed.Add(1)
		return
	}
	config.Logger.ErrorContext(ctx, "ratelimit: can't decide as configured",
		"error", event.Err, "failure_mode", config.Failure.String(), "failures_since_last_report", l.missed.Swap(0)+1)
}

// costOf is what the request takes under the policy, reporting a cost that can't be.
func (l *Limiter) costOf(p *policy, r *http.Request) int64 {
	cost := p.cost(r)
	if cost < 0 {
		l.failed(r.Context(), Event{Request: r, Policy: p.Name,
			Err: fmt.Errorf("ratelimit: Policies[%q].CostOf must be >= 0, got %d", p.Name, cost)})
		return 1
	}
	return min(cost, maxCost)
}

// maxCost is above every limit, and a sum of some of it fits an integer.
const maxCost = 1 << 53
