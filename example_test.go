package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

// accounts stands for the database of API keys.
func accounts(_ context.Context, apiKey string) (ratelimit.Key, error) {
	if apiKey == "k-alice" {
		return ratelimit.Key{ID: "alice"}, nil
	}
	return ratelimit.Key{}, nil
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })

// exampleClock stands still, so that the examples print the same each time.
func exampleClock() time.Time { return time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC) }

func exampleStore() ratelimit.Store { return memstore.New(memstore.Config{Clock: exampleClock}) }

// show sends a request and prints the answer's status and rate limit headers.
func show(h http.Handler, method, target string, header ...string) {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Printf("%s %s: %d", method, target, w.Code)
	if limit := w.Header().Get("X-RateLimit-Limit"); limit != "" {
		fmt.Printf(", %s of %s left", w.Header().Get("X-RateLimit-Remaining"), limit)
	}
	if wait := w.Header().Get("Retry-After"); wait != "" {
		fmt.Printf(", retry after %s s", wait)
	}
	fmt.Println()
}

// The whole router of chi, with a policy for each class of routes. Search draws on the
// same quota as everything else and costs five times as much.
func Example_chi() {
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: exampleStore(), // redisstore.New(rdb) when there are several instances
		Key:   ratelimit.FirstOf(ratelimit.APIKey(accounts), ratelimit.ClientIP()),
		Policies: []ratelimit.Policy{
			{Name: "read", Limits: ratelimit.Limits{algorithms.SlidingWindowCounter{Limit: 100, Window: time.Minute}}},
			{Name: "search", Quota: "read", Cost: 5},
		},
		Routes: ratelimit.Routes{
			"GET /search":  {"search"},
			"GET /healthz": {}, // never limited
		},
		Default: "read",
	})
	if err != nil {
		log.Fatal(err)
	}
	r := chi.NewRouter()
	r.Use(limiter.Handler)
	r.Get("/items/{id}", ok)
	r.Get("/search", ok)
	r.Get("/healthz", ok)

	show(r, "GET", "/items/1", "X-API-Key", "k-alice")
	show(r, "GET", "/search", "X-API-Key", "k-alice")
	show(r, "GET", "/items/2", "X-API-Key", "k-alice")
	show(r, "GET", "/items/2")
	show(r, "GET", "/healthz")
	// Output:
	// GET /items/1: 200, 99 of 100 left
	// GET /search: 200, 94 of 100 left
	// GET /items/2: 200, 93 of 100 left
	// GET /items/2: 200, 99 of 100 left
	// GET /healthz: 200
}

// The policy stated at the route, on the standard mux.
func ExampleLimiter_For() {
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: exampleStore(),
		Key:   ratelimit.ClientIP(),
		Policies: []ratelimit.Policy{
			{Name: "login", Limits: ratelimit.Limits{algorithms.SlidingWindowLog{Limit: 2, Window: time.Minute}}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /login", limiter.For("login")(ok))
	mux.Handle("GET /", ok)

	for range 3 {
		show(mux, "POST", "/login")
	}
	show(mux, "GET", "/")
	// Output:
	// POST /login: 200, 1 of 2 left
	// POST /login: 200, 0 of 2 left
	// POST /login: 429, 0 of 2 left, retry after 60 s
	// GET /: 200
}

// A custom key extractor is a plain function. This one counts by tenant, which the
// authentication has put into the context.
func ExampleKeyFunc() {
	type tenantKey struct{}
	tenant := func(r *http.Request) (ratelimit.Key, error) {
		id, _ := r.Context().Value(tenantKey{}).(string)
		return ratelimit.Key{Kind: "tenant", ID: id}, nil // an empty ID means nobody
	}
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: exampleStore(),
		Key:   ratelimit.FirstOf(tenant, ratelimit.ClientIP()),
		Policies: []ratelimit.Policy{
			{Name: "api", Limits: ratelimit.Limits{algorithms.SlidingWindowCounter{Limit: 10, Window: time.Second}}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	authenticate := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, r.Header.Get("Tenant"))))
		})
	}
	h := authenticate(limiter.Handler(ok)) // the limiter inside the authentication

	show(h, "GET", "/a", "Tenant", "acme")
	show(h, "GET", "/b", "Tenant", "acme")
	show(h, "GET", "/a", "Tenant", "umbrella")
	// Output:
	// GET /a: 200, 9 of 10 left
	// GET /b: 200, 8 of 10 left
	// GET /a: 200, 9 of 10 left
}

