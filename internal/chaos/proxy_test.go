//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/collectors"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// proxy stands between a client and Redis.
type proxy struct{ *toxiproxy.Proxy }

func newProxy(t *testing.T, upstream string) *proxy {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	server.Metrics.ProxyMetrics = collectors.NewProxyMetricCollectors()
	p := &proxy{toxiproxy.NewProxy(server, t.Name(), "127.0.0.1:0", upstream)}
	must(t, p.Start())
	t.Cleanup(p.Stop)
	return p
}

// poison adds a toxic to a direction, "upstream" or "downstream".
func (p *proxy) poison(t *testing.T, stream, kind string, attributes string) {
	t.Helper()
	_, err := p.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
		`{"name": "%[1]s_%[2]s", "type": "%[2]s", "stream": "%[1]s", "attributes": %[3]s}`, stream, kind, attributes)))
	must(t, err)
}

// cure removes all toxics.
func (p *proxy) cure() { p.Toxics.ResetToxics(context.Background()) }

// pointTo closes all connections and sends new ones to another server.
func (p *proxy) pointTo(t *testing.T, upstream string) {
	t.Helper()
	must(t, p.Update(&toxiproxy.Proxy{Listen: p.Listen, Upstream: upstream, Enabled: true}))
}
