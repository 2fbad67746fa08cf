package ratelimit

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// Config says who is counted, against what, and what happens then. It is read once, by
// [New]; changing it later changes nothing.
type Config struct {
	_ [0]func() // field names are required in literals

	// Store holds the counters. Required: redisstore.New or redisstore.Open for a
	// service of several instances, memstore.New for one.
	Store Store
	// Key says who is asking. Required. A request whose Key comes back zero is counted
	// under one anonymous key that all such requests share.
	Key KeyFunc
	// Policies are the cost classes. At least one.
	Policies []Policy
	// Routes names the policies of each route, for [Limiter.Handler].
	Routes Routes
	// Router tells which route the router will serve a request by, so that Routes can't
	// disagree with it. nil means that Routes are matched by http.ServeMux's rules.
	Router Router
	// Default names the policy of every request that no route matches, unknown paths
	// included, or is [Unlimited]. It may be empty only when there is one policy,
	// which then is the default.
	Default string
	// Failure is what happens while the Store can't decide; the zero value is
	// [FailLocal].
	Failure FailureMode
	// Timeout bounds how long a request waits for the Store; 0 means 100 ms, negative
	// means no bound but the request's own. Whichever deadline is earlier counts. The
	// in-process store never waits.
	Timeout time.Duration
	// Instances is how many instances share the limits: while the Store is away, each of
	// them admits its part of every limit under [FailLocal], at least one request. 0 or
	// 1 means that each admits the whole limit.
	Instances int
	// Recheck bounds how long the limiter answers a request that is over its limit from
	// what it remembers of the refusal before, without asking the Store; 0 means 1 s,
	// negative means that each request asks. It can answer because nothing but time, and
	// what it sees, makes a refused request pass, and it asks when it could pass. Units
	// given back or forgotten by another instance take effect that much later.
	Recheck time.Duration
	// MaxWaiting is how many may wait in this process at once, for all keys together:
	// requests that a policy with [Delay] holds, callers of [Limiter.Wait], and calls of a
	// [Transport]; 0 means 10,000. Beyond it, who would have to wait is refused without asking the Store for a
	// turn. How many wait for one key is bounded by the Capacity of its bucket.
	MaxWaiting int
	// Skip names requests that pass uncounted and without headers, such as health
	// checks from a known network. nil skips none. Never decide it by something a
	// client can write.
	Skip func(*http.Request) bool
	// Deny names requests that are answered 403, uncounted, such as those of blocked
	// networks. nil denies none.
	Deny func(*http.Request) bool
	// CountPreflights counts CORS preflights, which are OPTIONS requests with Origin
	// and Access-Control-Request-Method. They pass uncounted otherwise, because a browser sends
	// one for each request that it asks leave for, and can't read a refusal.
	CountPreflights bool
	// Refused answers a refused request instead of the built-in answer. The headers
	// are already set. See [Refusal].
	Refused func(http.ResponseWriter, *http.Request, Refusal)
	// Headers says how decisions read on the wire; the zero value is X-RateLimit-Limit,
	// -Remaining and -Reset, as GitHub sends them.
	Headers Headers
	// Hooks are told what was decided.
	Hooks Hooks
	// HashKey keys the hash that stands for identities which are secret, long or hold
	// unusual bytes. Give every instance the same 32 random bytes; changing them
	// starts those counters anew. Empty hashes without a secret.
	HashKey []byte
	// Logger receives store failures and warnings of misuse. nil means slog.Default().
	Logger *slog.Logger
	// Silence turns off the warnings of these codes, see [Code].
	Silence []Code
}

const (
	defaultTimeout = 100 * time.Millisecond
	defaultRecheck = time.Second
	defaultWaiting = 10_000
	maxName        = 64
)

// compiled is a checked Config in the form that requests use. It never changes.
type compiled struct {
	Config
	policies map[string]*policy
	table    table
	class    *class // of Default; nil for Unlimited
	wire     wire
}

// compile checks the Config and returns every mistake in it, joined.
func (c Config) compile() (*compiled, error) {
	var mistakes []error
	mistake := func(path string, value any, reason string) {
		mistakes = append(mistakes, &ConfigError{path, value, reason})
	}

	if isNil(c.Store) {
		mistake("Store", nil, "is required: redisstore.New(rdb), or memstore.New(memstore.Config{}) for a single instance")
	}
	if c.Key == nil {
		mistake("Key", nil, "is required: who is counted, such as ratelimit.FirstOf(ratelimit.APIKey(lookup), ratelimit.ClientIP())")
	}
	if !c.Failure.valid() {
		mistake("Failure", int(c.Failure), "must be FailLocal, FailOpen or FailClosed")
	}

	if c.Instances < 0 {
		mistake("Instances", c.Instances, "must be >= 0: how many instances share the limits")
	}

	if c.MaxWaiting < 0 {
		mistake("MaxWaiting", c.MaxWaiting, "must be >= 0: how many may wait at once (0 means 10,000)")
	}

	out := &compiled{Config: c}
	out.policies = compilePolicies(c.Policies, mistake)
	out.table = newTable(c.Routes, c.Router, out.policies, mistake)
	out.class = compileDefault(c, out.policies, mistake)
	out.wire = c.Headers.compile(mistake)
	checkSilence(c.Silence, mistake)

	if out.Timeout == 0 {
		out.Timeout = defaultTimeout
	}
	if out.Recheck == 0 {
		out.Recheck = defaultRecheck
	}
	if out.MaxWaiting == 0 {
		out.MaxWaiting = defaultWaiting
	}
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	out.HashKey = slices.Clone(c.HashKey)
	return out, errors.Join(mistakes...)
}