// A token bucket on the route where clients send batches: twenty at once, then one a
// second.
func Example_tokenBucket() {
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: exampleStore(),
		Key:   ratelimit.ClientIP(),
		Policies: []ratelimit.Policy{
			{Name: "read", Limits: ratelimit.Limits{algorithms.SlidingWindowCounter{Limit: 100, Window: time.Minute}}},
			{Name: "export", Limits: ratelimit.Limits{algorithms.TokenBucket{Capacity: 20, Refill: 1, Per: time.Second}}},
		},
		Routes:  ratelimit.Routes{"POST /exports": {"export"}},
		Default: "read",
	})
	if err != nil {
		log.Fatal(err)
	}
	h := limiter.Handler(ok)
	for range 19 {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/exports", nil))
	}
	show(h, "POST", "/exports")
	show(h, "POST", "/exports")
	show(h, "GET", "/exports")
	// Output:
	// POST /exports: 200, 0 of 20 left
	// POST /exports: 429, 0 of 20 left, retry after 1 s
	// GET /exports: 200, 99 of 100 left
}

// Outside HTTP: a queue worker asks before it sends a mail.
func ExampleLimiter_Take() {
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: exampleStore(),
		Key:   ratelimit.ClientIP(), // for HTTP; Take is told the key
		Policies: []ratelimit.Policy{
			{Name: "mail", Limits: ratelimit.Limits{
				algorithms.TokenBucket{Capacity: 2, Refill: 10, Per: time.Minute},
				algorithms.FixedWindow{Limit: 1000, Window: 24 * time.Hour},
			}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, tenant := context.Background(), ratelimit.Key{Kind: "tenant", ID: "acme"}
	for range 3 {
		d, err := limiter.Take(ctx, tenant, "mail")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter)
	}
	// Output:
	// true 1 0s
	// true 0 0s
	// false 0 6s
}

// A queue in front of what bears only so much: requests leave in an even stream, 50 a
// second here and over all instances with Redis, and who finds three before it is refused.
func ExamplePolicy_delay() {
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: exampleStore(),
		Key: func(*http.Request) (ratelimit.Key, error) {
			return ratelimit.Key{Kind: "downstream", ID: "reports"}, nil // one queue for everybody
		},
		Policies: []ratelimit.Policy{{
			Name:    "reports",
			Limits:  ratelimit.Limits{algorithms.LeakyBucket{Capacity: 3, Rate: 50, Per: time.Second}},
			Action:  ratelimit.Delay,
			MaxWait: time.Second, // or as long as the queue is
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	h := limiter.Handler(ok)
	answers := make(chan int)
	for range 4 {
		go func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			answers <- w.Code
		}()
	}
	got := []int{<-answers, <-answers, <-answers, <-answers}
	slices.Sort(got)
	fmt.Println(got)
	// Output:
	// [200 200 200 429]
}

// Outside HTTP: a worker keeps to the quota of a third party, together with all others.
func ExampleLimiter_Wait() {
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: memstore.New(memstore.Config{}), // redisstore.New(rdb) when there are several instances
		Key:   ratelimit.ClientIP(),            // for HTTP; Wait is told the key
		Policies: []ratelimit.Policy{
			{Name: "sms", Limits: ratelimit.Limits{algorithms.LeakyBucket{Capacity: 1000, Rate: 100, Per: time.Second}}},
			{Name: "calls", Limits: ratelimit.Limits{algorithms.SlidingWindowLog{Limit: 1, Window: 24 * time.Hour}}},
		},
		Default: ratelimit.Unlimited,
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, gateway := context.Background(), ratelimit.Key{Kind: "gateway", ID: "example"}
	begin := time.Now()
	for n := range 3 {
		if err := limiter.Wait(ctx, gateway, "sms"); err != nil {
			log.Fatal(err)
		}
		fmt.Println("message", n, "sent")
	}
	fmt.Println("10 ms apart:", time.Since(begin) >= 20*time.Millisecond)

	// A deadline that is too early is known at once.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	fmt.Println(limiter.Wait(ctx, gateway, "calls"))
	fmt.Println(errors.Is(limiter.Wait(ctx, gateway, "calls"), context.DeadlineExceeded))
	// Output:
	// message 0 sent
	// message 1 sent
	// message 2 sent
	// 10 ms apart: true
	// <nil>
	// true
}

// A turn that is taken now and used later, or given up.
func ExampleLimiter_Reserve() {
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: memstore.New(memstore.Config{}),
		Key:   ratelimit.ClientIP(),
		Policies: []ratelimit.Policy{
			{Name: "sms", Limits: ratelimit.Limits{algorithms.LeakyBucket{Capacity: 10, Rate: 1, Per: time.Minute}}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, gateway := context.Background(), ratelimit.Key{Kind: "gateway", ID: "example"}
	for range 2 {
		turn, err := limiter.Reserve(ctx, gateway, "sms")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("in", turn.Delay().Round(time.Minute))
		if turn.Delay() > time.Second {
			turn.Cancel() // too late for this message: the next has the turn
		}
	}
	// Output:
	// in 0s
	// in 1m0s
}

// This is the wrong way round: the limiter runs before the authentication and never
// sees a user, so all of them share one anonymous key.
func ExampleUserID_mountedOutsideAuthentication() {
	type userKey struct{}
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: exampleStore(),
		Key: ratelimit.UserID(func(ctx context.Context) string {
			id, _ := ctx.Value(userKey{}).(string)
			return id
		}),
		Policies: []ratelimit.Policy{
			{Name: "api", Limits: ratelimit.Limits{algorithms.FixedWindow{Limit: 2, Window: time.Minute}}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	authenticate := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, r.Header.Get("User"))))
		})
	}
	h := limiter.Handler(authenticate(ok)) // wrong: authenticate(limiter.Handler(ok))

	show(h, "GET", "/", "User", "ann")
	show(h, "GET", "/", "User", "ben")
	show(h, "GET", "/", "User", "cleo")
	// Output:
	// GET /: 200, 1 of 2 left
	// GET /: 200, 0 of 2 left
	// GET /: 429, 0 of 2 left, retry after 60 s
}

