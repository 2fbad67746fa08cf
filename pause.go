package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// A pause keeps all instances from calling a key under a quota. Like a Penalty's block it
// is a bucket of one token that refuses even what costs nothing until that token is back.
// One comes back every millisecond, so that pauses of any length share a counter.

const (
	pauseUnit = time.Millisecond
	// pauseCharge is for the token that has to come back, and one that rounding may take.
	pauseCharge = 2
)

// pauseOfCounter is the question whether there is a pause beside a counter.
func pauseOfCounter(key string) algorithms.Charge {
	return algorithms.Charge{Key: pauseKey(key), Algorithm: algorithms.TokenBucket{Capacity: 1, Refill: 1, Per: pauseUnit}}
}

// pause adds that question about the policy that the batch charges first.
func (b *batch) pause(p *policy) {
	b.append(p, pauseOfCounter(b.charges[0].Key), true)
	b.enforced = len(b.charges)
}

// paused is the error of a caller that heeds pauses and came in one.
type paused struct {
	left  time.Duration
	queue int64 // how many may wait
}

func (p *paused) Error() string { return fmt.Sprintf("ratelimit: paused for %v", p.left) }

// pause begins a pause, or prolongs the one there is to the end of this one if that is
// later, and tells by how much.
//
// The capacity is no part of a bucket's counter. So the store is asked to hold this pause
// in a bucket of just that size. It refuses where a pause is held already, and says how
// much there is room for, which is asked for next. So pauses never add up, whoever asks at
// the same time: a second refusal means that another has prolonged it, and there is less
// to ask for. The memory of refusals isn't asked, as it knows what is held only to a
// round trip.
func (l *Limiter) pause(ctx context.Context, counter string, length time.Duration) (later time.Duration, err error) {
	charge := pauseOfCounter(counter)
	charge.Cost = int64((length+pauseUnit-1)/pauseUnit) + pauseCharge
	charge.Algorithm = algorithms.TokenBucket{Capacity: charge.Cost, Refill: 1, Per: pauseUnit}
	for charge.Cost > 0 {
		var d [1]Decision
		if err := l.guard.Take(ctx, []algorithms.Charge{charge}, d[:]); err != nil {
			return 0, err
		}
		if d[0].Allowed {
			return time.Duration(charge.Cost) * pauseUnit, nil
		}
		charge.Cost = d[0].Remaining
	}
	return 0, nil
}

// pauseFor pauses the key that a request was sent for.
func (l *Limiter) pauseFor(r *http.Request, key Key, name string, length time.Duration, why string) {
	c, err := l.caller(key, name, nil)
	if err != nil || c.policy.Disabled || !c.policy.enforced(c.identity) {
		return
	}
	// That the caller has gone doesn't change what the other side said.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), pauseTimeout)
	defer cancel()
	later, err := l.pause(ctx, c.counter(), length)
	if hook := c.config.Hooks.Paused; hook != nil && err == nil && later >= min(length, time.Second) {
		hook(r.Context(), Event{Request: r, Key: c.identity, Policy: c.policy.Name, Paused: length, Why: why})
	}
}

// pauseTimeout bounds how long a pause may take to store where Config.Timeout doesn't.
const pauseTimeout = time.Second

// waitHeeding is wait, of a caller that a pause of its key holds up too. Its turn is lost
// if it comes in a pause. After one it takes a new turn, so that those who waited leave
// at the policy's rate and not at once.
func (l *Limiter) waitHeeding(ctx context.Context, key Key, name string) (err error) {
	var event Event
	begin, waited := time.Now(), false
	defer func() {
		if waited {
			event.Waited, event.Err = time.Since(begin), err
			l.config.Load().Hooks.waited(ctx, event)
		}
	}()
	if err := ctx.Err(); err != nil {
		return err
	}
	for {
		c, err := l.caller(key, name, nil)
		if err != nil {
			return err
		}
		if c.policy.Disabled || !c.policy.enforced(c.identity) {
			return l.wait(ctx, key, name, nil)
		}
		c.heeds = true
		event.Key, event.Policy = c.identity, c.policy.Name
		h, err := l.takeTurnAfterRest(ctx, c, waited)
		pause := (*paused)(nil)
		switch {
		case errors.Is(err, errNoTurns):
			return l.waitAsking(ctx, c)
		case errors.As(err, &pause):
		case err != nil || h == nil:
			return err
		default:
			event.Decision = h.decision
			if h.join(); !h.waits() {
				return nil
			}
			waited = true
			if err := h.wait(ctx); err != nil {
				return err
			}
			if pause, err = l.askPause(ctx, c); pause == nil {
				return err
			}
		}
		if err := l.rest(ctx, c, pause, waited); err != nil {
			return err
		}
		waited = true
	}
}

func (l *Limiter) takeTurnAfterRest(ctx context.Context, c *caller, rested bool) (*held, error) {
	if rested {
		if err := l.resting.ask(ctx); err != nil {
			return nil, err
		}
		defer l.resting.asked()
	}
	return l.takeTurn(ctx, c, timeLeft(ctx), true)
}

// askPause tells the pause that there is, or nil.
func (l *Limiter) askPause(ctx context.Context, c *caller) (*paused, error) {
	charge := pauseOfCounter(c.counter())
	var d [1]Decision
	if err := l.store.Take(ctx, []algorithms.Charge{charge}, d[:]); err != nil {
		return nil, c.undecided(ctx, err)
	}
	if d[0].Allowed {
		return nil, nil
	}
	return &paused{left: d[0].RetryAfter}, nil
}

// rest waits until the pause is over, unless that is in vain.
func (l *Limiter) rest(ctx context.Context, c *caller, pause *paused, waited bool) error {
	inVain := func(reason string) error {
		return &WaitError{Policy: c.policy.Name, Wait: pause.left, RetryAfter: pause.left, Reason: reason}
	}
	if left := timeLeft(ctx); pause.left > left {
		return c.tooLate(pause.left, left, pause.left)
	}
	if most := c.policy.MaxWait; most > 0 && pause.left > most {
		return inVain(fmt.Sprintf("its MaxWait is %v", most))
	}
	if !l.lines.enter() {
		return inVain(c.tooMany())
	}
	defer l.lines.exit()
	key := c.counter()
	if n := l.resting.enter(key); !waited && n > pause.queue {
		l.resting.exit(key)
		return inVain(fmt.Sprintf("its queue of %d is full", pause.queue))
	}
	defer l.resting.exit(key)
	return sleep(ctx, pause.left)
}

// resting are the callers of this process that wait for the end of a pause.
type resting struct {
	asking chan struct{} // has room for those who may ask the store at once

	mu    sync.Mutex
	byKey map[string]int64
}

// mostAsking is enough to be told turns faster than they come, and few enough for a
// store that answers many instances when a pause ends.
const mostAsking = 8

func newResting() *resting {
	return &resting{asking: make(chan struct{}, mostAsking), byKey: make(map[string]int64)}
}

// enter counts one more, and says how many rest then for the key.
func (r *resting) enter(key string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byKey[key]++
	return r.byKey[key]
}

func (r *resting) exit(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey[key]--; r.byKey[key] == 0 {
		delete(r.byKey, key)
	}
}

// ask returns when there is room to ask the store.
func (r *resting) ask(ctx context.Context) error {
	select {
	case r.asking <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *resting) asked() { <-r.asking }
