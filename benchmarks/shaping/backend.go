package main

import (
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// backend is what the proxies protect. It notes when each request reaches it.
type backend struct {
	url  string
	stop func()

	mu      sync.Mutex
	reached map[int]time.Time // by the number of the request
}

func startBackend() (*backend, error) {
	b := &backend{reached: make(map[int]time.Time)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: b}
	go func() { _ = server.Serve(listener) }()
	b.url, b.stop = "http://"+listener.Addr().String(), func() { _ = server.Close() }
	return b, nil
}

const number = "X-Number"

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	n, err := strconv.Atoi(r.Header.Get(number))
	if err != nil {
		return // warms a proxy up
	}
	b.mu.Lock()
	b.reached[n] = now
	b.mu.Unlock()
}
