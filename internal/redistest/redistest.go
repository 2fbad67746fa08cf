// Package redistest gives tests a real Redis: processes of their own on free loopback
// ports.
package redistest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// ErrNoServer says that there is no redis-server on PATH.
var ErrNoServer = errors.New("redistest: no redis-server on PATH")

// Server is a redis-server process.
type Server struct {
	// Addr is where it listens, host:port.
	Addr string

	args     []string
	sentinel string // the configuration of a sentinel, which has no other arguments
	process  *exec.Cmd
	dir      string
}

// Start starts a server without persistence, with further arguments, and waits until
// it listens.
func Start(args ...string) (*Server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	return StartAt(addr, args...)
}

// StartAt is Start on a given address.
func StartAt(addr string, args ...string) (*Server, error) {
	s := &Server{Addr: addr, args: args}
	return s, s.start()
}

// Run starts a server for a test and stops it at its end. It skips the test where
// there is no redis-server, unless RATELIMIT_REQUIRE_REDIS is set: then it fails.
func Run(t testing.TB, args ...string) *Server {
	t.Helper()
	s, err := Start(args...)
	if errors.Is(err, ErrNoServer) {
		Missing(t)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Missing skips the test for want of a server, or fails it where there must be one.
func Missing(t testing.TB) {
	t.Helper()
	if os.Getenv("RATELIMIT_REQUIRE_REDIS") != "" {
		t.Fatal("RATELIMIT_REQUIRE_REDIS is set, but there is no redis-server on PATH")
	}
	t.Skip("no redis-server on PATH")
}

// Stop kills the server.
func (s *Server) Stop() {
	if s.process == nil {
		return
	}
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	_ = os.RemoveAll(s.dir)
	s.process = nil
}

// Pause stops the process as it stands: it holds its connections and answers nothing.
func (s *Server) Pause() error { return s.process.Process.Signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (s *Server) Resume() error { return s.process.Process.Signal(syscall.SIGCONT) }

// Restart kills the server, waits, and starts an empty one on the same address.
func (s *Server) Restart(away time.Duration) error {
	s.Stop()
	time.Sleep(away)
	return s.start()
}

func (s *Server) start() error {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return ErrNoServer
	}
	host, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "redistest"); err != nil {
		return err
	}
	args := append([]string{"--port", port, "--bind", host, "--save", "", "--dir", s.dir}, s.args...)
	if s.sentinel != "" {
		// A sentinel rewrites its file.
		file := filepath.Join(s.dir, "sentinel.conf")
		conf := fmt.Sprintf("port %s\nbind %s\ndir %s\n%s", port, host, s.dir, s.sentinel)
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			return err
		}
		args = []string{file, "--sentinel"}
	}
	s.process = exec.Command(binary, args...)
	if err := s.process.Start(); err != nil {
		return err
	}
	for range 500 {
		if conn, err := net.Dial("tcp", s.Addr); err == nil {
			return conn.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.Stop()
	return fmt.Errorf("redistest: redis-server does not listen on %s", s.Addr)
}

// FreeAddr is an address where nothing listens.
func FreeAddr(t testing.TB) string {
	t.Helper()
	addr, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
