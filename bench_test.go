package ratelimit_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

// BenchmarkHandler is the whole middleware with all headers, counters in memory.
func BenchmarkHandler(b *testing.B) {
	for _, bench := range []struct {
		name  string
		limit int64
	}{{"admitted", 100_000_000}, {"refused", 1}} {
		b.Run(bench.name, func(b *testing.B) {
			limiter, err := ratelimit.New(ratelimit.Config{
				Store:    memstore.New(memstore.Config{}),
				Key:      ratelimit.ClientIP(),
				Logger:   slog.New(slog.DiscardHandler), // all requests come from one address, which is worth a warning elsewhere
				Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{algorithms.SlidingWindowCounter{Limit: bench.limit, Window: time.Minute}}}},
			})
			if err != nil {
				b.Fatal(err)
			}
			h := limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			r := httptest.NewRequest("GET", "/", nil)
			w := &discard{header: make(http.Header)}
			b.ReportAllocs()
			for b.Loop() {
				clear(w.header)
				h.ServeHTTP(w, r)
			}
		})
	}
}

type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}
