package ratelimit

import (
	"fmt"
	"net/http"
	"sort"
)

// Routes names the policies of each route. A pattern is one of [http.ServeMux]
// ("GET /items/{id}", "api.example.com/", "POST /exports") and matches by ServeMux's
// rules: the most specific pattern wins, GET covers HEAD, unclean paths match where
// their clean form does. An empty list means never limited.
//
// Path parameters are never part of a key: /items/1 and /items/2 share a counter.
type Routes map[string][]string

// table matches requests to classes. A nil class means never limited.
type table struct {
	mux     *http.ServeMux
	classes map[string]*class
}

// class returns the class of the route that the request matches, and whether it
// matches one.
func (t *table) class(r *http.Request) (*class, bool) {
	if t.mux == nil {
		return nil, false
	}
	_, pattern := t.mux.Handler(r)
	c, ok := t.classes[pattern]
	return c, ok
}

func newTable(routes Routes, policies map[string]*policy, mistake func(path string, value any, reason string)) table {
	if len(routes) == 0 {
		return table{}
	}
	t := table{mux: http.NewServeMux(), classes: make(map[string]*class)}
	patterns := make([]string, 0, len(routes))
	for pattern := range routes {
		patterns = append(patterns, pattern)
	}
	sort.Strings(patterns) // a conflict is reported the same way each time
	for _, pattern := range patterns {
		path := fmt.Sprintf("Routes[%q]", pattern)
		if err := register(t.mux, pattern); err != nil {
			mistake(path, pattern, fmt.Sprintf("must be a pattern of http.ServeMux: %v", err))
		}
		named := findPolicies(routes[pattern], policies, path, mistake)
		if len(named) == 0 {
			t.classes[pattern] = nil
		} else {
			t.classes[pattern] = newClass(named)
		}
	}
	return t
}

// register adds the pattern; ServeMux reports a bad one by a panic.
func register(mux *http.ServeMux, pattern string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	mux.Handle(pattern, http.NotFoundHandler())
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
	return found
}
