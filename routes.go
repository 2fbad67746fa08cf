package ratelimit

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// Routes names the policies of each route. An empty list means never limited. Path
// parameters are never part of a key: /items/1 and /items/2 share a counter.
//
// Without Config.Router a pattern is one of [http.ServeMux] ("GET /items/{id}",
// "api.example.com/", "POST /exports") and matches by ServeMux's rules: the most specific
// pattern wins, GET covers HEAD, unclean paths match where their clean form does. A
// router with other rules can disagree with that, so that a request in an odd spelling
// is served by one route and counted as another. A Router settles it.
type Routes map[string][]string

// Router tells by which pattern the router will serve the request, with the method in
// front ("GET /items/{id}") or without if the route has all methods; "" when by none. See
// [ServeMux], and package chiroutes for chi. Routes then has the router's own patterns;
// of a route reported with a method the one with it is looked up, for HEAD the one with
// GET next, and then the one without a method.
type Router func(*http.Request) (pattern string)

// ServeMux asks the mux itself. Mount the limiter around that mux.
func ServeMux(mux *http.ServeMux) Router {
	return func(r *http.Request) string {
		_, pattern := mux.Handler(r)
		return pattern
	}
}

// table matches requests to classes. A nil class means never limited.
type table struct {
	mux     *http.ServeMux // nil with a router
	router  Router
	classes map[string]*class
}

// class returns the class and the pattern of the route that the request matches, and
// whether it matches one.
func (t *table) class(r *http.Request) (c *class, pattern string, found bool) {
	switch {
	case t.router != nil:
		return t.reported(t.router(r))
	case t.mux == nil:
		return nil, "", false
	}
	h, pattern := t.mux.Handler(r)
	c, ok := t.classes[pattern]
	if _, matched := h.(route); !matched && c == nil {
		// ServeMux would redirect: the path matches in its clean form only. A router
		// that doesn't clean paths may serve anything here, so nothing is exempt.
		return nil, "", false
	}
	return c, pattern, ok
}

// reported is the class of a pattern that the router reports, and which pattern of ours
// that is.
func (t *table) reported(pattern string) (c *class, ours string, found bool) {
	candidates := [...]string{pattern, "", ""}
	if method, path, ok := strings.Cut(pattern, " "); ok {
		if method == http.MethodHead {
			candidates[1] = http.MethodGet + " " + path
		}
		candidates[2] = path
	}
	for _, ours := range candidates {
		if c, ok := t.classes[ours]; ok && ours != "" {
			return c, ours, true
		}
	}
	return nil, "", false
}

// route is what the table's mux finds for a path in its clean form.
type route struct{ http.Handler }

func newTable(routes Routes, router Router, policies map[string]*policy, mistake func(path string, value any, reason string)) table {
	if len(routes) == 0 {
		return table{}
	}
	t := table{router: router, classes: make(map[string]*class)}
	if router == nil {
		t.mux = http.NewServeMux()
	}
	for _, pattern := range slices.Sorted(maps.Keys(routes)) { // mistakes come in an order
		path := fmt.Sprintf("Routes[%q]", pattern)
		if t.mux != nil {
			if err := register(t.mux, pattern); err != nil {
				mistake(path, pattern, fmt.Sprintf("must be a pattern of http.ServeMux: %v", err))
			}
		}
		t.classes[pattern] = newClass(findPolicies(routes[pattern], policies, path, mistake))
	}
	return t
}

// sourcePlace is where ServeMux says that a pattern was registered: always here.
var sourcePlace = regexp.MustCompile(` \(registered at [^)]*\)`)

// register adds the pattern; ServeMux reports a bad one by a panic.
func register(mux *http.ServeMux, pattern string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			first, _, _ := strings.Cut(fmt.Sprint(p), ":\n") // an explanation follows
			err = errors.New(sourcePlace.ReplaceAllString(first, ""))
		}
	}()
	mux.Handle(pattern, route{http.NotFoundHandler()})
	return nil
}

// findPolicies looks up the policies by name and reports those that aren't there or
// are named twice.
func findPolicies(names []string, policies map[string]*policy, path string, mistake func(path string, value any, reason string)) []*policy {
	found := make([]*policy, 0, len(names))
	seen := make(map[string]bool)
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch p, ok := policies[name]; {
		case !ok:
			mistake(at, name, "must name one of the Policies (an empty list means never limited)")
		case seen[name]:
			mistake(at, name, "must not name a policy twice")
		default:
			seen[name] = true
			found = append(found, p)
		}
	}
	checkSum(path, found, mistake)
	return found
}

// checkSum refuses policies of one quota that together cost more than it has.
func checkSum(path string, policies []*policy, mistake func(path string, value any, reason string)) {
	sums := make(map[*quota]int64)
	for _, p := range policies {
		if p.CostOf != nil || p.Key != nil {
			continue
		}
		before := sums[p.quota]
		sums[p.quota] += p.cost(nil)
		if before > 0 && sums[p.quota] > p.quota.least() && p.cost(nil) <= p.quota.least() {
			mistake(path, nil, fmt.Sprintf("must not hold policies that together cost %d of quota %q, which has %d", sums[p.quota], p.quota.name, p.quota.least()))
		}
	}
}
