package ratelimit_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/seed-601ed181/ratelimit"
)

var proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ffff::/48")}

// clientIP is whom a request counts against, given the lines of X-Forwarded-For.
func clientIP(t testing.TB, remoteAddr string, proxies []netip.Prefix, lines ...string) string {
	t.Helper()
	r := &http.Request{RemoteAddr: remoteAddr, Header: make(http.Header)}
	for _, line := range lines {
		r.Header.Add("X-Forwarded-For", line)
	}
	key, err := ratelimit.ClientIP(proxies...)(r)
	if err != nil || key.Kind != "ip" || key.ID == "" || key.Tier != "" || key.Secret {
		t.Errorf("%q %q: got %+v, %v", remoteAddr, lines, key, err)
	}
	return key.ID
}

// addresses are spellings of an address, with what each counts as.
var addresses = []struct{ spelled, id string }{
	{"203.0.113.9:5000", "203.0.113.9"},
	{"203.0.113.9", "203.0.113.9"},
	{"203.0.113.9:", "203.0.113.9"},
	{"[203.0.113.9]:80", "203.0.113.9"},
	// B15: an IPv4 address in IPv6 form is itself, not one of a /64 of them all.
	{"[::ffff:203.0.113.9]:5000", "203.0.113.9"},
	{"::ffff:203.0.113.9", "203.0.113.9"},
	{"[::FFFF:CB00:7109]:5000", "203.0.113.9"},
	{"[::ffff:203.0.113.10]:5000", "203.0.113.10"},
	// B14: one subscriber is a /64, in whatever spelling.
	{"[2001:db8:1:2::1]:5000", "2001:db8:1:2::/64"},
	{"[2001:db8:1:2:ffff:ffff:ffff:ffff]:5000", "2001:db8:1:2::/64"},
	{"[2001:DB8:1:2:0:0:0:9]:5000", "2001:db8:1:2::/64"},
	{"2001:0db8:0001:0002::9", "2001:db8:1:2::/64"},
	{"[2001:db8:1:2::1]", "2001:db8:1:2::/64"},
	{"[2001:db8:1:3::1]:5000", "2001:db8:1:3::/64"},
	{"[::1]:5000", "::/64"},
	{"[fe80::1%eth0]:5000", "fe80::/64"},
	{"fe80::1%eth1", "fe80::/64"},
	// B06: what is no address is one key.
	{"", "none"},
	{"@", "none"},
	{"pipe", "none"},
	{"/run/app.sock", "none"},
	{"localhost:80", "none"},
	{"203.0.113.256:1", "none"},
	{"203.0.113.09:1", "none"},
	{"0xcb.0.113.9:1", "none"},
	{"3405803785", "none"},
	{"203.0.113.9 :1", "none"},
	{"[2001:db8::1", "none"},
	{"2001:db8::1]:80", "none"},
	{"[203.0.113.9:80]", "none"},
	{"203.0.113.9:80:90", "none"},
	{":80", "none"},
}

func TestTheAddressOfAConnection(t *testing.T) {
	for _, tc := range addresses {
		for _, proxies := range [][]netip.Prefix{nil, proxies} {
			if got := clientIP(t, tc.spelled, proxies); got != tc.id {
				t.Errorf("%q: got %s, want %s", tc.spelled, got, tc.id)
			}
		}
	}
}

func TestB16_NAT64AddressesAreOneKeyInEachSpelling(t *testing.T) {
	a, b := clientIP(t, "[64:ff9b::8.8.8.8]:1", nil), clientIP(t, "[64:ff9b::808:808]:1", nil)
	if a != b || a == "none" {
		t.Errorf("got %s and %s", a, b)
	}
}

