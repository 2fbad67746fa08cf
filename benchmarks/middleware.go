package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/httplimit"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	ulule "github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/memstore"
)

const middleware = "ours"

var middlewarePeers = []string{gcra, goLimiter, chiRate, ululeV3}

// middlewareContestant is a whole middleware with its headers and its counters in this
// process, by the client's address.
type middlewareContestant struct {
	name string
	wrap func(limit int, next http.Handler) http.Handler
}

var middlewareContestants = []middlewareContestant{
	{middleware, func(limit int, next http.Handler) http.Handler {
		return must(newLimiter(memstore.New(memstore.Config{}), ratelimit.ClientIP(), int64(limit))).Handler(next)
	}},
	{gcra, func(limit int, next http.Handler) http.Handler {
		l := throttled.HTTPRateLimiterCtx{RateLimiter: newThrottled(clients, limit), VaryBy: &throttled.VaryBy{RemoteAddr: true}}
		return l.RateLimit(next)
	}},
	{goLimiter, func(limit int, next http.Handler) http.Handler {
		s := must(memorystore.New(&memorystore.Config{Tokens: uint64(limit), Interval: time.Minute}))
		return must(httplimit.NewMiddleware(s, httplimit.IPKeyFunc())).Handle(next)
	}},
	{chiRate, func(limit int, next http.Handler) http.Handler {
		return httprate.LimitBy(limit, time.Minute, func(r *http.Request) (string, error) {
			host, _, err := net.SplitHostPort(r.RemoteAddr)
			return httprate.CanonicalizeIP(host), err
		})(next)
	}},
	{ululeV3, func(limit int, next http.Handler) http.Handler {
		l := ulule.New(ululememory.NewStore(), ulule.Rate{Period: time.Minute, Limit: int64(limit)})
		return stdlib.NewMiddleware(l).Handler(next)
	}},
}

// clients is how many addresses the requests come from.
const clients = 1000

func requests() []*http.Request {
	requests := make([]*http.Request, clients)
	for i := range requests {
		requests[i] = httptest.NewRequest("GET", "/items", nil)
		requests[i].RemoteAddr = fmt.Sprintf("10.0.%d.%d:12345", i/250, 1+i%250)
	}
	return requests
}

// discard is a response that nobody reads.
type discard struct {
	header http.Header
	status int
}

func newDiscard() *discard { return &discard{header: make(http.Header)} }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }
