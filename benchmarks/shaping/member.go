package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/redisstore"
)

// delaying is a limiter with one queue for everybody.
func delaying(redisAddr string, queue algorithms.LeakyBucket) (*ratelimit.Limiter, error) {
	return ratelimit.New(ratelimit.Config{
		Store: redisstore.New(redis.NewClient(&redis.Options{Addr: redisAddr, ContextTimeoutEnabled: true})),
		Key:   func(*http.Request) (ratelimit.Key, error) { return ratelimit.Key{ID: "everybody"}, nil },
		Policies: []ratelimit.Policy{{
			Name:   "backend",
			Limits: ratelimit.Limits{queue},
			Action: ratelimit.Delay,
		}},
		Default: "backend",
		Failure: ratelimit.FailClosed, // a decision that comes from elsewhere shows
		Timeout: 5 * time.Second,
	})
}

// serveMember is a reverse proxy that delays. It prints its URL.
func serveMember(backendURL, redisAddr, rule string) error {
	to, err := url.Parse(backendURL)
	if err != nil {
		return err
	}
	queue := algorithms.LeakyBucket{Per: time.Second}
	if _, err := fmt.Sscanf(rule, "%d,%d,%d", &queue.Capacity, &queue.Rate, &queue.Burst); err != nil {
		return fmt.Errorf("-bucket: want capacity,rate,burst, got %q", rule)
	}
	limiter, err := delaying(redisAddr, queue)
	if err != nil {
		return err
	}
	backend := httputil.NewSingleHostReverseProxy(to)
	backend.Transport = &http.Transport{MaxIdleConnsPerHost: 64}
	backend.ErrorLog = log.New(io.Discard, "", 0) // that a client left is no news
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: limiter.Handler(backend)}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = server.Close()
	}()
	fmt.Println("http://" + listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// member is a process of serveMember.
type member struct {
	address string
	process *exec.Cmd
	stdin   io.Closer
}

func memberWith(rate, capacity, burst int) func(*backend, string) (proxy, error) {
	return func(b *backend, redisAddr string) (proxy, error) {
		program, err := os.Executable()
		if err != nil {
			return nil, err
		}
		m := &member{process: exec.Command(program, "-member", b.url, "-redis", redisAddr, "-bucket", fmt.Sprintf("%d,%d,%d", capacity, rate, burst))}
		m.process.Stderr = os.Stderr
		if m.stdin, err = m.process.StdinPipe(); err != nil {
			return nil, err
		}
		stdout, err := m.process.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := m.process.Start(); err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(stdout)
		if !lines.Scan() {
			m.stop()
			return nil, errors.New("an instance says nothing")
		}
		m.address = lines.Text()
		return m, nil
	}
}

func (m *member) url() string { return m.address }
func (m *member) pids() []int { return []int{m.process.Process.Pid} }
func (m *member) stop()       { _ = m.stdin.Close(); _ = m.process.Wait() }
