package chiroutes_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/chiroutes"
	"github.com/seed-601ed181/ratelimit/memstore"
)

// table gives every handler of a router a policy of its own, named after it.
var table = ratelimit.Routes{
	"GET /":                       {"root"},
	"GET /items":                  {"items"},
	"GET /items/{id}":             {"item"},
	"/search":                     {"search"},
	"POST /exports":               {"export"},
	"GET /files/*":                {"files"},
	"GET /files/{name}/export":    {"file-export"},
	"GET /api":                    {"api"},
	"GET /api/users/{id}":         {"user"},
	"GET /api/v2/reports/{year}":  {"report"},
	"POST /api/v2/reports/{year}": {"new-report"},
	"GET /healthz":                {}, // never limited
}

// served is a handler that says by its name which one it is and notes the policy that
// the request was charged under.
type served struct{ handler, policy string }

func (s *served) handle(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.handler = name
		if a, ok := ratelimit.FromContext(r.Context()); ok {
			s.policy = a.Policy
		}
		w.WriteHeader(http.StatusOK)
	}
}

func newLimiter(t testing.TB, router ratelimit.Router, routes ratelimit.Routes) *ratelimit.Limiter {
	t.Helper()
	limits := ratelimit.Limits{algorithms.FixedWindow{Limit: 1_000_000_000, Window: time.Hour}}
	policies := []ratelimit.Policy{{Name: "default", Limits: limits}}
	for _, names := range routes {
		for _, name := range names {
			policies = append(policies, ratelimit.Policy{Name: name, Limits: limits})
		}
	}
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: memstore.New(memstore.Config{}), Key: ratelimit.ClientIP(),
		Policies: policies, Routes: routes, Router: router, Default: "default",
	})
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

// newChi is a router with mounts, sub-routers, groups and wildcards.
func newChi(t testing.TB, s *served, before, after []func(http.Handler) http.Handler) http.Handler {
	t.Helper()
	r := chi.NewRouter()
	r.Use(before...)
	r.Use(newLimiter(t, chiroutes.Router(r), table).Handler)
	r.Use(after...)
	r.Get("/", s.handle("root"))
	r.Get("/items", s.handle("items"))
	r.Route("/items/{id}", func(r chi.Router) { r.Get("/", s.handle("item")) })
	r.HandleFunc("/search", s.handle("search"))
	r.Group(func(r chi.Router) { r.Post("/exports", s.handle("export")) })
	r.Get("/files/*", s.handle("files"))
	r.Get("/files/{name}/export", s.handle("file-export"))
	api := chi.NewRouter()
	api.Get("/", s.handle("api"))
	api.Get("/users/{id}", s.handle("user"))
	v2 := chi.NewRouter()
	v2.Get("/reports/{year}", s.handle("report"))
	v2.Post("/reports/{year}", s.handle("new-report"))
	api.Mount("/v2", v2)
	r.Mount("/api", api)
	r.Get("/healthz", s.handle("healthz"))
	return r
}

func newServeMux(t testing.TB, s *served) http.Handler {
	t.Helper()
	mux, routes := http.NewServeMux(), ratelimit.Routes{}
	for pattern, names := range table {
		name := "healthz"
		if len(names) > 0 {
			name = names[0]
		}
		pattern = strings.TrimSuffix(pattern, "*") + strings.Repeat("{rest...}", strings.Count(pattern, "*"))
		if name == "root" {
			pattern = "GET /{$}"
		}
		routes[pattern] = names
		mux.HandleFunc(pattern, s.handle(name))
	}
	return newLimiter(t, ratelimit.ServeMux(mux), routes).Handler(mux)
}

type stack = []func(http.Handler) http.Handler

// routers are the routers that every spelling is tried on.
func routers(t testing.TB, s *served) map[string]http.Handler {
	return map[string]http.Handler{
		"chi":                     newChi(t, s, nil, nil),
		"chi, cleaned before":     newChi(t, s, stack{middleware.CleanPath, middleware.StripSlashes, middleware.GetHead}, nil),
		"chi, stripped before":    newChi(t, s, stack{middleware.StripSlashes}, nil),
		"chi, GetHead after":      newChi(t, s, nil, stack{middleware.GetHead}),
		"ServeMux":                newServeMux(t, s),
		"ServeMux, StripPrefix":   http.StripPrefix("", newServeMux(t, s)),
		"chi inside a ServeMux":   inServeMux(newChi(t, s, nil, nil)),
		"chi, redirected slashes": newChi(t, s, stack{middleware.RedirectSlashes}, nil),
	}
}

func inServeMux(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	return mux
}

// agree fails the test if the request reached a handler under another policy than its
// own: the property of all tests here.
func agree(t *testing.T, router string, h http.Handler, s *served, r *http.Request) {
	t.Helper()
	*s = served{}
	h.ServeHTTP(httptest.NewRecorder(), r)
	want := s.handler
	if want == "healthz" {
		want = ""
	}
	if s.policy != want {
		t.Errorf("%s: %s %s ran %q under policy %q", router, r.Method, r.RequestURI, s.handler, s.policy)
	}
}

func spelledRequest(method, target string) (r *http.Request, ok bool) {
	defer func() { ok = recover() == nil }()
	return httptest.NewRequest(method, target, nil), true
}

