package ratelimit

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// PauseOf tells for how long a response asks its service not to be called, and what in it
// says so. It is 0 where nothing does. It doesn't touch the body.
//
// It heeds, in this order:
//
//   - Retry-After (RFC 9110, 10.2.3) of a 429, of a 503, and of a 403, with which GitHub
//     answers too;
//   - RateLimit with no quota left (draft-ietf-httpapi-ratelimit-headers, 07 to 11, and
//     the names a and w of its editors' branch), for its effective window or else the
//     window of RateLimit-Policy, of several policies the longest;
//   - RateLimit-Remaining, X-RateLimit-Remaining or X-Rate-Limit-Remaining below 1, on
//     any status, until what -Reset-After or -Reset says.
//
// Vendors don't agree on what a Reset is. A number below 1e9 is seconds from now, as
// Reddit and Zendesk send; one above is the Unix epoch in seconds, as GitHub, GitLab and
// Okta send, or from 1e11 in milliseconds or finer. A fraction, a date and a duration
// such as 6m0s are read too. Instants are compared with the response's own Date, so that
// the clocks need not agree. A Reset by which a bucket is full again is later than need be;
// RateLimit says better, or a function of yours.
//
// What can't be read says nothing. Quota fields of an answer from a cache (Age above 0)
// are ignored, as the draft asks.
func PauseOf(r *http.Response) (pause time.Duration, why string) {
	return pauseOf(r, time.Now())
}

func pauseOf(r *http.Response, now time.Time) (time.Duration, string) {
	h := r.Header
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	because := func(name, value string) string {
		return fmt.Sprintf("%d with %s: %.*q", r.StatusCode, name, maxName, value)
	}
	switch r.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusForbidden:
		if pause := delayIn(h.Get("Retry-After"), now); pause > 0 {
			return pause, because("Retry-After", h.Get("Retry-After"))
		}
	}
	if age, ok := number(h.Get("Age")); ok && age > 0 {
		return 0, ""
	}
	if pause := quotaBack(h, now); pause > 0 {
		return pause, because("RateLimit", strings.Join(h.Values("RateLimit"), ", "))
	}
	for _, prefix := range [...]string{"RateLimit-", "X-RateLimit-", "X-Rate-Limit-"} {
		if left, ok := number(h.Get(prefix + "Remaining")); !ok || left >= 1 {
			continue
		}
		if pause := delayIn(h.Get(prefix+"Reset-After"), now); pause > 0 {
			return pause, because(prefix+"Reset-After", h.Get(prefix+"Reset-After"))
		}
		if pause := resetIn(h.Get(prefix+"Reset"), now); pause > 0 {
			return pause, because(prefix+"Reset", h.Get(prefix+"Reset"))
		}
	}
	return 0, ""
}

// delayIn is how long it is until what a header says in which a number is never an instant;
// 0 if that is past or can't be read.
func delayIn(text string, now time.Time) time.Duration {
	text = strings.TrimSpace(text)
	if n, ok := number(text); ok {
		return seconds(n)
	}
	if d, err := time.ParseDuration(text); err == nil {
		return max(0, d)
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, at.Sub(now))
	}
	for _, layout := range [...]string{time.RFC3339, "2006-01-02T15:04Z07:00", time.RFC1123} {
		if at, err := time.Parse(layout, text); err == nil {
			return max(0, at.Sub(now))
		}
	}
	return 0
}

// resetIn is delayIn of a header in which a number may be an instant.
func resetIn(text string, now time.Time) time.Duration {
	const epoch, finer = 1e9, 1e11 // 2001, and the year 5138
	n, ok := number(strings.TrimSpace(text))
	if !ok || n < epoch {
		return delayIn(text, now)
	}
	for range 3 {
		if n >= finer {
			n /= 1000
		}
	}
	return seconds(n - float64(now.UnixMilli())/1000)
}

// seconds is so many of them as a duration, rounded up to milliseconds.
func seconds(n float64) time.Duration {
	if n >= forever.Seconds() {
		return forever
	}
	return time.Duration(math.Ceil(max(0, n)*1000)) * time.Millisecond
}

// number reads digits with at most a sign and a fraction; one out of range is infinite.
func number(text string) (float64, bool) {
	if strings.Trim(text, "-0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil || math.IsInf(n, 0)
}

// quotaBack is how long RateLimit says that a policy has no quota left.
func quotaBack(h http.Header, now time.Time) (pause time.Duration) {
	policies := items(h.Values("RateLimit-Policy"))
	for _, limit := range items(h.Values("RateLimit")) {
		left, ok := number(limit.first("r", "a", "remaining"))
		if !ok || left >= 1 {
			continue
		}
		window := limit.first("t", "w", "reset")
		for i := 0; i < len(policies) && window == ""; i++ {
			if policies[i].name == limit.name {
				window = policies[i].first("w")
			}
		}
		pause = max(pause, delayIn(window, now))
	}
	return pause
}

// item is a member of a list, "a";r=1;t=2.
type item struct {
	name   string
	params map[string]string
}

// first is the value of the first parameter that there is.
func (i item) first(names ...string) string {
	for _, name := range names {
		if value := i.params[name]; value != "" {
			return value
		}
	}
	return ""
}

// items reads a list, or the dictionary of draft 07, limit=1, reset=2, which makes one
// item without a name. It reads no more of RFC 9651 than the fields need, and is lenient
// where that does no harm.
func items(lines []string) []item {
	var items []item
	dictionary := item{params: make(map[string]string)}
	for _, member := range splitOutsideQuotes(strings.Join(lines, ","), ',') {
		parts := splitOutsideQuotes(member, ';')
		one := item{strings.TrimSpace(parts[0]), make(map[string]string)}
		if !strings.HasPrefix(one.name, `"`) && strings.Contains(one.name, "=") {
			one, parts = dictionary, parts[:1]
		} else {
			parts = parts[1:]
			items = append(items, one)
		}
		for _, part := range parts {
			if key, value, ok := strings.Cut(part, "="); ok {
				one.params[strings.TrimSpace(key)] = strings.TrimSpace(value)
			}
		}
	}
	return append(items, dictionary)
}

func splitOutsideQuotes(s string, separator byte) (parts []string) {
	from, inside := 0, false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			inside = !inside
		case inside && s[i] == '\\':
			i++
		case !inside && s[i] == separator:
			parts = append(parts, s[from:i])
			from = i + 1
		}
	}
	return append(parts, s[from:])
}
