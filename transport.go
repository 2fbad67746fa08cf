package ratelimit

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// Transport is an http.RoundTripper that keeps calls to other services under their
// quotas, over all workers whose limiters share a store. Make it with [NewTransport].
//
// Each call waits for its turn first, as [Limiter.Wait] does, with the request's context.
// What would wait in vain, because of its deadline or a full queue, fails at once with a
// [WaitError], and nothing is sent. Choose one [algorithms.LeakyBucket] for an even
// stream; other limits let through at once what they admit.
//
// Then it does what the other side says. An answer that asks for it, see [PauseOf], pauses
// its key under the policy's quota for all instances, and is returned as it came once the
// pause is stored. In a pause nobody calls: who comes takes no turn, and who waits in
// line loses a turn that comes before the end; later turns are kept. After it all go on at
// the policy's rate, in no particular order. Pauses don't add up: the one that ends last
// counts. A call that was decided before the pause was stored, a round trip to the store
// after the answer came, still goes out. [Limiter.Reset] ends a pause. Only a Transport heeds
// pauses: Wait and the middleware don't.
//
// A Transport never retries, doesn't change the request, and touches no body but to close
// that of a request it doesn't send. A call costs the store one question, one more if it
// waited for its turn or came in a pause, and an answer that asks for a pause one or two.
//
// While the store is away the [FailureMode] holds for calls and for pauses: under
// FailLocal each instance knows of its own pauses, under FailOpen of none, and under
// FailClosed RoundTrip returns the store's error. A policy that is Disabled or on trial
// neither waits nor pauses.
type Transport struct {
	_ [0]func() // field names are required in literals

	// Base makes the calls; nil means http.DefaultTransport.
	Base http.RoundTripper
	// Limiter has the policy. Required.
	Limiter *Limiter
	// Policy is what each call waits for. Required. If it has a MaxWait, that bounds both
	// the wait for a turn and the pause that a call waits for.
	Policy string
	// Key says what is counted and paused; nil means the URL's host and port, as kind
	// "host". A key of several hosts is paused by each of them. As with Config.Key an error
	// is reported, and the Key beside it counts.
	Key KeyFunc
	// Pause tells for how long a response asks not to be called, and why, for
	// Hooks.Paused; nil means [PauseOf]. A function of yours can read what a vendor says in
	// headers of its own, or ignore what one says. It must leave the body alone.
	Pause func(*http.Response) (pause time.Duration, why string)
	// MaxPause bounds a pause, as a broken server can ask for years; 0 means 1 h. Calls
	// then go out again and hear whether it goes on.
	MaxPause time.Duration

	checked bool
}

const (
	defaultPause = time.Hour
	longestPause = 366 * 24 * time.Hour
)

// NewTransport checks the fields and returns a transport with them. The error joins a
// [ConfigError] for every mistake there is.
func NewTransport(t Transport) (*Transport, error) {
	var mistakes []error
	mistake := func(field string, value any, reason string) {
		mistakes = append(mistakes, &ConfigError{"Transport." + field, value, reason})
	}
	if t.Limiter == nil {
		mistake("Limiter", nil, "is required: what ratelimit.New returns")
	} else if !t.Limiter.keep(t.Policy) {
		mistake("Policy", t.Policy, "must name one of the limiter's Policies")
	}
	if t.MaxPause < 0 || t.MaxPause > longestPause {
		mistake("MaxPause", t.MaxPause, fmt.Sprintf("must be between 0, which means %v, and %v", defaultPause, longestPause))
	}
	if len(mistakes) > 0 {
		return nil, errors.Join(mistakes...)
	}
	if t.Base == nil {
		t.Base = http.DefaultTransport
	}
	if t.Key == nil {
		t.Key = calledHost
	}
	if t.Pause == nil {
		t.Pause = PauseOf
	}
	if t.MaxPause == 0 {
		t.MaxPause = defaultPause
	}
	t.checked = true
	return &t, nil
}

// keep says whether there is such a policy, which Update then has to keep.
func (l *Limiter) keep(policy string) bool {
	l.update.Lock()
	defer l.update.Unlock()
	_, ok := l.config.Load().policies[policy]
	if ok {
		l.stated[policy] = true
	}
	return ok
}

var errUnchecked = errors.New("ratelimit: a Transport must be made by NewTransport")

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key, err := t.wait(r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as a RoundTripper must, also on errors
		}
		return nil, err
	}
	response, err := t.Base.RoundTrip(r)
	if err != nil {
		return response, err
	}
	if pause, why := t.Pause(response); pause > 0 {
		t.Limiter.pauseFor(r, key, t.Policy, min(pause, t.MaxPause), why)
	}
	return response, nil
}

// CloseIdleConnections passes the call on to Base, for http.Client.CloseIdleConnections.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.Base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) wait(r *http.Request) (Key, error) {
	if !t.checked {
		return Key{}, errUnchecked
	}
	if r.URL == nil {
		return Key{}, errors.New("ratelimit: a request needs a URL, got nil")
	}
	key, err := t.Key(r)
	if err != nil {
		t.Limiter.failed(r.Context(), Event{Request: r, Policy: t.Policy, Err: fmt.Errorf("ratelimit: Transport.Key: %w", err)})
	}
	err = t.Limiter.waitHeeding(r.Context(), key, t.Policy)
	if waiting := (*WaitError)(nil); err != nil && !errors.As(err, &waiting) {
		err = fmt.Errorf("ratelimit: not called, waiting for policy %q ended: %w", t.Policy, err)
	}
	return key, err
}

// calledHost is the host that a URL leads to, in one spelling.
func calledHost(r *http.Request) (Key, error) {
	host, port := strings.ToLower(strings.TrimSuffix(r.URL.Hostname(), ".")), r.URL.Port()
	if port == "" {
		if port = "443"; r.URL.Scheme == "http" {
			port = "80"
		}
	}
	return Key{Kind: "host", ID: net.JoinHostPort(host, port)}, nil
}
