package ratelimit

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// Key is an identity to count against. Kinds never share a namespace: the user
// "10.0.0.1" is not the address 10.0.0.1. The zero Key means that nobody was found.
type Key struct {
	// Kind says what the ID is: "key", "user", "ip", or a word of yours.
	Kind string
	// ID names who it is, in any bytes. Long or unusual ones are hashed before they
	// reach the store.
	ID string
	// Tier is the plan the identity is on, see Policy.Tiers. "" is the default plan.
	Tier string
	// Secret says that ID is a credential: only a keyed hash of it (Config.HashKey)
	// leaves the process or reaches a hook.
	Secret bool
}

// KeyFunc finds out who is asking. A zero Key says that it found nobody, and the next
// of a chain is asked. An error is reported to Hooks.Failed and the log; the Key beside
// it counts all the same. It runs on every request and must be safe for concurrent use.
//
// Never make a key of something a client can choose freely, such as an unverified API
// key or User-Agent: each new value would be a fresh quota.
type KeyFunc func(*http.Request) (Key, error)

// FirstOf asks each function in turn and takes the first Key found. Errors on the way
// are joined and returned beside it.
func FirstOf(funcs ...KeyFunc) KeyFunc {
	return func(r *http.Request) (Key, error) {
		var errs error
		for _, f := range funcs {
			key, err := f(r)
			errs = errors.Join(errs, err)
			if key.ID != "" {
				return key, errs
			}
		}
		return Key{}, errs
	}
}

// Each counts against several identities at once, such as tenant and user: all of them
// have to be found, or nobody is. Different parts never make the same key. The tier is
// that of the first part that has one.
func Each(funcs ...KeyFunc) KeyFunc {
	return func(r *http.Request) (Key, error) {
		var all Key
		var errs error
		for i, f := range funcs {
			key, err := f(r)
			errs = errors.Join(errs, err)
			if key.ID == "" {
				return Key{}, errs
			}
			if i > 0 {
				all.Kind += "+"
				all.ID += "&"
			}
			// Escaped, a part holds neither separator.
			all.Kind += url.QueryEscape(key.Kind)
			all.ID += url.QueryEscape(key.ID)
			all.Secret = all.Secret || key.Secret
			if all.Tier == "" {
				all.Tier = key.Tier
			}
		}
		return all, errs
	}
}

// UserID counts against the authenticated user, as kind "user". fromContext returns
// the ID that your authentication put into the request's context, "" if there is none.
// Mount the limiter inside the authentication, or it will never find a user.
func UserID(fromContext func(context.Context) string) KeyFunc {
	return By("user", func(r *http.Request) string { return fromContext(r.Context()) })
}

// By counts against what id returns, as the given kind; "" means nobody.
func By(kind string, id func(*http.Request) string) KeyFunc {
	return func(r *http.Request) (Key, error) {
		if id := id(r); id != "" {
			return Key{Kind: kind, ID: id}, nil
		}
		return Key{}, nil
	}
}

// anonymous is who everybody is whom Config.Key doesn't find.
var anonymous = Key{Kind: "anonymous", ID: "anonymous"}

func (k Key) orAnonymous() Key {
	if k.ID == "" {
		return anonymous
	}
	return k
}

const (
	maxPlainID   = 64
	maxPlainKind = 32
)

// canonical is the identity as stores, hooks and logs see it: "user:42". Two different
// keys never have the same; what is secret, long, or holds bytes that could confuse a
// store or a log is replaced by a hash. It is appended to texts.
func (k *Key) canonical(texts *strings.Builder, hashKey []byte) string {
	from := texts.Len()
	plain := plainText(k.Kind, maxPlainKind) && !strings.Contains(k.Kind, ":")
	if plain {
		texts.WriteString(k.Kind)
	}
	texts.WriteByte(':')
	if plain && !k.Secret && plainText(k.ID, maxPlainID) && k.ID[0] != '~' {
		texts.WriteString(k.ID)
		return texts.String()[from:]
	}
	mac := hmac.New(sha256.New, hashKey)
	// The length first, so that no other split of the bytes hashes the same.
	mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(k.Kind))))
	mac.Write([]byte(k.Kind))
	mac.Write([]byte(k.ID))
	texts.WriteByte('~')
	texts.WriteString(base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:18]))
	return texts.String()[from:]
}

// plainText says whether s can stand in a store's key as it is: printable ASCII
// without spaces and without the braces of a hash tag.
func plainText(s string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '{' || c == '}' {
			return false
		}
	}
	return true
}
