package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Headers says how decisions read on the wire. The zero value announces
// X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, the last in seconds of
// the Unix epoch as GitHub does, and Retry-After in seconds.
type Headers struct {
	_ [0]func() // field names are required in literals

	// Limit, Remaining and Reset name the three headers of the tightest limit; "" means
	// X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, "-" leaves the
	// header out. They must be field names of HTTP, all different, and none that the
	// middleware, the protocol or the answer itself needs. net/http writes them in its
	// canonical form, X-Ratelimit-Limit, and in lower case on HTTP/2.
	//
	// A limit on concurrency has no reset, since nobody knows when requests end. While it
	// admits, the headers speak of the rates beside it.
	Limit, Remaining, Reset string
	// ResetForm is what the Reset header counts: [ResetEpoch], the zero value, or
	// [ResetDelta].
	ResetForm ResetForm
	// Draft adds the fields RateLimit and RateLimit-Policy in the syntax of an IETF
	// draft, and gives refusals its problem types; 0 adds nothing. See [Draft8].
	Draft Draft
	// RetryAfterDate writes Retry-After as an HTTP-date, by the store's clock, rounded up
	// to the second. Clients whose clock is off then wait too long or too short. A 503
	// carries no decision and so no time; its Retry-After stays in seconds.
	RetryAfterDate bool
	// Jitter lengthens each Retry-After by a random time between 0 and Jitter, so that
	// clients refused together don't come back together; 0 adds nothing. It never
	// shortens a wait, and doesn't touch the other headers. From 0 to 24 h.
	Jitter time.Duration
}

// ResetForm is what the number in X-RateLimit-Reset means.
type ResetForm int

const (
	// ResetEpoch is the instant when the key is as good as new, in seconds of the Unix
	// epoch by the store's clock, rounded up.
	ResetEpoch ResetForm = iota
	// ResetDelta is the time until then, in seconds, rounded up.
	ResetDelta
)

// Draft is a version of draft-ietf-httpapi-ratelimit-headers, by its number. The draft
// is no standard yet and has changed its syntax before; what a number here means
// doesn't change.
type Draft int

// Draft8 is the syntax of drafts 08 to 11:
//
//	RateLimit-Policy: "burst";q=100;w=60, "daily";q=1000;w=86400
//	RateLimit: "burst";r=60;t=58, "daily";r=900;t=40000
//
// with an item for each limit of each policy that may refuse the request, in the order
// of the configuration. An item has the policy's name; where the policy has several
// limits, a dot and the limit's place follow, such as "login.1" and "login.2", or more
// dots if that name is taken. q is the limit or a bucket's capacity, w the window, or the
// time in which the whole bucket comes back; r is what is left, and t the time to spread
// it over: for a limit that refused its own wait, otherwise what is left of the window,
// or the time in which that much of the bucket comes back. Both are in seconds, rounded
// up. There is no partition key (pk). A limit on concurrency has neither w nor t, but the
// quota unit qu="concurrent-requests".
//
// Limiters one inside another add to the list; where two items would have one name, the
// inner limiter's list stands alone.
const Draft8 Draft = 8

// Header names in the canonical form of net/http. On HTTP/2 they travel in lower case.
const (
	headerRetryAfter = "Retry-After"
	headerItems      = "Ratelimit"
	headerQuotas     = "Ratelimit-Policy"
)

const (
	// maxHeaderInteger has 15 digits, the most a structured field may (RFC 9651, 3.3.1).
	maxHeaderInteger = 999_999_999_999_999
	// maxHeaderSeconds is what clients with 32-bit seconds can read (68 years).
	maxHeaderSeconds = 1<<31 - 1
	maxJitter        = 24 * time.Hour
	// maxAnnounced is room for the three numbers of an answer and the braces of a key.
	maxAnnounced = 48
)

// unusable are names that mean something else, in an answer of ours or in HTTP.
var unusable = []string{
	headerRetryAfter, headerItems, headerQuotas,
	"Cache-Control", "Content-Type", "Content-Length", "X-Content-Type-Options",
	"Connection", "Date", "Set-Cookie", "Trailer", "Transfer-Encoding", "Upgrade",
}

// wire is a checked Headers in the form that requests use. Names are canonical; a header
// that is left out has "".
type wire struct {
	Headers
	names []string // as HeaderNames returns them
}

