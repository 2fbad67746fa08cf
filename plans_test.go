package ratelimit_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
)

// The limits that GitHub documents, as docs/recipes.md writes them, in the life of a few
// clients.
func TestPlansOfGitHub(t *testing.T) {
	perHour := func(n int64) ratelimit.Limits {
		return ratelimit.Limits{algorithms.FixedWindow{Limit: n, Window: time.Hour}}
	}
	perMinute := func(n int64) ratelimit.Limits {
		return ratelimit.Limits{algorithms.FixedWindow{Limit: n, Window: time.Minute}}
	}
	// A token is the account and the plan: "42-user".
	lookup := func(_ context.Context, token string) (ratelimit.Key, error) {
		id, rest, known := strings.Cut(token, "-")
		plan, _, _ := strings.Cut(rest, "-")
		if !known {
			return ratelimit.Key{}, nil
		}
		return ratelimit.Key{ID: id, Tier: plan}, nil
	}
	c := newClock(exampleClock())
	h := build(t, ratelimit.Config{
		Store: c.Store(),
		Key:   ratelimit.FirstOf(ratelimit.APIKey(lookup), ratelimit.ClientIP(proxies...)),
		Policies: []ratelimit.Policy{
			{Name: "core", Limits: perHour(60), Tiers: map[string]ratelimit.Limits{
				"user":       perHour(5000),
				"enterprise": perHour(15_000),
			}},
			{Name: "search", Limits: perMinute(10), Tiers: map[string]ratelimit.Limits{
				"user":       perMinute(30),
				"enterprise": perMinute(30),
			}},
		},
		Routes:  ratelimit.Routes{"GET /search/": {"search"}, "GET /rate_limit": {}},
		Default: "core",
	}).Handler(ok)

	for i, step := range []struct {
		after            time.Duration
		path, token      string
		from             string
		times            int
		limit, remaining string // of the last answer
		retry            string // "" unless the last is refused
	}{
		{0, "/users/a", "", peer, 60, "60", "0", ""},
		{0, "/users/a", "", peer, 1, "60", "0", "3600"},
		{0, "/users/a", "", "203.0.113.10:1", 1, "60", "59", ""},
		{0, "/users/a", "unknown", peer, 1, "60", "0", "3600"}, // no identity: the address
		{0, "/users/a", "42-user", peer, 1, "5000", "4999", ""},
		{0, "/users/a", "42-user-laptop", "203.0.113.10:1", 1, "5000", "4998", ""}, // another token of the account
		{0, "/users/a", "42-enterprise", peer, 1, "15000", "14997", ""},            // upgraded: what was used stays
		{0, "/users/a", "43-other", peer, 1, "60", "59", ""},                       // a plan that isn't listed

		{0, "/search/code", "42-user", peer, 30, "30", "0", ""},
		{0, "/search/code", "42-user", peer, 1, "30", "0", "60"},
		{0, "/users/a", "42-user", peer, 1, "5000", "4996", ""}, // search took nothing from core
		{0, "/search/code", "", peer, 1, "10", "9", ""},         // nor core from search
		{0, "/rate_limit", "", peer, 100, "", "", ""},
		{time.Minute, "/search/code", "42-user", peer, 1, "30", "29", ""},
		{59 * time.Minute, "/users/a", "", peer, 1, "60", "59", ""},
	} {
		c.Advance(step.after)
		var header []string
		if step.token != "" {
			header = []string{"Authorization", "Bearer " + step.token}
		}
		for n := range step.times {
			resp := send(h, newRequest("GET", step.path, step.from, header...))
			last, want := n == step.times-1, http.StatusOK
			if last && step.retry != "" {
				want = http.StatusTooManyRequests
			}
			if resp.StatusCode != want {
				t.Errorf("step %d, request %d: %d, want %d", i, n, resp.StatusCode, want)
			}
			if last {
				wantHeaders(t, resp.Header, "X-RateLimit-Limit", step.limit, "X-RateLimit-Remaining", step.remaining, "Retry-After", step.retry)
			}
		}
	}
}
