package ratelimit

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const maxIdentity = 100

// checkIdentity holds what every identity promises to stores, hooks and logs.
func checkIdentity(t interface{ Errorf(string, ...any) }, key Key, hashKey []byte) string {
	identity := key.canonical(new(strings.Builder), hashKey)
	if len(identity) > maxIdentity {
		t.Errorf("%+v: %d bytes", key, len(identity))
	}
	if !plainText(identity, maxIdentity) {
		t.Errorf("%+v: %q has bytes that are not printable, or braces", key, identity)
	}
	if _, id, _ := strings.Cut(identity, ":"); key.Secret && len(key.ID) >= 8 && strings.Contains(id, key.ID) {
		t.Errorf("%q holds the secret %q", identity, key.ID)
	}
	if again := key.canonical(new(strings.Builder), hashKey); again != identity {
		t.Errorf("%+v: %q, then %q", key, identity, again)
	}
	return identity
}

func TestCanonical(t *testing.T) {
	for _, tc := range []struct {
		key  Key
		want string // ":~" at the end stands for a hash
	}{
		{Key{Kind: "user", ID: "42"}, "user:42"},
		{Key{Kind: "ip", ID: "2001:db8::/64"}, "ip:2001:db8::/64"},
		{Key{Kind: "user", ID: "a:b", Tier: "pro"}, "user:a:b"}, // the tier is no part of it
		{Key{Kind: "user", ID: strings.Repeat("x", 64)}, "user:" + strings.Repeat("x", 64)},
		{Key{Kind: "user", ID: strings.Repeat("x", 65)}, "user:~"},
		{Key{Kind: "user", ID: strings.Repeat("x", 1<<20)}, "user:~"},
		{Key{Kind: "user", ID: "42", Secret: true}, "user:~"},
		{Key{Kind: "user", ID: "~42"}, "user:~"}, // else it could pose as a hash
		{Key{Kind: "user", ID: "a b"}, "user:~"},
		{Key{Kind: "user", ID: "a\r\nb"}, "user:~"},
		{Key{Kind: "user", ID: "a}b"}, "user:~"},
		{Key{Kind: "user", ID: "{a"}, "user:~"},
		{Key{Kind: "user", ID: "josé"}, "user:~"},
		{Key{Kind: "user", ID: "\x00\xff"}, "user:~"},
		{Key{Kind: "a:b", ID: "c"}, ":~"},
		{Key{Kind: "", ID: "c"}, ":~"},
		{Key{Kind: "a{b", ID: "c"}, ":~"},
		{Key{Kind: strings.Repeat("k", 33), ID: "c"}, ":~"},
	} {
		got := checkIdentity(t, tc.key, nil)
		if prefix, hashed := strings.CutSuffix(tc.want, "~"); hashed {
			if !strings.HasPrefix(got, tc.want) || len(got) != len(prefix)+1+24 {
				t.Errorf("%.80q: got %q, want a hash of 24 characters after %q", tc.key.ID, got, tc.want)
			}
		} else if got != tc.want {
			t.Errorf("%.80q: got %q, want %q", tc.key.ID, got, tc.want)
		}
	}
}

func TestHashKeyChangesTheHash(t *testing.T) {
	secret := Key{Kind: "key", ID: "s3cr3t-KEY-0001", Secret: true}
	a, b, none := secret.canonical(new(strings.Builder), []byte("a")), secret.canonical(new(strings.Builder), []byte("b")), secret.canonical(new(strings.Builder), nil)
	if a == b || a == none || b == none {
		t.Errorf("got %s, %s and %s", a, b, none)
	}
	plain := Key{Kind: "user", ID: "42"}
	if plain.canonical(new(strings.Builder), []byte("a")) != plain.canonical(new(strings.Builder), nil) {
		t.Error("it changes what isn't hashed")
	}
}

// identities draws keys that could be taken for one another.
func identities() *rapid.Generator[Key] {
	kind := rapid.OneOf(
		rapid.SampledFrom([]string{"user", "ip", "key", "a", "ab", "a:b", "", "user ", "user:~"}),
		rapid.StringMatching(`[ab:~ ]{0,4}`), rapid.String(),
	)
	id := rapid.OneOf(
		rapid.SampledFrom([]string{"10.0.0.1", "b", "b:c", "bc", "~", strings.Repeat("x", 64), strings.Repeat("x", 65)}),
		rapid.StringMatching(`[abc:~]{1,4}`), rapid.StringN(1, 80, -1),
	)
	return rapid.Custom(func(t *rapid.T) Key {
		return Key{Kind: kind.Draw(t, "kind"), ID: id.Draw(t, "id"), Secret: rapid.Bool().Draw(t, "secret")}
	})
}

