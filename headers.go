package ratelimit

import (
	"net/http"
	"strconv"
	"time"
)

// Header names, in the canonical form of net/http. On HTTP/2 they travel in lower case.
const (
	headerLimit      = "X-Ratelimit-Limit"
	headerRemaining  = "X-Ratelimit-Remaining"
	headerReset      = "X-Ratelimit-Reset"
	headerRetryAfter = "Retry-After"
)

const (
	// maxHeaderInteger has 15 digits, the most a structured field may (RFC 9651, 3.3.1).
	maxHeaderInteger = 999_999_999_999_999
	// maxHeaderSeconds is what clients with 32-bit seconds can read (68 years).
	maxHeaderSeconds = 1<<31 - 1
)

// announce sets the X-RateLimit-* headers: the limit, what is left of it, and, in
// seconds of the Unix epoch by the store's clock, when the key is as good as new. If a
// limiter further out has announced something tighter on a request that passes, that
// stays.
func announce(h http.Header, d Decision) {
	remaining := max(0, min(d.Remaining, d.Limit, maxHeaderInteger))
	if outer := h[headerRemaining]; len(outer) > 0 && d.Allowed {
		if n, err := strconv.ParseInt(outer[0], 10, 64); err == nil && n < remaining {
			return
		}
	}
	reset := min(max(d.ResetAfter, 0), maxHeaderSeconds*time.Second)

	// Three headers from two allocations: one text, cut in three, and one array. Both
	// are made afresh, since handlers may keep or change what they find in the map.
	var buffer [64]byte
	text := strconv.AppendInt(buffer[:0], max(0, min(d.Limit, maxHeaderInteger)), 10)
	limitEnd := len(text)
	text = strconv.AppendInt(text, remaining, 10)
	remainingEnd := len(text)
	text = strconv.AppendInt(text, ceilUnix(d.At.Add(reset)), 10)
	all := string(text)
	values := []string{all[:limitEnd], all[limitEnd:remainingEnd], all[remainingEnd:]}
	h[headerLimit] = values[0:1:1]
	h[headerRemaining] = values[1:2:2]
	h[headerReset] = values[2:3:3]
}

// announceWait sets Retry-After, in whole seconds rounded up and at least 1
// (RFC 9110, 10.2.3), unless waiting would not help.
func announceWait(h http.Header, wait time.Duration) {
	if wait == Never {
		h.Del(headerRetryAfter)
		return
	}
	h.Set(headerRetryAfter, strconv.FormatInt(waitSeconds(wait), 10))
}

func waitSeconds(wait time.Duration) int64 {
	seconds := int64(wait / time.Second)
	if wait%time.Second > 0 {
		seconds++
	}
	return max(1, min(seconds, maxHeaderSeconds))
}

func ceilUnix(t time.Time) int64 {
	if t.Nanosecond() > 0 {
		return t.Unix() + 1
	}
	return t.Unix()
}

// tightest is the index of the decision to announce: of those that refuse the one with
// the longest wait, else the one with the least left.
func tightest(decisions []Decision) int {
	best := 0
	for i := 1; i < len(decisions); i++ {
		a, b := &decisions[i], &decisions[best]
		switch {
		case a.Allowed != b.Allowed:
			if !a.Allowed {
				best = i
			}
		case !a.Allowed && a.RetryAfter > b.RetryAfter, a.Allowed && a.Remaining < b.Remaining:
			best = i
		}
	}
	return best
}
