package redisstore

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// B39: what Open starts, Close ends, and closing again does no harm.
func TestB39_CloseEndsWhatOpenStarted(t *testing.T) {
	realRedis(t)
	rule := algorithms.FixedWindow{Limit: 1000, Window: time.Hour}
	before := runtime.NumGoroutine()
	for range 100 {
		store, err := Open("redis://" + redisAddr)
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Take(context.Background(), charge("k", rule, 1), make([]algorithms.Decision, 1)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	for wait := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(wait) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

// New looks at the client it is given.
func TestWarningsNameSettingsThatBreakAPromise(t *testing.T) {
	for _, tc := range []struct {
		name   string
		client redis.UniversalClient
		want   string
	}{
		{"defaults", redis.NewClient(&redis.Options{}), "ReadTimeout (5s)"},
		{"deadlines", redis.NewClient(&redis.Options{ContextTimeoutEnabled: true}), ""},
		{"a short time-out", redis.NewClient(&redis.Options{ReadTimeout: time.Second}), ""},
		{"no time-out", redis.NewClient(&redis.Options{ReadTimeout: -1}), "ReadTimeout (0s)"},
		{"cluster", redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ReadTimeout: 2 * time.Second}), "ReadTimeout (2s)"},
		{"cluster, deadlines", redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ContextTimeoutEnabled: true}), ""},
		{"ring", redis.NewRing(&redis.RingOptions{ReadTimeout: 2 * time.Second}), "ReadTimeout (2s)"},
		{"ring, deadlines", redis.NewRing(&redis.RingOptions{ContextTimeoutEnabled: true}), ""},
	} {
		t.Cleanup(func() { _ = tc.client.Close() })
		got := strings.Join(New(tc.client).Warnings(), "")
		if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q in it", tc.name, got, tc.want)
		}
	}
	store, err := Open("redis://127.0.0.1:1")
	must(t, err)
	defer func() { _ = store.Close() }()
	if w := store.Warnings(); w != nil {
		t.Errorf("Open: %q", w)
	}
}
