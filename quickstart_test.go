package ratelimit_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/internal/redistest"
)

// buildQuickstart compiles _examples/quickstart once for all tests.
var buildQuickstart = sync.OnceValues(func() (string, error) {
	var err error
	if quickstartDir, err = os.MkdirTemp("", "quickstart"); err != nil {
		return "", err
	}
	binary := filepath.Join(quickstartDir, "quickstart")
	out, err := exec.Command("go", "build", "-o", binary, "./_examples/quickstart").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build ./_examples/quickstart: %v\n%s", err, out)
	}
	return binary, nil
})

var quickstartDir string

func removeQuickstart() { _ = os.RemoveAll(quickstartDir) }

var firstLine = regexp.MustCompile(`^listening on (http://\S+), counters in (.+); try: curl .*$`)

// startQuickstart starts the program on a free port and returns its URL. At the end of
// the test it must stop cleanly on SIGTERM.
func startQuickstart(t *testing.T, args ...string) string {
	t.Helper()
	binary, err := buildQuickstart()
	if err != nil {
		t.Fatal(err)
	}
	program := exec.Command(binary, append([]string{"-addr", "127.0.0.1:0"}, args...)...)
	program.Stderr = io.Discard
	stdout, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	lines.Scan()
	match := firstLine.FindStringSubmatch(lines.Text())
	if match == nil {
		_ = program.Process.Kill()
		t.Fatalf("quickstart's first line is %q, want address, store and a curl line", lines.Text())
	}
	t.Cleanup(func() {
		_ = program.Process.Signal(syscall.SIGTERM)
		if lines.Scan() {
			t.Errorf("quickstart printed a second line: %q", lines.Text())
		}
		if err := program.Wait(); err != nil {
			t.Errorf("quickstart did not stop cleanly on SIGTERM: %v", err)
		}
	})
	return match[1]
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) number(t *testing.T, header string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(a.header.Get(header), 10, 64)
	if err != nil {
		t.Errorf("%s: %v", header, err)
	}
	return n
}

func request(t *testing.T, method, url string, header ...string) answer {
	t.Helper()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// awayFromEdge waits until the minute has at least so much left, so that a window
// doesn't turn during a test.
func awayFromEdge(left time.Duration) {
	if until := time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)); until < left {
		time.Sleep(until)
	}
}

func TestQuickstartKeepsItsContract(t *testing.T) {
	awayFromEdge(10 * time.Second)
	url := startQuickstart(t)
	alice := []string{"X-API-Key", "demo-alice"}

	for _, step := range []struct {
		name, method, path string
		header             []string
		status             int
		limit, remaining   string
	}{
		{"items", "GET", "/items", alice, 200, "100", "99"},
		{"an item", "GET", "/items/7", alice, 200, "100", "98"},
		{"search costs five", "GET", "/search", alice, 200, "100", "93"},
		{"the same key as a bearer token", "GET", "/items", []string{"Authorization", "bearer demo-alice"}, 200, "100", "92"},
		{"bob is on pro", "GET", "/search", []string{"X-API-Key", "demo-bob"}, 200, "1000", "995"},
		{"an unknown key is an address", "GET", "/items", []string{"X-API-Key", "guess"}, 200, "100", "99"},
		{"no key is an address", "GET", "/items", nil, 200, "100", "98"},
		{"forwarding headers are not believed", "GET", "/items", []string{"X-Forwarded-For", "203.0.113.9"}, 200, "100", "97"},
		{"a 404 is counted", "GET", "/nowhere", nil, 404, "100", "96"},
		{"another method is counted", "DELETE", "/search", nil, 405, "100", "95"},
		{"export", "POST", "/exports", alice, 200, "20", "19"},
		{"health is never limited", "GET", "/healthz", nil, 200, "", ""},
	} {
		a := request(t, step.method, url+step.path, step.header...)
		if a.status != step.status || a.header.Get("X-RateLimit-Limit") != step.limit || a.header.Get("X-RateLimit-Remaining") != step.remaining {
			t.Errorf("%s: %d, limit %q, remaining %q; want %d, %q, %q", step.name, a.status,
				a.header.Get("X-RateLimit-Limit"), a.header.Get("X-RateLimit-Remaining"), step.status, step.limit, step.remaining)
		}
	}

	var last answer
	for range 25 {
		last = request(t, "POST", url+"/exports", alice...)
	}
	var problem struct {
		Title, Detail string
		Status        int
	}
	if err := json.Unmarshal([]byte(last.body), &problem); err != nil || problem.Status != 429 || last.status != 429 {
		t.Errorf("exhausted: %d %q (%v), want 429 as a problem document", last.status, last.body, err)
	}
	if last.header.Get("Content-Type") != "application/problem+json" || last.header.Get("Retry-After") != "1" {
		t.Errorf("exhausted: headers %v, want problem+json and Retry-After 1", last.header)
	}
	if reset, now := last.number(t, "X-RateLimit-Reset"), time.Now().Unix(); reset < now+15 || reset > now+21 {
		t.Errorf("X-RateLimit-Reset is %d s from now, want when 20 tokens are back", reset-now)
	}
}