// skips says whether the request passes uncounted.
func (c *compiled) skips(r *http.Request) bool {
	if !c.CountPreflights && r.Method == http.MethodOptions &&
		r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != "" {
		return true
	}
	return c.Skip != nil && c.Skip(r)
}

// checkFor checks the policies that For was given.
func (c *compiled) checkFor(names []string) error {
	var mistakes []error
	mistake := func(path string, value any, reason string) {
		mistakes = append(mistakes, &ConfigError{path, value, reason})
	}
	if len(names) == 0 {
		mistake("For", nil, "must name at least one of the Policies")
	}
	findPolicies(names, c.policies, "For", mistake)
	return errors.Join(mistakes...)
}

// classOf is the class of policies that checkFor has checked.
func (c *compiled) classOf(names []string) *class {
	var found []*policy
	for _, name := range names {
		found = append(found, c.policies[name])
	}
	return newClass(found)
}

// check checks rules that come at run time, of a quota in which a policy delays or not.
func (l Limits) check(delays bool) (Limits, error) {
	var mistakes []error
	checked := checkLimits("Limits", l, func(path string, value any, reason string) {
		mistakes = append(mistakes, &ConfigError{path, value, reason})
	})
	if delays && len(mistakes) == 0 {
		if err := checked.checkQueue("Limits"); err != nil {
			return nil, err
		}
	}
	return checked, errors.Join(mistakes...)
}

func compileDefault(c Config, policies map[string]*policy, mistake func(string, any, string)) *class {
	name := c.Default
	switch {
	case name == Unlimited:
		return nil
	case name == "" && len(c.Policies) == 1:
		name = c.Policies[0].Name
	case name == "":
		mistake("Default", nil, fmt.Sprintf("is required with several policies: the one for requests that no route matches, or ratelimit.Unlimited (%q)", Unlimited))
		return nil
	}
	p, ok := policies[name]
	if !ok {
		if c.Default != "" {
			mistake("Default", name, fmt.Sprintf("must name one of the Policies, or be %q", Unlimited))
		}
		return nil
	}
	return newClass([]*policy{p})
}

func compilePolicies(policies []Policy, mistake func(string, any, string)) map[string]*policy {
	if len(policies) == 0 {
		mistake("Policies", nil, "must hold at least one policy")
	}
	byName := make(map[string]*policy)
	byQuota := make(map[string]*quota)
	stated := make(map[*quota]string) // which policy states the limits

	for i, p := range policies {
		path := policyPath(i, p)
		checkPolicy(path, p, mistake)
		if _, twice := byName[p.Name]; twice {
			mistake(path+".Name", p.Name, "must be the name of one policy only")
		}
		name := p.Quota
		if name == "" {
			name = p.Name
		}
		q, ok := byQuota[name]
		if !ok {
			q = &quota{name: name}
			byQuota[name] = q
		}
		q.delays = q.delays || p.Action == Delay
		byName[p.Name] = &policy{Policy: p, quota: q}

		if len(p.Limits) == 0 && len(p.Tiers) == 0 && p.LimitsOf == nil {
			continue
		}
		if other, ok := stated[q]; ok {
			mistake(path+".Limits", nil, fmt.Sprintf("must be left out: %s already states the limits of quota %q", other, name))
			continue
		}
		stated[q] = path
		q.limits, q.tiers = checkLimits(path+".Limits", p.Limits, mistake), make(map[string]Limits)
		if p.LimitsOf != nil {
			q.own, q.cache = p.LimitsOf, &cache[ownLimits]{keep: limitsKeptFor, size: limitsKept}
		}
		for _, tier := range slices.Sorted(maps.Keys(p.Tiers)) { // mistakes come in an order
			at := fmt.Sprintf("%s.Tiers[%q]", path, tier)
			if tier == "" {
				mistake(at, nil, "must be of a tier with a name: Limits are for keys without one")
			}
			q.tiers[tier] = checkLimits(at, p.Tiers[tier], mistake)
		}
	}

	for i, p := range policies {
		q := byName[p.Name].quota
		if _, ok := stated[q]; !ok {
			mistake(policyPath(i, p)+".Limits", nil, "is required: a limit and its window, such as algorithms.SlidingWindowCounter{Limit: 100, Window: time.Minute}")
			continue
		}
		if p.CostOf == nil {
			checkCost(policyPath(i, p)+".Cost", max(1, p.Cost), q, mistake)
		}
		checkMaxWait(policyPath(i, p)+".MaxWait", p.MaxWait, q, mistake)
		if p.CountIf != nil && q.delays {
			mistake(policyPath(i, p)+".CountIf", nil, "must be left out, as a policy of its quota has Action: Delay: a turn that was used can't be given back")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byQuota)) {
		if q := byQuota[name]; q.delays {
			checkQueues(stated[q], q, mistake)
		}
	}
	separateItems(policies, byName)
	return byName
}

