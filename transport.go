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
// Each call first waits for its turn, as [Limiter.Wait] does, with the request's context:
// a deadline that is known to be too early, a full queue and the like fail at once with a
// [WaitError], and nothing is sent. Choose one [algorithms.LeakyBucket] for an even stream; other limits
// let through what they admit at once.
//
// Then it does what the other side says. An answer that asks not to be called for some
// time, see [PauseOf], pauses its key under the policy's quota for all instances. The
// response is returned as it came, when the pause is stored. Until it is over, no
// instance calls: who comes takes no turn, who waits in line loses the turn that comes in
// the pause. Afterwards they go on at the policy's rate; those whose turn is later keep it. Pauses don't
// add up: the one that ends last counts. What was decided before the pause was stored,
// about a round trip to the store, still goes out. [Limiter.Reset] ends a pause.
//
// A transport never retries, never touches a body but to close it, and doesn't change the
// request. It costs one question to the store a call, a second one where the call had to
// wait for its turn, and one or two for an answer that asks for a pause.
//
// While the store is away, the limiter's [FailureMode] holds for calls and pauses alike:
// under FailLocal each instance knows its own pauses only, under FailOpen none, and under
// FailClosed no call is made and RoundTrip returns the store's error. A policy that is
// Disabled or on trial neither waits nor pauses.
type Transport struct {
	_ [0]func() // field names are required in literals

	// Base makes the calls; nil means http.DefaultTransport.
	Base http.RoundTripper
	// Limiter has the policy. Required.
	Limiter *Limiter
	// Policy is what each call waits for. Required. Where it has a MaxWait, that bounds
	// the wait for a turn, and a pause that is longer fails at once.
	Policy string
	// Key says what is counted; nil means the host and port of the URL, as kind "host".
	// As with Config.Key an error is reported, and the Key beside it counts.
	Key KeyFunc
	// Pause tells for how long a response asks not to be called, and why, for the hook; nil
	// means [PauseOf]. A function of yours can read what a vendor says in headers of its
	// own. It must leave the body alone.
	Pause func(*http.Response) (pause time.Duration, why string)
	// MaxPause bounds a pause, as a broken server can ask for years; 0 means an hour. After
	// it one call hears whether the pause goes on.
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
