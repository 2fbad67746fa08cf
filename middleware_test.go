package ratelimit_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	chimiddleware "github.com/go-chi/chi/v5/middleware"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
)

// Who is counted.

func TestB06_AConnectionWithoutAnAddressIsOneKey(t *testing.T) {
	for _, addr := range []string{"", "@", "pipe"} {
		t.Run(addr, func(t *testing.T) {
			store := newCounting(exampleStore())
			h := build(t, ratelimit.Config{Store: store}).Handler(ok)
			wantStatuses(t, statuses(h, 3, func(int) *http.Request { return newRequest("GET", "/", addr) }), 200, 200, 429)
			if len(store.keys) != 1 {
				t.Errorf("got keys %v, want one", store.keys)
			}
		})
	}
}

func TestB07_AnonymousCallersAreCountedByTheirAddress(t *testing.T) {
	h := build(t, ratelimit.Config{Key: everyone}).Handler(ok)
	wantStatuses(t, statuses(h, 3, func(int) *http.Request { return newRequest("GET", "/", "203.0.113.1:1") }), 200, 200, 429)
	resp := send(h, newRequest("GET", "/", "203.0.113.2:1"))
	wantStatuses(t, []int{resp.StatusCode}, 200)
	wantHeaders(t, resp.Header, "X-RateLimit-Remaining", "1")
}

func TestB07_NobodyFoundIsOneKeyNotUnlimited(t *testing.T) {
	h := build(t, ratelimit.Config{Key: ratelimit.UserID(contextUser)}).Handler(ok)
	wantStatuses(t, statuses(h, 4, func(i int) *http.Request {
		return newRequest("GET", "/", fmt.Sprintf("203.0.113.%d:1", i))
	}), 200, 200, 429, 429)
}

type userKey struct{}

func contextUser(ctx context.Context) string {
	user, _ := ctx.Value(userKey{}).(string)
	return user
}

// authenticated stands for the authentication around the limiter.
func authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, r.Header.Get("User"))))
	})
}

var everyone = ratelimit.FirstOf(ratelimit.APIKey(accounts), ratelimit.UserID(contextUser), ratelimit.ClientIP())

func TestB10_UsersBehindOneAddressAreCountedApart(t *testing.T) {
	h := authenticated(build(t, ratelimit.Config{Key: everyone}).Handler(ok))
	for _, user := range []string{"ann", "ben"} {
		wantStatuses(t, statuses(h, 3, func(int) *http.Request { return newRequest("GET", "/", peer, "User", user) }), 200, 200, 429)
	}
}

func TestB11_AnUnverifiedKeyIsNoIdentity(t *testing.T) {
	for _, tc := range []struct {
		name   string
		header []string
	}{
		{"alone", nil},
		{"beside a valid bearer", []string{"Authorization", "Bearer k-alice"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := build(t, ratelimit.Config{Key: everyone, Policies: []ratelimit.Policy{policy("api", 3)}}).Handler(ok)
			wantStatuses(t, statuses(h, 30, func(i int) *http.Request {
				return newRequest("GET", "/", peer, append(tc.header, "X-API-Key", fmt.Sprintf("random-%d", i))...)
			}), passThen(3, 27)...)
		})
	}
}

func TestB12_ACredentialIsOneKeyHoweverItIsSpelled(t *testing.T) {
	spellings := [][]string{
		{"Authorization", "Bearer k-alice"},
		{"Authorization", "bearer k-alice"},
		{"Authorization", "BEARER k-alice"},
		{"Authorization", "Bearer  k-alice"},
		{"Authorization", "bEaReR     k-alice"},
		{"X-API-Key", "k-alice"},
		{"x-api-key", "k-alice", "Authorization", "Bearer k-alice"},
		{"X-API-Key", "k-alice", "Authorization", "Basic azphbGljZQ=="},
	}
	h := build(t, ratelimit.Config{Key: everyone, Policies: []ratelimit.Policy{policy("api", 3)}}).Handler(ok)
	wantStatuses(t, statuses(h, len(spellings), func(i int) *http.Request {
		return newRequest("GET", "/", fmt.Sprintf("203.0.113.%d:1", i), spellings[i]...)
	}), passThen(3, 5)...)
}

func TestB13_KeysThatBeginAlikeAreCountedApart(t *testing.T) {
	itself := func(_ context.Context, apiKey string) (ratelimit.Key, error) { return ratelimit.Key{ID: apiKey}, nil }
	h := build(t, ratelimit.Config{Key: ratelimit.APIKey(itself)}).Handler(ok)
	wantStatuses(t, statuses(h, 3, func(int) *http.Request { return newRequest("GET", "/", peer, "X-API-Key", "production-a") }), 200, 200, 429)
	resp := get(h, "/", "X-API-Key", "production-b")
	wantStatuses(t, []int{resp.StatusCode}, 200)
	wantHeaders(t, resp.Header, "X-RateLimit-Remaining", "1")
}

func TestB17_IdentitiesOfDifferentKindsNeverMeet(t *testing.T) {
	ip := func(id string) ratelimit.Key { return ratelimit.Key{Kind: "ip", ID: id} }
	limiter := build(t, ratelimit.Config{Policies: []ratelimit.Policy{policy("bc", 1), policy("c", 1)}, Default: "c"})
	for _, tc := range []struct {
		key    ratelimit.Key
		policy string
	}{
		{ip("127.0.0.1"), "c"},
		{ratelimit.Key{Kind: "user", ID: "127.0.0.1"}, "c"},
		{ratelimit.Key{Kind: "key", ID: "127.0.0.1"}, "c"},
		{ratelimit.Key{Kind: "a", ID: "bc"}, "c"},
		{ratelimit.Key{Kind: "ab", ID: "c"}, "c"},
		{ratelimit.Key{Kind: "a", ID: "b:c"}, "c"},
		{ratelimit.Key{Kind: "a:b", ID: "c"}, "c"},
		{ratelimit.Key{ID: "127.0.0.1"}, "c"},
		{ip("a"), "bc"}, // an identity and a policy, joined
		{ip("ab"), "c"},
		{ip("a}:b"), "c"},
	} {
		if d, err := limiter.Take(context.Background(), tc.key, tc.policy); err != nil || !d.Allowed {
			t.Errorf("%+v under %s is not a counter of its own: %+v, %v", tc.key, tc.policy, d, err)
		}
	}
}