func TestDifferentKeysNeverHaveTheSameIdentity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := identities().Draw(t, "a"), identities().Draw(t, "b")
		same := a.Kind == b.Kind && a.ID == b.ID
		x, y := checkIdentity(t, a, nil), checkIdentity(t, b, nil)
		if x == y && !same {
			t.Errorf("%#v and %#v are both %q", a, b, x)
		}
		if x != y && same && (a.Secret == b.Secret) {
			t.Errorf("%#v is %q and %q", a, x, y)
		}
	})

	// The hash of a kind and an ID must say where the one ends.
	a := Key{Kind: "a b", ID: "y\x00\x00\x07id"}
	b := Key{Kind: "a b\x00\x00\x03y", ID: "id"}
	if x, y := a.canonical(new(strings.Builder), nil), b.canonical(new(strings.Builder), nil); x == y {
		t.Errorf("%#v and %#v are both %q", a, b, x)
	}
}

func FuzzCanonical(f *testing.F) {
	for _, kind := range []string{"user", "", "a:b", "{", strings.Repeat("k", 33)} {
		for _, id := range []string{"42", "~42", "a b", "}", "s3cr3t-KEY-0001", "\x00", strings.Repeat("x", 70)} {
			f.Add(kind, id, true, []byte("key"))
			f.Add(kind, id, false, []byte(nil))
		}
	}
	f.Fuzz(func(t *testing.T, kind, id string, secret bool, hashKey []byte) {
		if id == "" {
			return // nobody
		}
		checkIdentity(t, Key{Kind: kind, ID: id, Secret: secret}, hashKey)
	})
}

func TestB23_AnAPIKeyNeverLeavesTheProcess(t *testing.T) {
	const secret = "s3cr3t-KEY-0001"
	itself := func(_ context.Context, apiKey string) (Key, error) { return Key{ID: apiKey}, nil }
	for name, value := range map[string]string{"X-Api-Key": secret, "Authorization": "Bearer " + secret} {
		r := &http.Request{Header: http.Header{name: {value}}}
		key, err := APIKey(itself)(r)
		if err != nil || key.Kind != "key" || !key.Secret {
			t.Errorf("%s: got %+v, %v", name, key, err)
		}
		checkIdentity(t, key, nil)
	}
}

func TestAPIKeyAsksForWhatCanBeAKey(t *testing.T) {
	var asked []string
	lookup := func(_ context.Context, apiKey string) (Key, error) {
		asked = append(asked, apiKey)
		switch apiKey {
		case "good":
			return Key{Kind: "ignored", ID: "acme", Tier: "pro"}, nil
		case "down":
			return Key{}, errors.New("down")
		}
		return Key{}, nil
	}
	long := strings.Repeat("k", 4096)
	for _, tc := range []struct {
		name   string
		header http.Header
		asked  string // with spaces between
		found  string
		failed bool
	}{
		{"no header", nil, "", "", false},
		{"known", http.Header{"X-Api-Key": {"good"}}, "good", "acme", false},
		{"known bearer", http.Header{"Authorization": {"Bearer good"}}, "good", "acme", false},
		{"unknown", http.Header{"X-Api-Key": {"bad"}}, "bad", "", false},
		{"unknown, then a known bearer", http.Header{"X-Api-Key": {"bad"}, "Authorization": {"Bearer good"}}, "bad good", "acme", false},
		{"known, then anything", http.Header{"X-Api-Key": {"good"}, "Authorization": {"Bearer bad"}}, "good", "acme", false},
		{"empty", http.Header{"X-Api-Key": {""}}, "", "", false},
		{"basic", http.Header{"Authorization": {"Basic Z29vZA=="}}, "", "", false},
		{"as long as allowed", http.Header{"X-Api-Key": {long}}, long, "", false},
		{"longer", http.Header{"X-Api-Key": {long + "k"}, "Authorization": {"Bearer " + long + "k"}}, "", "", false},
		{"a lookup that fails", http.Header{"X-Api-Key": {"down"}}, "down", "", true},
		{"a lookup that fails, then a known bearer", http.Header{"X-Api-Key": {"down"}, "Authorization": {"Bearer good"}}, "down good", "acme", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			asked = nil
			key, err := APIKey(lookup)(&http.Request{Header: tc.header})
			if got := strings.Join(asked, " "); got != tc.asked {
				t.Errorf("asked for %.80q, want %.80q", got, tc.asked)
			}
			if (err != nil) != tc.failed {
				t.Errorf("got error %v", err)
			}
			want := Key{}
			if tc.found != "" {
				want = Key{Kind: "key", ID: tc.found, Tier: "pro"}
			}
			if key != want {
				t.Errorf("got %+v, want %+v", key, want)
			}
		})
	}
}

