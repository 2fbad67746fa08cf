package ratelimit

import (
	"context"
	"hash/fnv"
	"maps"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// Unlimited stands for no policy: as Config.Default it lets through, uncounted and
// without headers, what no route names.
const Unlimited = "unlimited"

// Limits are the rules of a policy. All of them have to admit a request, and it is
// counted by all or by none.
type Limits []algorithms.Algorithm

// Policy is a cost class: what requests of one kind may use and what one of them costs.
type Policy struct {
	_ [0]func()

	// Name is what routes and For call it: 1 to 64 of A-Z a-z 0-9 _ . -
	Name string
	// Limits are the rules. Required, unless another policy of the same Quota has them.
	Limits Limits
	// Tiers replaces Limits for keys of a tier. A key of no tier, or of one not listed
	// here, has Limits.
	Tiers map[string]Limits
	// LimitsOf replaces both for single keys, such as tenants with limits of their own
	// in a database. nil Limits mean that the key has none of its own. Its answers are
	// remembered for a minute, for 10,000 keys. After an error Tiers and Limits hold;
	// limits that can't be, such as a Limit of 0, refuse every request. Both are
	// reported to Hooks.Failed.
	LimitsOf func(context.Context, Key) (Limits, error)
	// Quota names the counters this policy draws on; "" means its own Name. Policies
	// with the same Quota draw on the same counters: that is how a search costs five
	// reads. Exactly one of them states the limits.
	Quota string
	// Key counts this policy against another identity than Config.Key finds: a
	// backstop per address beside a limit per user. nil means Config.Key.
	Key KeyFunc

	// Cost is what one request takes, in units; 0 means 1.
	Cost int64
	// CostOf, instead of Cost, tells the cost of each request. 0 takes nothing. A
	// negative cost is reported to Hooks.Failed and taken for 1; one above the limit is
	// refused without Retry-After.
	CostOf func(*http.Request) int64
	// CountIf counts only requests whose answer has a status it accepts, such as failed
	// logins. The cost is taken before the handler runs and given back after, so that
	// parallel requests can't slip through. A handler that panics counts as 500, one
	// that takes over the connection as 101, one that isn't reached because its client
	// left the line of another policy with Delay as 503. The handler then sees the
	// response writer wrapped, with every optional interface it had. Not in a quota of
	// which a policy has Delay.
	CountIf func(status int) bool

	// Action is what happens to a request that comes too early: [Refuse], or [Delay].
	Action Action
	// MaxWait bounds how long Delay holds a request, rounded down to whole turns (of
	// Per / Rate each); what would wait longer is refused at once. 0 means as long as the
	// queue is, Capacity x Per / Rate. Only with Delay.
	MaxWait time.Duration

	// Shadow decides, counts and tells the hooks, and never refuses or shows in a
	// header: a policy on trial. A request that an enforced policy refuses isn't
	// counted.
	Shadow bool
	// EnforcePercent enforces the policy for so many percent of the keys and leaves it
	// in Shadow for the others; which keys is fixed by their hash. 0 means 100.
	EnforcePercent int
	// Disabled turns the policy off: its requests pass uncounted, as far as it goes.
	Disabled bool
	// Penalty blocks keys that keep going over the limit. Zero means none.
	Penalty Penalty
}

// Penalty blocks a key for some time when its requests were refused too often. A block
// also refuses Limiter.Take, Acquire, Wait and Reserve, whose own refusals don't count
// towards one.
type Penalty struct {
	// Refusals within Window, at least 1, bring the block about.
	Refusals int64
	// Window is the span in which they count: whole microseconds, from 1 ms.
	Window time.Duration
	// Block is how long every request of the key under the policy is refused then,
	// with an exact Retry-After. Refusals during a block don't prolong it.
	Block time.Duration
}

// refusals counts up to the block.
func (p Penalty) refusals() algorithms.Algorithm {
	return algorithms.SlidingWindowLog{Limit: p.Refusals, Window: p.Window}
}

// block is a bucket of one token that comes back after Block. Charged with two tokens
// it refuses even what costs nothing until one is back.
func (p Penalty) block() algorithms.Algorithm {
	return algorithms.TokenBucket{Capacity: 1, Refill: 1, Per: p.Block}
}

const blockCharge = 2

// quota is the counters that one or more policies draw on.
type quota struct {
	name   string
	limits Limits
	tiers  map[string]Limits
	delays bool                                       // a policy of it has Action: Delay
	own    func(context.Context, Key) (Limits, error) // LimitsOf
	cache  *cache[ownLimits]
}

// least is the smallest limit that any key has, as far as they are stated.
func (q *quota) least() int64 {
	least := int64(math.MaxInt64)
	for _, limits := range append(slices.Collect(maps.Values(q.tiers)), q.limits) {
		for _, a := range limits {
			if a.Validate() == nil {
				least = min(least, a.Parameters()[0])
			}
		}
	}
	return least
}

const (
	limitsKeptFor = time.Minute
	limitsKept    = 10_000
)

// limitsFor returns the rules that hold for the key. An error comes with rules all the
// same; nil rules refuse every request.
func (q *quota) limitsFor(ctx context.Context, identity string, key *Key) (Limits, error) {
	limits, tier := q.limits, q.tiers[key.Tier]
	if tier != nil {
		limits = tier
	}
	if q.own == nil {
		return limits, nil
	}
	own, ok := q.cache.get(identity)
	if !ok {
		answer, err := q.own(ctx, *key)
		if err != nil {
			return limits, err
		}
		if answer != nil {
			own.limits, own.err = answer.check(q.delays)
		}
		q.cache.put(identity, own)
	}
	switch {
	case own.err != nil:
		return nil, own.err
	case own.limits != nil:
		return own.limits, nil
	}
	return limits, nil
}

// ownLimits are the limits of a single key: none, checked ones, or what is wrong.
type ownLimits struct {
	limits Limits
	err    error
}

// policy is a Policy in its compiled form.
type policy struct {
	Policy
	quota *quota
	dots  string // between its name and the place of one of several limits
}

// cost is what the request takes; r is nil outside HTTP.
func (p *policy) cost(r *http.Request) int64 {
	if p.CostOf != nil && r != nil {
		return p.CostOf(r)
	}
	return max(1, p.Cost)
}

// enforced says whether the policy may refuse this identity.
func (p *policy) enforced(identity string) bool {
	if p.Shadow {
		return false
	}
	if p.EnforcePercent == 0 || p.EnforcePercent == 100 {
		return true
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(p.Name + "\x00" + identity))
	return h.Sum32()%100 < uint32(p.EnforcePercent)
}

// class is the policies that apply to a request.
type class struct {
	policies []*policy
	countIf  bool // one of them has CountIf
	delays   bool // one of them has Action: Delay
	trial    bool // one of them may be a shadow
}

// newClass leaves out what is disabled; it is nil if nothing is left.
func newClass(policies []*policy) *class {
	c := &class{}
	for _, p := range policies {
		if !p.Disabled {
			c.policies = append(c.policies, p)
			c.countIf = c.countIf || p.CountIf != nil
			c.delays = c.delays || p.Action == Delay
			c.trial = c.trial || p.Shadow || p.EnforcePercent != 0
		}
	}
	if len(c.policies) == 0 {
		return nil
	}
	return c
}

// without is the class less the policies of another with the same names, nil when
// nothing is left. Names, because the policies may have been updated in between.
func (c *class) without(other *class) *class {
	var left []*policy
	for _, p := range c.policies {
		if !other.has(p.Name) {
			left = append(left, p)
		}
	}
	if len(left) == len(c.policies) {
		return c
	}
	return newClass(left)
}

func (c *class) has(name string) bool {
	for _, p := range c.policies {
		if p.Name == name {
			return true
		}
	}
	return false
}
