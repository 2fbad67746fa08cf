package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-601ed181/ratelimit"
)

// keysOf is a lookup that knows "good" and counts how often it is asked.
func keysOf(asked *atomic.Int64) ratelimit.Lookup {
	return func(_ context.Context, apiKey string) (ratelimit.Key, error) {
		asked.Add(1)
		switch apiKey {
		case "good":
			return ratelimit.Key{ID: "alice", Tier: "pro"}, nil
		case "broken":
			return ratelimit.Key{}, errors.New("database away")
		}
		return ratelimit.Key{}, nil
	}
}

func keyFunc(t *testing.T, a ratelimit.APIKeys) ratelimit.KeyFunc {
	t.Helper()
	f, err := a.KeyFunc()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAPIKeysAreFoundWhereTheyAreExpected(t *testing.T) {
	var asked atomic.Int64
	for _, tc := range []struct {
		name   string
		keys   ratelimit.APIKeys
		target string
		header []string
		found  bool
	}{
		{"X-API-Key", ratelimit.APIKeys{}, "/", []string{"X-Api-Key", "good"}, true},
		{"bearer", ratelimit.APIKeys{}, "/", []string{"Authorization", "bEaReR good"}, true},
		{"bearer beside an invented key", ratelimit.APIKeys{}, "/", []string{"X-Api-Key", "guess", "Authorization", "Bearer good"}, true},
		{"named header", ratelimit.APIKeys{Header: "X-Token"}, "/", []string{"X-Token", "good"}, true},
		{"named header only", ratelimit.APIKeys{Header: "X-Token"}, "/", []string{"X-Api-Key", "good"}, false},
		{"Authorization by name", ratelimit.APIKeys{Header: "authorization"}, "/", []string{"Authorization", "Bearer good"}, true},
		{"Authorization by name without the scheme", ratelimit.APIKeys{Header: "authorization"}, "/", []string{"Authorization", "good"}, false},
		{"query", ratelimit.APIKeys{Query: "key"}, "/?key=good", nil, true},
		{"query not asked for", ratelimit.APIKeys{}, "/?key=good", nil, false},
		{"too long", ratelimit.APIKeys{}, "/", []string{"X-Api-Key", strings.Repeat("x", 5000)}, false},
	} {
		tc.keys.Lookup = keysOf(&asked)
		key, err := keyFunc(t, tc.keys)(newRequest("GET", tc.target, peer, tc.header...))
		if err != nil || (key.ID != "") != tc.found {
			t.Errorf("%s: %+v, %v; want found: %v", tc.name, key, err, tc.found)
		}
		if tc.found && key != (ratelimit.Key{Kind: "key", ID: "alice", Tier: "pro"}) {
			t.Errorf("%s: %+v, want the account", tc.name, key)
		}
	}
}

func TestAPIKeyMistakes(t *testing.T) {
	unlimited := build(t, ratelimit.Config{Default: ratelimit.Unlimited})
	_, err := ratelimit.APIKeys{CacheFor: -1, CacheSize: -1, Guesses: unlimited}.KeyFunc()
	for _, want := range []string{"APIKeys.Lookup", "APIKeys.CacheFor", "APIKeys.CacheSize", "APIKeys.Guesses"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

func TestLookupsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		f := keyFunc(t, ratelimit.APIKeys{Lookup: keysOf(&asked), CacheFor: time.Minute, CacheSize: 10})
		ask := func(key string) { _, _ = f(newRequest("GET", "/", peer, "X-Api-Key", key)) }
		for _, step := range []struct {
			key   string
			times int
			want  int64
		}{{"good", 5, 1}, {"bad", 5, 1}, {"broken", 5, 5}} {
			asked.Store(0)
			for range step.times {
				ask(step.key)
			}
			if asked.Load() != step.want {
				t.Errorf("%s: looked up %d times, want %d", step.key, asked.Load(), step.want)
			}
		}
		for i := range 1000 { // invented keys push out each other, not the known one
			ask(fmt.Sprint("guess", i))
		}
		asked.Store(0)
		if ask("good"); asked.Load() != 0 {
			t.Error("a flood of unknown keys pushed out a known one")
		}
		time.Sleep(time.Minute)
		if ask("good"); asked.Load() != 1 {
			t.Error("a known key was not looked up again after CacheFor")
		}
	})
}

func TestGuessingKeysIsBounded(t *testing.T) {
	var asked atomic.Int64
	guesses := build(t, ratelimit.Config{Policies: []ratelimit.Policy{policy("guesses", 3)}})
	l := build(t, ratelimit.Config{
		Key:      ratelimit.FirstOf(keyFunc(t, ratelimit.APIKeys{Lookup: keysOf(&asked), Guesses: guesses}), ratelimit.ClientIP()),
		Policies: []ratelimit.Policy{policy("api", 100)},
	})
	h := l.Handler(ok)
	for range 10 {
		get(h, "/", "X-API-Key", "good") // what succeeds is no guess
	}
	asked.Store(0)
	wantStatuses(t, statuses(h, 6, func(i int) *http.Request { return newRequest("GET", "/", peer, "X-Api-Key", fmt.Sprint("guess", i)) }),
		200, 200, 200, 429, 429, 429)
	if asked.Load() != 3 {
		t.Errorf("%d lookups of 6 guesses, want 3", asked.Load())
	}
	resp := get(h, "/", "X-API-Key", "good")
	wantHeaders(t, resp.Header, "Retry-After", "60", "X-RateLimit-Limit", "3", "X-RateLimit-Remaining", "0")
	if resp.StatusCode != 429 {
		t.Errorf("the right key after too many wrong ones: %d, want 429, or guessing would pay", resp.StatusCode)
	}
	wantStatuses(t, statuses(h, 1, func(int) *http.Request { return newRequest("GET", "/", "198.51.100.1:1", "X-Api-Key", "good") }), 200)
}

func TestEachIsAllOrNobodyAndNeverCollides(t *testing.T) {
	header := func(name string) ratelimit.KeyFunc {
		return ratelimit.By(strings.ToLower(name), func(r *http.Request) string { return r.Header.Get(name) })
	}
	each := ratelimit.Each(header("Tenant"), header("User"))
	seen := make(map[string]string)
	for _, pair := range [][2]string{{"a", "bc"}, {"ab", "c"}, {"a&b", "c"}, {"a", "b&c"}, {"a%26b", "c"}, {"a", "c"}} {
		key, err := each(newRequest("GET", "/", peer, "Tenant", pair[0], "User", pair[1]))
		if err != nil || key.Kind != "tenant+user" {
			t.Errorf("%v: %+v, %v", pair, key, err)
		}
		if other, ok := seen[key.ID]; ok {
			t.Errorf("%v and %s are both %q", pair, other, key.ID)
		}
		seen[key.ID] = fmt.Sprint(pair)
	}
	if key, _ := each(newRequest("GET", "/", peer, "Tenant", "a")); key != (ratelimit.Key{}) {
		t.Errorf("a tenant without a user: %+v, want nobody", key)
	}
}
