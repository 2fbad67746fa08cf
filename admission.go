package ratelimit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/felixge/httpsnoop"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// Admission is what the limiter decided for the request that a handler serves.
type Admission struct {
	// Key is who is asking, as Config.Key found it.
	Key Key
	// Policy is the policy whose decision this is: the tightest of those that apply.
	Policy string
	// Decision is its decision.
	Decision Decision
}

// FromContext returns what the innermost limiter decided for the request whose context
// this is. It is false where no limiter counted the request.
func FromContext(ctx context.Context) (Admission, bool) {
	for {
		p, ok := ctx.Value(admissionKey{}).(*passed)
		if !ok {
			return Admission{}, false
		}
		if p.admission.Policy != "" {
			return p.admission, true
		}
		ctx = p.Context // nothing was decided here: no store could, or all is on trial
	}
}

// Charge charges the request n units more, once its handler knows what it really costs,
// under the named policies or, if none is named, under all that it was charged for. It
// never refuses; the next request finds less. n must be at least 0. What the request holds
// while it is in flight ([algorithms.Concurrency]) stays as it is.
//
// It works until the handler returns, on the context of the request or one made from it.
func Charge(ctx context.Context, n int64, policies ...string) error {
	if n < 0 {
		return fmt.Errorf("ratelimit: Charge: n must be >= 0, got %d; use Refund", n)
	}
	return settleRequest(ctx, n, policies)
}

// Refund gives n units of the request back, under the named policies or, if none is
// named, under all that it was charged for. n must be at least 0. It works as long as
// [Charge] does.
func Refund(ctx context.Context, n int64, policies ...string) error {
	if n < 0 {
		return fmt.Errorf("ratelimit: Refund: n must be >= 0, got %d; use Charge", n)
	}
	return settleRequest(ctx, -n, policies)
}

func settleRequest(ctx context.Context, n int64, policies []string) error {
	p, ok := ctx.Value(admissionKey{}).(*passed)
	if !ok {
		return errors.New("ratelimit: the context is not that of a request which a limiter counted")
	}
	charges, err := p.settlement(n, policies)
	if err != nil {
		return err
	}
	return p.limiter.store.Settle(ctx, charges)
}

// passed is the context of a request that this limiter has charged for a class. What
// lives as long stands in it, so that a request costs two allocations: it, and its texts.
// It is the larger one, so what doesn't live as long stays out.
type passed struct {
	context.Context
	limiter   *Limiter
	class     *class
	outer     *passed
	admission Admission
	header    http.Header  // where the decision is announced
	values    [3]string    // of the headers
	bound     http.Request // the request with this context
	lease     *Lease       // what is held until the request is over, nil if nothing is
	trial     *Lease       // what shadows hold

	mu    sync.Mutex
	batch *batch // nil when the request is over
}

type (
	passedKey    struct{ *Limiter }
	admissionKey struct{}
)

func (p *passed) Value(key any) any {
	switch k := key.(type) {
	case admissionKey:
		return p
	case passedKey:
		if k.Limiter == p.limiter {
			return p
		}
	}
	return p.Context.Value(key)
}

// bind is the request with p as its context.
func (p *passed) bind(r *http.Request) *http.Request {
	p.bound = *r.WithContext(p)
	return &p.bound
}

// pass drops from the class what the request was charged for already, and notes the
// rest. It is nil when nothing is left.
func (l *Limiter) pass(ctx context.Context, c *class) *passed {
	outer, _ := ctx.Value(passedKey{l}).(*passed)
	for p := outer; p != nil && c != nil; p = p.outer {
		c = c.without(p.class)
	}
	if c == nil {
		return nil
	}
	return &passed{Context: ctx, limiter: l, class: c, outer: outer}
}

// done takes back, when the request is over, what it holds and the batch.
func (p *passed) done() {
	p.lease.Release()
	p.trial.Release()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.batch.free()
	p.batch = nil
}

// settlement is the charges that change what the request took by n units.
func (p *passed) settlement(n int64, policies []string) ([]algorithms.Charge, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.batch == nil {
		return nil, errors.New("ratelimit: the request is over; use Limiter.Settle")
	}
	for _, name := range policies {
		if !p.class.has(name) {
			return nil, fmt.Errorf("ratelimit: the request was not charged under policy %q", name)
		}
	}
	var charges []algorithms.Charge
	for _, e := range p.batch.entries {
		named := len(policies) == 0 || slices.Contains(policies, e.Name)
		settled := slices.ContainsFunc(charges, func(c algorithms.Charge) bool { return c.Key == e.key })
		if named && !settled { // n is the request's: a counter two policies share changes once
			charges = p.batch.settle(charges, e, n)
		}
	}
	return charges, nil
}

// serveAndCount gives back, when the answer is known, what policies with CountIf don't
// want counted.
func (l *Limiter) serveAndCount(w http.ResponseWriter, r *http.Request, p *passed, next http.Handler) {
	status := 0
	wrote := func(code int) {
		if status == 0 {
			status = code
		}
	}
	hooks := httpsnoop.Hooks{
		WriteHeader: func(next httpsnoop.WriteHeaderFunc) httpsnoop.WriteHeaderFunc {
			return func(code int) {
				if code >= 200 || code == http.StatusSwitchingProtocols { // others announce a later one
					wrote(code)
				}
				next(code)
			}
		},
		Hijack: func(next httpsnoop.HijackFunc) httpsnoop.HijackFunc {
			return func() (net.Conn, *bufio.ReadWriter, error) {
				conn, buffered, err := next()
				if err == nil {
					wrote(http.StatusSwitchingProtocols)
				}
				return conn, buffered, err
			}
		},
	}
	returned := false
	defer func() {
		if !returned {
			status = http.StatusInternalServerError
		}
		wrote(http.StatusOK)
		l.giveBack(p, status)
	}()
	next.ServeHTTP(httpsnoop.Wrap(w, hooks), p.bind(r))
	returned = true
}

func (l *Limiter) giveBack(p *passed, status int) {
	var charges []algorithms.Charge
	for _, e := range p.batch.entries {
		if e.CountIf != nil && e.cost > 0 && !e.CountIf(status) {
			charges = p.batch.settle(charges, e, -e.cost)
		}
	}
	if len(charges) > 0 {
		// The client may be gone; what it doesn't owe is given back all the same.
		_ = l.store.Settle(context.WithoutCancel(p), charges) // the guard reports failures
	}
}
