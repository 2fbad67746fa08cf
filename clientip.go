package ratelimit

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// ClientIP counts against the client's address, as kind "ip": an IPv4 address by
// itself, an IPv6 address by its /64, which is what one subscriber has. An IPv4 address
// in IPv6 form is the IPv4 address.
//
// Without proxies only the connection's own address counts; no header can change it.
// Name the networks of your reverse proxies, and those only, to take the address that
// they report in X-Forwarded-For: from the right, the first address that isn't one of
// them. What stands left of it was written by the client and is never read. If
// something unreadable stands there instead, the last proxy before it counts. proxies
// that hold client addresses let those clients choose who they are.
//
// A connection without an address, such as a unix socket's, is one key.
func ClientIP(proxies ...netip.Prefix) KeyFunc {
	return func(r *http.Request) (Key, error) {
		addr, ok := parseHop(r.RemoteAddr)
		if !ok {
			return Key{Kind: "ip", ID: "none"}, nil
		}
		if trusted(addr, proxies) {
			addr = behind(addr, r.Header["X-Forwarded-For"], proxies)
		}
		return Key{Kind: "ip", ID: subscriber(addr)}, nil
	}
}

// behind walks the forwarded addresses from the right, over all lines of the header,
// and returns the first that is not a proxy of ours.
func behind(peer netip.Addr, lines []string, proxies []netip.Prefix) netip.Addr {
	for i := len(lines) - 1; i >= 0; i-- {
		rest := lines[i]
		for more := true; more; {
			var hop string
			if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
				rest, hop = rest[:comma], rest[comma+1:]
			} else {
				rest, hop, more = "", rest, false
			}
			addr, ok := parseHop(strings.Trim(hop, " \t"))
			if !ok {
				return peer
			}
			if !trusted(addr, proxies) {
				return addr
			}
			peer = addr
		}
	}
	return peer
}

// parseHop reads an address with or without a port, brackets or a zone.
func parseHop(s string) (netip.Addr, bool) {
	if host, _, err := net.SplitHostPort(s); err == nil {
		s = host
	} else if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		s = s[1 : len(s)-1]
	}
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, false
	}
	return addr.Unmap().WithZone(""), true
}

func trusted(addr netip.Addr, proxies []netip.Prefix) bool {
	for _, p := range proxies {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

func subscriber(addr netip.Addr) string {
	if addr.Is4() {
		return addr.String()
	}
	prefix, _ := addr.Prefix(64)
	return prefix.String()
}