func (h Headers) compile(mistake func(string, any, string)) wire {
	w := wire{Headers: h}
	for _, header := range []struct {
		field, standard string
		name            *string
	}{
		{"Limit", "X-RateLimit-Limit", &w.Limit},
		{"Remaining", "X-RateLimit-Remaining", &w.Remaining},
		{"Reset", "X-RateLimit-Reset", &w.Reset},
	} {
		path, name := "Headers."+header.field, *header.name
		switch {
		case name == "-":
			*header.name = ""
			continue
		case name == "":
			name = header.standard
		case !isToken(name):
			mistake(path, name, `must be a field name of HTTP: letters, digits and !#$%&'*+-.^_|~ or a backquote ("-" leaves the header out)`)
		case slices.Contains(unusable, http.CanonicalHeaderKey(name)):
			mistake(path, name, "must not be a header that means something else")
		}
		*header.name = http.CanonicalHeaderKey(name)
		if slices.ContainsFunc(w.names, func(other string) bool { return strings.EqualFold(other, name) }) {
			mistake(path, name, "must not be the name of another header")
		}
		w.names = append(w.names, name)
	}
	if h.ResetForm != ResetEpoch && h.ResetForm != ResetDelta {
		mistake("Headers.ResetForm", int(h.ResetForm), "must be ResetEpoch or ResetDelta")
	}
	w.names = append(w.names, headerRetryAfter)
	switch h.Draft {
	case 0:
	case Draft8:
		w.names = append(w.names, "RateLimit", "RateLimit-Policy")
	default:
		mistake("Headers.Draft", int(h.Draft), "must be Draft8 or 0 for none")
	}
	if h.Jitter < 0 || h.Jitter > maxJitter {
		mistake("Headers.Jitter", h.Jitter, fmt.Sprintf("must be between 0 and %v", maxJitter))
	}
	return w
}

// isToken says whether the name can be that of a field (RFC 9110, 5.1 and 5.6.2).
func isToken(name string) bool {
	const others = "!#$%&'*+-.^_`|~"
	for _, c := range []byte(name) {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && !strings.Contains(others, string(rune(c))) {
			return false
		}
	}
	return name != ""
}

// HeaderNames are the headers that the limiter sends, for Access-Control-Expose-Headers:
// without it a browser hides them from scripts.
//
//	w.Header().Set("Access-Control-Expose-Headers", strings.Join(limiter.HeaderNames(), ", "))
func (l *Limiter) HeaderNames() []string {
	return slices.Clone(l.config.Load().wire.names)
}

// StripUpstream is for the ModifyResponse of an httputil.ReverseProxy behind the limiter:
//
//	proxy.ModifyResponse = limiter.StripUpstream
//
// A reverse proxy adds the headers of the service behind it to those already set, so a
// service that sends the same headers would give a client two values of each. This
// removes the service's, if the limiter has announced its own on the request; else, as
// where no policy applies, they stay. The service's Retry-After stays, since the limiter
// sets none on a request that passes. It always returns nil.
//
// The proxy also forgets all headers set so far when the service sends a 1xx answer,
// such as 100 Continue. This sets the limiter's again.
func (l *Limiter) StripUpstream(resp *http.Response) error {
	if resp.Request == nil {
		return nil
	}
	wire := &l.config.Load().wire
	p, _ := resp.Request.Context().Value(passedKey{l}).(*passed)
	if p == nil || !p.announceAgain(wire, wire.cleared(p.header)) {
		return nil
	}
	for _, name := range wire.names {
		if name != headerRetryAfter {
			resp.Header.Del(name)
		}
	}
	return nil
}

// cleared says whether none of the headers is there.
func (w *wire) cleared(h http.Header) bool {
	return !slices.ContainsFunc(w.names, func(name string) bool { return name != headerRetryAfter && h.Get(name) != "" })
}

