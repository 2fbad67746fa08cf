package ratelimit

import (
	"context"
	"net/http"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// held is what one request, or one caller of Wait, waits for: a place in a line for each
// of its charges that delay. A nil one waits for nothing.
type held struct {
	lines   *lines
	entered bool // counts as one who waits
	full    bool // too many wait, so it can only pass at once
	places  []place

	decision Decision // of a caller of Wait
}

type place struct {
	charge int
	key    string
	units  int64
	most   time.Duration // that it may wait
	slot   slot
	spare  bool    // the slot was found in the line
	waiter *waiter // nil when there is nothing to wait for
}

// decide takes what the request is charged.
func (l *Limiter) decide(p *passed) (*held, error) {
	if !p.class.delays || p.batch.never != nil {
		return nil, l.store.Take(p, p.batch.toTake(), p.batch.decisions)
	}
	h, err := l.takeTurns(p, p.batch, timeLeft(p), true)
	if err == nil {
		h.join()
	}
	return h, err
}

// timeLeft is how long a context may go on.
func timeLeft(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(time.Until(deadline), forever)
	}
	return forever
}

// takeTurns decides a batch of which some charges delay. It asks the store for turns that
// are no later than most, where there is no spare one in the line. If all is admitted, the
// places have their slots.
func (l *Limiter) takeTurns(ctx context.Context, b *batch, most time.Duration, enter bool) (*held, error) {
	h := &held{lines: l.lines}
	for i := range b.charges {
		charge := &b.charges[i]
		within, delays := b.delays(i)
		if !delays || charge.Cost == 0 {
			continue // what takes nothing needs no turn
		}
		within = min(within, most)
		if i < b.enforced {
			place := place{charge: i, key: charge.Key, units: charge.Cost, most: within}
			if enter && !h.enter() {
				if first, last, some := l.lines.ahead(charge.Key); some {
					b.shorten(i, within, charge.Cost)
					b.only(i, Decision{At: time.Now(), Limit: charge.Algorithm.Parameters()[0], RetryAfter: max(first, time.Microsecond), ResetAfter: last})
					return h, nil
				}
				within = 0 // it may pass if it need not wait
			} else if place.slot, place.spare = l.lines.claim(charge.Key, charge.Cost, time.Now().Add(within)); place.spare {
				charge.Cost = 0 // the store has counted that turn, and its queue may be full
				within = forever
			}
			h.places = append(h.places, place)
		}
		b.shorten(i, within, charge.Cost)
	}
	sent := time.Now()
	if err := l.store.Take(ctx, b.charges[:b.enforced], b.decisions); err != nil {
		h.giveUp()
		return nil, err
	}
	came := time.Now()
	for i := range b.decisions[:b.enforced] {
		if !b.decisions[i].Allowed {
			h.giveUp()
			return h, nil
		}
	}
	for i := range h.places {
		place := &h.places[i]
		decision := &b.decisions[place.charge]
		if place.spare {
			b.lessen(place.charge, place.most, place.units)
			decision.Delay = max(0, place.slot.at.Sub(came))
		} else {
			place.slot = slot{l.clock.when(decision.At, sent, came).Add(decision.Delay), place.units}
		}
	}
	return h, nil
}

// shorten makes the queue of a charge of some units only as long as it may wait.
func (b *batch) shorten(i int, most time.Duration, units int64) {
	charge := &b.charges[i]
	if queue, ok := charge.Algorithm.(algorithms.LeakyBucket); ok && most < forever {
		charge.Algorithm = within(queue, most, units)
	}
}

// lessen makes a decision on the whole queue of a charge one on what MaxWait leaves of it.
func (b *batch) lessen(i int, most time.Duration, units int64) {
	b.shorten(i, most, units)
	d := &b.decisions[i]
	less := max(0, d.Limit-b.charges[i].Algorithm.Parameters()[0])
	d.Limit, d.Remaining = d.Limit-less, max(0, d.Remaining-less)
}

// enter counts the request among those who wait, once.
func (h *held) enter() bool {
	h.entered = h.entered || !h.full && h.lines.enter()
	h.full = !h.entered
	return h.entered
}

// latest is the place with the latest turn, of at least one.
func (h *held) latest() *place {
	latest := &h.places[0]
	for i := range h.places {
		if h.places[i].slot.at.After(latest.slot.at) {
			latest = &h.places[i]
		}
	}
	return latest
}

// join stands in line for each turn, and says whether there is anything to wait for.
func (h *held) join() {
	waits := false
	for i := range h.places {
		place := &h.places[i]
		if place.slot != (slot{}) {
			place.waiter = h.lines.join(place.key, place.slot, place.units, place.spare)
			waits = waits || place.waiter != nil
		}
	}
	if !waits {
		h.exit()
		h.places = nil
	}
}

// tooMany says that the request was refused because too many wait, not for its limits.
func (h *held) tooMany() bool { return h != nil && h.full }

// hold lets a request wait for what the batch was granted.
func (l *Limiter) hold(p *passed, r *http.Request, h *held) error {
	i := h.latest().charge
	policy := p.batch.owners[i]
	return l.holdAs(p, h, Event{Request: r, Key: p.batch.identityOf(policy), Policy: policy.Name, Decision: p.batch.decisions[i]})
}

// holdAs waits and tells the hook of it.
func (l *Limiter) holdAs(ctx context.Context, h *held, event Event) error {
	begin := time.Now()
	event.Err = h.wait(ctx)
	event.Waited = time.Since(begin)
	l.config.Load().Hooks.waited(ctx, event)
	return event.Err
}

// waits says whether there is anything to wait for.
func (h *held) waits() bool { return h != nil && len(h.places) > 0 }

// wait returns when the latest of the turns has come, or the context ends.
func (h *held) wait(ctx context.Context) error {
	defer h.exit()
	for i := range h.places {
		if w := h.places[i].waiter; w != nil {
			if err := h.lines.wait(ctx, w); err != nil {
				for _, rest := range h.places[i+1:] {
					if rest.waiter != nil {
						h.lines.leave(rest.waiter)
					}
				}
				return err
			}
		}
	}
	return nil
}

// giveUp leaves the turns that haven't come to others.
func (h *held) giveUp() {
	if h == nil {
		return
	}
	for _, place := range h.places {
		switch {
		case place.waiter != nil:
			h.lines.leave(place.waiter)
		case place.slot != (slot{}):
			h.lines.give(place.key, place.slot)
		}
	}
	h.places = nil
	h.exit()
}

func (h *held) exit() {
	if h.entered {
		h.entered = false
		h.lines.exit()
	}
}
