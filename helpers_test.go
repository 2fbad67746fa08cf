package ratelimit_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

// clock is a time that only the test moves.
type clock struct{ micros atomic.Int64 }

func newClock(start time.Time) *clock {
	c := new(clock)
	c.micros.Store(start.UnixMicro())
	return c
}

func (c *clock) Now() time.Time          { return time.UnixMicro(c.micros.Load()).UTC() }
func (c *clock) Advance(d time.Duration) { c.micros.Add(d.Microseconds()) }
func (c *clock) Store() *memstore.Store  { return memstore.New(memstore.Config{Clock: c.Now}) }

// build makes a limiter. What the test leaves out is a store whose clock stands still,
// the client's address, two requests a minute, and a log that nobody reads.
func build(t testing.TB, config ratelimit.Config) *ratelimit.Limiter {
	t.Helper()
	if config.Store == nil {
		config.Store = exampleStore()
	}
	if config.Key == nil {
		config.Key = ratelimit.ClientIP()
	}
	if config.Policies == nil {
		config.Policies = []ratelimit.Policy{policy("api", 2)}
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	limiter, err := ratelimit.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

func perMinute(limit int64) ratelimit.Limits {
	return ratelimit.Limits{algorithms.FixedWindow{Limit: limit, Window: time.Minute}}
}

// policy is one with a fixed window of a minute.
func policy(name string, limit int64) ratelimit.Policy {
	return ratelimit.Policy{Name: name, Limits: perMinute(limit)}
}

// newRequest is one from an address, with header names and values in turn. Several values
// of one name are several lines.
func newRequest(method, target, from string, header ...string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr = from
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

const peer = "203.0.113.9:5000"

func send(h http.Handler, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// get sends a GET from the one peer.
func get(h http.Handler, target string, header ...string) *http.Response {
	return send(h, newRequest("GET", target, peer, header...))
}

// statuses sends n requests in turn.
func statuses(h http.Handler, n int, next func(i int) *http.Request) []int {
	var got []int
	for i := range n {
		got = append(got, send(h, next(i)).StatusCode)
	}
	return got
}

func wantStatuses(t *testing.T, got []int, want ...int) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got statuses %v, want %v", got, want)
	}
}

// passThen is n statuses 200 and then refusals.
func passThen(n, refused int) []int {
	return append(slices.Repeat([]int{http.StatusOK}, n), slices.Repeat([]int{http.StatusTooManyRequests}, refused)...)
}

// wantHeaders compares headers, given as name and value in turn; "" means absent. A
// header that is there must be there once.
func wantHeaders(t *testing.T, header http.Header, want ...string) {
	t.Helper()
	for i := 0; i < len(want); i += 2 {
		var values []string
		if want[i+1] != "" {
			values = []string{want[i+1]}
		}
		if got := header.Values(want[i]); !slices.Equal(got, values) {
			t.Errorf("%s: got %q, want %q", want[i], got, values)
		}
	}
}

var noRateHeaders = []string{"X-RateLimit-Limit", "", "X-RateLimit-Remaining", "", "X-RateLimit-Reset", ""}

// hits counts the requests that reach the handler.
type hits struct{ atomic.Int64 }

func (h *hits) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h.Add(1)
	w.WriteHeader(http.StatusOK)
}

// counting is a store that remembers what it was asked to take.
type counting struct {
	ratelimit.Store
	mu    sync.Mutex
	calls int
	keys  map[string]bool
	last  []ratelimit.Decision
}

func newCounting(store ratelimit.Store) *counting {
	return &counting{Store: store, keys: make(map[string]bool)}
}

func (s *counting) Take(ctx context.Context, charges []algorithms.Charge, decisions []ratelimit.Decision) error {
	err := s.Store.Take(ctx, charges, decisions)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	for _, c := range charges {
		s.keys[c.Key] = true
	}
	s.last = slices.Clone(decisions[:len(charges)])
	return err
}

// asked is how many times so far.
func (s *counting) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// faulty is a store that fails as told, until it is told to be well again.
type faulty struct {
	ratelimit.Store
	fault atomic.Pointer[func(context.Context) error]
}

func newFaulty(fault func(context.Context) error) *faulty {
	s := &faulty{Store: exampleStore()}
	s.fault.Store(&fault)
	return s
}

func (s *faulty) heal() { s.fault.Store(nil) }

var errAway = errors.New("dial tcp 10.1.2.3:6379: connection refused")

// The faults: a store that refuses at once, and one that hangs until the context ends.
func isAway(context.Context) error { return errAway }

func hangs(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (s *faulty) ask(ctx context.Context) error {
	if fault := s.fault.Load(); fault != nil {
		return (*fault)(ctx)
	}
	return nil
}

func (s *faulty) Take(ctx context.Context, charges []algorithms.Charge, decisions []ratelimit.Decision) error {
	if err := s.ask(ctx); err != nil {
		return err
	}
	return s.Store.Take(ctx, charges, decisions)
}

func (s *faulty) Peek(ctx context.Context, charges []algorithms.Charge, decisions []ratelimit.Decision) error {
	if err := s.ask(ctx); err != nil {
		return err
	}
	return s.Store.Peek(ctx, charges, decisions)
}

func (s *faulty) Settle(ctx context.Context, charges []algorithms.Charge) error {
	if err := s.ask(ctx); err != nil {
		return err
	}
	return s.Store.Settle(ctx, charges)
}

func (s *faulty) Reset(ctx context.Context, charges []algorithms.Charge) error {
	if err := s.ask(ctx); err != nil {
		return err
	}
	return s.Store.Reset(ctx, charges)
}

// integer is the header's value.
func integer(t *testing.T, header http.Header, name string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(header.Get(name), 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