func TestB22_WhatAClientSaysAboutItselfIsNotPartOfItsKey(t *testing.T) {
	h := build(t, ratelimit.Config{Policies: []ratelimit.Policy{policy("api", 3)}}).Handler(ok)
	wantStatuses(t, statuses(h, 6, func(i int) *http.Request {
		n := strconv.Itoa(i)
		return newRequest("GET", "/?q="+n, peer, "User-Agent", "agent/"+n, "Accept-Language", n, "Cookie", "id="+n)
	}), passThen(3, 3)...)
}

// What it is counted against.

func TestB18_TwoLimitsOfOneIdentityAreTwoCounters(t *testing.T) {
	burst := algorithms.FixedWindow{Limit: 5, Window: time.Minute}
	day := algorithms.FixedWindow{Limit: 50, Window: 24 * time.Hour}
	for _, tc := range []struct {
		name     string
		policies []ratelimit.Policy
		route    []string
	}{
		{"in one policy", []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{burst, day}}}, []string{"api"}},
		{"in two policies", []ratelimit.Policy{
			{Name: "burst", Limits: ratelimit.Limits{burst}}, {Name: "day", Limits: ratelimit.Limits{day}},
		}, []string{"burst", "day"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store := newCounting(exampleStore())
			h := build(t, ratelimit.Config{
				Store: store, Policies: tc.policies, Routes: ratelimit.Routes{"/": tc.route}, Default: ratelimit.Unlimited,
			}).Handler(ok)
			wantStatuses(t, statuses(h, 6, func(int) *http.Request { return newRequest("GET", "/", peer) }), passThen(5, 1)...)
			if used := 50 - store.last[1].Remaining; used != 5 {
				t.Errorf("the day has counted %d, want 5", used)
			}
		})
	}
}

func TestB18_ALimitOfOneDoesNotCountItselfTwice(t *testing.T) {
	h := build(t, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{
		algorithms.FixedWindow{Limit: 1, Window: time.Second}, algorithms.FixedWindow{Limit: 30, Window: time.Minute},
	}}}}).Handler(ok)
	wantStatuses(t, []int{get(h, "/").StatusCode}, 200)
}

func TestB84_WhatOneLimitRefusesNoOtherCounts(t *testing.T) {
	clock := newClock(time.Unix(1_764_583_200, 0)) // a multiple of 1800 s
	store := newCounting(clock.Store())
	h := build(t, ratelimit.Config{Store: store, Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{
		algorithms.FixedWindow{Limit: 10, Window: time.Minute}, algorithms.FixedWindow{Limit: 30, Window: 30 * time.Minute},
	}}}}).Handler(ok)
	wantStatuses(t, statuses(h, 16, func(int) *http.Request { return newRequest("GET", "/", peer) }), passThen(10, 6)...)
	clock.Advance(time.Minute)
	wantStatuses(t, statuses(h, 15, func(int) *http.Request { return newRequest("GET", "/", peer) }), passThen(10, 5)...)
	if used := 30 - store.last[1].Remaining; used != 20 {
		t.Errorf("the long window has counted %d, want 20", used)
	}
}

// All spellings of a path that reach the handler are counted under its policy. ServeMux
// answers the others itself, by a redirect or a 404.
func TestB19_HoweverThePathIsSpelled(t *testing.T) {
	spellings := []string{"/a/b", "/a//b", "/a/b/", "/a/%62", "/a/./b", "/a/c/../b", "/a/b?x=1"}

	t.Run("a table on ServeMux", func(t *testing.T) {
		var reached string
		mux := http.NewServeMux()
		mux.HandleFunc("/a/b", func(_ http.ResponseWriter, r *http.Request) { reached = r.URL.Path })
		for _, path := range spellings {
			reached = ""
			h := build(t, ratelimit.Config{
				Policies: []ratelimit.Policy{policy("strict", 2), policy("read", 100)},
				Routes:   ratelimit.Routes{"/a/b": {"strict"}}, Default: "read",
			}).Handler(mux)
			if resp := get(h, path); reached != "" && resp.Header.Get("X-RateLimit-Limit") != "2" {
				t.Errorf("%s reached the handler under another policy: limit %s", path, resp.Header.Get("X-RateLimit-Limit"))
			}
		}
		h := build(t, ratelimit.Config{
			Policies: []ratelimit.Policy{policy("strict", 2), policy("read", 100)},
			Routes:   ratelimit.Routes{"/a/b": {"strict"}}, Default: "read",
		}).Handler(mux)
		wantStatuses(t, statuses(h, 3, func(i int) *http.Request {
			return newRequest("GET", []string{"/a/b", "/a/%62", "/a/b"}[i], peer)
		}), 200, 200, 429)
	})

	t.Run("For on a router that cleans", func(t *testing.T) {
		limiter := build(t, ratelimit.Config{Policies: []ratelimit.Policy{policy("strict", 2)}})
		r := chi.NewRouter()
		r.Use(chimiddleware.CleanPath, chimiddleware.StripSlashes)
		r.With(limiter.For("strict")).Get("/a/b", ok)
		paths := []string{"/a/b", "/a//b", "/a/b/", "/a/./b"}
		wantStatuses(t, statuses(r, 4, func(i int) *http.Request { return newRequest("GET", paths[i], peer) }), 200, 200, 429, 429)
	})
}

