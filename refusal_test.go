package ratelimit_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit"
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
	for _, tc := range []struct {
		name    string
		refusal ratelimit.Refusal
		detail  string
	}{
		{"over the limit", ratelimit.Refusal{Status: 429, RetryAfter: 1500 * time.Millisecond}, "Over the rate limit. Try again in 2 s."},
		{"no wait", ratelimit.Refusal{Status: 429}, "Over the rate limit. Try again in 1 s."},
		{"never", ratelimit.Refusal{Status: 429, RetryAfter: ratelimit.Never}, "This request costs more than the rate limit ever allows. Waiting does not help."},
		{"the store is away", ratelimit.Refusal{Status: 503, RetryAfter: time.Second}, "The rate limit can't be checked right now. Try again in a second."},
		{"a mistake in the server", ratelimit.Refusal{Status: 500}, "Internal Server Error"},
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
				var problem struct {
					Type, Title, Detail string
					Status              int
				}
				decoder := json.NewDecoder(w.Body)
				decoder.DisallowUnknownFields()
				if err := decoder.Decode(&problem); err != nil {
					t.Fatal(err)
				}
				if problem.Type != "about:blank" || problem.Title != http.StatusText(w.Code) || problem.Status != w.Code || problem.Detail != tc.detail {
					t.Errorf("got %+v", problem)
				}
			})
		}
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