// Calls to a partner leave as an even stream, and nobody calls while it asks for a pause.
// Here the partner answers 429, and the next call would wait longer than it may.
func ExampleTransport() {
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: exampleStore(),
		Key:   ratelimit.ClientIP(), // for requests that are served; calls have Transport.Key
		Policies: []ratelimit.Policy{
			{Name: "partner", Limits: ratelimit.Limits{algorithms.LeakyBucket{Capacity: 100, Rate: 10, Per: time.Second}}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	transport, err := ratelimit.NewTransport(ratelimit.Transport{
		Base:    busyPartner{},
		Limiter: limiter,
		Policy:  "partner",
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport, Timeout: time.Second}

	resp, err := client.Get("https://api.example.com/orders")
	if err != nil {
		log.Fatal(err)
	}
	_ = resp.Body.Close()
	fmt.Println(resp.Status, "retry after", resp.Header.Get("Retry-After"))

	_, err = client.Get("https://api.example.com/orders")
	var waiting *ratelimit.WaitError
	if errors.As(err, &waiting) {
		fmt.Println("not called, ask again in", waiting.RetryAfter.Round(time.Second))
	}
	// Output:
	// 429 Too Many Requests retry after 30
	// not called, ask again in 30s
}

// busyPartner stands for the other side.
type busyPartner struct{}

func (busyPartner) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.Header().Set("Retry-After", "30")
	w.WriteHeader(http.StatusTooManyRequests)
	return w.Result(), nil
}
