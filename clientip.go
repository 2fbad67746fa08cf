package ratelimit

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"strings"
)

// ClientIP counts against the client's address, as kind "ip": an IPv4 address by
// itself, an IPv6 address by its /64, which is what one subscriber has.
//
// Without proxies only the connection's own address counts; no header can change it.
// Name the networks of your reverse proxies, and those only, to take the address that
// they report in X-Forwarded-For. ClientIP(proxies...) is [ClientAddress] with nothing
// but Proxies; its comment says which value wins and what garbage does.
func ClientIP(proxies ...netip.Prefix) KeyFunc {
	return ClientAddress{Proxies: proxies}.keyFunc()
}

// ClientAddress finds the client's address behind reverse proxies. The zero value takes
// the address of the connection and reads no header.
//
// # Which value wins
//
// Only a header that you name is read, and only on a connection from a proxy that you
// trust. Of X-Forwarded-For and Forwarded, over all lines and from the right, the first
// address that isn't a trusted proxy is the client's: each proxy appends whom it saw,
// so what stands further left was written by the client or by somebody you don't know.
// Where something unreadable stands in the way, the walk stops and the last trusted
// proxy before it counts. A single-value header counts if it is there once and
// readable; otherwise the proxy does.
//
// Addresses may have ports, brackets or zones. An IPv4 address in IPv6 form, mapped
// (::ffff:0:0/96) or translated by NAT64's well-known prefix (64:ff9b::/96), is the IPv4
// address. A connection without an address, such as a unix socket's, is one key.
type ClientAddress struct {
	_ [0]func()

	// Proxies are the networks of your reverse proxies. A network that holds clients
	// lets those clients choose who they are.
	Proxies []netip.Prefix
	// Hops is how many reverse proxies of yours every request passes, for when their
	// addresses are not known: the address that many places from the right of the
	// header is the client's, or the leftmost if there are fewer. Either Proxies or
	// Hops. It is safe only if nobody can reach the service around the proxies.
	Hops int
	// Header is what the proxies report the address in: X-Forwarded-For ("" means
	// that), Forwarded (RFC 7239), or a header of one value such as X-Real-IP or
	// CF-Connecting-IP, which your proxy must set on every request.
	Header string
	// IPv4Bits and IPv6Bits are the length of the prefix that counts as one client; 0
	// means 32 and 64.
	IPv4Bits, IPv6Bits int
	// TrustUnixSocket takes the peer of a connection without an address for a proxy.
	TrustUnixSocket bool
}

// KeyFunc checks the value and makes the function for Config.Key.
func (a ClientAddress) KeyFunc() (KeyFunc, error) {
	var mistakes []error
	mistake := func(field string, value any, reason string) {
		mistakes = append(mistakes, &ConfigError{"ClientAddress." + field, value, reason})
	}
	for i, p := range a.Proxies {
		if !p.IsValid() {
			mistake(fmt.Sprintf("Proxies[%d]", i), p, "must be a network, such as netip.MustParsePrefix(\"10.0.0.0/8\")")
		}
	}
	if a.Hops < 0 || a.Hops > 0 && len(a.Proxies) > 0 {
		mistake("Hops", a.Hops, "must be > 0, or 0 with Proxies")
	}
	if a.Header != "" && !a.trustsAnybody() {
		mistake("Header", a.Header, "must be left out unless Proxies, Hops or TrustUnixSocket say who may set it")
	}
	if a.IPv4Bits < 0 || a.IPv4Bits > 32 {
		mistake("IPv4Bits", a.IPv4Bits, "must be between 1 and 32, or 0 for 32")
	}
	if a.IPv6Bits < 0 || a.IPv6Bits > 128 {
		mistake("IPv6Bits", a.IPv6Bits, "must be between 1 and 128, or 0 for 64")
	}
	if err := errors.Join(mistakes...); err != nil {
		return nil, err
	}
	return a.keyFunc(), nil
}

func (a ClientAddress) trustsAnybody() bool {
	return len(a.Proxies) > 0 || a.Hops > 0 || a.TrustUnixSocket
}

func (a ClientAddress) keyFunc() KeyFunc {
	header := textproto.CanonicalMIMEHeaderKey(a.Header)
	if header == "" {
		header = "X-Forwarded-For"
	}
	bits4, bits6 := 32, 64
	if a.IPv4Bits > 0 {
		bits4 = a.IPv4Bits
	}
	if a.IPv6Bits > 0 {
		bits6 = a.IPv6Bits
	}
	return func(r *http.Request) (Key, error) {
		host := hostOf(r.RemoteAddr)
		peer, ok := parseAddr(host)
		client := peer
		if a.believes(peer, ok) {
			if reported := a.reported(peer, header, r.Header[header]); reported.IsValid() {
				client, ok = reported, true
			}
		}
		if !ok {
			return Key{Kind: "ip", ID: "none"}, nil
		}
		if client == peer && peer.Is4() && bits4 == 32 && strings.IndexByte(host, ':') < 0 {
			return Key{Kind: "ip", ID: host}, nil // an IPv4 address has one spelling
		}
		return Key{Kind: "ip", ID: network(client, bits4, bits6)}, nil
	}
}

