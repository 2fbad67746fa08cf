// Package chiroutes lets the limiter ask a chi router which route it will serve a request
// by, so that the table of policies can't disagree with the router:
//
//	r := chi.NewRouter()
//	limiter, err := ratelimit.New(ratelimit.Config{
//		Router: chiroutes.Router(r),
//		Routes: ratelimit.Routes{"GET /items/{id}": {"read"}, "POST /exports": {"export"}},
//		...
//	})
//	r.Use(limiter.Handler)
//	...
//	if err := chiroutes.Check(r, routes); err != nil { ... }
package chiroutes

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/seed-601ed181/ratelimit"
)

// Router asks the chi router on which limiter.Handler is mounted: the root, or a
// sub-router, whose patterns then begin below its mount. Patterns read as chi's
// RoutePattern reports them, with mounts and groups joined and without a slash at the
// end: "GET /api/items/{id}", "GET /files/*", "GET /". So routes that differ in nothing
// but that slash come under one policy.
//
// Middleware that changes where a request is routed belongs before the limiter in the
// stack: StripSlashes, CleanPath, GetHead, a method override. If such a one comes after
// it, a path that matches no route as it stands is still counted as what it matches
// without its trailing slashes or in its clean form; a path that matches one route as it
// stands and another after the middleware is counted as the first.
//
// Middleware that replaces the handler, such as RouteHeaders, can't be foreseen: state
// the policy inside it with [ratelimit.Limiter.For].
func Router(routes chi.Routes) ratelimit.Router {
	return func(r *http.Request) string {
		method, target := routed(r)
		for _, spelling := range [...]string{target, strings.TrimRight(target, "/"), path.Clean("/" + target)} {
			if pattern := find(routes, method, spelling); pattern != "" {
				return pattern
			}
		}
		return ""
	}
}

// routed is the method and path that chi's Mux routes by.
func routed(r *http.Request) (method, target string) {
	method, target = r.Method, r.URL.RawPath
	if target == "" {
		target = r.URL.Path
	}
	if rctx := chi.RouteContext(r.Context()); rctx != nil {
		if rctx.RoutePath != "" {
			target = rctx.RoutePath
		}
		if rctx.RouteMethod != "" {
			method = rctx.RouteMethod
		}
	}
	if target == "" {
		target = "/"
	}
	return method, target
}

func find(routes chi.Routes, method, target string) string {
	if target == "" {
		return ""
	}
	if pattern := routes.Find(chi.NewRouteContext(), method, target); pattern != "" {
		return method + " " + trimmed(pattern)
	}
	if method == http.MethodHead { // GetHead would serve it by the route for GET
		return find(routes, http.MethodGet, target)
	}
	return ""
}

// trimmed is the pattern as chi's RoutePattern has it. A sub-router's own "/" is found
// with none, one or two slashes at the end.
func trimmed(pattern string) string {
	if pattern = strings.TrimRight(pattern, "/"); pattern == "" {
		return "/"
	}
	return pattern
}

// Check returns an error that joins a [ratelimit.ConfigError] for every pattern that the
// router doesn't have. Call it when all routes are registered.
func Check(router chi.Routes, routes ratelimit.Routes) error {
	known := make(map[string]bool)
	err := chi.Walk(router, func(method, pattern string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		known[method+" "+trimmed(pattern)] = true
		known[trimmed(pattern)] = true
		return nil
	})
	if err != nil {
		return fmt.Errorf("ratelimit: chiroutes: %w", err)
	}
	var mistakes []error
	for _, pattern := range slices.Sorted(maps.Keys(routes)) {
		if !known[pattern] {
			mistakes = append(mistakes, &ratelimit.ConfigError{
				Path: fmt.Sprintf("Routes[%q]", pattern), Value: pattern, Reason: "must be a route of the chi router, as RoutePattern reports it: without a slash at the end",
			})
		}
	}
	return errors.Join(mistakes...)
}
