package redisstore

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
)

// Open trusts the authorities of the system; another one is given to New.
func TestTLS(t *testing.T) {
	ctx := context.Background()
	addr, roots := tlsRedis(t)
	rule := algorithms.FixedWindow{Limit: 3, Window: steady()}

	t.Run("Open refuses an unknown authority", func(t *testing.T) {
		store, err := Open("rediss://" + addr)
		must(t, err)
		defer func() { _ = store.Close() }()
		err = store.Take(ctx, charge("k", rule, 1), make([]algorithms.Decision, 1))
		if err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("error %v, want one about the certificate", err)
		}
	})
	t.Run("Open that is told not to verify", func(t *testing.T) {
		store, err := Open("rediss://" + addr + "?skip_verify=true")
		must(t, err)
		defer func() { _ = store.Close() }()
		if d := take(t, store, "open", rule, 1); d.Remaining != 2 {
			t.Errorf("%+v, want 2 left", d)
		}
	})
	t.Run("New with an authority of one's own", func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: addr, TLSConfig: &tls.Config{RootCAs: roots}})
		defer func() { _ = client.Close() }()
		if d := take(t, New(client), "new", rule, 1); d.Remaining != 2 {
			t.Errorf("%+v, want 2 left", d)
		}
	})
}

// tlsRedis is a server with a certificate of its own making.
func tlsRedis(t *testing.T) (addr string, roots *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	certFile, keyFile := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	must(t, os.WriteFile(certFile, cert, 0o600))
	must(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))

	addr = redistest.FreeAddr(t)
	_, port, err := net.SplitHostPort(addr)
	must(t, err)
	redistest.Run(t, "--tls-port", port, "--tls-cert-file", certFile, "--tls-key-file", keyFile,
		"--tls-ca-cert-file", certFile, "--tls-auth-clients", "no")
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	return addr, roots
}