// separateItems gives each policy the dots with which "name.1" is no other policy's item,
// whatever its limits, which may come at run time.
func separateItems(policies []Policy, byName map[string]*policy) {
	taken := make(map[string]bool) // a policy's name less the digits at its end, or with its dots
	for name := range byName {
		if stem := strings.TrimRight(name, "0123456789"); stem != name {
			taken[stem] = true
		}
	}
	for _, p := range policies {
		dots := "."
		for taken[p.Name+dots] {
			dots += "."
		}
		taken[p.Name+dots] = true
		byName[p.Name].dots = dots
	}
}

// checkPolicy checks what concerns the policy alone.
func checkPolicy(path string, p Policy, mistake func(string, any, string)) {
	if why := badName(p.Name); why != "" {
		mistake(path+".Name", p.Name, why)
	}
	if p.Quota != "" {
		if why := badName(p.Quota); why != "" {
			mistake(path+".Quota", p.Quota, why)
		}
	}
	if p.Cost < 0 {
		mistake(path+".Cost", p.Cost, "must be >= 0 (0 means 1)")
	}
	if p.Cost != 0 && p.CostOf != nil {
		mistake(path+".Cost", p.Cost, "must be left out with CostOf")
	}
	if p.EnforcePercent < 0 || p.EnforcePercent > 100 {
		mistake(path+".EnforcePercent", p.EnforcePercent, "must be between 1 and 100, or 0 for 100")
	}
	if p.Shadow && p.EnforcePercent != 0 {
		mistake(path+".EnforcePercent", p.EnforcePercent, "must be left out with Shadow")
	}
	checkAction(path, p, mistake)
	if p.Penalty != (Penalty{}) {
		checkRule(path+".Penalty", p.Penalty.refusals(), map[string]string{"Limit": "Refusals", "Window": "Window"}, mistake)
		checkRule(path+".Penalty", p.Penalty.block(), map[string]string{"Per": "Block"}, mistake)
	}
}

// checkRule reports the mistakes of a rule under the names its fields have at path.
func checkRule(path string, a algorithms.Algorithm, names map[string]string, mistake func(string, any, string)) {
	for _, err := range unjoin(a.Validate()) {
		var field *algorithms.FieldError
		if errors.As(err, &field) {
			name := field.Field
			if other, ok := names[name]; ok {
				name = other
			}
			mistake(path+"."+name, field.Value, field.Reason)
		}
	}
}

func policyPath(i int, p Policy) string {
	if p.Name == "" {
		return fmt.Sprintf("Policies[%d]", i)
	}
	return fmt.Sprintf("Policies[%q]", p.Name)
}

// checkLimits returns the limits that are rules, as values: a rule given by pointer
// could change later.
func checkLimits(path string, limits Limits, mistake func(string, any, string)) Limits {
	if len(limits) == 0 {
		mistake(path, nil, "must hold at least one limit")
	}
	var checked Limits
	for i, a := range limits {
		at := fmt.Sprintf("%s[%d]", path, i)
		v := reflect.Indirect(reflect.ValueOf(a))
		if !v.IsValid() {
			mistake(at, nil, "must be a rule, not nil")
			continue
		}
		a = v.Interface().(algorithms.Algorithm)
		checkRule(at, a, nil, mistake)
		for j, other := range checked {
			if other.Shape() == a.Shape() {
				mistake(at, a.String(), fmt.Sprintf("must not share a counter with [%d]: give it another window or algorithm", j))
			}
		}
		checked = append(checked, a)
	}
	return checked
}

// checkCost refuses a cost that some key could never pay.
func checkCost(path string, cost int64, q *quota, mistake func(string, any, string)) {
	check := func(whose string, limits Limits) {
		for _, a := range limits {
			if a.Validate() != nil {
				continue
			}
			if most := a.Parameters()[0]; cost > most {
				mistake(path, cost, fmt.Sprintf("must be <= %d, or %swould never be admitted: %v", most, whose, a))
			}
		}
	}
	check("it ", q.limits)
	for _, tier := range slices.Sorted(maps.Keys(q.tiers)) {
		check(fmt.Sprintf("tier %q ", tier), q.tiers[tier])
	}
}

func badName(name string) string {
	const charset = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
	switch {
	case name == Unlimited:
		return "must not be a reserved name"
	case name == "" || len(name) > maxName || strings.Trim(name, charset) != "":
		return "must be 1 to 64 of A-Z a-z 0-9 _ . -"
	}
	return ""
}

// isNil also finds a nil pointer in an interface, the usual way to pass no store.
func isNil(store Store) bool {
	if store == nil {
		return true
	}
	v := reflect.ValueOf(store)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

func unjoin(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}
