package ratelimit_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
	"github.com/seed-601ed181/ratelimit/memstore"
	"github.com/seed-601ed181/ratelimit/redisstore"
)

// A server answers three calls that are under way at once with 429 and Retry-After 2. None
// of three instances calls it for 2 s, nor much longer, as the pauses don't add up. Then
// they go on at the policy's rate, and every call arrives once, with its body.
func TestNoInstanceCallsForAsLongAsTheServerAsked(t *testing.T) {
	memory := memstore.New(memstore.Config{})
	for _, tc := range []struct {
		name  string
		store func(t *testing.T) func() ratelimit.Store // of each instance
	}{
		{"memory", func(*testing.T) func() ratelimit.Store { return func() ratelimit.Store { return memory } }},
		{"redis", func(t *testing.T) func() ratelimit.Store {
			server := redistest.Run(t)
			return func() ratelimit.Store {
				client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true})
				store := redisstore.New(client)
				t.Cleanup(func() { _ = client.Close() })
				return store
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			const (
				instances = 3
				calls     = 150
				rate      = 50
				refused   = 20 // the first of three
				asked     = 2 * time.Second
				takes     = 100 * time.Millisecond // long enough for the next calls to be under way
				stall     = 250 * time.Millisecond // from a decision to the arrival, on a busy machine
			)
			var mu sync.Mutex
			var arrivals, refusals, pauses []time.Time
			bodies := make(map[string]int)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				arrivals = append(arrivals, time.Now())
				n := len(arrivals)
				bodies[string(body)]++
				mu.Unlock()
				if n < refused || n >= refused+3 {
					return
				}
				time.Sleep(takes)
				mu.Lock()
				refusals = append(refusals, time.Now())
				mu.Unlock()
				w.Header().Set("Retry-After", "2")
				w.WriteHeader(http.StatusTooManyRequests)
			}))
			defer server.Close()

			store := tc.store(t)
			var group sync.WaitGroup
			var answered [600]atomic.Int64
			for i := range instances {
				base := http.DefaultTransport.(*http.Transport).Clone()
				client := &http.Client{Transport: newTransport(t, ratelimit.Transport{Base: base, Limiter: build(t, ratelimit.Config{
					Store:    store(),
					Timeout:  5 * time.Second,
					Failure:  ratelimit.FailClosed, // a decision that comes from elsewhere shows as an error
					Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{algorithms.LeakyBucket{Capacity: calls, Rate: rate, Per: time.Second}}}},
					Hooks: ratelimit.Hooks{Paused: func(context.Context, ratelimit.Event) {
						mu.Lock()
						defer mu.Unlock()
						pauses = append(pauses, time.Now())
					}},
				})})}
				defer client.CloseIdleConnections()
				for j := range calls / instances {
					group.Go(func() {
						response, err := client.Post(server.URL, "text/plain", strings.NewReader(fmt.Sprint(i, "-", j)))
						if err != nil {
							t.Error(err)
							return
						}
						defer func() { _ = response.Body.Close() }()
						answered[response.StatusCode].Add(1)
						if response.StatusCode == http.StatusTooManyRequests && response.Header.Get("Retry-After") != "2" {
							t.Errorf("the response came without its headers: %v", response.Header)
						}
					})
				}
			}
			group.Wait()

			if len(bodies) != calls || len(arrivals) != calls || answered[200].Load() != calls-3 || answered[429].Load() != 3 {
				t.Fatalf("%d calls with %d bodies arrived, %d were answered 200 and %d 429; want %d, %d, %d and 3",
					len(arrivals), len(bodies), answered[200].Load(), answered[429].Load(), calls, calls, calls-3)
			}
			if len(pauses) != 1 {
				t.Errorf("told of %d pauses, want 1", len(pauses))
			}
			last := slices.MaxFunc(refusals, time.Time.Compare)
			stored, late := pauses[0], 0
			resumed := time.Time{}
			for _, at := range arrivals {
				switch {
				case at.Before(refusals[0]):
				case at.Before(stored.Add(stall)):
					late++
				case resumed.IsZero():
					resumed = at
				}
			}
			if waited := resumed.Sub(last); waited < asked || waited > asked+time.Second {
				t.Errorf("called again %v after the last 429, want 2s to 3s", waited)
			}
			const most = int(rate * (time.Second + stall) / time.Second)
			for i, at := range arrivals {
				n := 0
				for _, other := range arrivals[i:] {
					if other.Sub(at) < time.Second {
						n++
					}
				}
				if at.After(last) && n > most {
					t.Errorf("%d calls within a second, want at most %d", n, most)
				}
			}
			t.Logf("the pause was stored %v after the first 429, %d calls arrived in between or %v later; called again %v after the last 429",
				stored.Sub(refusals[0]), late, stall, resumed.Sub(last))
		})
	}
}
