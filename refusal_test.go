package ratelimit_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
)

// accepts are values of Accept and whether the client would rather read text than JSON.
var accepts = []struct {
	accept string
	text   bool
}{
	{"", false},
	{"*/*", false},
	{"text/plain", true},
	{"TEXT/Plain", true},
	{"text/plain; charset=utf-8", true},
	{"text/*", true},
	{"application/json", false},
	{"application/problem+json", false},
	{"application/*", false},
	{"text/html", false},
	{"image/png", false},
	{"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8", false}, // browsers
	{"application/json, text/plain, */*", false},                                                                // axios
	{"text/plain, application/json", false},
	{"text/plain, */*;q=0.5", true},
	{"text/plain;q=0.5, application/json;q=0.4", true},
	{"text/plain;q=0.4, application/json;q=0.5", false},
	{"text/plain;q=0", false},
	{"text/*;q=1, text/plain;q=0", false}, // the more specific entry wins
	{"text/plain;q=0.5, text/*;q=0.9, application/json;q=0.7", false},
	{"*/*, application/json;q=0.1", true},
	{"*/*, application/json;q=0, application/problem+json;q=0", true},
	{"application/json;q=0.1, application/problem+json;q=0.9, text/plain;q=0.5", false},
	{"text/plain;format=flowed;q=0.9, application/json;q=0.8", true},
	{"text/plain ; Q=1 , application/json ; q=0.5", true},
	// Garbage is no preference.
	{"text/plain;q=NaN", false},
	{"text/plain;q=2", false},
	{"text/plain;q=-1", false},
	{"text/plain;q=", false},
	{"text/plain;q=x", false},
	{"text", false},
	{"text/plain/x", false},
	{",,;;,=;q=1", false},
	{strings.Repeat(",", 10_000), false},
}

func refused(accept ...string) *http.Response {
	r := httptest.NewRequest("GET", "/", nil)
	for _, line := range accept {
		r.Header.Add("Accept", line)
	}
	w := httptest.NewRecorder()
	ratelimit.Refusal{Status: 429, RetryAfter: 1500 * time.Millisecond}.ServeHTTP(w, r)
	return w.Result()
}

func readsText(resp *http.Response) bool {
	return resp.Header.Get("Content-Type") == "text/plain; charset=utf-8"
}

func TestTheClientChoosesTextOrJSON(t *testing.T) {
	for _, tc := range accepts {
		if got := readsText(refused(tc.accept)); got != tc.text {
			t.Errorf("Accept: %.80s: text is %v, want %v", tc.accept, got, tc.text)
		}
	}
	if readsText(refused()) || !readsText(refused("image/png", "text/plain")) {
		t.Error("no Accept must give JSON, and all lines of it be read")
	}
}

func TestTheAnswerOfARefusal(t *testing.T) {
	const iana = "https://iana.org/assignments/http-problem-types#"
	const never = "This request costs more than the rate limit ever allows. Waiting does not help."
	for _, tc := range []struct {
		name       string
		refusal    ratelimit.Refusal
		detail     string
		retryAfter int64
	}{
		{"over the limit", ratelimit.Refusal{Status: 429, Policy: "api", Violated: []string{"api"}, RetryAfter: 1500 * time.Millisecond},
			"Over the rate limit. Try again in 2 s.", 2},
		{"no wait", ratelimit.Refusal{Status: 429}, "Over the rate limit. Try again in 1 s.", 1},
		{"never", ratelimit.Refusal{Status: 429, RetryAfter: ratelimit.Never}, never, 0},
		{"the store is away", ratelimit.Refusal{Status: 503, RetryAfter: time.Second}, "The rate limit can't be checked right now. Try again in 1 s.", 1},
		{"denied", ratelimit.Refusal{Status: 403, RetryAfter: ratelimit.Never}, "Forbidden", 0},
		{"a mistake in the server", ratelimit.Refusal{Status: 500}, "Internal Server Error", 0},
		{"over the limit, in a draft's words", ratelimit.Refusal{Status: 429, Violated: []string{"api", "login.2"}, Type: iana + "quota-exceeded", RetryAfter: time.Minute},
			"Over the rate limit. Try again in 60 s.", 60},
		{"never, in a draft's words", ratelimit.Refusal{Status: 429, Violated: []string{"api"}, Type: iana + "quota-exceeded", RetryAfter: ratelimit.Never}, never, 0},
		{"the store is away, in a draft's words", ratelimit.Refusal{Status: 503, Type: iana + "temporary-reduced-capacity", RetryAfter: 3 * time.Second},
			"The rate limit can't be checked right now. Try again in 3 s.", 3},
		{"a type of the handler's own", ratelimit.Refusal{Status: 429, Violated: []string{"api"}, Type: "https://example.com/slow-down"}, "Over the rate limit. Try again in 1 s.", 1},
	} {
		for _, accept := range []string{"application/json", "text/plain"} {
			t.Run(tc.name+" as "+accept, func(t *testing.T) {
				w := httptest.NewRecorder()
				w.Header().Set("Content-Type", "text/html") // as an outer middleware may have
				r := newRequest("GET", "/", peer, "Accept", accept)
				tc.refusal.ServeHTTP(w, r)
				if w.Code != tc.refusal.Status {
					t.Errorf("got %d", w.Code)
				}
				wantHeaders(t, w.Header(), "Content-Length", strconv.Itoa(w.Body.Len()), "X-Content-Type-Options", "nosniff")
				if accept == "text/plain" {
					wantHeaders(t, w.Header(), "Content-Type", "text/plain; charset=utf-8")
					if got := w.Body.String(); got != tc.detail+"\n" {
						t.Errorf("got %q", got)
					}
					return
				}
				wantHeaders(t, w.Header(), "Content-Type", "application/problem+json")
				want := map[string]any{"type": "about:blank", "title": http.StatusText(w.Code), "status": float64(w.Code), "detail": tc.detail}
				if tc.refusal.Type != "" {
					want["type"] = tc.refusal.Type
				}
				if tc.retryAfter > 0 {
					want["retry_after"] = float64(tc.retryAfter)
				}
				if tc.refusal.Type == iana+"quota-exceeded" {
					var violated []any
					for _, name := range tc.refusal.Violated {
						violated = append(violated, name)
					}
					want["violated-policies"] = violated
				}
				var got map[string]any
				if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("got %s, %v, want %v", w.Body, err, want)
				}
			})
		}
	}
}