func TestFirstOf(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	is := func(id string, err error) KeyFunc {
		return func(*http.Request) (Key, error) { return Key{Kind: "k", ID: id}, err }
	}
	never := func(*http.Request) (Key, error) {
		t.Error("asked after a key was found")
		return Key{}, nil
	}
	for _, tc := range []struct {
		name  string
		funcs []KeyFunc
		id    string
		errs  []error
	}{
		{"nothing to ask", nil, "", nil},
		{"the first", []KeyFunc{is("a", nil), never}, "a", nil},
		{"the second", []KeyFunc{is("", nil), is("b", nil), never}, "b", nil},
		{"nobody", []KeyFunc{is("", nil), is("", nil)}, "", nil},
		{"an error on the way", []KeyFunc{is("", first), is("b", nil), never}, "b", []error{first}},
		{"an error beside the key", []KeyFunc{is("a", first), never}, "a", []error{first}},
		{"two errors and nobody", []KeyFunc{is("", first), is("", second)}, "", []error{first, second}},
		{"nested", []KeyFunc{FirstOf(is("", first)), FirstOf(is("", second), is("b", nil)), never}, "b", []error{first, second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			key, err := FirstOf(tc.funcs...)(nil)
			if key.ID != tc.id || (key == Key{}) != (tc.id == "") {
				t.Errorf("got %+v, want ID %q", key, tc.id)
			}
			if (err != nil) != (len(tc.errs) > 0) {
				t.Errorf("got error %v", err)
			}
			for _, want := range tc.errs {
				if !errors.Is(err, want) {
					t.Errorf("%v isn't %v", err, want)
				}
			}
		})
	}
}

// authorizations are values of Authorization and the token each holds.
var authorizations = []struct{ value, token string }{
	{"", ""},
	{"Bearer", ""},
	{"Bearer ", ""},
	{"Bearer    ", ""},
	{"Bearer token", "token"},
	{"bearer token", "token"},
	{"BEARER token", "token"},
	{"bEaReR    token", "token"},
	{"Bearer a.b-c_d~e+f/g==", "a.b-c_d~e+f/g=="},
	{"Bearer töken", "töken"},
	{" Bearer token", ""},
	{"Bearer\ttoken", ""},
	{"Bearer \ttoken", ""},
	{"Bearer token ", ""},
	{"Bearer two tokens", ""},
	{"Bearer one, Bearer two", ""},
	{"Bearer one,two", ""},
	{"Bearertoken", ""},
	{"Bearer=token", ""},
	{"Bearer:token", ""},
	{"XBearer token", ""},
	{"Token token", ""},
	{"Basic Zm9vOmJhcg==", ""},
}

func TestBearer(t *testing.T) {
	for _, tc := range authorizations {
		if got := bearer(tc.value); got != tc.token {
			t.Errorf("%q: got %q, want %q", tc.value, got, tc.token)
		}
	}
}

// FuzzBearer: never panics; a token is what stands last after the scheme, in one piece.
func FuzzBearer(f *testing.F) {
	for _, tc := range authorizations {
		f.Add(tc.value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		token := bearer(value)
		if token == "" {
			return
		}
		scheme, ok := strings.CutSuffix(value, token)
		if !ok || !strings.EqualFold(strings.TrimRight(scheme, " "), "bearer") || !strings.HasSuffix(scheme, " ") || strings.ContainsAny(token, " \t,") {
			t.Errorf("%q: got %q", value, token)
		}
	})
}
