package ratelimit

import (
	"context"
	"net/http"
	"time"
)

// Hooks are functions told what the limiter did, for metrics and audit. Each may be
// nil. They run on the request's goroutine, before the request goes on, and must be
// fast and safe for concurrent use.
type Hooks struct {
	// Allowed and Refused are told every decision.
	Allowed, Refused func(context.Context, Event)
	// Waited is told when a request that a policy with Delay held, a caller of
	// Limiter.Wait or a call of a Transport that had to wait, goes on, or gives up: then
	// Err is why. Allowed was told before, with the Delay of the decision.
	Waited func(context.Context, Event)
	// Paused is told when an answer that a Transport got begins a pause of its key, or
	// makes it longer by a second or more, so once for all that were told the same.
	Paused func(context.Context, Event)
	// Failed is told each time the store couldn't decide, also while it isn't asked
	// because it is down, or Config.Key returned an error. The context is the request's.
	Failed func(context.Context, Event)
	// StoreDown is told once when the store has failed several times in a row and is no
	// longer asked, with the last error; StoreUp once when it answers again, with how
	// long it was down.
	StoreDown func(error)
	StoreUp   func(time.Duration)
}

// Event is what happened to one request.
type Event struct {
	// Request is the request, nil outside HTTP. Hooks must not change it.
	Request *http.Request
	// Key is the identity as the store sees it, "user:42"; secrets are hashed.
	Key string
	// Policy is the policy whose decision this is: the tightest of those that apply.
	Policy string
	// Shadow says that the policy is on trial: a refusal had no effect.
	Shadow bool
	// Decision is its decision; zero when the store failed.
	Decision Decision
	// Waited is how long the request has waited, for Hooks.Waited.
	Waited time.Duration
	// Paused is how long nobody calls, for Hooks.Paused, and Why is what in the answer
	// says so, such as: 429 with Retry-After: "2".
	Paused time.Duration
	Why    string
	// Err is what failed. It is for operators; it never reaches a client.
	Err error
}

// decided is the hook that is told of such a decision, nil if there is none.
func (f *Hooks) decided(d *Decision) func(context.Context, Event) {
	if d.Allowed {
		return f.Allowed
	}
	return f.Refused
}

func (f Hooks) waited(ctx context.Context, event Event) {
	if f.Waited != nil {
		f.Waited(ctx, event)
	}
}