func TestTheAddressBehindProxies(t *testing.T) {
	for _, tc := range []struct {
		name, remoteAddr string
		lines            []string
		id               string
	}{
		{"B01 not from a proxy of ours", peer, []string{"198.51.100.7"}, "203.0.113.9"},
		{"B02 the left was written by the client", "10.0.0.5:1", []string{"198.51.100.7, 203.0.113.9"}, "203.0.113.9"},
		{"B04 two lines", "10.0.0.5:1", []string{"198.51.100.7", "203.0.113.9"}, "203.0.113.9"},
		{"B04 two lines, a proxy in the last", "10.0.0.5:1", []string{"198.51.100.7, 203.0.113.9", "10.0.0.6"}, "203.0.113.9"},
		{"B05 with a port", "10.0.0.5:1", []string{"203.0.113.9:50001"}, "203.0.113.9"},
		{"B05 with another port", "10.0.0.5:1", []string{"203.0.113.9:50002"}, "203.0.113.9"},
		{"B05 with brackets and a port", "10.0.0.5:1", []string{"[2001:db8::1]:443"}, "2001:db8::/64"},
		{"B09 no header", "10.0.0.5:1", nil, "10.0.0.5"},
		{"B14 a /64", "10.0.0.5:1", []string{"2001:db8:1:2::1"}, "2001:db8:1:2::/64"},
		{"B15 mapped", "10.0.0.5:1", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		{"B15 a mapped proxy", "[::ffff:10.0.0.5]:1", []string{"203.0.113.9"}, "203.0.113.9"},
		{"several proxies", "10.0.0.5:1", []string{"203.0.113.9, 10.0.0.7, 2001:db8:ffff::1,10.0.0.6"}, "203.0.113.9"},
		{"a proxy on IPv6", "[2001:db8:ffff::2]:1", []string{"203.0.113.9"}, "203.0.113.9"},
		{"a proxy on IPv6 with a zone", "[2001:db8:ffff::2%eth0]:1", []string{"203.0.113.9"}, "203.0.113.9"},
		{"only proxies", "10.0.0.5:1", []string{"10.0.0.8, 10.0.0.7"}, "10.0.0.8"},
		{"spaces and tabs", "10.0.0.5:1", []string{" \t198.51.100.7\t, \t203.0.113.9 "}, "203.0.113.9"},
		{"junk at once", "10.0.0.5:1", []string{"203.0.113.9, unknown"}, "10.0.0.5"},
		{"junk behind a proxy", "10.0.0.5:1", []string{"203.0.113.9, _hidden, 10.0.0.7"}, "10.0.0.7"},
		{"junk in a line of its own", "10.0.0.5:1", []string{"203.0.113.9", "", "10.0.0.7"}, "10.0.0.7"},
		{"junk left of the client", "10.0.0.5:1", []string{"<script>, 203.0.113.9"}, "203.0.113.9"},
		{"an empty element", "10.0.0.5:1", []string{"203.0.113.9,"}, "10.0.0.5"},
		{"an empty header", "10.0.0.5:1", []string{""}, "10.0.0.5"},
		{"another control character than a space", "10.0.0.5:1", []string{"203.0.113.9\v"}, "10.0.0.5"},
		{"the whole of IPv4 is no neighbour of ours", "10.0.0.5:1", []string{"198.51.100.7, 110.0.0.1"}, "110.0.0.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := clientIP(t, tc.remoteAddr, proxies, tc.lines...); got != tc.id {
				t.Errorf("got %s, want %s", got, tc.id)
			}
		})
	}
}

// B03: the header is read if proxies are named, and only then.
func TestB03_WithoutProxiesTheHeaderIsNeverRead(t *testing.T) {
	if got := clientIP(t, "10.0.0.5:1", nil, "203.0.113.9"); got != "10.0.0.5" {
		t.Errorf("without proxies: got %s", got)
	}
	if got := clientIP(t, "10.0.0.5:1", proxies, "203.0.113.9"); got != "203.0.113.9" {
		t.Errorf("with proxies: got %s", got)
	}
}

