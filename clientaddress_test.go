package ratelimit_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/seed-601ed181/ratelimit"
)

// address is whom a request counts against; header is name and lines.
func address(t testing.TB, a ratelimit.ClientAddress, remoteAddr, header string, lines ...string) string {
	t.Helper()
	f, err := a.KeyFunc()
	if err != nil {
		t.Fatal(err)
	}
	r := &http.Request{RemoteAddr: remoteAddr, Header: make(http.Header)}
	for _, line := range lines {
		r.Header.Add(header, line)
	}
	key, err := f(r)
	if err != nil || key.Kind != "ip" || key.ID == "" {
		t.Errorf("got %+v, %v", key, err)
	}
	return key.ID
}

func TestClientAddress(t *testing.T) {
	const proxy = "10.0.0.5:1"
	forwarded := ratelimit.ClientAddress{Proxies: proxies, Header: "Forwarded"}
	real := ratelimit.ClientAddress{Proxies: proxies, Header: "X-Real-IP"}
	hops := func(n int) ratelimit.ClientAddress { return ratelimit.ClientAddress{Hops: n} }
	for _, tc := range []struct {
		name       string
		address    ratelimit.ClientAddress
		remoteAddr string
		header     string
		lines      []string
		want       string
	}{
		{"the zero value reads nothing", ratelimit.ClientAddress{}, peer, "X-Forwarded-For", []string{"198.51.100.7"}, "203.0.113.9"},

		{"one hop", hops(1), peer, "X-Forwarded-For", []string{"192.0.2.1, 198.51.100.7"}, "198.51.100.7"},
		{"two hops", hops(2), peer, "X-Forwarded-For", []string{"192.0.2.1, 198.51.100.7, 192.0.2.9"}, "198.51.100.7"},
		{"two hops over two lines", hops(2), peer, "X-Forwarded-For", []string{"192.0.2.1, 198.51.100.7", "192.0.2.9"}, "198.51.100.7"},
		{"fewer entries than hops", hops(3), peer, "X-Forwarded-For", []string{"198.51.100.7, 192.0.2.9"}, "198.51.100.7"},
		{"hops without the header", hops(2), peer, "X-Forwarded-For", nil, "203.0.113.9"},
		{"junk among the hops", hops(2), peer, "X-Forwarded-For", []string{"198.51.100.7, junk"}, "203.0.113.9"},

		{"Forwarded", forwarded, proxy, "Forwarded", []string{"for=192.0.2.1, for=198.51.100.7"}, "198.51.100.7"},
		{"Forwarded, with other parameters", forwarded, proxy, "Forwarded", []string{`by=10.0.0.1;For="198.51.100.7:4711" ;proto=https`}, "198.51.100.7"},
		{"Forwarded, IPv6", forwarded, proxy, "Forwarded", []string{`for="[2001:db8:cafe::17]:4711"`}, "2001:db8:cafe::/64"},
		{"Forwarded, through two proxies", forwarded, proxy, "Forwarded", []string{"for=198.51.100.7, for=10.0.0.6"}, "198.51.100.7"},
		{"Forwarded, hidden", forwarded, proxy, "Forwarded", []string{"for=198.51.100.7, for=_hidden"}, "10.0.0.5"},
		{"Forwarded, unknown", forwarded, proxy, "Forwarded", []string{"for=unknown"}, "10.0.0.5"},
		{"Forwarded, twice in one element", forwarded, proxy, "Forwarded", []string{"for=192.0.2.1;for=198.51.100.7"}, "10.0.0.5"},
		{"Forwarded, no for", forwarded, proxy, "Forwarded", []string{"proto=https"}, "10.0.0.5"},
		{"Forwarded, a quote left open by the client", forwarded, proxy, "Forwarded", []string{`for="192.0.2.1`, "for=198.51.100.7"}, "198.51.100.7"},
		{"Forwarded, a quote left open in one line", forwarded, proxy, "Forwarded", []string{`for="192.0.2.1, for=198.51.100.7`}, "198.51.100.7"},
		{"Forwarded, a comma in quotes", forwarded, proxy, "Forwarded", []string{`for="192.0.2.1, 198.51.100.7"`}, "10.0.0.5"},
		{"Forwarded, not from a proxy", forwarded, peer, "Forwarded", []string{"for=198.51.100.7"}, "203.0.113.9"},
		{"B09 Forwarded asked for, another sent", forwarded, proxy, "X-Forwarded-For", []string{"198.51.100.7"}, "10.0.0.5"},

		{"single value", real, proxy, "X-Real-IP", []string{"198.51.100.7"}, "198.51.100.7"},
		{"single value with a port", real, proxy, "X-Real-IP", []string{" [2001:db8:1::5]:443 "}, "2001:db8:1::/64"},
		{"single value, twice", real, proxy, "X-Real-IP", []string{"198.51.100.7", "192.0.2.1"}, "10.0.0.5"},
		{"single value, a list", real, proxy, "X-Real-IP", []string{"198.51.100.7, 192.0.2.1"}, "10.0.0.5"},
		{"single value, not from a proxy", real, peer, "X-Real-IP", []string{"198.51.100.7"}, "203.0.113.9"},

		{"IPv4 by /24", ratelimit.ClientAddress{IPv4Bits: 24}, peer, "", nil, "203.0.113.0/24"},
		{"IPv6 by /48", ratelimit.ClientAddress{IPv6Bits: 48}, "[2001:db8:1:2::3]:1", "", nil, "2001:db8:1::/48"},
		{"IPv6 by itself", ratelimit.ClientAddress{IPv6Bits: 128}, "[2001:db8:1:2::3]:1", "", nil, "2001:db8:1:2::3"},
		{"B16 NAT64 is the IPv4 address", ratelimit.ClientAddress{}, "[64:ff9b::808:808]:1", "", nil, "8.8.8.8"},
		{"B16 NAT64 does not make a proxy", ratelimit.ClientAddress{Proxies: proxies}, "[64:ff9b::10.0.0.5]:1", "X-Forwarded-For", []string{"198.51.100.7"}, "10.0.0.5"},

		{"B06 unix socket", ratelimit.ClientAddress{}, "@", "X-Forwarded-For", []string{"198.51.100.7"}, "none"},
		{"B06 unix socket of a proxy", ratelimit.ClientAddress{TrustUnixSocket: true}, "@", "X-Forwarded-For", []string{"192.0.2.1, 198.51.100.7"}, "198.51.100.7"},
		{"B06 unix socket of a proxy that says nothing", ratelimit.ClientAddress{TrustUnixSocket: true}, "", "X-Forwarded-For", nil, "none"},
	} {
		if got := address(t, tc.address, tc.remoteAddr, tc.header, tc.lines...); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

func TestClientAddressMistakes(t *testing.T) {
	_, err := ratelimit.ClientAddress{
		Proxies: []netip.Prefix{{}}, Hops: 1, IPv4Bits: 33, IPv6Bits: -1,
	}.KeyFunc()
	for _, want := range []string{"Proxies[0]", "Hops", "IPv4Bits", "IPv6Bits"} {
		if err == nil || !strings.Contains(err.Error(), "ClientAddress."+want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
	if _, err := (ratelimit.ClientAddress{Header: "X-Real-IP"}).KeyFunc(); err == nil {
		t.Error("a header that nobody is trusted to set returned no error")
	}
}

// FuzzForwarded: whatever a client wrote into Forwarded, what our proxies add after it
// wins, in each spelling that RFC 7239 allows them.
func FuzzForwarded(f *testing.F) {
	for _, seed := range []string{
		"", `for="192.0.2.1`, `for=192.0.2.1;by="a,b"`, `"`, `\"`, `for=_hidden, for="[::1]:80"`, ",,;;==", `for="a\"b, c"`, "for=203.0.113.9, for=10.0.0.7",
	} {
		f.Add(seed, uint16(4711))
	}
	a := ratelimit.ClientAddress{Proxies: proxies, Header: "Forwarded"}
	f.Fuzz(func(t *testing.T, written string, port uint16) {
		for _, added := range []string{
			"for=203.0.113.9",
			fmt.Sprintf(`For="203.0.113.9:%d";proto=http, for=10.0.0.6`, port),
			`proto=https ; FOR="203.0.113.9"; host=example.com`,
		} {
			if got := address(t, a, "10.0.0.5:1", "Forwarded", written, added); got != "203.0.113.9" {
				t.Errorf("%q and then %q: %s", written, added, got)
			}
			if got := address(t, a, "10.0.0.5:1", "Forwarded", written+", "+added); got != "203.0.113.9" {
				t.Errorf("%q: %s", written+", "+added, got)
			}
		}
		address(t, a, "10.0.0.5:1", "Forwarded", written)
	})
}
