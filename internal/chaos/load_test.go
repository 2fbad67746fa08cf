//go:build chaos

package chaos

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
	"github.com/seed-601ed181/ratelimit/redisstore"
)

func TestMain(m *testing.M) {
	logging.Disable() // of go-redis, which tells of each connection it can't make
	code := m.Run()
	summary(os.Stdout)
	os.Exit(code)
}

// ok is the handler behind the limiter.
var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })

// instance is one process of a service: a limiter and its store.
type instance struct {
	http.Handler
	limiter  *ratelimit.Limiter
	store    *watched
	failures atomic.Int64 // of the store
	downs    atomic.Int64
	opened   atomic.Int64 // unix nanoseconds, when the store was last found to be down
}

// newInstance makes a limiter on the client. The configuration needs no more than its
// limits.
func newInstance(t *testing.T, client redis.UniversalClient, config ratelimit.Config, limits ...algorithms.Algorithm) *instance {
	t.Helper()
	i := &instance{store: &watched{Store: redisstore.New(client)}}
	config.Store = i.store
	config.Key = func(r *http.Request) (ratelimit.Key, error) {
		return ratelimit.Key{Kind: "user", ID: r.Header.Get("User")}, nil
	}
	config.Policies = []ratelimit.Policy{{Name: "api", Limits: limits}}
	config.Logger = slog.New(slog.DiscardHandler)
	config.Hooks = ratelimit.Hooks{
		Failed:    func(_ context.Context, e ratelimit.Event) { i.failures.Add(1) },
		StoreDown: func(error) { i.downs.Add(1); i.opened.Store(time.Now().UnixNano()) },
	}
	var err error
	i.limiter, err = ratelimit.New(config)
	must(t, err)
	i.Handler = i.limiter.Handler(ok)
	return i
}

// connect makes a client that honours deadlines, and closes it at the end of the test.
func connect(t *testing.T, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// watched is the store, and knows when and what it decided for requests. What a probe
// asks is nobody's request.
type watched struct {
	*redisstore.Store
	mu        sync.Mutex
	decided   int
	admitted  map[string]int
	mark      time.Time
	firstGood time.Time
}

type ofRequest struct{}

func (w *watched) TakeState(ctx context.Context, charges []algorithms.Charge, decisions []ratelimit.Decision, states []algorithms.State) error {
	err := w.Store.TakeState(ctx, charges, decisions, states)
	w.note(ctx, err, charges, decisions)
	return err
}

func (w *watched) Take(ctx context.Context, charges []algorithms.Charge, decisions []ratelimit.Decision) error {
	err := w.Store.Take(ctx, charges, decisions)
	w.note(ctx, err, charges, decisions)
	return err
}

func (w *watched) note(ctx context.Context, err error, charges []algorithms.Charge, decisions []ratelimit.Decision) {
	if err != nil || ctx.Value(ofRequest{}) == nil {
		return
	}
	refused := slices.ContainsFunc(decisions[:len(charges)], func(d ratelimit.Decision) bool { return !d.Allowed })
	w.mu.Lock()
	defer w.mu.Unlock()
	w.decided++
	if !refused {
		if w.admitted == nil {
			w.admitted = make(map[string]int)
		}
		w.admitted[charges[0].Key]++
	}
	if !w.mark.IsZero() && w.firstGood.IsZero() {
		w.firstGood = time.Now()
	}
}

// from starts to wait for a decision by Redis.
func (w *watched) from(mark time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mark, w.firstGood = mark, time.Time{}
}

// healed is how long after the mark the first decision by Redis came, or -1.
func (w *watched) healed() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.firstGood.IsZero() {
		return -1
	}
	return w.firstGood.Sub(w.mark)
}

// load sends requests at a rate, whether or not those before are answered; to bound what
// it does to the machine, never more than mostUnderWay at a time.
type load struct {
	instances []*instance // take turns
	rate      int         // requests a second
	key       func(i int) string

	stopped chan struct{}
	done    chan struct{}
	mu      sync.Mutex
	results []result
	begun   time.Time
}

const mostUnderWay = 4000

// result is one request. What the limiter adds to its latency is the time that the
// limited handler took less the time that the same handler took alone just before, on
// the same goroutine.
type result struct {
	at     time.Time
	key    string
	added  time.Duration
	status int
}