func TestB01_NoHeaderMakesAFreshQuotaOrTakesAnothers(t *testing.T) {
	headers := []string{"True-Client-IP", "X-Real-IP", "X-Forwarded-For", "Forwarded", "CF-Connecting-IP"}
	h := build(t, ratelimit.Config{}).Handler(ok)
	wantStatuses(t, statuses(h, 5, func(i int) *http.Request {
		return newRequest("GET", "/", peer, headers[i], "198.51.100."+string(rune('1'+i)))
	}), passThen(2, 3)...)
	for _, name := range headers {
		get(h, "/", name, "198.51.100.7")
	}
	victim := send(h, newRequest("GET", "/", "198.51.100.7:1"))
	wantStatuses(t, []int{victim.StatusCode}, 200)
	wantHeaders(t, victim.Header, "X-RateLimit-Remaining", "1")
}

func TestB09_OnlyTheNamedHeaderIsRead(t *testing.T) {
	h := build(t, ratelimit.Config{Key: ratelimit.ClientIP(proxies...)}).Handler(ok)
	for _, name := range []string{"X-Real-IP", "Forwarded", "True-Client-IP"} {
		send(h, newRequest("GET", "/", "10.0.0.5:1", name, "198.51.100.7"))
	}
	resp := send(h, newRequest("GET", "/", "10.0.0.5:1", "X-Real-IP", "198.51.100.8"))
	wantStatuses(t, []int{resp.StatusCode}, 429)
}

// FuzzForwardedFor: the walk agrees with a slow reading of its definition, never
// panics, and what stands left of the first address that isn't a proxy changes nothing.
func FuzzForwardedFor(f *testing.F) {
	for _, tc := range addresses {
		f.Add("10.0.0.5:1", tc.spelled, "10.0.0.6")
		f.Add(tc.spelled, "203.0.113.9", "")
	}
	f.Add("10.0.0.5:1", "198.51.100.7, 203.0.113.9", "10.0.0.6 ,\t10.0.0.7:80")
	f.Add("10.0.0.5:1", ",,", ",[]:,[],]:[")
	f.Add("[2001:db8:ffff::1%x]:1", "fe80::1%a:b", "::ffff:10.0.0.1")
	f.Fuzz(func(t *testing.T, remoteAddr, first, second string) {
		got := clientIP(t, remoteAddr, proxies, first, second)
		if want := slowClientIP(remoteAddr, first+","+second); got != want {
			t.Errorf("%q %q %q: got %s, want %s", remoteAddr, first, second, got, want)
		}
		if got := clientIP(t, "10.0.0.5:1", proxies, first, second, "203.0.113.9"); got != "203.0.113.9" {
			t.Errorf("%q %q: the client counts as %s", first, second, got)
		}
	})
}

func slowClientIP(remoteAddr, forwarded string) string {
	at, ok := slowAddr(remoteAddr)
	if !ok {
		return "none"
	}
	hops := strings.Split(forwarded, ",")
	for len(hops) > 0 && isProxy(at) {
		hop, ok := slowAddr(strings.Trim(hops[len(hops)-1], " \t"))
		if !ok {
			break
		}
		at, hops = hop, hops[:len(hops)-1]
	}
	if b := at.As16(); netip.MustParsePrefix("64:ff9b::/96").Contains(at) {
		at = netip.AddrFrom4([4]byte(b[12:]))
	}
	if at.Is4() {
		return at.String()
	}
	return netip.PrefixFrom(at, 64).Masked().String()
}

func isProxy(addr netip.Addr) bool {
	return proxies[0].Contains(addr) || proxies[1].Contains(addr)
}

// slowAddr reads ADDRESS, ADDRESS:PORT, [ADDRESS] and [ADDRESS]:PORT.
func slowAddr(s string) (netip.Addr, bool) {
	if inner, bracketed := strings.CutPrefix(s, "["); bracketed {
		host, port, closed := strings.Cut(inner, "]")
		if !closed || port != "" && (port[0] != ':' || strings.ContainsAny(port[1:], ":[]")) {
			return netip.Addr{}, false
		}
		s = host
	} else if host, port, one := strings.Cut(s, ":"); one && !strings.ContainsAny(port, ":[]") {
		s = host
	}
	addr, err := netip.ParseAddr(s)
	if err != nil || strings.ContainsAny(addr.Zone(), "[]") {
		return netip.Addr{}, false
	}
	return addr.WithZone("").Unmap(), true
}
