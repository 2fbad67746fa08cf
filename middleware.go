package ratelimit

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// Handler is middleware for a whole router: each request is counted under the policies
// that Config.Routes or Config.Default give it, and reaches next, at once or with [Delay]
// when its turn comes, or is refused.
//
// Every counted answer carries X-RateLimit-Limit, X-RateLimit-Remaining and
// X-RateLimit-Reset, or what Config.Headers has instead; a refusal is 429 with
// Retry-After. A handler that is a reverse proxy for a service with rate limits of its
// own needs [Limiter.StripUpstream]. The response writer that next
// gets is the one that came in, unless a policy has CountIf.
//
// A request that passes the same limiter again, in a router inside a router, is
// charged only for policies it was not charged for before.
func (l *Limiter) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		config := l.config.Load()
		class, pattern, found := config.table.class(r)
		l.watch.route(r.Context(), pattern)
		if !found {
			class = config.class
		}
		l.serve(w, r, config, class, next)
	})
}

// For is middleware for one route: each request is counted under the named policies,
// whatever Config.Routes say. The policies must exist: For logs it at once if one
// doesn't, and then answers 500 rather than serve the route without its limit.
func (l *Limiter) For(policies ...string) func(http.Handler) http.Handler {
	l.update.Lock()
	defer l.update.Unlock()
	if err := l.config.Load().checkFor(policies); err != nil {
		l.config.Load().Logger.Error("ratelimit: a route answers 500 until this is mended", "error", err)
		return func(http.Handler) http.Handler {
			return Refusal{Status: http.StatusInternalServerError}
		}
	}
	for _, name := range policies {
		l.stated[name] = true
	}
	var latest atomic.Pointer[stated] // changes with Update
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			config := l.config.Load()
			s := latest.Load()
			if s == nil || s.config != config {
				s = &stated{config, config.classOf(policies)}
				latest.Store(s)
			}
			l.serve(w, r, config, s.class, next)
		})
	}
}

// stated is the class of a route that For states, under one configuration.
type stated struct {
	config *compiled
	class  *class
}

// serve takes one request from the top to the bottom.
func (l *Limiter) serve(w http.ResponseWriter, r *http.Request, config *compiled, class *class, next http.Handler) {
	if class == nil || config.skips(r) {
		next.ServeHTTP(w, r)
		return
	}
	p := l.pass(r.Context(), class)
	if p == nil { // charged already
		next.ServeHTTP(w, r)
		return
	}
	p.header = w.Header()
	if config.Deny != nil && config.Deny(r) {
		l.refuse(w, r, config, Refusal{Status: http.StatusForbidden, RetryAfter: Never})
		return
	}

	// Identify.
	key, err := config.Key(r)
	if err != nil && l.keyFailed(w, r, p, config, err) {
		return
	}
	p.admission.Key = key
	if key.ID == "" {
		p.admission.Key = anonymous
	}

	// Decide.
	b := newBatch()
	p.batch = b
	defer p.done()
	var texts strings.Builder // holds the identity, the keys and what is announced
	l.chargeAll(r, config, p, &texts)
	l.watch.request(r, p)
	turns, err := l.decide(p)
	defer turns.giveUp() // should it not come to hold them, as when a hook panics
	if err != nil {
		l.serveUndecided(w, p.bind(r), config, next)
		return
	}
	p.lease = leaseOf(p, l.store, b.toTake(), b.decisions)

	// Announce, then answer who is refused.
	if policy, decision := b.tightest(0, b.enforced); policy != nil {
		p.admission.Policy, p.admission.Decision = policy.Name, *decision
		if hook := config.Hooks.decided(decision); hook != nil {
			hook(p, Event{Request: r, Key: b.identityOf(policy), Policy: policy.Name, Decision: *decision})
		}
		config.wire.announce(p, &texts, decision)
		config.wire.announceItems(p.header, b)
		if !decision.Allowed {
			l.watch.refused(p)
			if !turns.tooMany() {
				l.punish(p)
			}
			l.refuse(w, r, config, overLimit(policy.Name, *decision, b.violated()))
			return
		}
	}

	// Hold it until its turn.
	if turns.waits() && l.hold(p, r, turns) != nil {
		l.giveBack(p, http.StatusServiceUnavailable)
		l.refuse(w, r, config, Refusal{Status: http.StatusServiceUnavailable, Policy: p.admission.Policy, RetryAfter: time.Second})
		return
	}
	l.tryShadows(r, config, p)
	if p.class.countIf {
		l.serveAndCount(w, r, p, next)
		return
	}
	next.ServeHTTP(w, p.bind(r))
}

