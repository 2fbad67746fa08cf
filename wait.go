package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// Wait returns when the key may go on under the policy, as [Limiter.Take] would admit it.
// It returns an error when the context ends, and at once, a [WaitError], when it would
// wait in vain.
//
// Where the policy's limit is one [algorithms.LeakyBucket], whatever its Action, the
// store hands out the turns and callers leave an even stream over all instances, in one
// line with the requests that the middleware holds. Under other limits the callers of a
// key in this process are admitted in the order in which they came, only the first of
// them asks the store, and it sleeps until the instant at which it can be admitted.
//
// A deadline that is known to be too early fails at once, takes nothing and wraps
// [context.DeadlineExceeded]. So does a turn later than MaxWait, a full queue and a cost
// that is never admitted, without wrapping that. A policy that is Disabled or on trial
// for the key never waits. Units in flight are taken as by Take, see [Limiter.Acquire];
// how long they are held is a guess, so a deadline within a second may fail early.
//
// While the store is away, [FailLocal] waits by the limits in memory, [FailOpen] returns
// nil at once, [FailClosed] returns the error.
func (l *Limiter) Wait(ctx context.Context, key Key, policy string) error {
	return l.wait(ctx, key, policy, nil)
}

// WaitN is Wait for n units, at least 0, whatever the policy's Cost.
func (l *Limiter) WaitN(ctx context.Context, key Key, policy string, n int64) error {
	return l.wait(ctx, key, policy, &n)
}

// Reserve takes a turn and doesn't wait for it: who reserves goes on after
// [Reservation.Delay], or gives the turn up with [Reservation.Cancel]. The policy's limit
// must be one [algorithms.LeakyBucket], as no other hands out turns. It returns a
// [WaitError] when the queue is full or the turn would be later than MaxWait.
//
// ctx bounds the question to the store, not the turn.
func (l *Limiter) Reserve(ctx context.Context, key Key, policy string) (*Reservation, error) {
	return l.reserve(ctx, key, policy, nil)
}

// ReserveN is Reserve for n units, at least 0, whatever the policy's Cost.
func (l *Limiter) ReserveN(ctx context.Context, key Key, policy string, n int64) (*Reservation, error) {
	return l.reserve(ctx, key, policy, &n)
}

// Waiting is how many wait in this process now, of at most Config.MaxWaiting.
func (l *Limiter) Waiting() int { return l.lines.count() }

// Reservation is a turn that [Limiter.Reserve] took. It is safe for concurrent use.
type Reservation struct {
	lines     *lines
	key       string
	slot      slot
	cancelled atomic.Bool
}

// Delay is how long from now until the turn, 0 when it has come.
func (r *Reservation) Delay() time.Duration {
	if r.lines == nil {
		return 0
	}
	return max(0, time.Until(r.slot.at))
}

// Cancel leaves the turn to the next in line, or to the next arrival of this process. It
// does nothing once the turn has come, and must not follow the use of the turn.
func (r *Reservation) Cancel() {
	if r.lines != nil && r.cancelled.CompareAndSwap(false, true) {
		r.lines.give(r.key, r.slot)
	}
}

// WaitError is why [Limiter.Wait] and [Limiter.Reserve] don't wait: they would in vain.
// They have taken nothing then.
type WaitError struct {
	// Policy is the one waited for.
	Policy string
	// Wait is how long it would take, or [Never].
	Wait time.Duration
	// RetryAfter is how long until asking again would do, if nobody else came, or [Never].
	RetryAfter time.Duration
	// Reason says why that is too long.
	Reason string
	// Err is context.DeadlineExceeded if the deadline is why.
	Err error
}

func (e *WaitError) Error() string {
	if e.Wait == Never {
		return fmt.Sprintf("ratelimit: waiting for policy %q is in vain: %s", e.Policy, e.Reason)
	}
	return fmt.Sprintf("ratelimit: waiting for policy %q takes %v, but %s; ask again in %v", e.Policy, e.Wait, e.Reason, e.RetryAfter)
}

func (e *WaitError) Unwrap() error { return e.Err }

// caller is who waits outside HTTP.
type caller struct {
	config   *compiled
	policy   *policy
	key      Key
	identity string
	cost     int64
	heeds    bool // a pause of the key, see Transport
}

func (l *Limiter) caller(key Key, name string, n *int64) (*caller, error) {
	config := l.config.Load()
	p, ok := config.policies[name]
	if !ok {
		return nil, noPolicy(name)
	}
	c := &caller{config: config, policy: p, key: key.orAnonymous(), cost: p.cost(nil)}
	if n != nil {
		c.cost = *n
	}
	if c.cost < 0 {
		return nil, fmt.Errorf("ratelimit: n must be >= 0, got %d; use Settle to give units back", c.cost)
	}
	c.identity = c.key.canonical(new(strings.Builder), config.HashKey)
	return c, nil
}