func TestB20_APathParameterIsNotPartOfTheKey(t *testing.T) {
	store := newCounting(exampleStore())
	h := build(t, ratelimit.Config{
		Store:    store,
		Policies: []ratelimit.Policy{policy("verify", 3), policy("read", 1000)},
		Routes:   ratelimit.Routes{"/verify/{code}": {"verify"}}, Default: "read",
	}).Handler(ok)
	wantStatuses(t, statuses(h, 100, func(i int) *http.Request {
		return newRequest("GET", fmt.Sprintf("/verify/%d", i), peer)
	}), passThen(3, 97)...)
	if len(store.keys) != 1 {
		t.Errorf("got %d keys, want 1: %v", len(store.keys), store.keys)
	}
}

func TestB21_AMethodOverrideIsNeverRead(t *testing.T) {
	for _, pattern := range []string{"/login", "GET /login"} {
		t.Run(pattern, func(t *testing.T) {
			h := build(t, ratelimit.Config{
				Policies: []ratelimit.Policy{policy("login", 3), policy("read", 1000)},
				Routes:   ratelimit.Routes{pattern: {"login"}, "POST /login": {"read"}}, Default: "read",
			}).Handler(ok)
			wantStatuses(t, statuses(h, 5, func(int) *http.Request {
				return newRequest("GET", "/login?_method=POST", peer, "X-HTTP-Method-Override", "POST", "X-Method-Override", "POST")
			}), passThen(3, 2)...)
		})
	}
}

func TestB23_WhatIsSecretOrLongNeverReachesTheStore(t *testing.T) {
	const secret = "s3cr3t-KEY-0001"
	store := newCounting(exampleStore())
	var told string
	itself := func(_ context.Context, apiKey string) (ratelimit.Key, error) { return ratelimit.Key{ID: apiKey}, nil }
	h := authenticated(build(t, ratelimit.Config{
		Store:    store,
		Key:      ratelimit.FirstOf(ratelimit.APIKey(itself), ratelimit.UserID(contextUser)),
		Policies: []ratelimit.Policy{policy(strings.Repeat("n", 64), 2)},
		Hooks:    ratelimit.Hooks{Allowed: func(_ context.Context, e ratelimit.Event) { told += e.Key + "\n" }},
	}).Handler(ok))
	get(h, "/", "X-API-Key", secret)
	get(h, "/", "User", strings.Repeat("u", 1<<20))
	if len(store.keys) != 2 {
		t.Errorf("got %d keys", len(store.keys))
	}
	for key := range store.keys {
		if len(key) > 256 || strings.Contains(key, secret) {
			t.Errorf("%d bytes: %.300s", len(key), key)
		}
	}
	if strings.Contains(told, secret) || len(told) > 512 {
		t.Errorf("hooks were told %.600s", told)
	}
}

func TestB24_RoutesAreKnownOutsideTheRouter(t *testing.T) {
	limiter := build(t, ratelimit.Config{
		Policies: []ratelimit.Policy{policy("a", 1), policy("b", 1)},
		Routes:   ratelimit.Routes{"/a": {"a"}, "/b": {"b"}}, Default: ratelimit.Unlimited,
	})
	router := chi.NewRouter()
	router.Get("/a", ok)
	router.Get("/b", ok)
	inside := chi.NewRouter()
	inside.Use(limiter.Handler)
	inside.Mount("/", router)
	paths := []string{"/a", "/b", "/a", "/b"}
	wantStatuses(t, statuses(limiter.Handler(router), 2, func(i int) *http.Request { return newRequest("GET", paths[i], peer) }), 200, 200)
	wantStatuses(t, statuses(inside, 2, func(i int) *http.Request { return newRequest("GET", paths[i+2], peer) }), 429, 429)
}

func TestSeveralPoliciesOfARouteAreOneDecision(t *testing.T) {
	for name, mount := range map[string]func(*ratelimit.Limiter) http.Handler{
		"by table": func(l *ratelimit.Limiter) http.Handler { return l.Handler(ok) },
		"by For":   func(l *ratelimit.Limiter) http.Handler { return l.For("login", "read")(ok) },
	} {
		t.Run(name, func(t *testing.T) {
			store := newCounting(exampleStore())
			h := mount(build(t, ratelimit.Config{
				Store:    store,
				Policies: []ratelimit.Policy{policy("read", 10), policy("login", 2)},
				Routes:   ratelimit.Routes{"/login": {"read", "login"}}, Default: "read",
			}))
			for i, remaining := range []string{"1", "0", "0"} {
				resp := get(h, "/login")
				wantHeaders(t, resp.Header, "X-RateLimit-Limit", "2", "X-RateLimit-Remaining", remaining)
				if (resp.StatusCode == 429) != (i == 2) {
					t.Errorf("request %d: got %d", i, resp.StatusCode)
				}
			}
			if store.calls != 3 {
				t.Errorf("asked the store %d times for 3 requests", store.calls)
			}
		})
	}
}