// believes says whether a header on a connection from the peer is worth reading.
func (a *ClientAddress) believes(peer netip.Addr, ok bool) bool {
	if !ok {
		return a.TrustUnixSocket
	}
	return a.Hops > 0 || a.trusts(peer)
}

func (a *ClientAddress) trusts(addr netip.Addr) bool {
	for _, p := range a.Proxies {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// reported is the client's address by the header, or the last proxy of ours that it
// leads to.
func (a *ClientAddress) reported(peer netip.Addr, header string, lines []string) netip.Addr {
	switch header {
	case "X-Forwarded-For":
		return a.walk(peer, lines, cutLast, parseHop)
	case "Forwarded":
		return a.walk(peer, lines, cutLastUnquoted, parseForwarded)
	}
	if len(lines) == 1 {
		if addr, ok := parseHop(strings.TrimSpace(lines[0])); ok {
			return addr
		}
	}
	return peer
}

// walk goes through the elements of the header from the right.
func (a *ClientAddress) walk(peer netip.Addr, lines []string,
	cut func(string) (before, last string, more bool), parse func(string) (netip.Addr, bool)) netip.Addr {
	hops := 0
	for i := len(lines) - 1; i >= 0; i-- {
		rest := lines[i]
		for more := true; more; {
			var element string
			rest, element, more = cut(rest)
			addr, ok := parse(strings.Trim(element, " \t"))
			if !ok {
				return peer
			}
			if hops++; hops == a.Hops || a.Hops == 0 && !a.trusts(addr) {
				return addr
			}
			peer = addr
		}
	}
	return peer
}

// cutLast cuts at the last comma.
func cutLast(s string) (before, last string, more bool) {
	if comma := strings.LastIndexByte(s, ','); comma >= 0 {
		return s[:comma], s[comma+1:], true
	}
	return "", s, false
}

// cutLastUnquoted cuts at the last comma that is not inside quotes. Reading from the
// right, a quote that a client left open can't swallow what our proxies wrote after it.
func cutLastUnquoted(s string) (before, last string, more bool) {
	quoted := false
	for i := len(s) - 1; i >= 0; i-- {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case s[i] == ',' && !quoted:
			return s[:i], s[i+1:], true
		}
	}
	return "", s, false
}

// parseForwarded reads the node of the one for parameter in an element of Forwarded
// (RFC 7239, 4 and 6). An obfuscated or unknown node is unreadable.
func parseForwarded(element string) (netip.Addr, bool) {
	node, found := "", false
	for pair := range strings.SplitSeq(element, ";") {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return netip.Addr{}, false
		}
		if !strings.EqualFold(strings.Trim(name, " \t"), "for") {
			continue
		}
		if found {
			return netip.Addr{}, false
		}
		node, found = strings.Trim(value, " \t"), true
	}
	if len(node) >= 2 && node[0] == '"' && node[len(node)-1] == '"' {
		node = node[1 : len(node)-1]
	}
	return parseHop(node)
}

var nat64 = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052, 2.1

// parseHop reads an address with or without a port, brackets or a zone.
func parseHop(s string) (netip.Addr, bool) { return parseAddr(hostOf(s)) }

// hostOf is an address without its port or brackets.
func hostOf(s string) string {
	if colon := strings.IndexByte(s, ':'); colon > 0 && s[0] != '[' && !strings.ContainsAny(s[colon+1:], ":[]") {
		return s[:colon] // most peers: SplitHostPort takes three times as long
	}
	if host, _, err := net.SplitHostPort(s); err == nil {
		return host
	}
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		return s[1 : len(s)-1]
	}
	return s
}

func parseAddr(s string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(s)
	switch {
	case err == nil && addr.Is4():
		return addr, true
	case err != nil || strings.ContainsAny(addr.Zone(), "[]"):
		return netip.Addr{}, false
	}
	return addr.Unmap().WithZone(""), true
}

// network is the address cut to the prefix that counts as one client.
func network(addr netip.Addr, bits4, bits6 int) string {
	if nat64.Contains(addr) { // only now: trust is a matter of the address as it is
		b := addr.As16()
		addr = netip.AddrFrom4([4]byte(b[12:]))
	}
	bits := bits6
	if addr.Is4() {
		bits = bits4
	}
	if bits == addr.BitLen() {
		return addr.String()
	}
	prefix, _ := addr.Prefix(bits)
	return prefix.String()
}