// counter is what the caller is counted by.
func (c *caller) counter() string { return counterKey(new(strings.Builder), c.policy, c.identity) }

func (l *Limiter) wait(ctx context.Context, key Key, name string, n *int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c, err := l.caller(key, name, n)
	if err != nil {
		return err
	}
	if c.policy.Disabled {
		return nil
	}
	if !c.policy.enforced(c.identity) {
		_, err := l.take(ctx, key, name, n, Store.Take)
		return c.undecided(ctx, err)
	}
	h, err := l.takeTurn(ctx, c, timeLeft(ctx), true)
	if errors.Is(err, errNoTurns) {
		return l.waitAsking(ctx, c)
	}
	if err != nil || h == nil {
		return err
	}
	if h.join(); !h.waits() {
		return nil
	}
	return l.holdAs(ctx, h, Event{Key: c.identity, Policy: c.policy.Name, Decision: h.decision})
}

func (l *Limiter) reserve(ctx context.Context, key Key, name string, n *int64) (*Reservation, error) {
	c, err := l.caller(key, name, n)
	if err != nil {
		return nil, err
	}
	if c.policy.Disabled {
		return &Reservation{}, nil
	}
	if !c.policy.enforced(c.identity) {
		_, err := l.take(ctx, key, name, n, Store.Take)
		return &Reservation{}, c.undecided(ctx, err)
	}
	h, err := l.takeTurn(ctx, c, forever, false)
	switch {
	case errors.Is(err, errNoTurns):
		return nil, fmt.Errorf("ratelimit: policy %q hands out no turns to reserve; make its limit one algorithms.LeakyBucket, or use Wait", name)
	case err != nil:
		return nil, err
	case h == nil || len(h.places) == 0:
		return &Reservation{}, nil
	}
	return &Reservation{lines: l.lines, key: h.places[0].key, slot: h.places[0].slot}, nil
}

// undecided is what an error of the store comes to under the failure mode.
func (c *caller) undecided(ctx context.Context, err error) error {
	if c.config.Failure != FailClosed && ctx.Err() == nil {
		return nil
	}
	return err
}

var errNoTurns = errors.New("the limits hand out no turns")

// takeTurn takes a turn that is no later than most. It is nil, without an error, where the
// store can't decide and the caller passes.
func (l *Limiter) takeTurn(ctx context.Context, c *caller, most time.Duration, enter bool) (taken *held, err error) {
	b := newBatch()
	defer b.free()
	var texts strings.Builder
	l.charge(ctx, b, &texts, c.policy, &c.key, c.identity, c.cost, false)
	if b.never != nil {
		return nil, &WaitError{Policy: c.policy.Name, Wait: Never, RetryAfter: Never, Reason: "its limits can't be, see Hooks.Failed"}
	}
	queue, ok := b.queue()
	if !ok {
		return nil, errNoTurns
	}
	if c.heeds {
		b.pause(c.policy)
	}
	b.waits = true
	h, err := l.takeTurns(ctx, b, most, enter)
	if err != nil {
		return nil, c.undecided(ctx, err)
	}
	defer func() {
		if taken == nil { // also as a hook panics
			h.giveUp()
		}
	}()
	_, d := b.tightest(0, b.enforced)
	h.decision = *d
	if hook := c.config.Hooks.decided(d); hook != nil {
		hook(ctx, Event{Key: c.identity, Policy: c.policy.Name, Decision: h.decision})
	}
	if !h.decision.Allowed {
		if last := b.decisions[len(b.decisions)-1]; c.heeds && !h.full && !last.Allowed {
			return nil, &paused{last.RetryAfter, queue.Capacity}
		}
		refused := c.refused(h, queue, b, timeLeft(ctx))
		if refused.Err != nil && refused.Wait <= most {
			// The queue was cut to whole turns, and the deadline is within the next.
			return l.takeTurn(ctx, c, timeFor(queue, 1+unitsIn(queue, most)), enter)
		}
		return nil, refused
	}
	if deadline, ok := ctx.Deadline(); enter && ok && len(h.places) > 0 && h.latest().slot.at.After(deadline) {
		wait := time.Until(h.latest().slot.at) // somebody came in between
		return nil, c.tooLate(wait, timeLeft(ctx), wait)
	}
	return h, nil
}

// queue is the bucket of a batch of one policy that hands out turns.
func (b *batch) queue() (algorithms.LeakyBucket, bool) {
	var limits Limits
	for i := range b.charges {
		if !b.blocks[i] {
			limits = append(limits, b.charges[i].Algorithm)
		}
	}
	return limits.queue()
}