// announceAgain says whether the request was announced, and does it once more if that was
// cleared since.
func (p *passed) announceAgain(wire *wire, cleared bool) (announced bool) {
	if p.outer != nil {
		announced = p.outer.announceAgain(wire, cleared)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.batch == nil || p.admission.Policy == "" {
		return announced
	}
	if cleared {
		wire.announce(p, new(strings.Builder), &p.admission.Decision)
		wire.announceItems(p.header, p.batch)
	}
	return true
}

// announce sets the headers of the tightest limit: the limit, what is left of it, and
// when the key is as good as new. If a limiter further out has announced something
// tighter on a request that passes, that stays. A limit on concurrency has no reset, and
// gives way as in tightest. The numbers are appended to texts.
func (w *wire) announce(p *passed, texts *strings.Builder, d *Decision) {
	h, remaining := p.header, max(0, min(d.Remaining, d.Limit, maxHeaderInteger))
	if outer := h[w.Remaining]; len(outer) > 0 && d.Allowed {
		ofRate := w.Reset == "" || len(h[w.Reset]) > 0
		n, err := strconv.ParseInt(outer[0], 10, 64)
		if ofRate && d.Lease > 0 || ofRate == (d.Lease == 0) && err == nil && n < remaining {
			return
		}
	}

	// The values are the request's own, since handlers may keep or change what they find
	// in the map.
	var digits [maxAnnounced]byte
	text := strconv.AppendInt(digits[:0], max(0, min(d.Limit, maxHeaderInteger)), 10)
	limitEnd := len(text)
	text = strconv.AppendInt(text, remaining, 10)
	remainingEnd, begin := len(text), texts.Len()
	texts.Write(strconv.AppendInt(text, w.reset(d), 10))
	all, values := texts.String()[begin:], &p.values
	values[0], values[1], values[2] = all[:limitEnd], all[limitEnd:remainingEnd], all[remainingEnd:]
	if w.Limit != "" {
		h[w.Limit] = values[0:1:1]
	}
	if w.Remaining != "" {
		h[w.Remaining] = values[1:2:2]
	}
	switch {
	case w.Reset == "":
	case d.Lease > 0: // when requests end nobody knows
		h.Del(w.Reset)
	case d.At.IsZero() && w.ResetForm == ResetEpoch: // limits that can't be, decided by nobody
		h.Del(w.Reset)
	default:
		h[w.Reset] = values[2:3:3]
	}
}

func (w *wire) reset(d *Decision) int64 {
	after := min(max(d.ResetAfter, 0), maxHeaderSeconds*time.Second)
	if w.ResetForm == ResetDelta {
		return ceilSeconds(after)
	}
	return max(0, min(ceilUnix(d.At.Add(after)), maxHeaderInteger))
}

// announceItems sets the two fields of a draft, with an item for each limit in the batch
// that may refuse.
func (w *wire) announceItems(h http.Header, b *batch) {
	if w.Draft == 0 {
		return
	}
	var items fieldList
	items.begin(h)
	for i := range b.charges[:b.enforced] {
		if b.blocks[i] {
			continue
		}
		d := b.answer(i)
		window, effective := b.charges[i].Algorithm.Pace(d)
		seconds := min(ceilSeconds(effective), maxHeaderSeconds)
		switch {
		case d.Lease > 0:
			seconds = -1
		case !d.Allowed && d.RetryAfter != Never:
			seconds = waitSeconds(d.RetryAfter)
		}
		items.add(b.item(i), d, ceilSeconds(window), seconds)
	}
	if b.never != nil {
		items.add(b.never.Name, Decision{}, 0, -1)
	}
	items.set(h)
}

// announceItem sets the two fields of a draft for a decision whose rule isn't known.
func (w *wire) announceItem(h http.Header, name string, d Decision) {
	if w.Draft == 0 {
		return
	}
	seconds := int64(-1)
	if d.RetryAfter != Never {
		seconds = waitSeconds(d.RetryAfter)
	}
	var items fieldList
	items.begin(h)
	items.add(name, d, 0, seconds)
	items.set(h)
}

// fieldList writes the values of RateLimit and RateLimit-Policy side by side. It begins
// with what a limiter further out has announced, as long as no name comes twice.
type fieldList struct {
	items, quotas           []byte
	outer                   string
	outerItems, outerQuotas int // how much of them is the outer one's
	buffers                 [2][160]byte
}

func (l *fieldList) begin(h http.Header) {
	l.items, l.quotas = l.buffers[0][:0], l.buffers[1][:0]
	items, quotas := h[headerItems], h[headerQuotas]
	if len(items) == 0 || len(quotas) == 0 {
		return
	}
	l.outer = strings.Join(items, ", ")
	l.items = append(l.items, l.outer...)
	l.quotas = append(l.quotas, strings.Join(quotas, ", ")...)
	l.outerItems, l.outerQuotas = len(l.items), len(l.quotas)
}

// add appends an item; a window of 0 and an effective window below 0 are unknown.
// A name is of letters that need no escape.
func (l *fieldList) add(name string, d Decision, window, effective int64) {
	if l.outer != "" && strings.Contains(l.outer, `"`+name+`"`) {
		l.outer = ""
		l.items = l.items[min(l.outerItems+len(", "), len(l.items)):]
		l.quotas = l.quotas[min(l.outerQuotas+len(", "), len(l.quotas)):]
	}
	limit := max(0, min(d.Limit, maxHeaderInteger))
	l.items = appendItem(l.items, name, 'r', max(0, min(d.Remaining, limit)))
	if effective >= 0 {
		l.items = appendParameter(l.items, 't', effective)
	}
	l.quotas = appendItem(l.quotas, name, 'q', limit)
	if window > 0 {
		l.quotas = appendParameter(l.quotas, 'w', window)
	}
	if d.Lease > 0 {
		l.quotas = append(l.quotas, `;qu="concurrent-requests"`...)
	}
}

func (l *fieldList) set(h http.Header) {
	if len(l.items) > 0 {
		values := []string{string(l.items), string(l.quotas)}
		h[headerItems], h[headerQuotas] = values[0:1:1], values[1:2:2]
	}
}

func appendItem(text []byte, name string, parameter byte, value int64) []byte {
	if len(text) > 0 {
		text = append(text, ", "...)
	}
	text = append(text, '"')
	text = append(text, name...)
	text = append(text, '"')
	return appendParameter(text, parameter, value)
}

func appendParameter(text []byte, parameter byte, value int64) []byte {
	return strconv.AppendInt(append(text, ';', parameter, '='), value, 10)
}

// announceWait sets Retry-After, in whole seconds rounded up and at least 1
// (RFC 9110, 10.2.3), or as the date that is so far from at; unless waiting would not
// help.
func (w *wire) announceWait(h http.Header, at time.Time, wait time.Duration) {
	if wait == Never {
		h.Del(headerRetryAfter)
		return
	}
	value := strconv.FormatInt(waitSeconds(wait), 10)
	if w.RetryAfterDate && !at.IsZero() {
		seconds := ceilUnix(at.Add(max(1, min(wait, maxHeaderSeconds*time.Second))))
		if date := time.Unix(seconds, 0).UTC(); date.Year() >= 1970 && date.Year() <= 9999 {
			value = date.Format(http.TimeFormat)
		}
	}
	h.Set(headerRetryAfter, value)
}

// jittered is the wait, lengthened at random if the configuration asks for it.
func (w *wire) jittered(wait time.Duration) time.Duration {
	if w.Jitter == 0 || wait == Never {
		return wait
	}
	jitter := time.Duration(rand.Int64N(int64(w.Jitter) + 1))
	return min(wait, Never-1-jitter) + jitter
}

func waitSeconds(wait time.Duration) int64 {
	return max(1, min(ceilSeconds(wait), maxHeaderSeconds))
}

func ceilSeconds(d time.Duration) int64 {
	seconds := int64(d / time.Second)
	if d%time.Second > 0 {
		seconds++
	}
	return seconds
}

func ceilUnix(t time.Time) int64 {
	if t.Nanosecond() > 0 {
		return t.Unix() + 1
	}
	return t.Unix()
}

// tightest is the index of the decision to announce: of those that refuse the one with
// the longest wait, else the one with the least left. What is left of a limit on
// concurrency says nothing of how many requests may follow, so while it admits any rate
// is tighter.
func tightest(decisions []Decision) int {
	best := 0
	for i := 1; i < len(decisions); i++ {
		a, b := &decisions[i], &decisions[best]
		switch {
		case a.Allowed != b.Allowed:
			if !a.Allowed {
				best = i
			}
		case a.Allowed && (a.Lease > 0) != (b.Lease > 0):
			if a.Lease == 0 {
				best = i
			}
		case !a.Allowed && a.RetryAfter > b.RetryAfter, a.Allowed && a.Remaining < b.Remaining:
			best = i
		}
	}
	return best
}
