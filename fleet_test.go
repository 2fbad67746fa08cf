package ratelimit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
	"github.com/seed-601ed181/ratelimit/redisstore"
)

// fleetRedis is the variable that makes this binary a member of a fleet and no test.
const fleetRedis = "RATELIMIT_TEST_FLEET_REDIS"

// serveAsMember serves requests that one queue for the whole fleet delays: 50 a second.
// An answer is when its request reached the handler. It prints its address, and stops
// when its input is closed.
func serveAsMember(redisAddr string) {
	client := redis.NewClient(&redis.Options{Addr: redisAddr, ContextTimeoutEnabled: true})
	limiter, err := ratelimit.New(ratelimit.Config{
		Store:   redisstore.New(client),
		Key:     func(*http.Request) (ratelimit.Key, error) { return ratelimit.Key{ID: "everybody"}, nil },
		Failure: ratelimit.FailClosed, // a decision that comes from elsewhere shows as a 503
		Timeout: 5 * time.Second,
		Policies: []ratelimit.Policy{{
			Name:   "downstream",
			Limits: ratelimit.Limits{algorithms.LeakyBucket{Capacity: 200, Rate: 50, Per: time.Second}},
			Action: ratelimit.Delay,
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, time.Now().UnixMicro())
	})))
	mux.HandleFunc("/waiting", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, limiter.Waiting()) })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = server.Close()
	}()
	fmt.Println("http://" + listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

// startMember starts a member and returns its URL.
func startMember(t *testing.T, redisAddr string) string {
	t.Helper()
	program := exec.Command(os.Args[0])
	program.Env = append(os.Environ(), fleetRedis+"="+redisAddr)
	program.Stderr = os.Stderr
	stdin, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		if err := program.Wait(); err != nil {
			t.Errorf("a member did not stop cleanly: %v", err)
		}
	})
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() {
		t.Fatal("a member says nothing")
	}
	return lines.Text()
}

// Four processes on one Redis send an even stream downstream, and lose none of it when
// half of those who wait give up and others come.
func TestAFleetSendsAnEvenStream(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const processes, requests = 4, 200
	for _, tc := range []struct {
		name string
		gone int // of the requests, and as many come in their place
	}{{"all stay", 0}, {"half give up", requests / 2}} {
		t.Run(tc.name, func(t *testing.T) {
			server := redistest.Run(t)
			var urls []string
			for range processes {
				urls = append(urls, startMember(t, server.Addr))
			}
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()

			var mu sync.Mutex
			var departures []time.Time
			var wait sync.WaitGroup
			arrive := func(ctx context.Context, url string) {
				wait.Go(func() {
					r, _ := http.NewRequestWithContext(ctx, "GET", url, nil)
					resp, err := client.Do(r)
					if errors.Is(err, context.Canceled) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					body, _ := io.ReadAll(resp.Body)
					_ = resp.Body.Close()
					at, err := strconv.ParseInt(string(body), 10, 64)
					if resp.StatusCode != http.StatusOK || err != nil {
						t.Errorf("%d %s", resp.StatusCode, body)
						return
					}
					mu.Lock()
					departures = append(departures, time.UnixMicro(at))
					mu.Unlock()
				})
			}
			waiting := func() (n int64) {
				for _, url := range urls {
					a, err := strconv.ParseInt(request(t, "GET", url+"/waiting").body, 10, 64)
					if err != nil {
						t.Fatal(err)
					}
					n += a
				}
				return n
			}

			impatient, giveUp := context.WithCancel(context.Background())
			defer giveUp()
			for i := range requests {
				ctx := context.Background()
				if i >= requests-tc.gone {
					ctx = impatient
				}
				arrive(ctx, urls[i%processes])
			}
			if tc.gone > 0 {
				for waiting() < requests-50 { // all have come, and less than a second is over
					time.Sleep(time.Millisecond)
				}
				time.Sleep(100 * time.Millisecond)
				before := waiting()
				giveUp()
				for waiting() > before/2 {
					time.Sleep(time.Millisecond)
				}
				mu.Lock()
				come := requests - len(departures)
				mu.Unlock()
				come -= int(waiting())
				t.Logf("%d waited, and %d come in the place of those who gave up", before, come)
				for i := range come {
					arrive(context.Background(), urls[i%processes])
				}
			}
			wait.Wait()
			http.DefaultClient.CloseIdleConnections()

			slices.SortFunc(departures, time.Time.Compare)
			if len(departures) != requests {
				t.Fatalf("%d departures, want %d", len(departures), requests)
			}
			var gaps []time.Duration
			most := 0
			for i, at := range departures {
				if i > 0 {
					gaps = append(gaps, at.Sub(departures[i-1]))
				}
				n := 0
				for n < len(departures)-i && departures[i+n].Sub(at) < time.Second {
					n++
				}
				most = max(most, n)
			}
			slices.Sort(gaps)
			median, whole := gaps[len(gaps)/2], departures[len(departures)-1].Sub(departures[0])
			t.Logf("%d departures in %v: median gap %v, 5%% below %v, 5%% above %v, at most %d in any second",
				len(departures), whole, median, gaps[len(gaps)/20], gaps[len(gaps)*19/20], most)
			if median < 19*time.Millisecond || median > 21*time.Millisecond {
				t.Errorf("the median gap is %v, want 20ms within 5 %%", median)
			}
			if most > 51 {
				t.Errorf("%d departures in one second, want at most 51", most)
			}
		})
	}
}
