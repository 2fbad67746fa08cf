package ratelimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
	"github.com/seed-601ed181/ratelimit/redisstore"
)

// B71: a Redis that is full has failed, it has not refused: clients get what the failure
// mode says, and the first decision after that is Redis's again.
func TestB71_AFullRedisIsAFailureOfTheStore(t *testing.T) {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: redistest.Run(t, "--maxmemory-policy", "noeviction").Addr})
	defer func() { _ = client.Close() }()
	for _, tt := range []struct {
		mode    ratelimit.FailureMode
		status  int
		headers bool
	}{
		{ratelimit.FailLocal, http.StatusOK, true},
		{ratelimit.FailOpen, http.StatusOK, false},
		{ratelimit.FailClosed, http.StatusServiceUnavailable, false},
	} {
		t.Run(tt.mode.String(), func(t *testing.T) {
			failures := 0
			limiter := build(t, ratelimit.Config{
				Store: redisstore.New(client, redisstore.Options{Prefix: "rl:" + tt.mode.String() + ":"}), Failure: tt.mode,
				Hooks: ratelimit.Hooks{Failed: func(context.Context, ratelimit.Event) { failures++ }},
			})
			handler := limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			get := func() *http.Response {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
				return w.Result()
			}
			maxmemory := func(bytes string) {
				if err := client.ConfigSet(ctx, "maxmemory", bytes).Err(); err != nil {
					t.Fatal(err)
				}
			}

			maxmemory("1")
			full := get()
			if full.StatusCode != tt.status || (full.Header.Get("X-RateLimit-Limit") != "") != tt.headers || failures != 1 {
				t.Errorf("full: %s %v with %d failures, want %d, headers %v and 1 failure", full.Status, full.Header, failures, tt.status, tt.headers)
			}
			maxmemory("0")
			if again := get(); again.StatusCode != http.StatusOK || again.Header.Get("X-RateLimit-Remaining") != "1" || failures != 1 {
				t.Errorf("room again: %s %v with %d failures, want 200 with 1 left", again.Status, again.Header, failures)
			}
		})
	}
}