func TestPoliciesOfOneQuotaDrawOnTheSameCounters(t *testing.T) {
	h := build(t, ratelimit.Config{
		Policies: []ratelimit.Policy{
			{Name: "read", Quota: "api", Limits: perMinute(10)},
			{Name: "search", Quota: "api", Cost: 5},
			{Name: "list", Quota: "api", Cost: 2},
		},
		Routes:  ratelimit.Routes{"/search": {"search"}, "/both": {"read", "list"}},
		Default: "read",
	}).Handler(ok)
	for _, step := range []struct {
		path, remaining string
		status          int
		wait            string
	}{
		{"/", "9", 200, ""},
		{"/search", "4", 200, ""},
		{"/search", "4", 429, "60"}, // a refused request takes nothing
		{"/both", "1", 200, ""},     // both policies of one route: 1 + 2
		{"/", "0", 200, ""},
		{"/", "0", 429, "60"},
	} {
		resp := get(h, step.path)
		if resp.StatusCode != step.status {
			t.Errorf("%s: got %d, want %d", step.path, resp.StatusCode, step.status)
		}
		wantHeaders(t, resp.Header, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", step.remaining, "Retry-After", step.wait)
	}
}

func TestATierReplacesTheLimits(t *testing.T) {
	byHeader := func(r *http.Request) (ratelimit.Key, error) {
		return ratelimit.Key{Kind: "key", ID: "acme", Tier: r.Header.Get("Tier")}, nil
	}
	h := build(t, ratelimit.Config{
		Key:      byHeader,
		Policies: []ratelimit.Policy{{Name: "api", Limits: perMinute(2), Tiers: map[string]ratelimit.Limits{"pro": perMinute(5)}}},
	}).Handler(ok)
	for _, step := range []struct {
		tier, limit, remaining string
		status                 int
	}{
		{"", "2", "1", 200},
		{"unheard-of", "2", "0", 200},
		{"", "2", "0", 429},
		{"pro", "5", "2", 200}, // an upgrade keeps the count and has room at once
	} {
		resp := get(h, "/", "Tier", step.tier)
		if resp.StatusCode != step.status {
			t.Errorf("tier %q: got %d, want %d", step.tier, resp.StatusCode, step.status)
		}
		wantHeaders(t, resp.Header, "X-RateLimit-Limit", step.limit, "X-RateLimit-Remaining", step.remaining)
	}
}

func TestB80_AnExemptRouteAsksNothing(t *testing.T) {
	config := func(store ratelimit.Store) ratelimit.Config {
		return ratelimit.Config{
			Store:    store,
			Policies: []ratelimit.Policy{policy("read", 1)},
			Routes:   ratelimit.Routes{"GET /healthz": {}},
		}
	}
	t.Run("probes", func(t *testing.T) {
		store := newCounting(exampleStore())
		h := build(t, config(store)).Handler(ok)
		for range 100 {
			resp := get(h, "/healthz")
			wantStatuses(t, []int{resp.StatusCode}, 200)
			wantHeaders(t, resp.Header, noRateHeaders...)
		}
		if store.calls != 0 {
			t.Errorf("asked the store %d times", store.calls)
		}
	})
	// These reach other routes in a router that doesn't clean paths, such as chi: a
	// wildcard, or at least its 404.
	for _, path := range []string{"/healthz/../x", "/healthz/", "/healthz/x", "/x/../healthz", "//healthz", "/./healthz", "/x/..//healthz"} {
		t.Run("not "+path, func(t *testing.T) {
			var reached hits
			router := chi.NewRouter()
			router.Use(build(t, config(exampleStore())).Handler)
			router.Get("/healthz", ok)
			router.Get("/*", reached.ServeHTTP)
			wantStatuses(t, statuses(router, 3, func(int) *http.Request { return newRequest("GET", path, peer) }), 200, 429, 429)
			if n := reached.Load(); n != 1 {
				t.Errorf("another handler ran %d times under a limit of 1", n)
			}
		})
	}
}

func TestB81_UnknownRoutesAreCounted(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("POST /known", ok)
	for _, tc := range []struct {
		name, method string
		status       int
	}{
		{"path", "GET", 404},
		{"method", "DELETE", 405},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := build(t, ratelimit.Config{Routes: ratelimit.Routes{"POST /known": {"api"}, "GET /healthz": {}}}).Handler(mux)
			wantStatuses(t, statuses(h, 3, func(i int) *http.Request {
				path := "/known"
				if tc.status == 404 {
					path = fmt.Sprintf("/unknown/%d", i)
				}
				return newRequest(tc.method, path, peer)
			}), tc.status, tc.status, 429)
		})
	}
}

func TestUnlimitedAsDefaultLeavesTheRestAlone(t *testing.T) {
	store := newCounting(exampleStore())
	h := build(t, ratelimit.Config{
		Store:  store,
		Routes: ratelimit.Routes{"/api/": {"api"}}, Default: ratelimit.Unlimited,
	}).Handler(ok)
	for range 5 {
		wantHeaders(t, get(h, "/").Header, noRateHeaders...)
	}
	if store.calls != 0 {
		t.Errorf("asked the store %d times", store.calls)
	}
	wantHeaders(t, get(h, "/api/x").Header, "X-RateLimit-Remaining", "1")
}

func TestSkipPassesUncountedAndWithoutHeaders(t *testing.T) {
	store := newCounting(exampleStore())
	limiter := build(t, ratelimit.Config{
		Store: store,
		Skip:  func(r *http.Request) bool { return r.RemoteAddr == "127.0.0.1:1" },
	})
	for _, h := range []http.Handler{limiter.Handler(ok), limiter.For("api")(ok)} {
		for range 5 {
			resp := send(h, newRequest("GET", "/", "127.0.0.1:1"))
			wantStatuses(t, []int{resp.StatusCode}, 200)
			wantHeaders(t, resp.Header, noRateHeaders...)
		}
	}
	if store.calls != 0 {
		t.Errorf("asked the store %d times", store.calls)
	}
	// B08: what a proxy header says of the client doesn't matter.
	wantHeaders(t, get(limiter.Handler(ok), "/", "X-Forwarded-For", "127.0.0.1", "Forwarded", "for=127.0.0.1").Header, "X-RateLimit-Remaining", "1")
}

func TestB79_APreflightCanBeSkippedAndARefusalKeepsItsCORSHeaders(t *testing.T) {
	limiter := build(t, ratelimit.Config{
		Policies: []ratelimit.Policy{policy("api", 40)},
		Skip: func(r *http.Request) bool {
			return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
		},
	})
	inner := limiter.Handler(ok)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "https://example.com")
		inner.ServeHTTP(w, r)
	})
	const origin = "https://example.com"
	for range 39 {
		wantStatuses(t, []int{
			send(h, newRequest("OPTIONS", "/", peer, "Origin", origin, "Access-Control-Request-Method", "GET")).StatusCode,
			get(h, "/", "Origin", origin).StatusCode,
		}, 200, 200)
	}
	wantStatuses(t, []int{send(h, newRequest("OPTIONS", "/", peer)).StatusCode}, 200) // a plain OPTIONS counts
	resp := get(h, "/", "Origin", origin)
	wantStatuses(t, []int{resp.StatusCode}, 429)
	wantHeaders(t, resp.Header, "Access-Control-Allow-Origin", origin, "Retry-After", "60")
}

