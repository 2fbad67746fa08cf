package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"
	"time"
)

// Lookup finds the identity behind an API key, usually in a database: its ID (the
// account, not the key itself) and its Tier. The zero Key means that there is no such
// API key. The Kind of the Key is set by [APIKey].
type Lookup func(ctx context.Context, apiKey string) (Key, error)

// APIKey finds the API key in the X-API-Key header or as Authorization: Bearer, asks
// lookup whose it is, and counts against that identity, as kind "key". A key that
// lookup doesn't know is no identity: the next of a [FirstOf] chain is asked.
//
// If the ID that lookup returns is the API key itself, only its keyed hash is used. See
// [APIKeys] for other places to find the key, a cache, and a limit on guessing.
func APIKey(lookup Lookup) KeyFunc {
	return APIKeys{Lookup: lookup}.keyFunc()
}

// APIKeys is [APIKey] with every choice. The zero value of a field leaves it out.
type APIKeys struct {
	_ [0]func()

	// Lookup says whose key it is. Required.
	Lookup Lookup
	// Header names the header to read instead of X-API-Key and Authorization.
	Header string
	// Query names a query parameter to read, after the headers. Keys in URLs end up in
	// logs and browser histories.
	Query string
	// CacheFor is how long an answer of Lookup is remembered; a key withdrawn works
	// that much longer. 0 asks each time.
	CacheFor time.Duration
	// CacheSize is the most known and, apart from them, unknown keys remembered. 0
	// means 10,000.
	CacheSize int
	// Guesses limits failed lookups: each takes one request of its default policy from
	// whom its Key finds, usually [ClientIP], and a client over that limit gets 429
	// without a lookup. Its Store may well be a memstore.
	Guesses *Limiter
}

// KeyFunc checks the value and makes the function for Config.Key.
func (a APIKeys) KeyFunc() (KeyFunc, error) {
	var mistakes []error
	mistake := func(field string, value any, reason string) {
		mistakes = append(mistakes, &ConfigError{"APIKeys." + field, value, reason})
	}
	if a.Lookup == nil {
		mistake("Lookup", nil, "is required: whose API key it is")
	}
	if a.CacheFor < 0 {
		mistake("CacheFor", a.CacheFor, "must be >= 0")
	}
	if a.CacheSize < 0 {
		mistake("CacheSize", a.CacheSize, "must be >= 0 (0 means 10000)")
	}
	if a.Guesses != nil && a.Guesses.config.Load().class == nil {
		mistake("Guesses", nil, "must have a default policy, not ratelimit.Unlimited")
	}
	if err := errors.Join(mistakes...); err != nil {
		return nil, err
	}
	return a.keyFunc(), nil
}

const (
	// maxCredential bounds what a client can make a Lookup work on.
	maxCredential    = 4096
	defaultCacheSize = 10_000
)

func (a APIKeys) keyFunc() KeyFunc {
	find := func(r *http.Request, credential string) (Key, error) { return a.Lookup(r.Context(), credential) }
	if a.Guesses != nil {
		find = a.guess
	}
	if a.CacheFor > 0 {
		find = a.cached(find)
	}
	return func(r *http.Request) (Key, error) {
		var errs error
		for _, credential := range a.credentials(r) {
			if credential == "" || len(credential) > maxCredential {
				continue
			}
			key, err := find(r, credential)
			errs = errors.Join(errs, err)
			if key.ID != "" {
				key.Kind = "key"
				key.Secret = key.Secret || key.ID == credential
				return key, errs
			}
		}
		return Key{}, errs
	}
}

func (a APIKeys) credentials(r *http.Request) [3]string {
	var found [3]string
	if a.Header != "" {
		found[0] = r.Header.Get(a.Header)
		if textproto.CanonicalMIMEHeaderKey(a.Header) == "Authorization" {
			found[0] = bearer(found[0])
		}
	} else {
		found[0], found[1] = r.Header.Get("X-API-Key"), bearer(r.Header.Get("Authorization"))
	}
	if a.Query != "" {
		found[2] = r.URL.Query().Get(a.Query)
	}
	return found
}

// cached remembers what find found. Unknown keys, which anybody can invent, are kept
// apart so that they never push out known ones.
func (a APIKeys) cached(find func(*http.Request, string) (Key, error)) func(*http.Request, string) (Key, error) {
	size := a.CacheSize
	if size == 0 {
		size = defaultCacheSize
	}
	known := &cache[Key]{keep: a.CacheFor, size: size}
	unknown := &cache[Key]{keep: a.CacheFor, size: size}
	return func(r *http.Request, credential string) (Key, error) {
		for _, c := range []*cache[Key]{known, unknown} {
			if key, ok := c.get(credential); ok {
				return key, nil
			}
		}
		key, err := find(r, credential)
		switch {
		case err != nil:
		case key.ID != "":
			known.put(credential, key)
		default:
			unknown.put(credential, key)
		}
		return key, err
	}
}

// guess looks the credential up for a client that may still fail. The failure is taken
// before the lookup and given back if it succeeds, so that parallel guesses count.
func (a APIKeys) guess(r *http.Request, credential string) (Key, error) {
	g := a.Guesses
	config := g.config.Load()
	ctx, policy := r.Context(), config.class.policies[0].Name
	client, err := config.Key(r)
	if err != nil {
		return Key{}, err
	}
	d, err := g.Take(ctx, client, policy)
	if err == nil && !d.Allowed {
		return Key{}, &guessing{Policy: policy, Decision: d}
	}
	key, lookupErr := a.Lookup(ctx, credential)
	if err == nil && (key.ID != "" || lookupErr != nil) {
		err = g.Settle(ctx, client, policy, -config.class.policies[0].cost(nil))
	}
	return key, errors.Join(lookupErr, err)
}

// guessing is the error of a KeyFunc for a client over its limit of failed lookups. The
// middleware answers it like any other refusal.
type guessing struct {
	Policy   string
	Decision Decision
}

func (g *guessing) Error() string {
	return fmt.Sprintf("ratelimit: too many failed lookups of API keys: policy %q refused", g.Policy)
}

// bearer returns the token of an Authorization header of scheme Bearer, "" otherwise.
// The scheme is case-insensitive and one or more spaces follow it (RFC 9110, 11.4).
func bearer(authorization string) string {
	scheme, token, ok := strings.Cut(authorization, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	token = strings.TrimLeft(token, " ")
	if strings.ContainsAny(token, " \t,") {
		return ""
	}
	return token
}
