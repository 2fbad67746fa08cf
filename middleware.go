package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Handler is middleware for a whole router: each request is counted under the policies
// that Config.Routes or Config.Default give it, and reaches next or is refused.
//
// Every counted answer carries X-RateLimit-Limit, X-RateLimit-Remaining and
// X-RateLimit-Reset; a refusal is 429 with Retry-After. The response writer that next
// gets is the one that came in.
//
// A request that passes the same limiter again, in a router inside a router, is
// charged only for policies it was not charged for before.
func (l *Limiter) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		class, found := l.config.table.class(r)
		if !found {
			class = l.config.class
		}
		l.serve(w, r, class, next)
	})
}

// For is middleware for one route: each request is counted under the named policies,
// whatever Config.Routes say. The policies must exist: For logs it at once if one
// doesn't, and then answers 500 rather than serve the route without its limit.
func (l *Limiter) For(policies ...string) func(http.Handler) http.Handler {
	var mistake error
	found := findPolicies(policies, l.config.policies, "For", func(path string, value any, reason string) {
		mistake = &ConfigError{path, value, reason}
	})
	if len(policies) == 0 {
		mistake = &ConfigError{"For", nil, "must name at least one of the Policies"}
	}
	if mistake != nil {
		l.config.Logger.Error("ratelimit: a route answers 500 until this is mended", "error", mistake)
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				Refusal{Status: http.StatusInternalServerError}.WriteTo(w, r)
			})
		}
	}
	class := newClass(found)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			l.serve(w, r, class, next)
		})
	}
}

// serve takes one request from the top to the bottom.
func (l *Limiter) serve(w http.ResponseWriter, r *http.Request, class *class, next http.Handler) {
	if skip := l.config.Skip; class == nil || skip != nil && skip(r) {
		next.ServeHTTP(w, r)
		return
	}
	ctx, class := l.countOnce(r.Context(), class)
	if class == nil {
		next.ServeHTTP(w, r)
		return
	}

	// Identify.
	key, err := l.config.Key(r)
	if err != nil && l.keyFailed(w, r, err) {
		return
	}
	identity := key.orAnonymous().canonical(l.config.HashKey)

	// Decide.
	b := newBatch(identity, key.Tier, class.demands)
	err = l.store.Take(ctx, b.charges, b.decisions)
	i := tightest(b.decisions)
	event := Event{Request: r, Key: identity, Policy: b.policies[i], Decision: b.decisions[i]}
	b.free()

	if err != nil {
		l.serveUndecided(w, r, next)
		return
	}
	l.config.Hooks.decided(ctx, event)

	// Announce, then answer.
	announce(w.Header(), event.Decision)
	if !event.Decision.Allowed {
		l.refuse(w, r, overLimit(event.Policy, event.Decision))
		return
	}
	next.ServeHTTP(w, r.WithContext(ctx))
}

// keyFailed handles an error of Config.Key and says whether it answered the request.
func (l *Limiter) keyFailed(w http.ResponseWriter, r *http.Request, err error) (answered bool) {
	if g := (*guessing)(nil); errors.As(err, &g) {
		announce(w.Header(), g.Decision)
		l.refuse(w, r, overLimit(g.Policy, g.Decision))
		return true
	}
	l.failed(r.Context(), Event{Request: r, Err: fmt.Errorf("ratelimit: Config.Key: %w", err)})
	return false
}

// serveUndecided answers a request that no store could decide, under FailLocal not even
// the local one. A request whose client is gone is not worth its handler.
func (l *Limiter) serveUndecided(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if l.config.Failure != FailClosed && r.Context().Err() == nil {
		next.ServeHTTP(w, r)
		return
	}
	l.refuse(w, r, Refusal{Status: http.StatusServiceUnavailable, RetryAfter: time.Second})
}

func (l *Limiter) refuse(w http.ResponseWriter, r *http.Request, refusal Refusal) {
	announceWait(w.Header(), refusal.RetryAfter)
	w.Header().Set("Cache-Control", "no-store") // RFC 6585, 4: a 429 must not be stored
	if l.config.Refused == nil {
		refusal.WriteTo(w, r)
		return
	}
	rw := &refusalWriter{ResponseWriter: w, status: refusal.Status}
	l.config.Refused(rw, r, refusal)
	rw.writeStatus()
}

// passed is the context of a request that this limiter has charged for a class.
type passed struct {
	context.Context
	limiter *Limiter
	class   *class
	outer   *passed
}

type passedKey struct{ *Limiter }

func (p *passed) Value(key any) any {
	if k, ok := key.(passedKey); ok && k.Limiter == p.limiter {
		return p
	}
	return p.Context.Value(key)
}

// countOnce drops from the class what the request was charged for already, and notes
// the rest. The class is nil when nothing is left.
func (l *Limiter) countOnce(ctx context.Context, c *class) (context.Context, *class) {
	outer, _ := ctx.Value(passedKey{l}).(*passed)
	for p := outer; p != nil && c != nil; p = p.outer {
		c = c.without(p.class)
	}
	if c == nil {
		return ctx, nil
	}
	return &passed{ctx, l, c, outer}, c
}