func TestQuickstartTrustsProxiesAndUserHeaderOnlyWhenTold(t *testing.T) {
	awayFromEdge(10 * time.Second)
	url := startQuickstart(t, "-trust", "127.0.0.0/8", "-user-header", "X-User")
	for _, step := range []struct {
		header    []string
		remaining string
	}{
		{[]string{"X-Forwarded-For", "198.51.100.7, 203.0.113.9"}, "99"},
		{[]string{"X-Forwarded-For", "192.0.2.1, 203.0.113.9"}, "98"},
		{[]string{"X-User", "ann", "X-Forwarded-For", "203.0.113.9"}, "99"},
		{nil, "99"},
	} {
		if a := request(t, "GET", url+"/items", step.header...); a.header.Get("X-RateLimit-Remaining") != step.remaining {
			t.Errorf("%v: remaining %q, want %q", step.header, a.header.Get("X-RateLimit-Remaining"), step.remaining)
		}
	}
}

// load sends n requests over 64 connections, spread over the URLs, and counts the
// answers by status.
func load(t *testing.T, n int, method string, urls []string, header ...string) map[int]int {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	var next atomic.Int64
	var mu sync.Mutex
	count := make(map[int]int)
	var wait sync.WaitGroup
	for range 64 {
		wait.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				r, _ := http.NewRequest(method, urls[i%len(urls)], nil)
				for j := 0; j < len(header); j += 2 {
					r.Header.Set(header[j], header[j+1])
				}
				resp, err := client.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				mu.Lock()
				count[resp.StatusCode]++
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	return count
}

func TestTwoProcessesShareTheLimitsOfOneRedis(t *testing.T) {
	server := redistest.Run(t)
	awayFromEdge(20 * time.Second)
	redisURL := "redis://" + server.Addr + "/0"
	// Closed, so that a decision which a starved machine lets time out shows as a 503
	// and not as one more 200 from the fallback.
	one, two := startQuickstart(t, "-redis", redisURL, "-fail", "closed"), startQuickstart(t, "-redis", redisURL, "-fail", "closed")
	stop := checkEveryKeyExpires(t, server.Addr)
	defer stop()

	exactly := func(got map[int]int, low, high int, what string) {
		t.Helper()
		if got[200] > high || got[200]+got[503] < low || got[200]+got[503]+got[429] != 1000 {
			t.Errorf("1000 %s: %v, want between %d and %d times 200 and the rest 429", what, got, low, high)
		}
		if got[503] > 0 {
			t.Logf("1000 %s: %d decisions timed out on this machine", what, got[503])
		}
	}
	exactly(load(t, 1000, "GET", []string{one + "/items", two + "/items"}, "X-API-Key", "demo-alice"), 100, 100, "reads of 100")
	exactly(load(t, 1000, "GET", []string{one + "/search", two + "/search"}, "X-API-Key", "demo-bob"), 200, 200, "searches at 5 units of 1000")
	begin := time.Now()
	exports := load(t, 1000, "POST", []string{one + "/exports", two + "/exports"}, "X-API-Key", "demo-alice")
	exactly(exports, 20, 20+int(time.Since(begin).Seconds())+1, "exports of 20 and what was refilled")
}

// checkEveryKeyExpires scans the keys over and over until stopped: each has a TTL.
func checkEveryKeyExpires(t *testing.T, addr string) (stop func()) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	ctx, cancel := context.WithCancel(context.Background())
	seen := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			keys := client.Scan(ctx, 0, "*", 100).Iterator()
			for keys.Next(ctx) {
				seen++
				// -2 is a key that has expired since the scan saw it.
				if ttl, err := client.PTTL(ctx, keys.Val()).Result(); err == nil && ttl == -1 {
					t.Errorf("key %s has no TTL", keys.Val())
				}
			}
		}
	}()
	return func() {
		cancel()
		<-done
		_ = client.Close()
		if seen == 0 {
			t.Error("the scan saw no key at all")
		}
	}
}

func TestRedisRestartedUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	server := redistest.Run(t)
	awayFromEdge(30 * time.Second)
	url := startQuickstart(t, "-redis", "redis://"+server.Addr, "-fail", "local")

	restarted := make(chan error, 1)
	go func() {
		time.Sleep(300 * time.Millisecond)
		restarted <- server.Restart(300 * time.Millisecond)
	}()
	total := make(map[int]int)
	for begin := time.Now(); time.Since(begin) < 2*time.Second; {
		for status, n := range load(t, 500, "GET", []string{url + "/items"}, "X-API-Key", "demo-alice") {
			total[status] += n
		}
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	// One limit before the restart, one on the fallback, one on the empty Redis.
	if total[200] < 100 || total[200] > 300 || len(total) != 2 {
		t.Errorf("answers while Redis restarted: %v, want only 200 (at most 300) and 429", total)
	}
	if got := load(t, 1000, "GET", []string{url + "/items"}, "X-API-Key", "demo-bob"); got[200] < 100 || got[429] > 0 {
		t.Errorf("1000 requests of a tier of 1000 after the restart: %v", got)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer func() { _ = client.Close() }()
	keys, err := client.Keys(context.Background(), "*bob*").Result()
	if err != nil || len(keys) != 1 || !strings.Contains(keys[0], "{key:bob}") {
		t.Errorf("counters of bob in Redis after the restart: %v, %v; want one", keys, err)
	}
}

func TestRedisAwayAnswersAsConfigured(t *testing.T) {
	awayFromEdge(10 * time.Second)
	const nobody = "redis://127.0.0.1:1" // a port where nothing listens
	for mode, want := range map[string]struct {
		status    int
		remaining string
	}{
		"local":  {200, "99"},
		"open":   {200, ""},
		"closed": {503, ""},
	} {
		url := startQuickstart(t, "-redis", nobody, "-fail", mode)
		begin := time.Now()
		a := request(t, "GET", url+"/items")
		if a.status != want.status || a.header.Get("X-RateLimit-Remaining") != want.remaining || time.Since(begin) > 250*time.Millisecond {
			t.Errorf("%s: %d, remaining %q after %v; want %d, %q within 250ms",
				mode, a.status, a.header.Get("X-RateLimit-Remaining"), time.Since(begin), want.status, want.remaining)
		}
		if mode == "closed" && (a.header.Get("Retry-After") != "1" || strings.Contains(a.body, "127.0.0.1")) {
			t.Errorf("closed: Retry-After %q, body %q; want 1 and no word of Redis", a.header.Get("Retry-After"), a.body)
		}
	}
}
