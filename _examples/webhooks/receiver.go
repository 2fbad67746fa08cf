package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

const (
	quota      = 25 // requests a second that the receiver takes
	eachFails  = 30 // one webhook of so many is answered 500 the first time
	eachIsBusy = 20 // and one of so many 503, to come again in a second
)

// receiver is the other side: a server of somebody else, with a quota.
type receiver struct {
	url  string
	stop func()

	mu      sync.Mutex
	arrived []time.Time
	answers map[int]int    // by status
	seen    map[string]int // deliveries by webhook; 0 for one that failed so far
}

func startReceiver() (*receiver, error) {
	r := &receiver{answers: make(map[int]int), seen: make(map[string]int)}
	limiter, err := ratelimit.New(ratelimit.Config{
		Store:    memstore.New(memstore.Config{}),
		Key:      ratelimit.ClientIP(),
		Policies: []ratelimit.Policy{{Name: "quota", Limits: ratelimit.Limits{algorithms.SlidingWindowLog{Limit: quota, Window: time.Second}}}},
		Default:  "quota",
		Hooks:    ratelimit.Hooks{Refused: func(context.Context, ratelimit.Event) { r.count(http.StatusTooManyRequests) }},
	})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	guarded := limiter.Handler(http.HandlerFunc(r.take))
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.arrived = append(r.arrived, time.Now())
		r.mu.Unlock()
		guarded.ServeHTTP(w, req)
	})}
	go func() { _ = server.Serve(listener) }()
	r.url, r.stop = "http://"+listener.Addr().String(), func() { _ = server.Close() }
	return r, nil
}

// take takes a webhook, most of the time.
func (r *receiver) take(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := req.Header.Get("Webhook-Id")
	_, again := r.seen[id]
	status, n := http.StatusNoContent, len(r.seen)+1
	switch {
	case again:
	case n%eachFails == 0:
		status = http.StatusInternalServerError
	case n%eachIsBusy == 0:
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	r.answers[status]++
	if status == http.StatusNoContent {
		r.seen[id]++
	} else {
		r.seen[id] = 0
	}
	w.WriteHeader(status)
}

func (r *receiver) count(status int) {
	r.mu.Lock()
	r.answers[status]++
	r.mu.Unlock()
}

// delivered is how many webhooks have come.
func (r *receiver) delivered() (n int) {
	n, _ = r.deliveries()
	return n
}

// deliveries is how many webhooks have come, and how many of them more than once.
func (r *receiver) deliveries() (once, twice int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.seen {
		if n > 0 {
			once++
		}
		if n > 1 {
			twice++
		}
	}
	return once, twice
}

// answered is how many requests were answered with the status.
func (r *receiver) answered(status int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answers[status]
}

// lastSecond is how many requests came in it.
func (r *receiver) lastSecond() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.arrived {
		if time.Since(at) < time.Second {
			n++
		}
	}
	return n
}

// stream is how evenly requests came: the gaps between them in order of length, and the
// most that came within any second.
func (r *receiver) stream() (gaps []time.Duration, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, at := range r.arrived {
		if i > 0 {
			gaps = append(gaps, at.Sub(r.arrived[i-1]))
		}
		first := i
		for first > 0 && at.Sub(r.arrived[first-1]) < time.Second {
			first--
		}
		most = max(most, i-first+1)
	}
	slices.Sort(gaps)
	return gaps, most
}

func (r *receiver) summary(webhooks int) string {
	var out strings.Builder
	once, twice := r.deliveries()
	_, _ = fmt.Fprintf(&out, "webhooks          %d\ndelivered         %d\ndelivered twice   %d\n", webhooks, once, twice)
	_, _ = fmt.Fprintf(&out, "sent back         %d busy (503), %d failed (500), %d over the quota (429)\n",
		r.answered(503), r.answered(500), r.answered(429))
	if gaps, most := r.stream(); len(gaps) > 0 {
		ms := func(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }
		_, _ = fmt.Fprintf(&out, "gaps              median %s, from %s to %s\n", ms(gaps[len(gaps)/2]), ms(gaps[0]), ms(gaps[len(gaps)-1]))
		_, _ = fmt.Fprintf(&out, "most in a second  %d\n", most)
	}
	return out.String()
}