// start begins; stop ends and waits for the last answer.
func (l *load) start() *load {
	l.stopped, l.done, l.begun = make(chan struct{}), make(chan struct{}), time.Now()
	l.results = make([]result, 0, 20*l.rate)
	go func() {
		defer close(l.done)
		var underWay sync.WaitGroup
		defer underWay.Wait()
		room := make(chan struct{}, mostUnderWay)
		for i := 0; ; {
			due := int(time.Since(l.begun).Seconds() * float64(l.rate))
			for ; i < due; i++ {
				room <- struct{}{}
				underWay.Go(func() {
					r := l.instances[i%len(l.instances)].ask(l.key(i))
					<-room
					l.mu.Lock()
					l.results = append(l.results, r)
					l.mu.Unlock()
				})
			}
			select {
			case <-l.stopped:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return l
}

func (l *load) stop() results {
	close(l.stopped)
	<-l.done
	return l.results
}

// run is start, a pause and stop.
func (l *load) run(d time.Duration) results {
	l.start()
	time.Sleep(d)
	return l.stop()
}

// atOnce sends n requests at the same moment.
func (i *instance) atOnce(n int, key func(i int) string) results {
	out := make(results, n)
	var ready, done sync.WaitGroup
	ready.Add(1)
	for j := range n {
		done.Go(func() {
			ready.Wait()
			out[j] = i.ask(key(j))
		})
	}
	ready.Done()
	done.Wait()
	return out
}

// ask sends one request.
func (i *instance) ask(key string) result {
	r, _ := http.NewRequestWithContext(context.WithValue(context.Background(), ofRequest{}, true), "GET", "/", nil)
	r.Header.Set("User", key)
	var bare, limited answer
	start := time.Now()
	ok.ServeHTTP(&bare, r)
	middle := time.Now()
	i.ServeHTTP(&limited, r)
	return result{at: middle, key: key, added: time.Since(middle) - middle.Sub(start), status: limited.status}
}

// answer is a response writer that keeps the status.
type answer struct {
	header http.Header
	status int
}

func (a *answer) Header() http.Header {
	if a.header == nil {
		a.header = make(http.Header)
	}
	return a.header
}
func (a *answer) Write(b []byte) (int, error) { return len(b), nil }
func (a *answer) WriteHeader(status int)      { a.status = status }

type results []result

// between are the requests that came in a span of time.
func (rs results) between(from, to time.Time) results {
	var out results
	for _, r := range rs {
		if !r.at.Before(from) && r.at.Before(to) {
			out = append(out, r)
		}
	}
	return out
}

func (rs results) count(status int) int {
	n := 0
	for _, r := range rs {
		if r.status == status {
			n++
		}
	}
	return n
}

func (rs results) fiveHundreds() int {
	n := 0
	for _, r := range rs {
		if r.status >= 500 {
			n++
		}
	}
	return n
}

// statuses are the answers by status, "200: 31, 429: 4".
func (rs results) statuses() string {
	count := make(map[int]int)
	for _, r := range rs {
		count[r.status]++
	}
	var parts []string
	for _, status := range []int{200, 429, 503, 500, 0} {
		if n := count[status]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d: %d", status, n))
		}
		delete(count, status)
	}
	for status, n := range count {
		parts = append(parts, fmt.Sprintf("%d: %d", status, n))
	}
	return strings.Join(parts, ", ")
}

// added is the q-th part of the added latencies; 1 is the worst.
func (rs results) added(q float64) time.Duration {
	if len(rs) == 0 {
		return 0
	}
	sorted := slices.SortedFunc(slices.Values(rs), func(a, b result) int { return cmp.Compare(a.added, b.added) })
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)].added
}

// admitted is how many requests of each key were admitted.
func (rs results) admitted() map[string]int {
	byKey := make(map[string]int)
	for _, r := range rs {
		if r.status == http.StatusOK {
			byKey[r.key]++
		}
	}
	return byKey
}

// beyond is how many requests passed beyond the limit, over all keys and of the worst.
func (rs results) beyond(limit int) (all, worst int) {
	for _, n := range rs.admitted() {
		all, worst = all+max(0, n-limit), max(worst, n-limit)
	}
	return all, worst
}

// row is one line of the report.
type row struct {
	scenario string
	results  results
	beyond   string
	healed   string
}

var report struct {
	sync.Mutex
	rows []row
}

