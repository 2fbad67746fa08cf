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
	// The connection is there before the first request.
	if _, err := limiter.Peek(context.Background(), ratelimit.Key{ID: "nobody"}, "downstream"); err != nil {
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
// half of those who wait give up and others come. A machine that is busy otherwise makes
// any stream uneven, so an uneven one is measured again.
func TestAFleetSendsAnEvenStream(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for name, giveUps := range map[string]int{"all stay": 0, "half give up": fleetRequests / 2} {
		t.Run(name, func(t *testing.T) {
			for attempt := 1; ; attempt++ {
				metronome := startMetronome()
				departures, gone := fleetDepartures(t, giveUps)
				usual := mostInASecond(metronome())
				if len(departures) != fleetRequests {
					t.Fatalf("%d departures, want %d", len(departures), fleetRequests)
				}
				gaps := make([]time.Duration, len(departures)-1)
				for i := range gaps {
					gaps[i] = departures[i+1].Sub(departures[i])
				}
				slices.Sort(gaps)
				median, most := gaps[len(gaps)/2], mostInASecond(departures)
				t.Logf("%d departures in %v: median gap %v, 5%% below %v, 5%% above %v, at most %d in any second, where a timer of 20ms in this process fires %d times",
					len(departures), departures[len(departures)-1].Sub(departures[0]), median, gaps[len(gaps)/20], gaps[len(gaps)*19/20], most, usual)
				even := median >= 19*time.Millisecond && median <= 21*time.Millisecond
				if even && most <= max(51, usual) && gone >= giveUps/2 {
					return
				}
				if attempt == 4 {
					t.Fatalf("the median gap is %v, want 20ms within 5 %%; %d in one second, want at most 51; %d gave up, want about %d", median, most, gone, giveUps)
				}
			}
		})
	}
}

// startMetronome notes an instant every 20 ms, until it is asked for them.
func startMetronome() (stop func() []time.Time) {
	ctx, cancel := context.WithCancel(context.Background())
	ticks := make(chan []time.Time)
	go func() {
		var all []time.Time
		for next := time.Now(); ctx.Err() == nil; next = next.Add(20 * time.Millisecond) {
			time.Sleep(time.Until(next))
			all = append(all, time.Now())
		}
		ticks <- all
	}()
	return func() []time.Time {
		cancel()
		return <-ticks
	}
}

// mostInASecond is how many of the times, in order, are less than a second apart.
func mostInASecond(times []time.Time) (most int) {
	from := 0
	for to := range times {
		for times[to].Sub(times[from]) >= time.Second {
			from++
		}
		most = max(most, to-from+1)
	}
	return most
}

const fleetRequests = 200

// fleetDepartures are the times at which requests to four processes went through, all of
// them sent at once. So many give up if they still wait, and as many come in their place.
func fleetDepartures(t *testing.T, giveUps int) (departures []time.Time, gone int) {
	const processes, requests = 4, fleetRequests
	server := redistest.Run(t)
	var urls []string
	for range processes {
		urls = append(urls, startMember(t, server.Addr))
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()

	var mu sync.Mutex
	var wait, impatient sync.WaitGroup
	arrive := func(ctx context.Context, url string) {
		r, _ := http.NewRequestWithContext(ctx, "GET", url, nil)
		resp, err := client.Do(r)
		mu.Lock()
		defer mu.Unlock()
		if errors.Is(err, context.Canceled) {
			gone++
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
		departures = append(departures, time.UnixMicro(at))
	}
	waiting := func() (n int) {
		for _, url := range urls {
			a, err := strconv.Atoi(request(t, "GET", url+"/waiting").body)
			if err != nil {
				t.Fatal(err)
			}
			n += a
		}
		return n
	}

	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	for i := range requests {
		if i < giveUps {
			impatient.Go(func() { arrive(ctx, urls[i%processes]) })
		} else {
			wait.Go(func() { arrive(context.Background(), urls[i%processes]) })
		}
	}
	if giveUps > 0 {
		for begin := time.Now(); waiting() < requests*3/4 && time.Since(begin) < time.Second; {
			time.Sleep(time.Millisecond)
		}
		before := waiting()
		leave()
		impatient.Wait()
		for waiting() > before-gone {
			time.Sleep(time.Millisecond)
		}
		t.Logf("%d waited, %d of them gave up, and others come", before, gone)
		for i := range gone {
			wait.Go(func() { arrive(context.Background(), urls[i%processes]) })
		}
	}
	wait.Wait()
	http.DefaultClient.CloseIdleConnections()

	slices.SortFunc(departures, time.Time.Compare)
	return departures, gone
}