func TestForWithAnUnknownPolicyServesNothing(t *testing.T) {
	for _, names := range [][]string{{"nope"}, {"api", "nope"}, {"api", "api"}, {}, {"unlimited"}, {""}} {
		t.Run(fmt.Sprint(names), func(t *testing.T) {
			var log bytes.Buffer
			store := newCounting(exampleStore())
			limiter := build(t, ratelimit.Config{Store: store, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			var reached hits
			middleware := limiter.For(names...)
			if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "For") {
				t.Errorf("logged %q at construction", log.String())
			}
			resp := get(middleware(&reached), "/")
			body, _ := io.ReadAll(resp.Body)
			wantStatuses(t, []int{resp.StatusCode}, 500)
			wantHeaders(t, resp.Header, noRateHeaders...)
			if reached.Load() != 0 || store.calls != 0 {
				t.Errorf("the handler ran %d times, the store was asked %d times", reached.Load(), store.calls)
			}
			if strings.Contains(string(body), "nope") || strings.Contains(string(body), "olic") {
				t.Errorf("the client reads %s", body)
			}
		})
	}
}

// How often.

func TestB82_ARequestIsChargedOncePerPolicyAndLimiter(t *testing.T) {
	store := newCounting(exampleStore())
	limiter := func() *ratelimit.Limiter {
		return build(t, ratelimit.Config{
			Store:    store,
			Policies: []ratelimit.Policy{policy("read", 4), policy("export", 100)},
			Routes:   ratelimit.Routes{"/other": {"export"}}, Default: "read",
		})
	}
	l, other := limiter(), build(t, ratelimit.Config{Policies: []ratelimit.Policy{policy("read", 4)}})
	for _, tc := range []struct {
		name         string
		handler      http.Handler
		path         string
		read, export int64 // units after one request
		passes       int
	}{
		{"mounted twice", l.Handler(l.Handler(ok)), "/", 1, 0, 4},
		{"mounted three times", l.Handler(l.For("read")(l.For("read")(ok))), "/", 1, 0, 4},
		{"the second policy inside", l.Handler(l.For("export")(ok)), "/", 1, 1, 4},
		{"both policies inside", l.Handler(l.For("export", "read")(ok)), "/", 1, 1, 4},
		{"the same policy by table and by For", l.Handler(l.For("export")(ok)), "/other", 0, 1, 100},
		{"two limiters on one store", l.Handler(limiter().Handler(ok)), "/", 2, 0, 2},
		{"another limiter between", l.Handler(other.Handler(l.Handler(ok))), "/", 1, 0, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			used := func(name string, limit int64) int64 {
				d, err := l.Peek(context.Background(), ratelimit.Key{Kind: "ip", ID: "203.0.113.9"}, name)
				if err != nil {
					t.Fatal(err)
				}
				return limit - d.Remaining
			}
			for _, name := range []string{"read", "export"} {
				if err := l.Reset(context.Background(), ratelimit.Key{Kind: "ip", ID: "203.0.113.9"}, name); err != nil {
					t.Fatal(err)
				}
			}
			wantStatuses(t, []int{get(tc.handler, tc.path).StatusCode}, 200)
			if read, export := used("read", 4), used("export", 100); read != tc.read || export != tc.export {
				t.Errorf("charged %d reads and %d exports, want %d and %d", read, export, tc.read, tc.export)
			}
			wantStatuses(t, statuses(tc.handler, tc.passes, func(int) *http.Request { return newRequest("GET", tc.path, peer) }), passThen(tc.passes-1, 1)...)
		})
	}
}

func TestB34_ConcurrentRequestsNeverPassTheLimit(t *testing.T) {
	var reached hits
	h := build(t, ratelimit.Config{Policies: []ratelimit.Policy{policy("api", 10)}}).Handler(&reached)
	var all sync.WaitGroup
	for range 200 { // B35: the first requests of a key ever
		all.Go(func() { get(h, "/") })
	}
	all.Wait()
	if n := reached.Load(); n != 10 {
		t.Errorf("%d requests passed a limit of 10", n)
	}
}

func TestB85_ARebuiltLimiterGoesOnCounting(t *testing.T) {
	store := exampleStore()
	for _, want := range [][]int{{200, 200}, {200, 429}, {429, 429}} {
		h := build(t, ratelimit.Config{Store: store, Policies: []ratelimit.Policy{policy("api", 3)}}).Handler(ok)
		wantStatuses(t, statuses(h, 2, func(int) *http.Request { return newRequest("GET", "/", peer) }), want...)
	}
}

func TestB86_ARaisedLimitReachesClientsAlreadyCounted(t *testing.T) {
	clock := newClock(exampleClock())
	store := clock.Store()
	h := build(t, ratelimit.Config{Store: store, Policies: []ratelimit.Policy{policy("api", 10)}}).Handler(ok)
	wantStatuses(t, statuses(h, 12, func(int) *http.Request { return newRequest("GET", "/", peer) }), passThen(10, 2)...)
	clock.Advance(10 * time.Second)
	resp := get(build(t, ratelimit.Config{Store: store, Policies: []ratelimit.Policy{policy("api", 20)}}).Handler(ok), "/")
	wantStatuses(t, []int{resp.StatusCode}, 200)
	wantHeaders(t, resp.Header, "X-RateLimit-Limit", "20", "X-RateLimit-Remaining", "9")
}

// What the client reads.