// chargeAll fills the batch: the policies that can refuse first, then the shadows.
func (l *Limiter) chargeAll(r *http.Request, config *compiled, p *passed, texts *strings.Builder) {
	texts.Grow(2*(len(p.admission.Key.Kind)+len(p.admission.Key.ID)) + len(p.class.policies[0].quota.name) + maxAnnounced)
	identity := p.admission.Key.canonical(texts, config.HashKey)
	for _, shadow := range [...]bool{false, true} {
		for _, policy := range p.class.policies {
			key, identity := &p.admission.Key, identity
			if policy.Key != nil {
				own, err := policy.Key(r)
				if err != nil {
					l.failed(p, Event{Request: r, Policy: policy.Name, Err: fmt.Errorf("ratelimit: Policies[%q].Key: %w", policy.Name, err)})
				}
				own = own.orAnonymous()
				key, identity = &own, own.canonical(texts, config.HashKey)
			}
			if policy.enforced(identity) != shadow {
				l.charge(p, p.batch, texts, policy, key, identity, l.costOf(policy, r), shadow)
			}
		}
		if !p.class.trial {
			return
		}
	}
}

// tryShadows decides what is on trial, of a request that passes, and tells the hooks.
func (l *Limiter) tryShadows(r *http.Request, config *compiled, p *passed) {
	b := p.batch
	if b.enforced == len(b.charges) {
		return
	}
	if err := l.store.Take(p, b.charges[b.enforced:], b.decisions[b.enforced:]); err != nil {
		return // the guard has reported it
	}
	p.trial = leaseOf(p, l.store, b.charges[b.enforced:], b.decisions[b.enforced:])
	policy, decision := b.tightest(b.enforced, len(b.charges))
	b.tried = decision.Allowed
	if hook := config.Hooks.decided(decision); hook != nil {
		hook(p, Event{Request: r, Key: b.identityOf(policy), Policy: policy.Name, Decision: *decision, Shadow: true})
	}
}

// keyFailed handles an error of Config.Key and says whether it answered the request.
func (l *Limiter) keyFailed(w http.ResponseWriter, r *http.Request, p *passed, config *compiled, err error) (answered bool) {
	if g := (*guessing)(nil); errors.As(err, &g) {
		config.wire.announce(p, new(strings.Builder), &g.Decision)
		config.wire.announceItem(w.Header(), g.Policy, g.Decision)
		l.refuse(w, r, config, overLimit(g.Policy, g.Decision, []string{g.Policy}))
		return true
	}
	l.failed(r.Context(), Event{Request: r, Err: fmt.Errorf("ratelimit: Config.Key: %w", err)})
	return false
}

// serveUndecided answers a request that no store could decide, under FailLocal not even
// the local one. A request whose client is gone is not worth its handler.
func (l *Limiter) serveUndecided(w http.ResponseWriter, r *http.Request, config *compiled, next http.Handler) {
	if config.Failure != FailClosed && r.Context().Err() == nil {
		next.ServeHTTP(w, r)
		return
	}
	l.refuse(w, r, config, Refusal{Status: http.StatusServiceUnavailable, RetryAfter: time.Second})
}

func (l *Limiter) refuse(w http.ResponseWriter, r *http.Request, config *compiled, refusal Refusal) {
	refusal.RetryAfter = config.wire.jittered(refusal.RetryAfter)
	refusal.Type = config.wire.problemType(refusal.Status)
	config.wire.announceWait(w.Header(), refusal.Decision.At, refusal.RetryAfter)
	w.Header().Set("Cache-Control", "no-store") // RFC 6585, 4: a 429 must not be stored
	if config.Refused == nil {
		refusal.ServeHTTP(w, r)
		return
	}
	rw := &refusalWriter{ResponseWriter: w, status: refusal.Status}
	config.Refused(rw, r, refusal)
	rw.writeStatus()
}

// punish counts the refusal towards a Penalty, and imposes it when it's due.
func (l *Limiter) punish(p *passed) {
	b := p.batch
	for i := range b.charges[:b.enforced] {
		policy := b.owners[i]
		if b.decisions[i].Allowed || b.blocks[i] || policy.Penalty == (Penalty{}) {
			continue
		}
		identity := b.identityOf(policy)
		refusals := []algorithms.Charge{{Key: refusalsKey(policy, identity), Algorithm: policy.Penalty.refusals(), Cost: 1}}
		var counted [1]Decision
		err := l.store.Take(p, refusals, counted[:])
		// Only one request is the last that the counter admits.
		if err == nil && counted[0].Allowed && counted[0].Remaining == 0 {
			_ = l.store.Settle(p, []algorithms.Charge{{Key: blockKey(policy, identity), Algorithm: policy.Penalty.block(), Cost: blockCharge}})
			_ = l.store.Reset(p, refusals) // the guard reports failures
		}
	}
}
