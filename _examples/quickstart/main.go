// Quickstart is an API guarded by the limiter: GET /items and /search share a quota of
// reads, POST /exports has a token bucket, /healthz is never limited.
//
//	go run ./_examples/quickstart
//	go run ./_examples/quickstart -addr 127.0.0.1:8081 -redis redis://127.0.0.1:6379/0
//
// Several processes on one Redis share the limits.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/chiroutes"
	"github.com/seed-601ed181/ratelimit/memstore"
	"github.com/seed-601ed181/ratelimit/redisstore"
)

func main() {
	log.SetFlags(0)
	var (
		addr       = flag.String("addr", "127.0.0.1:8080", "address to listen on")
		redisURL   = flag.String("redis", "", "Redis to keep the counters in, such as redis://127.0.0.1:6379/0; in this process if empty")
		userHeader = flag.String("user-header", "", "header that names the authenticated user; only behind a proxy that always sets it")
		trust      = flag.String("trust", "", "networks of trusted proxies, such as 10.0.0.0/8,192.0.2.1/32")
		failure    ratelimit.FailureMode
	)
	flag.TextVar(&failure, "fail", ratelimit.FailLocal, "what happens while the store is away: open, closed or local")
	flag.Parse()

	proxies, err := parsePrefixes(*trust)
	if err != nil {
		log.Fatal(err)
	}
	store, storeName, closeStore, err := openStore(*redisURL)
	if err != nil {
		log.Fatal(err)
	}
	defer closeStore()

	router := chi.NewRouter()
	limiter, err := newLimiter(router, store, failure, *userHeader, proxies)
	if err != nil {
		log.Fatal(err)
	}
	register(router, limiter)
	if err := chiroutes.Check(router, routes); err != nil {
		log.Fatal(err)
	}
	if err := serve(*addr, storeName, router); err != nil {
		log.Fatal(err)
	}
}

// routes names the policies of the routes that don't have the default one.
var routes = ratelimit.Routes{
	"GET /search":   {"search"},
	"POST /exports": {"export"},
	"GET /healthz":  {}, // never limited
}

func newLimiter(router chi.Routes, store ratelimit.Store, failure ratelimit.FailureMode, userHeader string, proxies []netip.Prefix) (*ratelimit.Limiter, error) {
	who := []ratelimit.KeyFunc{ratelimit.APIKey(lookup)}
	if userHeader != "" {
		who = append(who, ratelimit.By("user", func(r *http.Request) string { return r.Header.Get(userHeader) }))
	}
	who = append(who, ratelimit.ClientIP(proxies...))

	return ratelimit.New(ratelimit.Config{
		Store:   store,
		Key:     ratelimit.FirstOf(who...),
		Failure: failure,
		Policies: []ratelimit.Policy{
			{
				Name:   "read",
				Quota:  "api",
				Limits: ratelimit.Limits{algorithms.SlidingWindowCounter{Limit: 100, Window: time.Minute}},
				Tiers: map[string]ratelimit.Limits{
					"pro": {algorithms.SlidingWindowCounter{Limit: 1000, Window: time.Minute}},
				},
			},
			{Name: "search", Quota: "api", Cost: 5},
			{Name: "export", Limits: ratelimit.Limits{algorithms.TokenBucket{Capacity: 20, Refill: 1, Per: time.Second}}},
		},
		Router:  chiroutes.Router(router), // asks chi which route it will serve
		Routes:  routes,
		Default: "read",
	})
}

// lookup stands for a query to the database of API keys.
func lookup(_ context.Context, apiKey string) (ratelimit.Key, error) {
	switch apiKey {
	case "demo-alice":
		return ratelimit.Key{ID: "alice", Tier: "free"}, nil
	case "demo-bob":
		return ratelimit.Key{ID: "bob", Tier: "pro"}, nil
	}
	return ratelimit.Key{}, nil
}

func register(r chi.Router, limiter *ratelimit.Limiter) {
	r.Use(limiter.Handler)
	r.Get("/items", reply(`{"items":["anvil","rocket"]}`))
	r.Get("/items/{id}", reply(`{"item":"anvil"}`))
	r.Get("/search", reply(`{"found":[]}`))
	r.Post("/exports", reply(`{"export":"queued"}`))
	r.Get("/healthz", reply(`{"status":"ok"}`))
}

func reply(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body+"\n")
	}
}

func openStore(redisURL string) (store ratelimit.Store, name string, closeStore func(), err error) {
	if redisURL == "" {
		return memstore.New(memstore.Config{}), "the memory of this process", func() {}, nil
	}
	s, err := redisstore.Open(redisURL)
	if err != nil {
		return nil, "", nil, err
	}
	return s, "Redis", func() { _ = s.Close() }, nil
}

func parsePrefixes(list string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for field := range strings.SplitSeq(list, ",") {
		if field = strings.TrimSpace(field); field == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(field)
		if err != nil {
			return nil, fmt.Errorf("-trust: want networks such as 10.0.0.0/8, got %q", field)
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes, nil
}

// serve runs until SIGINT or SIGTERM and lets requests in flight finish.
func serve(addr, storeName string, handler http.Handler) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}

	fmt.Printf("listening on http://%s, counters in %s; try: curl -i -H 'X-API-Key: demo-alice' http://%s/items\n",
		listener.Addr(), storeName, listener.Addr())
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		return err
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