func TestB61_EveryAnswerCarriesTheHeadersInOneUnit(t *testing.T) {
	const now = 1_764_584_707
	for _, rule := range []algorithms.Algorithm{
		algorithms.FixedWindow{Limit: 3, Window: time.Minute},
		algorithms.SlidingWindowLog{Limit: 3, Window: time.Minute},
		algorithms.TokenBucket{Capacity: 3, Refill: 3, Per: time.Minute},
		algorithms.LeakyBucket{Capacity: 3, Rate: 3, Per: time.Minute},
		algorithms.SlidingWindowCounter{Limit: 3, Window: 30 * time.Second}, // recovers in two windows
	} {
		t.Run(rule.String(), func(t *testing.T) {
			h := build(t, ratelimit.Config{
				Store:    newClock(time.Unix(now, 0)).Store(),
				Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{rule}}},
			}).Handler(ok)
			for i, remaining := range []string{"2", "1", "0", "0"} {
				resp := get(h, "/")
				if (resp.StatusCode == 429) != (i == 3) {
					t.Errorf("request %d: got %d", i, resp.StatusCode)
				}
				wantHeaders(t, resp.Header, "X-RateLimit-Limit", "3", "X-RateLimit-Remaining", remaining)
				reset, err := strconv.ParseInt(resp.Header.Get("X-RateLimit-Reset"), 10, 64)
				if err != nil || reset < now || reset > now+61 {
					t.Errorf("request %d: X-RateLimit-Reset %q is not in [now, now+61]", i, resp.Header.Get("X-RateLimit-Reset"))
				}
			}
		})
	}
}

func TestB62_StackedLimitersAnnounceTheTightest(t *testing.T) {
	wide := func() *ratelimit.Limiter {
		return build(t, ratelimit.Config{Policies: []ratelimit.Policy{policy("wide", 100)}})
	}
	tight := func() *ratelimit.Limiter { return build(t, ratelimit.Config{}) }
	for _, tc := range []struct {
		name string
		h    http.Handler
	}{
		{"tight inside", wide().Handler(tight().Handler(ok))},
		{"tight outside", tight().Handler(wide().Handler(ok))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for i, remaining := range []string{"1", "0", "0"} {
				resp := get(tc.h, "/")
				wantHeaders(t, resp.Header, "X-RateLimit-Limit", "2", "X-RateLimit-Remaining", remaining)
				if (resp.StatusCode == 429) != (i == 2) {
					t.Errorf("request %d: got %d", i, resp.StatusCode)
				}
			}
		})
	}
}

func TestB63_TheRefusalHandlerDecidesTheAnswer(t *testing.T) {
	const doc = `{"error":"slow down"}`
	for _, tc := range []struct {
		name    string
		refused func(http.ResponseWriter)
		status  int
		body    string
	}{
		{"forgotten WriteHeader", func(w http.ResponseWriter) { _, _ = io.WriteString(w, doc) }, 429, doc},
		{"two writes", func(w http.ResponseWriter) { _, _ = w.Write([]byte(doc[:5])); _, _ = w.Write([]byte(doc[5:])) }, 429, doc},
		{"copied", func(w http.ResponseWriter) { _, _ = io.Copy(w, strings.NewReader(doc)) }, 429, doc},
		{"its own WriteHeader", func(w http.ResponseWriter) { w.WriteHeader(429); _, _ = io.WriteString(w, doc) }, 429, doc},
		{"another status", func(w http.ResponseWriter) { w.WriteHeader(420); _, _ = io.WriteString(w, doc) }, 420, doc},
		{"no body", func(http.ResponseWriter) {}, 429, ""},
		{"http.Error", func(w http.ResponseWriter) { http.Error(w, "no", http.StatusTooManyRequests) }, 429, "no\n"},
		{"early hints first", func(w http.ResponseWriter) { w.WriteHeader(103); _, _ = io.WriteString(w, doc) }, 429, doc},
		{"flushed first", func(w http.ResponseWriter) {
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, doc)
		}, 429, doc},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var reached hits
			var got ratelimit.Refusal
			limiter := build(t, ratelimit.Config{
				Policies: []ratelimit.Policy{policy("api", 1)},
				Refused: func(w http.ResponseWriter, _ *http.Request, refusal ratelimit.Refusal) {
					got = refusal
					w.Header().Set("X-Foo", "bar")
					w.Header().Set("Content-Type", "application/json")
					tc.refused(w)
				},
			})
			var finals int
			server := httptest.NewServer(countFinals(limiter.Handler(&reached), &finals))
			defer server.Close()
			server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)

			fetch(t, server.Client(), server.URL)
			finals = 0
			resp, body := fetch(t, server.Client(), server.URL)
			if resp.StatusCode != tc.status || body != tc.body {
				t.Errorf("got %d with %q, want %d with %q", resp.StatusCode, body, tc.status, tc.body)
			}
			if finals > 1 {
				t.Errorf("the status was written %d times", finals)
			}
			wantHeaders(t, resp.Header, "X-Foo", "bar", "Retry-After", resp.Header.Get("Retry-After"), "Cache-Control", "no-store", "X-RateLimit-Remaining", "0")
			if resp.Header.Get("Retry-After") == "" {
				t.Error("there is no Retry-After")
			}
			if got.Status != 429 || got.Policy != "api" || got.Decision.Limit != 1 || got.RetryAfter != got.Decision.RetryAfter || got.RetryAfter <= 0 {
				t.Errorf("the handler was told %+v", got)
			}
			if reached.Load() != 1 {
				t.Errorf("the handler ran %d times", reached.Load())
			}
		})
	}
}

// countFinals counts the final statuses that are written.
func countFinals(next http.Handler, n *int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(&statusCounter{w, n}, r) })
}

type statusCounter struct {
	http.ResponseWriter
	finals *int
}