// The middleware gives a refusal the draft's problem type when it sends the draft's
// fields, and tells Config.Refused the same.
func TestADraftGivesRefusalsItsProblemTypes(t *testing.T) {
	const iana = "https://iana.org/assignments/http-problem-types#"
	for _, tc := range []struct {
		name     string
		draft    ratelimit.Draft
		store    ratelimit.Store
		status   int
		typ      string
		violated []string
	}{
		{"429", ratelimit.Draft8, nil, 429, iana + "quota-exceeded", []string{"read", "login.1", "login.2"}},
		{"503", ratelimit.Draft8, newFaulty(isAway), 503, iana + "temporary-reduced-capacity", nil},
		{"429 without", 0, nil, 429, "about:blank", nil},
		{"503 without", 0, newFaulty(isAway), 503, "about:blank", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := ratelimit.Config{
				Store: tc.store, Failure: ratelimit.FailClosed, Headers: ratelimit.Headers{Draft: tc.draft},
				Policies: []ratelimit.Policy{policy("read", 1), policy("other", 9), {Name: "login", Limits: ratelimit.Limits{
					algorithms.SlidingWindowLog{Limit: 1, Window: time.Minute}, algorithms.FixedWindow{Limit: 1, Window: time.Hour},
				}}},
				Routes: ratelimit.Routes{"/": {"read", "other", "login"}}, Default: ratelimit.Unlimited,
			}
			h := build(t, config).Handler(ok)
			get(h, "/")
			resp := get(h, "/")
			var problem struct {
				Type     string
				Violated []string `json:"violated-policies"`
			}
			if err := json.NewDecoder(resp.Body).Decode(&problem); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tc.status || problem.Type != tc.typ || !slices.Equal(problem.Violated, tc.violated) {
				t.Errorf("got %d with %+v", resp.StatusCode, problem)
			}

			var told ratelimit.Refusal
			config.Store = tc.store
			config.Refused = func(_ http.ResponseWriter, _ *http.Request, refusal ratelimit.Refusal) { told = refusal }
			h = build(t, config).Handler(ok)
			get(h, "/")
			get(h, "/")
			if told.Status != tc.status || (told.Type != "") != (tc.draft != 0) || tc.status == 429 && (len(told.Violated) != 3 || told.Decision.Limit != 1) {
				t.Errorf("the handler was told %+v", told)
			}
		})
	}
}

func TestACostOverTheLimitHasNoRetryAfter(t *testing.T) {
	// Two policies of one quota on a route cost more together than it holds.
	h := build(t, ratelimit.Config{Store: &scripted{Store: exampleStore(), decisions: []ratelimit.Decision{
		{Limit: 10, Remaining: 10, RetryAfter: ratelimit.Never},
	}}}).Handler(ok)
	resp := get(h, "/", "Accept", "text/plain")
	body, _ := io.ReadAll(resp.Body)
	wantStatuses(t, []int{resp.StatusCode}, 429)
	wantHeaders(t, resp.Header, "Retry-After", "", "X-RateLimit-Remaining", "10")
	if !strings.Contains(string(body), "never") && !strings.Contains(string(body), "ever allows") {
		t.Errorf("the client reads %s", body)
	}
}

// FuzzAccept: whatever a client writes, it gets one of the two answers, whole, and text
// only if it named text or anything at all.
func FuzzAccept(f *testing.F) {
	for _, tc := range accepts {
		f.Add(tc.accept, "")
		f.Add("text/plain;q=0.3", tc.accept)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		resp := refused(first, second)
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 429 || resp.ContentLength != int64(len(body)) || len(body) == 0 {
			t.Errorf("got %d with %d of %d bytes", resp.StatusCode, len(body), resp.ContentLength)
		}
		switch both := strings.ToLower(first + "," + second); {
		case !readsText(resp):
			if !json.Valid(body) {
				t.Errorf("not JSON: %s", body)
			}
		case !strings.Contains(both, "text/") && !strings.Contains(both, "*/*"):
			t.Errorf("text for %q and %q", first, second)
		}
	})
}