// add keeps the row for the summary and prints it.
func (r row) add(t *testing.T) {
	t.Helper()
	r.beyond, r.healed = cmp.Or(r.beyond, "-"), cmp.Or(r.healed, "-")
	report.Lock()
	report.rows = append(report.rows, r)
	report.Unlock()
	t.Log(strings.Join(r.cells(), " | "))
}

var columns = []string{"scenario", "requests", "answers", "p99 added", "worst added", "beyond the limit", "healed after"}

func (r row) cells() []string {
	return []string{r.scenario, fmt.Sprint(len(r.results)), r.results.statuses(),
		short(r.results.added(0.99)), short(r.results.added(1)), r.beyond, r.healed}
}

func short(d time.Duration) string {
	if d < time.Millisecond {
		return d.Round(time.Microsecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}

// summary prints all rows as a table.
func summary(out *os.File) {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	defer w.Flush()
	line := func(cells []string) { fmt.Fprintf(w, "| %s\t|\n", strings.Join(cells, "\t| ")) }
	line(columns)
	var dashes []string
	for range columns {
		dashes = append(dashes, "---")
	}
	line(dashes)
	for _, r := range report.rows {
		line(r.cells())
	}
}

// steady is a window that doesn't turn while the suite runs.
func steady() time.Duration {
	const day = 24 * time.Hour
	for _, window := range []time.Duration{30 * day, 29 * day} {
		if left := window - time.Duration(time.Now().UnixNano())%window; left > time.Hour {
			return window
		}
	}
	panic("two windows turn within the hour")
}

// limit is a limit whose window doesn't turn, so that what is admitted is exact.
func limit(n int64) algorithms.Algorithm {
	return algorithms.FixedWindow{Limit: n, Window: steady()}
}

// keys names the keys of a load: n that take turns.
func keys(n int) func(int) string {
	return func(i int) string { return fmt.Sprintf("u%d", i%n) }
}

// second is another limit with such a window, and a counter of its own.
func second(n int64) algorithms.Algorithm {
	return algorithms.FixedWindow{Limit: n, Window: 2 * steady()}
}

// calls is how many scripts the server was asked to run.
func calls(t *testing.T, client *redis.Client) int {
	t.Helper()
	return statistic(t, client, "commandstats", "cmdstat_evalsha", "calls=") + statistic(t, client, "commandstats", "cmdstat_eval", "calls=")
}

// errorCount is how often the server answered with an error.
func errorCount(t *testing.T, client *redis.Client, kind string) int {
	t.Helper()
	return statistic(t, client, "errorstats", "errorstat_"+kind, "count=")
}

// statistic is a number of INFO, 0 if it says nothing of it.
func statistic(t *testing.T, client *redis.Client, section, name, field string) int {
	t.Helper()
	text, err := client.Info(context.Background(), section).Result()
	must(t, err)
	_, rest, found := strings.Cut(text, name+":"+field)
	if !found {
		return 0
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	n, err := strconv.Atoi(rest[:end])
	must(t, err)
	return n
}

// everyKeyExpires is the invariant: no key without a TTL.
func everyKeyExpires(t *testing.T, client *redis.Client) {
	t.Helper()
	ctx := context.Background()
	var cursor uint64
	for {
		found, next, err := client.Scan(ctx, cursor, redisstore.DefaultPrefix+"*", 5000).Result()
		must(t, err)
		pipe := client.Pipeline()
		var ttls []*redis.DurationCmd
		for _, key := range found {
			ttls = append(ttls, pipe.PTTL(ctx, key))
		}
		if len(found) > 0 {
			_, err = pipe.Exec(ctx)
			must(t, err)
		}
		for i, ttl := range ttls {
			if ttl.Val() == -1 {
				t.Errorf("key %q has no TTL", found[i])
			}
		}
		if cursor = next; cursor == 0 {
			return
		}
	}
}

// goroutinesBack checks that no more than 10 goroutines stay of what was started since.
func goroutinesBack(t *testing.T, before int) {
	t.Helper()
	redistest.Eventually(t, "the goroutines are back within 10", func() bool { return runtime.NumGoroutine() <= before+10 })
}

// within fails the test if what happened took longer, or never ended.
func within(t *testing.T, what string, got, most time.Duration) {
	t.Helper()
	if got < 0 || got > most {
		t.Errorf("%s: %v, want at most %v", what, got, most)
	}
}

// atMost fails the test if there was more.
func atMost(t *testing.T, what string, got, most int) {
	t.Helper()
	if got > most {
		t.Errorf("%s: %d, want at most %d", what, got, most)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