func (w *statusCounter) WriteHeader(status int) {
	if status >= 200 {
		*w.finals++
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusCounter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func fetch(t *testing.T, client *http.Client, url string) (*http.Response, string) {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func TestB64_ARefusalIsNotStored(t *testing.T) {
	limiter := build(t, ratelimit.Config{Policies: []ratelimit.Policy{policy("api", 1)}})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=300")
		limiter.Handler(ok).ServeHTTP(w, r)
	})
	wantHeaders(t, get(h, "/").Header, "Cache-Control", "public, max-age=300") // an answer of the handler's is left alone
	wantHeaders(t, get(h, "/").Header, "Cache-Control", "no-store")
}

func TestHEADIsCountedAndAnsweredWithoutABody(t *testing.T) {
	limiter := build(t, ratelimit.Config{
		Policies: []ratelimit.Policy{policy("items", 2), policy("read", 100)},
		Routes:   ratelimit.Routes{"GET /items": {"items"}}, Default: "read",
	})
	server := httptest.NewServer(limiter.Handler(ok))
	defer server.Close()
	for i, remaining := range []string{"1", "0", "0"} {
		resp, err := server.Client().Head(server.URL + "/items")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		wantHeaders(t, resp.Header, "X-RateLimit-Limit", "2", "X-RateLimit-Remaining", remaining)
		if i == 2 && (resp.StatusCode != 429 || len(body) != 0 || resp.ContentLength <= 0) {
			t.Errorf("got %d with a body of %d and Content-Length %d", resp.StatusCode, len(body), resp.ContentLength)
		}
	}
}

// When the store is away.

func TestB68_WhileTheStoreIsAway(t *testing.T) {
	for _, tc := range []struct {
		failure ratelimit.FailureMode
		check   func(t *testing.T, statuses map[int]int, header http.Header)
	}{
		{ratelimit.FailOpen, func(t *testing.T, statuses map[int]int, header http.Header) {
			if statuses[200] != 50 {
				t.Errorf("got statuses %v, want 50x200", statuses)
			}
			wantHeaders(t, header, append(noRateHeaders, "Retry-After", "")...)
		}},
		{ratelimit.FailClosed, func(t *testing.T, statuses map[int]int, header http.Header) {
			if statuses[503] != 50 {
				t.Errorf("got statuses %v, want 50x503", statuses)
			}
			wantHeaders(t, header, append(noRateHeaders, "Retry-After", "1", "Cache-Control", "no-store")...)
		}},
		{ratelimit.FailLocal, func(t *testing.T, statuses map[int]int, header http.Header) {
			if statuses[200] != 2 || statuses[429] != 48 {
				t.Errorf("got statuses %v, want 2x200 and 48x429", statuses)
			}
			wantHeaders(t, header, "X-RateLimit-Limit", "2")
		}},
	} {
		for name, fault := range map[string]func(context.Context) error{"refuses": isAway, "hangs": hangs} {
			t.Run(tc.failure.String()+", it "+name, func(t *testing.T) {
				var reached hits
				h := build(t, ratelimit.Config{
					Store: newFaulty(fault), Failure: tc.failure,
					// A day, so that none of the local windows ends while the test runs.
					Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{
						algorithms.SlidingWindowLog{Limit: 2, Window: 24 * time.Hour},
					}}},
				}).Handler(&reached)
				var mu sync.Mutex
				var header http.Header
				got := make(map[int]int)
				var all sync.WaitGroup
				for range 50 {
					all.Go(func() {
						start := time.Now()
						resp := get(h, "/")
						took := time.Since(start)
						mu.Lock()
						defer mu.Unlock()
						got[resp.StatusCode]++
						header = resp.Header
						if took > 250*time.Millisecond {
							t.Errorf("took %v", took)
						}
					})
				}
				all.Wait()
				tc.check(t, got, header)
				if int(reached.Load()) != got[200] {
					t.Errorf("the handler ran %d times for %d answers 200", reached.Load(), got[200])
				}
			})
		}
	}
}

func TestB69_AStoreThatComesBackCountsAtOnce(t *testing.T) {
	for _, failure := range []ratelimit.FailureMode{ratelimit.FailLocal, ratelimit.FailOpen, ratelimit.FailClosed} {
		t.Run(failure.String(), func(t *testing.T) {
			store := newFaulty(isAway)
			h := build(t, ratelimit.Config{Store: store, Failure: failure}).Handler(ok)
			want := 200
			if failure == ratelimit.FailClosed {
				want = 503
			}
			wantStatuses(t, []int{get(h, "/").StatusCode}, want)
			store.heal()
			wantStatuses(t, statuses(h, 3, func(int) *http.Request { return newRequest("GET", "/", peer) }), 200, 200, 429)
		})
	}
}

func TestB70_EachFailureIsReported(t *testing.T) {
	for _, failure := range []ratelimit.FailureMode{ratelimit.FailLocal, ratelimit.FailOpen, ratelimit.FailClosed} {
		t.Run(failure.String(), func(t *testing.T) {
			var log bytes.Buffer
			var failures []ratelimit.Event
			h := build(t, ratelimit.Config{
				Store: newFaulty(isAway), Failure: failure,
				Logger: slog.New(slog.NewTextHandler(&log, nil)),
				Hooks:  ratelimit.Hooks{Failed: func(_ context.Context, e ratelimit.Event) { failures = append(failures, e) }},
			}).Handler(ok)
			for range 10 {
				resp := get(h, "/")
				body, _ := io.ReadAll(resp.Body)
				if strings.Contains(string(body), "10.1.2.3") || strings.Contains(string(body), "refused") {
					t.Errorf("the client reads %s", body)
				}
			}
			if len(failures) != 10 {
				t.Errorf("Failed was called %d times, want 10", len(failures))
			}
			for _, e := range failures {
				if !errors.Is(e.Err, errAway) {
					t.Errorf("Failed was told %v", e.Err)
				}
			}
			lines := slices.Collect(strings.Lines(log.String()))
			if len(lines) != 2 || !strings.Contains(lines[0], "can't decide as configured") || !strings.Contains(lines[1], "the store is down") {
				t.Errorf("logged %q, want the first failure and that the store is down", lines)
			}
			for _, line := range lines {
				if !strings.Contains(line, "level=ERROR") || !strings.Contains(line, errAway.Error()) {
					t.Errorf("logged %s, want an error that says what failed", line)
				}
			}
		})
	}
}

