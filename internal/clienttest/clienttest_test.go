package clienttest

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-github/v89/github"
	"github.com/hashicorp/go-retryablehttp"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

// server is an API behind a limiter that remembers the statuses it answered.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	statuses []int
}

func serve(t *testing.T, store ratelimit.Store, limit algorithms.Algorithm) *server {
	t.Helper()
	limiter, err := ratelimit.New(ratelimit.Config{
		Store:    store,
		Key:      ratelimit.ClientIP(),
		Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{limit}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	guarded := limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"login":"octocat"}`)
	}))
	s := new(server)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		recorded := &recorder{ResponseWriter: w, status: http.StatusOK}
		guarded.ServeHTTP(recorded, r)
		s.mu.Lock()
		s.statuses = append(s.statuses, recorded.status)
		s.mu.Unlock()
	}))
	t.Cleanup(s.Close)
	return s
}

type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// answered is the statuses of all answers. It closes the server, which waits for them.
func (s *server) answered() []int {
	s.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statuses
}

// go-github takes a 403 or 429 with nothing remaining for a rate limit, and reads from
// X-RateLimit-Reset, as an epoch, when it ends.
func TestGoGithubReportsARateLimitErrorWithOurReset(t *testing.T) {
	for name, tc := range map[string]struct {
		options []github.ClientOptionsFunc
		want    []int
	}{
		"told by our 429": {[]github.ClientOptionsFunc{github.WithDisableRateLimitCheck()}, []int{200, 200, 429}},
		// Having read Remaining 0 it doesn't ask before the reset.
		"warned by our headers": {nil, []int{200, 200}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now().Truncate(time.Hour).Add(time.Hour) // ahead, and so is the reset
			store := memstore.New(memstore.Config{Clock: func() time.Time { return now }})
			api := serve(t, store, algorithms.FixedWindow{Limit: 2, Window: time.Hour})
			url := api.URL + "/"
			client, err := github.NewClient(append(tc.options, github.WithURLs(&url, nil))...)
			if err != nil {
				t.Fatal(err)
			}
			for _, remaining := range []int{1, 0} {
				user, response, err := client.Users.Get(t.Context(), "octocat")
				if err != nil || user.GetLogin() != "octocat" || response.Rate.Limit != 2 || response.Rate.Remaining != remaining {
					t.Errorf("got %v, %+v, %v, want %d of 2 left", user, response, err, remaining)
				}
			}
			_, _, err = client.Users.Get(t.Context(), "octocat")
			var limited *github.RateLimitError
			if !errors.As(err, &limited) {
				t.Fatalf("got %v, want a RateLimitError", err)
			}
			if rate := limited.Rate; rate.Limit != 2 || rate.Remaining != 0 || !rate.Reset.Equal(github.Timestamp{Time: now.Add(time.Hour)}) {
				t.Errorf("got %+v, want 0 of 2 left until %v", rate, now.Add(time.Hour))
			}
			if got := api.answered(); !slices.Equal(got, tc.want) {
				t.Errorf("the server answered %v, want %v", got, tc.want)
			}
		})
	}
}

// go-retryablehttp waits what Retry-After says, however long, and then once is enough.
func TestRetryableHTTPWaitsAndPassesAtTheFirstRetry(t *testing.T) {
	api := serve(t, memstore.New(memstore.Config{}), algorithms.TokenBucket{Capacity: 1, Refill: 1, Per: time.Second})
	client := retryablehttp.NewClient()
	client.Logger = nil
	client.RetryWaitMin, client.RetryWaitMax = time.Millisecond, time.Millisecond // what it would wait without Retry-After
	begin := time.Now()
	for range 2 {
		response, err := client.Get(api.URL)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("got %s", response.Status)
		}
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("it came back after %v, Retry-After is 1 s", took)
	}
	if got := api.answered(); !slices.Equal(got, []int{200, 429, 200}) {
		t.Errorf("the server answered %v, want one refusal and one retry", got)
	}
}
