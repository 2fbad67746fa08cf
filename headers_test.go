package ratelimit_test

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
)

// headerCase is a row of testdata/header-cases.json: what a store decides and what the
// client must read. Names of headers are absent where the value is "".
type headerCase struct {
	Name, Basis, Method string
	NowUnixMS           int64 `json:"now_unix_ms"`
	Allowed             bool
	Satisfiable         bool
	Policies            []struct {
		Limit, Remaining int64
		ResetInMS        *int64 `json:"reset_in_ms"`
		RetryAfterMS     *int64 `json:"retry_after_ms"` // of those that refuse
	}
	Status  int
	Headers map[string]string
}

// notOurs are the rows that no limiter of this package can come to, and why.
var notOurs = map[string]string{
	"pk_ascii":                  "a limit without a window: every rule here has one",
	"concurrency_limit_allowed": "a limit on concurrency has no window; there is none yet",
	"concurrency_limit_denied":  "a limit on concurrency has no window; there is none yet",
}

// The middleware is given each row's decisions by a store that says what it is told to.
func TestHeaderCases(t *testing.T) {
	text, err := os.ReadFile("testdata/header-cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []headerCase
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 60 {
		t.Fatalf("only %d cases", len(cases))
	}
	for _, tc := range cases {
		t.Run(tc.Name, func(t *testing.T) {
			if why, ok := notOurs[tc.Name]; ok {
				t.Skip(why)
			}
			resp := send(tc.handler(t), newRequest(tc.Method, "/", peer))
			want := tc.Status
			if want == http.StatusNoContent {
				want = http.StatusOK // the row's handler answers a preflight, ours doesn't
			}
			if resp.StatusCode != want {
				t.Errorf("got %d, want %d", resp.StatusCode, want)
			}
			for name, value := range tc.Headers {
				wantHeaders(t, resp.Header, name, value)
			}
		})
	}
}

// handler is a limiter in the state that the row describes.
func (tc headerCase) handler(t *testing.T) http.Handler {
	config := ratelimit.Config{Routes: ratelimit.Routes{"/": {"api"}}}
	switch tc.Name {
	case "store_error_fail_open":
		config.Store, config.Failure = newFaulty(isAway), ratelimit.FailOpen
	case "store_error_fail_closed":
		config.Store, config.Failure = newFaulty(isAway), ratelimit.FailClosed
	case "skipped_request_no_policy", "preflight_exempt":
		config.Routes = ratelimit.Routes{"/": {}}
	default:
		config.Policies = []ratelimit.Policy{{Name: "api"}}
		store := &scripted{Store: exampleStore()}
		for i, p := range tc.Policies {
			config.Policies[0].Limits = append(config.Policies[0].Limits, algorithms.FixedWindow{Limit: 1, Window: time.Duration(i+1) * time.Minute})
			d := ratelimit.Decision{
				At: time.UnixMilli(tc.NowUnixMS), Allowed: tc.Allowed || tc.Satisfiable && p.RetryAfterMS == nil,
				Limit: p.Limit, Remaining: p.Remaining, ResetAfter: milliseconds(*p.ResetInMS),
			}
			switch {
			case p.RetryAfterMS != nil:
				d.RetryAfter = milliseconds(*p.RetryAfterMS)
			case !d.Allowed:
				d.RetryAfter = ratelimit.Never
			}
			store.decisions = append(store.decisions, d)
		}
		config.Store = store
	}
	return build(t, config).Handler(ok)
}

// milliseconds is the duration, or the longest that is not Never.
func milliseconds(n int64) time.Duration {
	if n > math.MaxInt64/int64(time.Millisecond) {
		return ratelimit.Never - 1
	}
	return time.Duration(n) * time.Millisecond
}

// scripted is a store that decides what it is told to.
type scripted struct {
	ratelimit.Store
	decisions []ratelimit.Decision
}

func (s *scripted) Take(_ context.Context, _ []algorithms.Charge, decisions []ratelimit.Decision) error {
	copy(decisions, s.decisions)
	return nil
}

// A client that waits exactly Retry-After, alone, passes (B57), and so does one that
// waits until the instant of X-RateLimit-Reset (B60).
func TestB57_WaitingAsToldPasses(t *testing.T) {
	for _, rule := range algorithms.Rules() {
		for _, fraction := range []time.Duration{0, time.Microsecond, 200 * time.Millisecond, 999_999 * time.Microsecond} {
			t.Run(rule.Name+" at "+fraction.String(), func(t *testing.T) {
				clock := newClock(exampleClock().Add(fraction))
				h := build(t, ratelimit.Config{
					Store:    clock.Store(),
					Policies: []ratelimit.Policy{{Name: "api", Limits: ratelimit.Limits{rule.Example}}},
				}).Handler(ok)
				for _, name := range []string{"Retry-After", "X-RateLimit-Reset"} {
					resp := get(h, "/")
					for resp.StatusCode == http.StatusOK {
						resp = get(h, "/")
					}
					seconds := integer(t, resp.Header, name)
					if name == "Retry-After" {
						if seconds < 1 {
							t.Errorf("Retry-After: %d", seconds)
						}
						clock.Advance(time.Duration(seconds) * time.Second)
					} else {
						wait := time.Unix(seconds, 0).Sub(clock.Now())
						if wait < 0 {
							t.Errorf("X-RateLimit-Reset is %v in the past", -wait)
						}
						clock.Advance(wait)
					}
					if resp = get(h, "/"); resp.StatusCode != http.StatusOK {
						t.Errorf("after %s: got %d", name, resp.StatusCode)
					}
				}
			})
		}
	}
}

// A handler that appends to one header changes no other, and no other answer.
func TestHeaderValuesAreNotShared(t *testing.T) {
	names := []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}
	h := build(t, ratelimit.Config{}).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range names {
			w.Header()[name] = append(w.Header()[name], "appended to "+name)
		}
	}))
	first, second := get(h, "/").Header, get(h, "/").Header
	for _, name := range names {
		for _, header := range []http.Header{first, second} {
			if got := header.Values(name); len(got) != 2 || got[1] != "appended to "+name {
				t.Errorf("%s: got %q", name, got)
			}
		}
	}
	if a, b := first.Get(names[1]), second.Get(names[1]); a != "1" || b != "0" {
		t.Errorf("remaining: got %s, then %s", a, b)
	}
}