func TestB77_AClientThatLeavesIsNoFailureOfTheStore(t *testing.T) {
	for _, failure := range []ratelimit.FailureMode{ratelimit.FailLocal, ratelimit.FailOpen, ratelimit.FailClosed} {
		t.Run(failure.String(), func(t *testing.T) {
			var reached, failed hits
			store := newFaulty(hangs)
			h := build(t, ratelimit.Config{
				Store: store, Failure: failure, Timeout: time.Minute,
				Hooks: ratelimit.Hooks{Failed: func(context.Context, ratelimit.Event) { failed.Add(1) }},
			}).Handler(&reached)
			var all sync.WaitGroup
			for i := range 100 {
				ctx, cancel := context.WithCancel(context.Background())
				if i%2 == 0 {
					cancel() // before the store is asked
				}
				all.Go(func() { send(h, newRequest("GET", "/", peer).WithContext(ctx)) })
				all.Go(cancel) // or about when it is
			}
			all.Wait()
			if reached.Load() != 0 || failed.Load() != 0 {
				t.Errorf("the handler ran %d times, %d failures were counted", reached.Load(), failed.Load())
			}
			store.heal()
			wantStatuses(t, statuses(h, 3, func(int) *http.Request { return newRequest("GET", "/", peer) }), 200, 200, 429)
		})
	}
}

func TestAKeyFuncsErrorIsReportedAndItsKeyCounts(t *testing.T) {
	down := errors.New("accounts database is down")
	var failures []error
	h := build(t, ratelimit.Config{
		Key: ratelimit.FirstOf(ratelimit.APIKey(func(context.Context, string) (ratelimit.Key, error) {
			return ratelimit.Key{}, down
		}), ratelimit.ClientIP()),
		Hooks: ratelimit.Hooks{Failed: func(_ context.Context, e ratelimit.Event) { failures = append(failures, e.Err) }},
	}).Handler(ok)
	wantStatuses(t, statuses(h, 3, func(int) *http.Request { return newRequest("GET", "/", peer, "X-API-Key", "k") }), 200, 200, 429)
	if len(failures) != 3 || !errors.Is(failures[0], down) {
		t.Errorf("Failed was told %v", failures)
	}
}

func TestHooksAreToldEveryDecision(t *testing.T) {
	var events []string
	tell := func(what string) func(context.Context, ratelimit.Event) {
		return func(_ context.Context, e ratelimit.Event) {
			events = append(events, fmt.Sprint(what, " ", e.Request.URL.Path, " ", e.Key, " ", e.Policy, " ", e.Decision.Remaining))
		}
	}
	h := build(t, ratelimit.Config{
		Policies: []ratelimit.Policy{policy("read", 10), policy("login", 1)},
		Routes:   ratelimit.Routes{"/login": {"read", "login"}, "/healthz": {}}, Default: "read",
		Hooks: ratelimit.Hooks{Allowed: tell("allowed"), Refused: tell("refused"), Failed: tell("failed")},
	}).Handler(ok)
	for _, path := range []string{"/", "/login", "/login", "/healthz"} {
		get(h, path)
	}
	want := "[allowed / ip:203.0.113.9 read 9 allowed /login ip:203.0.113.9 login 0 refused /login ip:203.0.113.9 login 0]"
	if got := fmt.Sprint(events); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The response writer.

func TestB78_TheHandlerGetsTheWriterThatCameIn(t *testing.T) {
	limiter := build(t, ratelimit.Config{})
	w := httptest.NewRecorder()
	var got http.ResponseWriter
	inner := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { got = w })
	limiter.Handler(limiter.For("api")(inner)).ServeHTTP(w, newRequest("GET", "/", peer))
	if got != w {
		t.Errorf("got a %T", got)
	}
}

func TestB78_StreamsAndUpgradesWork(t *testing.T) {
	second := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: first\n\n")
		w.(http.Flusher).Flush()
		select {
		case <-second:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "data: second\n\n")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("/upgrade", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = conn.Close()
	})
	limiter := build(t, ratelimit.Config{Policies: []ratelimit.Policy{policy("api", 100)}})

	for _, protocol := range []int{1, 2} {
		t.Run(fmt.Sprintf("events on HTTP/%d", protocol), func(t *testing.T) {
			server := httptest.NewUnstartedServer(limiter.Handler(mux))
			server.EnableHTTP2 = protocol == 2
			server.StartTLS()
			defer server.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			r, _ := http.NewRequestWithContext(ctx, "GET", server.URL+"/events", nil)
			resp, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.ProtoMajor != protocol || resp.Header.Get("X-RateLimit-Limit") != "100" {
				t.Errorf("got HTTP/%d with limit %q", resp.ProtoMajor, resp.Header.Get("X-RateLimit-Limit"))
			}
			lines := bufio.NewReader(resp.Body)
			if line, err := lines.ReadString('\n'); line != "data: first\n" {
				t.Fatalf("before the second event was sent: %q, %v", line, err)
			}
			second <- struct{}{}
			if rest, err := io.ReadAll(lines); string(rest) != "\ndata: second\n\n" {
				t.Errorf("then: %q, %v", rest, err)
			}
		})
	}

	t.Run("upgrade", func(t *testing.T) {
		server := httptest.NewServer(limiter.Handler(mux))
		defer server.Close()
		r, _ := http.NewRequest("GET", server.URL+"/upgrade", nil)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "echo")
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		wantStatuses(t, []int{resp.StatusCode}, 101)
	})
}
