package ratelimit

import (
	"slices"

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
	// Name is what routes and For call it: 1 to 64 of A-Z a-z 0-9 _ . -
	Name string
	// Limits are the rules. Required, unless another policy of the same Quota has them.
	Limits Limits
	// Tiers replaces Limits for keys of a tier. A key of no tier, or of one not listed
	// here, has Limits.
	Tiers map[string]Limits
	// Quota names the counters this policy draws on; "" means its own Name. Policies
	// with the same Quota draw on the same counters: that is how a search costs five
	// reads. Exactly one of them states the Limits and Tiers.
	Quota string
	// Cost is what one request takes, in units; 0 means 1.
	Cost int64
}

// quota is the counters that one or more policies draw on.
type quota struct {
	name   string
	limits Limits
	tiers  map[string]Limits
}

func (q *quota) limitsOf(tier string) Limits {
	if limits, ok := q.tiers[tier]; ok {
		return limits
	}
	return q.limits
}

// policy is a Policy in its compiled form.
type policy struct {
	name  string
	quota *quota
	cost  int64
}

// class is the policies that apply to a request, and what they take of each quota.
type class struct {
	policies []*policy
	demands  []demand
}

type demand struct {
	*quota
	cost   int64
	policy string
}

func newClass(policies []*policy) *class {
	c := &class{policies: policies}
	for _, p := range policies {
		i := slices.IndexFunc(c.demands, func(d demand) bool { return d.quota == p.quota })
		if i < 0 {
			c.demands = append(c.demands, demand{p.quota, p.cost, p.name})
		} else {
			c.demands[i].cost += p.cost
		}
	}
	return c
}

// without is the class less the policies of another, nil when nothing is left.
func (c *class) without(other *class) *class {
	var left []*policy
	for _, p := range c.policies {
		if !slices.Contains(other.policies, p) {
			left = append(left, p)
		}
	}
	switch len(left) {
	case 0:
		return nil
	case len(c.policies):
		return c
	}
	return newClass(left)
}
