package ratelimit

import (
	"context"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// Decision is the answer to one charge.
type Decision = algorithms.Decision

// Never is the RetryAfter of a request that no wait would admit.
const Never = algorithms.Never

// Store holds the counters. It is safe for concurrent use, honours the context, and
// returns an error only when it couldn't decide; being over a limit is a decision, not
// an error. memstore and redisstore are stores; package storetest proves others.
//
// All methods report an error, and change nothing, when a charge has an invalid rule,
// when two charges of one call are of the same counter (the same key under rules of
// the same shape), or when the context has ended before anything was sent.
type Store interface {
	// Take decides the charges as one unit: every charge admits and is counted, or
	// none is counted. It fills decisions[i] for charges[i]; decisions must be at
	// least as long as charges. When one charge refuses, the others' decisions say
	// Allowed and show what stands, uncounted. A cost of 0 takes nothing; a negative
	// cost is an error. After an error the charges may have been counted if they had
	// already been sent; decisions are then undefined.
	Take(ctx context.Context, charges []algorithms.Charge, decisions []Decision) error
	// Peek decides as Take would at this moment and changes nothing.
	Peek(ctx context.Context, charges []algorithms.Charge, decisions []Decision) error
	// Settle gives units back (a negative cost) or charges more (a positive one) after
	// the fact, never refusing. Giving back goes to the window that a charge's At was
	// in and stops at an empty counter; charging more can pass the limit. A counter
	// never seen is charged as a new one.
	Settle(ctx context.Context, charges []algorithms.Charge) error
	// Reset forgets the counters. A counter never seen is no error. Costs are ignored.
	Reset(ctx context.Context, charges []algorithms.Charge) error

	// A store may also have a method Warnings() []string, whose sentences New logs
	// (StoreSettings): what of its setup breaks a promise, and how to mend it.
}

// StateStore is a Store that also tells what it decided on. A limiter on one answers
// "still over the limit" itself for as long as no answer of the store could differ, see
// Config.Recheck. redisstore is one.
type StateStore interface {
	Store
	// TakeState is Take, and fills states[i] with the state that charges[i] was decided
	// on, before it was counted, in the form of its rule's Restore. states is at least
	// as long as charges.
	TakeState(ctx context.Context, charges []algorithms.Charge, decisions []Decision, states []algorithms.State) error
}
