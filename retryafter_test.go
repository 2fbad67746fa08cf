package ratelimit_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit"
)

// answerOf is a response at noon of a day by the other side's clock, with header names and
// values in turn.
func answerOf(status int, header ...string) *http.Response {
	r := &http.Response{StatusCode: status, Header: http.Header{"Date": {"Tue, 01 Dec 2026 12:00:00 GMT"}}, Body: http.NoBody}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// 1796126400 is noon of that day.
func TestPauseOf(t *testing.T) {
	used := func(name, value string) []string { return []string{"X-RateLimit-Remaining", "0", name, value} }
	for _, tc := range []struct {
		name   string
		status int
		header []string
		want   time.Duration
	}{
		{"nothing", 429, nil, 0},
		{"429", 429, []string{"Retry-After", "2"}, 2 * time.Second},
		{"503", 503, []string{"Retry-After", "120"}, 2 * time.Minute},
		{"403, as GitHub's secondary limits", 403, []string{"Retry-After", "60"}, time.Minute},
		{"a redirect's is for the redirect", 301, []string{"Retry-After", "2"}, 0},
		{"202, when to ask for the result", 202, []string{"Retry-After", "2"}, 0},
		{"a date", 429, []string{"Retry-After", "Tue, 01 Dec 2026 12:00:03 GMT"}, 3 * time.Second},
		{"a date in RFC 850", 429, []string{"Retry-After", "Tuesday, 01-Dec-26 12:00:03 GMT"}, 3 * time.Second},
		{"a date in UTC, as Go programs write it", 429, []string{"Retry-After", "Tue, 01 Dec 2026 12:00:03 UTC"}, 3 * time.Second},
		{"a date that is past", 429, []string{"Retry-After", "Tue, 01 Dec 2026 11:59:59 GMT"}, 0},
		{"a fraction, as Shopify's", 429, []string{"Retry-After", "2.0"}, 2 * time.Second},
		{"part of a millisecond", 429, []string{"Retry-After", "0.0001"}, time.Millisecond},
		{"zero", 429, []string{"Retry-After", "0"}, 0},
		{"negative", 429, []string{"Retry-After", "-5"}, 0},
		{"no number", 429, []string{"Retry-After", "soon"}, 0},
		{"hexadecimal", 429, []string{"Retry-After", "0x10"}, 0},
		{"infinite", 429, []string{"Retry-After", "Inf"}, 0},
		{"not a number", 429, []string{"Retry-After", "NaN"}, 0},
		{"ten years", 429, []string{"Retry-After", "315360000"}, 315360000 * time.Second},
		{"beyond every number", 429, []string{"Retry-After", strings.Repeat("9", 400)}, 1<<62 - 1},
		{"Retry-After wins", 429, append(used("X-RateLimit-Reset", "90"), "Retry-After", "2"), 2 * time.Second},
		{"Retry-After of 0 says nothing", 429, append(used("X-RateLimit-Reset", "90"), "Retry-After", "0"), 90 * time.Second},

		{"GitHub: used up, of an answer", 200, used("X-RateLimit-Reset", "1796126460"), time.Minute},
		{"GitHub: used up, of a 403", 403, used("X-RateLimit-Reset", "1796126460"), time.Minute},
		{"some left", 200, []string{"X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "1796126460"}, 0},
		{"a 429 with some left", 429, []string{"X-RateLimit-Remaining", "3", "X-RateLimit-Reset", "1796126460"}, 0},
		{"a reset that is past", 200, used("X-RateLimit-Reset", "1796126399"), 0},
		{"Reddit: seconds", 200, []string{"X-Ratelimit-Remaining", "0.0", "X-Ratelimit-Reset", "41"}, 41 * time.Second},
		{"epoch milliseconds", 200, used("X-RateLimit-Reset", "1796126401500"), 1500 * time.Millisecond},
		{"epoch microseconds", 200, used("X-RateLimit-Reset", "1796126401500000"), 1500 * time.Millisecond},
		{"Discord: Reset-After is exact", 200, append(used("X-RateLimit-Reset", "1796126401.25"), "X-RateLimit-Reset-After", "1.2"), 1200 * time.Millisecond},
		{"Discord: a fraction of an epoch", 200, used("X-RateLimit-Reset", "1796126401.25"), 1250 * time.Millisecond},
		{"a date in RFC 3339", 200, used("X-RateLimit-Reset", "2026-12-01T12:00:09Z"), 9 * time.Second},
		{"Atlassian: to the minute", 200, used("X-RateLimit-Reset", "2026-12-01T12:02Z"), 2 * time.Minute},
		{"a duration", 200, used("X-RateLimit-Reset", "6m0s"), 6 * time.Minute},
		{"less than none left", 200, []string{"X-RateLimit-Remaining", "-4", "X-RateLimit-Reset", "7"}, 7 * time.Second},
		{"Twitter, Okta", 200, []string{"X-Rate-Limit-Remaining", "0", "X-Rate-Limit-Reset", "1796126460"}, time.Minute},
		{"Zendesk, drafts 03 to 06", 200, []string{"RateLimit-Remaining", "0", "RateLimit-Reset", "41"}, 41 * time.Second},
		{"GitLab", 429, []string{"RateLimit-Remaining", "0", "RateLimit-Reset", "1796126460"}, time.Minute},
		{"only a reset", 200, []string{"X-RateLimit-Reset", "60"}, 0},
		{"only that none is left", 200, []string{"X-RateLimit-Remaining", "0"}, 0},

		{"draft 08 to 11", 200, []string{"RateLimit", `"default";r=0;t=30`}, 30 * time.Second},
		{"draft 08 to 11: some left", 200, []string{"RateLimit", `"default";r=1;t=30`}, 0},
		{"draft 08 to 11: the longest of several", 200, []string{"RateLimit", `"burst";r=0;t=3, "daily";r=900;t=40000`, "RateLimit", `"hour"; r=0; t=20`}, 20 * time.Second},
		{"draft 08 to 11: of one name, several keys", 200, []string{"RateLimit", `"a";r=0;t=3;pk=:eA==:, "a";r=4;t=9;pk=:eQ==:`}, 3 * time.Second},
		{"draft 08 to 11: the window of the policy", 200, []string{"RateLimit", `"burst";r=0`, "RateLimit-Policy", `"daily";q=9;w=86400, "burst";q=100;w=60`}, time.Minute},
		{"draft 08 to 11: separators in a name", 200, []string{"RateLimit", `"a;r=9,\"b";r=0;t=5`}, 5 * time.Second},
		{"the names of the editors' branch", 200, []string{"RateLimit", `"api";a=0;w=60;c=1`}, time.Minute},
		{"draft 07", 200, []string{"RateLimit", "limit=100, remaining=0, reset=30", "RateLimit-Policy", "100;w=60"}, 30 * time.Second},
		{"draft 07: some left", 200, []string{"RateLimit", "limit=100, remaining=50, reset=30"}, 0},
		{"no quote at the end", 200, []string{"RateLimit", `"default;r=0;t=30`}, 0},
		{"no parameters", 200, []string{"RateLimit", `"default"`}, 0},
		{"from a cache", 200, []string{"RateLimit", `"default";r=0;t=30`, "Age", "5"}, 0},
		{"from a cache, just now", 200, []string{"RateLimit", `"default";r=0;t=30`, "Age", "0"}, 30 * time.Second},
		{"RateLimit before X-RateLimit", 200, append(used("X-RateLimit-Reset", "90"), "RateLimit", `"default";r=0;t=30`), 30 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, why := ratelimit.PauseOf(answerOf(tc.status, tc.header...))
			if got != tc.want || (why == "") != (tc.want == 0) {
				t.Errorf("got %v because of %q, want %v", got, why, tc.want)
			}
		})
	}
}

// What servers send by the table of headers, read back: Retry-After of what was refused,
// and without it the quota fields of a limit that is used up.
func TestPauseOfReadsTheHeaderCases(t *testing.T) {
	seconds := func(ms *int64, least int64) time.Duration {
		if ms == nil {
			return 0
		}
		// No header says more than 2^31-1 seconds.
		return time.Duration(min(max(*ms/1000+min(1, *ms%1000), least), 1<<31-1)) * time.Second
	}
	read := 0
	for _, tc := range headerCases(t) {
		from := func(headers map[string]string, leaveOut string) time.Duration {
			r := &http.Response{StatusCode: tc.Status, Header: http.Header{}}
			r.Header.Set("Date", time.UnixMilli(tc.NowUnixMS).UTC().Format(http.TimeFormat))
			for name, value := range headers {
				if name != leaveOut && value != "" {
					r.Header.Set(name, value)
				}
			}
			pause, _ := ratelimit.PauseOf(r)
			if pause > 0 {
				read++
			}
			return pause
		}
		if after := tc.Headers["Retry-After"]; after != "" {
			n, err := strconv.Atoi(after)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := from(tc.Headers, ""), time.Duration(n)*time.Second; got != want {
				t.Errorf("%s: got %v from Retry-After, want %v", tc.Name, got, want)
			}
		}
		if strings.Contains(tc.Draft8["RateLimit"], ";t=") {
			var want time.Duration
			for _, p := range tc.Policies {
				switch {
				case p.Remaining > 0:
				case p.RetryAfterMS != nil:
					want = max(want, seconds(p.RetryAfterMS, 1))
				default:
					want = max(want, seconds(p.EffectiveWindowMS, 0))
				}
			}
			if got := from(tc.Draft8, ""); got != want {
				t.Errorf("%s: got %v from %s, want %v", tc.Name, got, tc.Draft8["RateLimit"], want)
			}
		}
		if len(tc.Policies) != 1 || tc.DeltaSeconds["X-RateLimit-Reset"] == "" {
			continue
		}
		var want time.Duration
		if p := tc.Policies[0]; p.Remaining < 1 {
			want = seconds(p.ResetInMS, 0)
		}
		if want >= 1e9*time.Second {
			continue // 30 years and more read as an instant
		}
		if got := from(tc.DeltaSeconds, "Retry-After"); got != want {
			t.Errorf("%s: got %v from seconds, want %v", tc.Name, got, want)
		}
		// An epoch is rounded up, and Date down, each by less than a second.
		if got := from(tc.Headers, "Retry-After"); want > 0 && (got < want-time.Second || got > want+time.Second) {
			t.Errorf("%s: got %v from an epoch, want %v", tc.Name, got, want)
		}
	}
	if read < 60 {
		t.Errorf("only %d headers asked for a pause", read)
	}
}

// Without a Date the clock of this process counts.
func TestPauseOfWithoutADate(t *testing.T) {
	r := answerOf(429, "Retry-After", time.Now().Add(time.Minute).UTC().Format(http.TimeFormat))
	r.Header.Del("Date")
	if got, _ := ratelimit.PauseOf(r); got < 58*time.Second || got > time.Minute {
		t.Errorf("got %v, want a minute", got)
	}
}

func TestWhyPauseOfSaysWhatItDoes(t *testing.T) {
	for _, tc := range []struct{ value, want string }{
		{"2", `429 with Retry-After: "2"`},
		{"2" + strings.Repeat(" ", 100) + "\x1b[31m", ""},
		{strings.Repeat("0", 100) + "2", `429 with Retry-After: "` + strings.Repeat("0", 64) + `"`},
	} {
		if _, why := ratelimit.PauseOf(answerOf(429, "Retry-After", tc.value)); why != tc.want {
			t.Errorf("got %s, want %s", why, tc.want)
		}
	}
}

// Whatever the other side writes: no panic, no negative pause, a reason for each pause
// and for nothing else, short and printable. Plain seconds are taken as they are.
func FuzzPauseOf(f *testing.F) {
	for _, seed := range [][5]string{
		{"2", "", "", "", ""},
		{"Tue, 01 Dec 2026 12:00:03 GMT", "", "", "", ""},
		{"", `"a";r=0;t=3, "b";r=1`, `"a";q=1;w=60`, "", ""},
		{"", "limit=100, remaining=0, reset=30", "100;w=60", "", ""},
		{"", `"a\";r=0`, `";;,,=`, "0", "1796126460"},
		{"1e9", "", "", "-0", "6m0s"},
	} {
		f.Add(429, seed[0], seed[1], seed[2], seed[3], seed[4])
	}
	f.Fuzz(func(t *testing.T, status int, retryAfter, limit, policy, remaining, reset string) {
		got, why := ratelimit.PauseOf(answerOf(status, "Retry-After", retryAfter, "RateLimit", limit,
			"RateLimit-Policy", policy, "X-RateLimit-Remaining", remaining, "X-RateLimit-Reset", reset))
		if got < 0 || (why == "") != (got == 0) {
			t.Errorf("got %v because of %q", got, why)
		}
		for _, c := range why {
			if !strconv.IsPrint(c) {
				t.Errorf("got an unprintable reason %q", why)
			}
		}
		if len(why) > 700 { // 64 characters, escaped
			t.Errorf("got a reason of %d bytes", len(why))
		}
		if n, err := strconv.ParseUint(retryAfter, 10, 31); err == nil && status == 429 && n > 0 && got != time.Duration(n)*time.Second {
			t.Errorf("Retry-After: %s gave %v", retryAfter, got)
		}
	})
}
