// Stdlib limits an API with nothing but the standard library and the limiter: counters
// in this process, one policy for the whole mux, and a stricter one at a route.
//
//	go run ./_examples/stdlib
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

func main() {
	log.SetFlags(0)
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: memstore.New(memstore.Config{}),
		Key:   ratelimit.ClientIP(),
		Policies: []ratelimit.Policy{
			{Name: "api", Limits: ratelimit.Limits{algorithms.SlidingWindowCounter{Limit: 60, Window: time.Minute}}},
			{Name: "login", Limits: ratelimit.Limits{algorithms.SlidingWindowLog{Limit: 5, Window: time.Minute}}},
		},
		Default: "api",
	})
	if err != nil {
		log.Fatal(err)
	}

	login := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "welcome\n") })
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") })
	mux.Handle("POST /login", limiter.For("login")(login))

	server := &http.Server{Addr: "127.0.0.1:8080", Handler: limiter.Handler(mux), ReadHeaderTimeout: 5 * time.Second}
	fmt.Printf("listening on http://%s; try: curl -i http://%s/hello\n", server.Addr, server.Addr)
	log.Fatal(server.ListenAndServe())
}
