package redisstore

import (
	"context"
	"runtime"
	"testing"
	"time"

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
