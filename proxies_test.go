package ratelimit_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/seed-601ed181/ratelimit"
)

// Each row is what a platform sends for the client 198.51.100.7, who wrote the headers
// too, pretending to be 192.0.2.1. See docs/proxies.md.
func TestEachPlatformsLiteralFindsTheClient(t *testing.T) {
	networks := func(all ...string) (out []netip.Prefix) {
		for _, s := range all {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	text, err := os.ReadFile("docs/proxies.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		platform, remoteAddr string
		address              ratelimit.ClientAddress
		header               []string
	}{
		{"Direct", "198.51.100.7:5000", ratelimit.ClientAddress{},
			[]string{"X-Forwarded-For", "192.0.2.1", "X-Real-IP", "192.0.2.1", "Forwarded", "for=192.0.2.1"}},
		{"nginx", "127.0.0.1:5000", ratelimit.ClientAddress{Proxies: networks("127.0.0.1/32", "::1/128")},
			[]string{"X-Forwarded-For", "192.0.2.1, 198.51.100.7"}},
		{"nginx", "@", ratelimit.ClientAddress{TrustUnixSocket: true},
			[]string{"X-Forwarded-For", "192.0.2.1, 198.51.100.7"}},
		{"Cloudflare", "173.245.48.9:5000", ratelimit.ClientAddress{Proxies: networks("173.245.48.0/20"), Header: "CF-Connecting-IP"},
			[]string{"X-Forwarded-For", "192.0.2.1,198.51.100.7", "CF-Connecting-IP", "198.51.100.7"}},
		{"Cloudflare", "10.0.0.5:5000", ratelimit.ClientAddress{Proxies: networks("173.245.48.0/20", "10.0.0.0/16")},
			[]string{"X-Forwarded-For", "192.0.2.1,198.51.100.7, 173.245.48.9", "CF-Connecting-IP", "198.51.100.7"}},
		{"AWS ALB", "10.0.3.4:5000", ratelimit.ClientAddress{Proxies: networks("10.0.0.0/16")},
			[]string{"X-Forwarded-For", "192.0.2.1, 198.51.100.7:41234"}},
		{"Google Cloud load balancer", "35.191.2.3:5000", ratelimit.ClientAddress{Proxies: networks("35.191.0.0/16", "130.211.0.0/22", "203.0.113.80/32")},
			[]string{"X-Forwarded-For", "192.0.2.1,198.51.100.7,203.0.113.80"}},
		{"Kubernetes with ingress-nginx", "10.244.1.7:5000", ratelimit.ClientAddress{Proxies: networks("10.244.0.0/16")},
			[]string{"X-Forwarded-For", "198.51.100.7", "X-Real-IP", "198.51.100.7"}},
		{"Fly.io", "172.16.5.6:5000", ratelimit.ClientAddress{Hops: 1, Header: "Fly-Client-IP"},
			[]string{"X-Forwarded-For", "192.0.2.1, 198.51.100.7, 203.0.113.80", "Fly-Client-IP", "198.51.100.7"}},
		{"Heroku", "10.1.2.3:5000", ratelimit.ClientAddress{Hops: 1},
			[]string{"X-Forwarded-For", "192.0.2.1, 198.51.100.7"}},
	} {
		find, err := tc.address.KeyFunc()
		if err != nil {
			t.Fatal(err)
		}
		if key, err := find(newRequest("GET", "/", tc.remoteAddr, tc.header...)); err != nil || key.ID != "198.51.100.7" {
			t.Errorf("%s: got %+v, %v", tc.platform, key, err)
		}
		if !strings.Contains(string(text), "\n## "+tc.platform+"\n") {
			t.Errorf("docs/proxies.md has no section %s", tc.platform)
		}
	}
}
