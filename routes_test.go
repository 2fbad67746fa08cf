package ratelimit

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// routesUnderTest has a policy of its own for each pattern, named after it below.
var routesUnderTest = map[string]string{
	"/":                        "root",
	"/items":                   "items",
	"GET /items/{id}":          "item",
	"POST /items/{id}":         "change",
	"GET /items/new":           "new",
	"/files/{path...}":         "files",
	"/tree/":                   "tree",
	"/exact/{$}":               "exact",
	"GET /verb":                "verb",
	"HEAD /head":               "head",
	"CONNECT /tunnel":          "tunnel",
	"api.example.com/":         "api",
	"api.example.com/items":    "api-items",
	"GET api.example.com/only": "api-only",
	"/a%2Fb":                   "slash",
	"/healthz":                 "", // never limited
}

func tableUnderTest(t testing.TB, without ...string) *table {
	t.Helper()
	routes, policies := Routes{}, map[string]*policy{}
	for pattern, name := range routesUnderTest {
		routes[pattern] = nil
		if name != "" {
			routes[pattern] = []string{name}
			policies[name] = &policy{Policy: Policy{Name: name}, quota: &quota{name: name}}
		}
	}
	for _, pattern := range without {
		delete(routes, pattern)
	}
	out := newTable(routes, nil, policies, func(path string, value any, reason string) { t.Errorf("%s %s, got %v", path, reason, value) })
	return &out
}

// named is the policy that a table gives a request, "never" or "default".
func named(routes *table, r *http.Request) string {
	switch class, _, found := routes.class(r); {
	case !found:
		return "default"
	case class == nil:
		return "never"
	default:
		return class.policies[0].Name
	}
}

// routeCases are requests and the policies they come under.
var routeCases = []struct{ method, target, policy string }{
	{"GET", "/", "root"},
	{"GET", "/anything/else", "root"},
	{"GET", "/items", "items"},
	{"DELETE", "/items", "items"},
	{"GET", "/items?page=2", "items"},
	{"GET", "/items/42", "item"},
	{"HEAD", "/items/42", "item"}, // GET covers HEAD
	{"POST", "/items/42", "change"},
	{"PUT", "/items/42", "root"},
	{"GET", "/items/new", "new"},
	{"POST", "/items/new", "change"},
	{"GET", "/items/42/", "root"},
	{"GET", "/items/", "root"},
	{"GET", "/files/a/b/c", "files"},
	{"GET", "/files/", "files"},
	{"GET", "/tree/leaf", "tree"},
	{"GET", "/exact/", "exact"},
	{"GET", "/exact/more", "root"},
	{"GET", "/verb", "verb"},
	{"HEAD", "/verb", "verb"},
	{"POST", "/verb", "root"},
	{"get", "/verb", "root"}, // methods have a case
	{"HEAD", "/head", "head"},
	{"GET", "/head", "root"},
	{"CONNECT", "/tunnel", "tunnel"},
	{"CONNECT", "/items", "items"},
	{"GET", "/tunnel", "root"},
	{"GET", "http://api.example.com/", "api"},
	{"GET", "http://api.example.com:8080/items", "api-items"}, // without the port
	{"GET", "http://api.example.com/only", "api-only"},
	{"POST", "http://api.example.com/only", "api"},
	{"GET", "http://www.example.com/only", "root"},
	{"GET", "http://api.example.com/items/42", "api"},
	{"GET", "/a%2Fb", "slash"},
	{"GET", "/a/b", "root"},
	{"GET", "/Items", "root"},
	{"GET", "/item%73", "items"},
	{"GET", "/healthz", "never"},
	{"GET", "/healthz/", "root"},
	{"GET", "/healthz/x", "root"},
	{"GET", "/healthz/../items", "items"},
	// Unclean paths come under what their clean form does.
	{"GET", "/items//42", "item"},
	{"GET", "/./items/42", "item"},
	{"GET", "/x/../items/42", "item"},
	{"GET", "//items", "items"},
	{"GET", "/tree//leaf", "tree"},
	{"GET", "/../../items", "items"},
	// Where ServeMux would add a slash, the route with the slash decides.
	{"GET", "/tree", "tree"},
	{"CONNECT", "/tree", "tree"},
}

func TestRoutesMatchAsServeMux(t *testing.T) {
	routes := tableUnderTest(t)
	for _, tc := range routeCases {
		if got := named(routes, httptest.NewRequest(tc.method, tc.target, nil)); got != tc.policy {
			t.Errorf("%s %s: got %s, want %s", tc.method, tc.target, got, tc.policy)
		}
	}
}

func TestWhatNoRouteMatchesIsDefault(t *testing.T) {
	routes := tableUnderTest(t, "/")
	for _, tc := range routeCases {
		want := tc.policy
		if want == "root" {
			want = "default"
		}
		if got := named(routes, httptest.NewRequest(tc.method, tc.target, nil)); got != want {
			t.Errorf("%s %s: got %s, want %s", tc.method, tc.target, got, want)
		}
	}
	if got := named(&table{}, httptest.NewRequest("GET", "/", nil)); got != "default" {
		t.Errorf("without routes: got %s", got)
	}
	r := httptest.NewRequest("OPTIONS", "*", nil)
	if got := named(routes, r); got != "default" {
		t.Errorf("OPTIONS *: got %s", got)
	}
}

// FuzzRoutes: no method, host or path makes the table panic, and it finds what ServeMux
// itself would serve.
func FuzzRoutes(f *testing.F) {
	for _, tc := range routeCases {
		u, err := url.Parse(tc.target)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(tc.method, u.Host, u.Path, u.RawPath)
	}
	for _, path := range []string{"", "*", "%", "/{id}", "/items/{id}", "/%zz", "/..", "a", "/\x00", "/a\x7f/ü", "?", "//", strings.Repeat("/..", 100)} {
		f.Add("GET", "[::1]:80", path, path)
		f.Add("CONNECT", "a:b:c", path, "")
	}
	served := tableUnderTest(f)
	mux := http.NewServeMux()
	var got string
	for pattern, name := range routesUnderTest {
		if name == "" {
			name = "never"
		}
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) { got = name })
	}
	f.Fuzz(func(t *testing.T, method, host, path, rawPath string) {
		r := &http.Request{Method: method, Host: host, URL: &url.URL{Path: path, RawPath: rawPath}, RequestURI: path, Header: http.Header{}}
		class := named(served, r)
		got = ""
		mux.ServeHTTP(httptest.NewRecorder(), r)
		if got != "" && got != class {
			t.Errorf("%s %q %q: counted as %s, served as %s", method, host, path, class, got)
		}
	})
}