func TestNoSpellingReachesAHandlerUnderAnotherPolicy(t *testing.T) {
	var s served
	all := routers(t, &s)
	var targets []string
	for _, path := range []string{
		"/", "/items", "/items/7", "/search", "/exports", "/files/a/b", "/files/a/export", "/api", "/api/", "/api/users/1",
		"/api/v2/reports/2026", "/healthz", "/nowhere",
	} {
		last := path[strings.LastIndex(path, "/"):]
		targets = append(targets,
			path, path+"/", path+"//", "/"+path, "//"+path, "/."+path, "/x/.."+path, "/healthz/.."+path, "/search/.."+path,
			path+"/.", path+"/..", path+"/../healthz", path+"/%2e%2e/healthz", "/%2e%2e"+path, "/%2f"+path, strings.ToUpper(path),
			strings.Replace(path, "e", "%65", 1), strings.Replace(path, "/", "%2F", 1), strings.TrimSuffix(path, last)+"%2F"+strings.TrimPrefix(last, "/"),
			path+"?x=/healthz", path+"#/healthz", path+";a=b", path+"%00", path+"%20", "http://example.com"+path, path+"%2f..%2fhealthz",
			"/files"+path, "/api"+path, path+strings.Repeat("/a", 2000),
		)
	}
	for router, h := range all {
		for _, target := range targets {
			for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "BREW"} {
				r, ok := spelledRequest(method, target)
				if !ok {
					continue
				}
				agree(t, router, h, &s, r)
				r, _ = spelledRequest(method, target)
				r.Header.Set("X-HTTP-Method-Override", "POST")
				agree(t, router, h, &s, r)
			}
		}
	}
}

func FuzzSpellings(f *testing.F) {
	for _, seed := range []string{"/items/../healthz", "//search", "/files/%2e%2e/export", "/api/v2//reports/1/", "/items/7%2f", "/%69tems"} {
		f.Add("GET", seed)
		f.Add("HEAD", seed)
	}
	var s served
	all := routers(f, &s)
	f.Fuzz(func(t *testing.T, method, target string) {
		r, ok := spelledRequest(method, target)
		if !ok {
			return
		}
		for router, h := range all {
			agree(t, router, h, &s, r.Clone(r.Context()))
		}
	})
}

func TestMiddlewareAfterTheLimiterFindsNoCheaperRoute(t *testing.T) {
	var s served
	h := newChi(t, &s, nil, stack{middleware.CleanPath, middleware.StripSlashes})
	for _, target := range []string{"/items/", "/search//", "//search", "/api/users/1/", "/api//users/1", "/x/../search"} {
		r := httptest.NewRequest("GET", target, nil)
		agree(t, "chi, cleaned after", h, &s, r)
		if s.handler == "" {
			t.Errorf("%s reached no handler: the test shows nothing", target)
		}
	}
}

func TestSubRouter(t *testing.T) {
	var s served
	routes := ratelimit.Routes{"GET /users/{id}": {"user"}}
	root, api := chi.NewRouter(), chi.NewRouter()
	api.Use(newLimiter(t, chiroutes.Router(api), routes).Handler)
	api.Get("/users/{id}", s.handle("user"))
	root.Mount("/api", api)
	agree(t, "sub-router", root, &s, httptest.NewRequest("GET", "/api/users/1", nil))
	if s.handler != "user" {
		t.Error("the request reached no handler")
	}
	if err := chiroutes.Check(api, routes); err != nil {
		t.Error(err)
	}
}

// RouteHeaders replaces the handler behind the router's back; For inside it is right.
func TestRouteHeadersNeedFor(t *testing.T) {
	var s served
	r := chi.NewRouter()
	limiter := newLimiter(t, chiroutes.Router(r), ratelimit.Routes{"GET /": {"root"}, "GET /dear": {"dear"}})
	r.Use(limiter.Handler)
	dear := chi.NewRouter()
	dear.With(limiter.For("dear")).Get("/", s.handle("dear"))
	r.Use(middleware.RouteHeaders().Route("Host", "dear.example.com", func(http.Handler) http.Handler { return dear }).Handler)
	r.Get("/", s.handle("root"))
	for host, want := range map[string]string{"dear.example.com": "dear", "example.com": "root"} {
		request := httptest.NewRequest("GET", "/", nil)
		request.Host = host
		request.Header.Set("Host", host)
		agree(t, host, r, &s, request)
		if s.handler != want {
			t.Errorf("%s ran %q, want %q", host, s.handler, want)
		}
	}
}

func TestCheckNamesEveryRouteThatIsNotThere(t *testing.T) {
	r := chi.NewRouter()
	r.Get("/items/{id}", func(http.ResponseWriter, *http.Request) {})
	r.Route("/api", func(r chi.Router) { r.Post("/exports", func(http.ResponseWriter, *http.Request) {}) })
	if err := chiroutes.Check(r, ratelimit.Routes{"GET /items/{id}": nil, "/items/{id}": nil, "POST /api/exports": nil}); err != nil {
		t.Error(err)
	}
	err := chiroutes.Check(r, ratelimit.Routes{"GET /items/{name}": nil, "GET /api/exports": nil})
	want := "ratelimit: Routes[\"GET /api/exports\"] must be a route of the chi router, as RoutePattern reports it: without a slash at the end, got \"GET /api/exports\"\n" +
		"ratelimit: Routes[\"GET /items/{name}\"] must be a route of the chi router, as RoutePattern reports it: without a slash at the end, got \"GET /items/{name}\""
	if fmt.Sprint(err) != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}
