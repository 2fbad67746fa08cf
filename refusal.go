package ratelimit

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Refusal is why a request doesn't reach its handler. It is for Config.Refused, which
// gets it with the headers already set: X-RateLimit-* or what Config.Headers has
// instead, Retry-After unless waiting would not help, and Cache-Control: no-store.
//
// A body written without WriteHeader goes out with Status.
//
// The built-in answer is a problem document (RFC 9457) with the members type, title,
// status, detail and, where waiting helps, retry_after: the number of seconds that
// Retry-After stands for, since a browser shows a script no header that CORS doesn't
// expose. With Headers.Draft a 429 also has violated-policies. Names of policies that
// no header tells a client are not in it.
type Refusal struct {
	// Status is 429, 503 when the store could not decide under [FailClosed] or the context
	// of a request that was held by [Delay] ended, or 403 when Config.Deny refused.
	Status int
	// Policy is the one that refused with 429 or held the request, "" otherwise.
	Policy string
	// Decision is its answer; zero unless Status is 429.
	Decision Decision
	// RetryAfter is when to come back: Decision.RetryAfter, 1 s with a 503, both longer by
	// the Jitter of Config.Headers, or [Never].
	RetryAfter time.Duration
	// Violated names every limit that refused, as the RateLimit fields name it (see
	// [Draft8]); nil unless Status is 429.
	Violated []string
	// Type is the type of the problem document, a URI: with Headers.Draft the draft's
	// quota-exceeded on a 429 and temporary-reduced-capacity on a 503; otherwise "",
	// which is about:blank.
	Type string
}

// The draft's problem types (draft-ietf-httpapi-ratelimit-headers-11, 5).
const (
	quotaExceeded            = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	temporaryReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

func overLimit(policy string, d Decision, violated []string) Refusal {
	return Refusal{Status: http.StatusTooManyRequests, Policy: policy, Decision: d, RetryAfter: d.RetryAfter, Violated: violated}
}

// problemType is the type of the problem document that goes with a status.
func (w *wire) problemType(status int) string {
	switch {
	case w.Draft == 0:
	case status == http.StatusTooManyRequests:
		return quotaExceeded
	case status == http.StatusServiceUnavailable:
		return temporaryReducedCapacity
	}
	return ""
}

// ServeHTTP writes the built-in answer: a problem document (RFC 9457), or plain text for a
// client that prefers it by its Accept header.
func (refusal Refusal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	detail := refusal.detail()
	contentType, body := "application/problem+json", []byte(nil)
	if prefersText(r.Header.Values("Accept")) {
		contentType, body = "text/plain; charset=utf-8", []byte(detail)
	} else {
		body, _ = json.Marshal(refusal.problem(detail))
	}
	body = append(body, '\n')
	h, values := w.Header(), [...]string{contentType, strconv.Itoa(len(body)), "nosniff"}
	h["Content-Type"], h["Content-Length"], h["X-Content-Type-Options"] = values[0:1:1], values[1:2:2], values[2:3:3]
	w.WriteHeader(refusal.Status)
	_, _ = w.Write(body) // the client may be gone
}

// problem is the document of the built-in answer.
type problem struct {
	Type       string   `json:"type"`
	Title      string   `json:"title"`
	Status     int      `json:"status"`
	Detail     string   `json:"detail"`
	RetryAfter int64    `json:"retry_after,omitempty"`
	Violated   []string `json:"violated-policies,omitempty"`
}

func (refusal Refusal) problem(detail string) problem {
	p := problem{"about:blank", http.StatusText(refusal.Status), refusal.Status, detail, 0, nil}
	if refusal.Type != "" {
		p.Type = refusal.Type
	}
	if refusal.waits() {
		p.RetryAfter = waitSeconds(refusal.RetryAfter)
	}
	if refusal.Type == quotaExceeded {
		p.Violated = refusal.Violated
	}
	return p
}

// waits says whether the client may come back.
func (refusal Refusal) waits() bool {
	limited := refusal.Status == http.StatusTooManyRequests || refusal.Status == http.StatusServiceUnavailable
	return limited && refusal.RetryAfter != Never
}

// detail is for the client: it says nothing of keys, stores or errors.
func (refusal Refusal) detail() string {
	switch {
	case refusal.Status == http.StatusServiceUnavailable && refusal.Policy != "":
		return fmt.Sprintf("This request could not wait for its turn. Try again in %d s.", waitSeconds(refusal.RetryAfter))
	case refusal.Status == http.StatusServiceUnavailable:
		return fmt.Sprintf("The rate limit can't be checked right now. Try again in %d s.", waitSeconds(refusal.RetryAfter))
	case refusal.Status != http.StatusTooManyRequests:
		return http.StatusText(refusal.Status)
	case refusal.RetryAfter == Never:
		return "This request costs more than the rate limit ever allows. Waiting does not help."
	default:
		return fmt.Sprintf("Over the rate limit. Try again in %d s.", waitSeconds(refusal.RetryAfter))
	}
}

// prefersText says whether the client would rather read text than JSON
// (RFC 9110, 12.5.1). Without a preference it gets JSON.
func prefersText(accept []string) bool {
	var text, doc preference
	for _, line := range accept {
		for entry := range strings.SplitSeq(line, ",") {
			mediaType, parameters, _ := strings.Cut(entry, ";")
			q := quality(parameters)
			switch mediaType = strings.ToLower(strings.TrimSpace(mediaType)); mediaType {
			case "text/plain":
				text.set(3, q)
			case "text/*":
				text.set(2, q)
			case "application/problem+json", "application/json":
				doc.set(3, q)
			case "application/*":
				doc.set(2, q)
			case "*/*":
				text.set(1, q)
				doc.set(1, q)
			}
		}
	}
	return text.quality > doc.quality
}

// preference is the quality that the most specific entry gives.
type preference struct {
	specific int
	quality  float64
}

func (p *preference) set(specific int, quality float64) {
	if specific > p.specific || specific == p.specific && quality > p.quality {
		p.specific, p.quality = specific, quality
	}
}

func quality(parameters string) float64 {
	for parameter := range strings.SplitSeq(parameters, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
		if strings.EqualFold(name, "q") {
			if q, err := strconv.ParseFloat(value, 64); err == nil && q >= 0 && q <= 1 {
				return q
			}
			return 0
		}
	}
	return 1
}

// refusalWriter gives a body written without a status the status of the refusal.
type refusalWriter struct {
	http.ResponseWriter
	status int
}

func (w *refusalWriter) WriteHeader(status int) {
	if status >= 200 { // others announce a later one
		w.status = 0
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *refusalWriter) Write(b []byte) (int, error) {
	w.writeStatus()
	return w.ResponseWriter.Write(b)
}

// FlushError is what http.ResponseController calls; Flush is what older code asks for.
func (w *refusalWriter) FlushError() error {
	w.writeStatus()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *refusalWriter) Flush() { _ = w.FlushError() }

// writeStatus writes the refusal's status if no other was.
func (w *refusalWriter) writeStatus() {
	if w.status != 0 {
		w.WriteHeader(w.status)
	}
}

func (w *refusalWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