// refused says why the queue has no turn for a caller with so much time left.
func (c *caller) refused(h *held, queue algorithms.LeakyBucket, b *batch, left time.Duration) *WaitError {
	d := h.decision
	e := &WaitError{Policy: c.policy.Name, Wait: d.RetryAfter, RetryAfter: d.RetryAfter}
	switch {
	case h.full:
		e.Reason = c.tooMany()
		return e
	case d.RetryAfter == Never:
		e.Reason = c.tooDear(queue.Capacity)
		return e
	case b.decisions[0].Allowed:
		e.Reason = "the key is blocked by a Penalty"
		return e
	}
	turns := b.charges[0].Algorithm.(algorithms.LeakyBucket).Capacity - c.cost // that it was asked for
	e.Wait += timeFor(queue, turns-queue.Burst)
	patient := queue
	if c.policy.MaxWait > 0 {
		patient = within(queue, c.policy.MaxWait, c.cost)
	}
	switch {
	case patient.Capacity-c.cost > turns:
		return c.tooLate(e.Wait, left, e.RetryAfter)
	case patient.Capacity < queue.Capacity:
		e.Reason = fmt.Sprintf("its MaxWait is %v", c.policy.MaxWait)
	default:
		e.Reason = fmt.Sprintf("its queue of %d is full", queue.Capacity)
	}
	return e
}

func (c *caller) tooLate(wait, left, retryAfter time.Duration) *WaitError {
	return &WaitError{Policy: c.policy.Name, Wait: wait, RetryAfter: retryAfter, Err: context.DeadlineExceeded,
		Reason: fmt.Sprintf("the deadline is in %v", max(0, left).Round(time.Microsecond))}
}

func (c *caller) tooMany() string {
	return fmt.Sprintf("%d wait in this process already (Config.MaxWaiting)", c.config.MaxWaiting)
}

func (c *caller) tooDear(limit int64) string {
	return fmt.Sprintf("a cost of %d is above its limit of %d", c.cost, limit)
}

// waitAsking waits under limits that hand out no turns.
func (l *Limiter) waitAsking(ctx context.Context, c *caller) (err error) {
	key := c.counter()
	w := new(asker)
	w.deadline, _ = ctx.Deadline()
	if wait, tooMany := l.askers.join(key, w); tooMany {
		return &WaitError{Policy: c.policy.Name, Wait: wait, RetryAfter: wait, Reason: c.tooMany()}
	}
	defer l.askers.leave(key, w)
	event := Event{Key: c.identity, Policy: c.policy.Name}
	begin, waited := time.Now(), w.entered
	defer func() {
		if waited {
			event.Waited, event.Err = time.Since(begin), err
			c.config.Hooks.waited(ctx, event)
		}
	}()
	select {
	case <-w.first:
	case <-w.tooLate:
		wait := max(0, time.Until(w.until))
		return c.tooLate(wait, timeLeft(ctx), wait)
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		event.Decision, err = l.takeOnce(ctx, c)
		d := event.Decision
		until := time.Now().Add(d.RetryAfter)
		switch {
		case err != nil:
			return c.undecided(ctx, err)
		case d.Allowed:
			return nil
		case d.RetryAfter == Never:
			return &WaitError{Policy: c.policy.Name, Wait: Never, RetryAfter: Never, Reason: c.tooDear(d.Limit)}
		case w.misses(until):
			return c.tooLate(d.RetryAfter, timeLeft(ctx), d.RetryAfter)
		case !w.entered:
			if w.entered = l.lines.enter(); !w.entered {
				return &WaitError{Policy: c.policy.Name, Wait: d.RetryAfter, RetryAfter: d.RetryAfter, Reason: c.tooMany()}
			}
			waited = true
		}
		l.askers.refused(key, until)
		if err := sleep(ctx, d.RetryAfter); err != nil {
			return err
		}
	}
}

// takeOnce takes what the caller asks for, if the store admits it now.
func (l *Limiter) takeOnce(ctx context.Context, c *caller) (Decision, error) {
	b := newBatch()
	defer b.free()
	var texts strings.Builder
	l.charge(ctx, b, &texts, c.policy, &c.key, c.identity, c.cost, false)
	if c.heeds && b.never == nil {
		b.pause(c.policy)
	}
	if err := l.store.Take(ctx, b.toTake(), b.decisions); err != nil {
		return Decision{}, err
	}
	_, d := b.tightest(0, b.enforced)
	if hook := c.config.Hooks.decided(d); hook != nil {
		hook(ctx, Event{Key: c.identity, Policy: c.policy.Name, Decision: *d})
	}
	return *d, nil
}
