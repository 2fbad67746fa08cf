package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// gate is a fake server that answers good replies, but holds what comes while it is shut.
type gate struct {
	*fake
	t    *testing.T
	mu   sync.Mutex
	open chan struct{}
}

func newGate(t *testing.T) *gate {
	g := &gate{t: t, open: make(chan struct{})}
	close(g.open)
	g.fake = fakeRedis(t, func(args []string) string {
		g.mu.Lock()
		open := g.open
		g.mu.Unlock()
		<-open
		n, err := strconv.Atoi(args[2])
		if err != nil {
			t.Errorf("%q has no number of keys", args)
		}
		return fmt.Sprintf("*%d\r\n:%d\r\n", 1+3*n, goodTime) + strings.Repeat(":0\r\n", 3*n)
	})
	return g
}

// shut makes the server hold every command until the returned function opens it.
func (g *gate) shut() (open func()) {
	c := make(chan struct{})
	g.mu.Lock()
	g.open = c
	g.mu.Unlock()
	open = sync.OnceFunc(func() { close(c) })
	g.t.Cleanup(open) // a test that failed ends too
	return open
}

// fill takes every lane with a question that the server holds, and lets nobody out of turn.
func (g *gate) fill(t *testing.T, store *Store, all *sync.WaitGroup) {
	t.Helper()
	store.queue.longest = time.Hour
	before := len(g.seen())
	for i := range lanes {
		all.Go(func() { take(t, store, "lane"+strconv.Itoa(i), algorithms.FixedWindow{Limit: 5, Window: time.Hour}, 1) })
		// One after the other, or they could travel together.
		eventually(t, "the lane is taken", func() bool { return len(g.seen()) == before+i+1 })
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 5000 {
		if holds() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

func (s *Store) waiting() int {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return len(s.queue.waiting)
}

// Calls that come while the lanes are taken travel in one round trip: single charges
// under one rule and cost in one script call, in the order they came.
func TestCallsTravelTogether(t *testing.T) {
	for _, patient := range []bool{false, true} {
		t.Run(fmt.Sprintf("patient=%v", patient), func(t *testing.T) {
			g := newGate(t)
			client := redis.NewClient(&redis.Options{Addr: g.addr, ContextTimeoutEnabled: !patient})
			t.Cleanup(func() { _ = client.Close() })
			store := New(client)
			if store.queue.patient != patient {
				t.Fatal("the store doesn't see whether the client honours deadlines")
			}
			open := g.shut()
			var all sync.WaitGroup
			g.fill(t, store, &all)

			hour := algorithms.FixedWindow{Limit: 5, Window: time.Hour}
			bucket := algorithms.TokenBucket{Capacity: 5, Refill: 1, Per: time.Second}
			for i, ask := range []func(){
				func() { take(t, store, "a", hour, 1) },
				func() { take(t, store, "b", hour, 1) },
				func() { take(t, store, "c", bucket, 1) },
				func() { take(t, store, "d", hour, 2) },
				func() {
					must(t, store.Take(context.Background(), append(charge("e", hour, 1), charge("e", bucket, 1)...), make([]algorithms.Decision, 2)))
				},
				func() { take(t, store, "f", hour, 1) },
				func() { take(t, store, "a", hour, 1) },
			} {
				all.Go(ask)
				eventually(t, "it waits", func() bool { return store.waiting() == i+1 })
			}
			before := len(g.seen())
			open()
			all.Wait()

			var got []string
			for _, args := range g.seen()[before:] {
				n, _ := strconv.Atoi(args[2])
				got = append(got, strings.Join(args[3:3+n], " "))
			}
			want := []string{"rl:a:fw2:3600s rl:b:fw2:3600s rl:f:fw2:3600s rl:a:fw2:3600s", "rl:c:tb1:1s", "rl:d:fw2:3600s", "rl:e:fw2:3600s rl:e:tb1:1s"}
			if !slices.Equal(got, want) {
				t.Errorf("sent\n%q, want\n%q", got, want)
			}
		})
	}
}

// A caller whose context ends while it waits is never sent and consumes nothing; those
// beside it are.
func TestWhoLeavesTheQueueIsNotSent(t *testing.T) {
	g := newGate(t)
	store := New(g.client(t))
	open := g.shut()
	var all sync.WaitGroup
	g.fill(t, store, &all)
	ctx, cancel := context.WithCancel(context.Background())
	hour := algorithms.FixedWindow{Limit: 5, Window: time.Hour}
	all.Go(func() { take(t, store, "stays", hour, 1) })
	left := make(chan error)
	go func() { left <- store.Take(ctx, charge("leaves", hour, 1), make([]algorithms.Decision, 1)) }()
	eventually(t, "both wait", func() bool { return store.waiting() == 2 })
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	open()
	all.Wait()
	for _, args := range g.seen() {
		if slices.Contains(args, "rl:leaves:fw2:3600s") {
			t.Errorf("sent %q", args)
		}
	}
}

// Calls don't wait for the round trips of others when these are slow, as to a server far
// away: they make some of their own, but no number of them.
func TestSlowRoundTripsHoldNobodyUp(t *testing.T) {
	g := newGate(t)
	store := New(g.client(t))
	open := g.shut()
	hour := algorithms.FixedWindow{Limit: 50, Window: time.Hour}
	var all sync.WaitGroup
	defer all.Wait()
	defer open()
	for i := range lanes + extraLanes {
		all.Go(func() { take(t, store, "k", hour, 1) })
		eventually(t, "it is sent", func() bool { return len(g.seen()) == i+1 })
	}
	for i := range 10 {
		all.Go(func() { take(t, store, "k", hour, 1) })
		eventually(t, "it waits", func() bool { return store.waiting() == i+1 })
	}
	time.Sleep(5 * longestWait)
	if n := len(g.seen()); n != lanes+extraLanes {
		t.Errorf("%d commands wait at the server, want %d", n, lanes+extraLanes)
	}
	open()
	all.Wait()
	eventually(t, "the lanes are free", func() bool {
		store.queue.mu.Lock()
		defer store.queue.mu.Unlock()
		return store.queue.taken+store.queue.extra == 0
	})
}

// A caller leaves on time although the server hangs and the client waits for its own
// time-out, and its neighbours and successors are answered when it goes on.
func TestCallersLeaveAHangingServerOnTime(t *testing.T) {
	g := newGate(t)
	client := redis.NewClient(&redis.Options{Addr: g.addr, ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = client.Close() })
	store := New(client)
	open := g.shut()
	defer open()
	hour := algorithms.FixedWindow{Limit: 5, Window: time.Hour}
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			start := time.Now()
			err := store.Take(ctx, charge("k", hour, 1), make([]algorithms.Decision, 1))
			if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > 500*time.Millisecond {
				t.Errorf("%v after %v", err, took)
			}
		})
	}
	all.Wait()
	if n := len(g.seen()); n > lanes+extraLanes {
		t.Errorf("%d commands wait at the server, want at most %d", n, lanes+extraLanes)
	}
	open()
	take(t, store, "k", hour, 1)
}

func TestTheQueueIsBounded(t *testing.T) {
	g := newGate(t)
	store := New(g.client(t))
	store.queue.taken, store.queue.waiting = lanes, make([]*call, maxWaiting)
	err := store.Take(context.Background(), charge("k", algorithms.FixedWindow{Limit: 5, Window: time.Hour}, 1), make([]algorithms.Decision, 1))
	if want := "ratelimit: redisstore: 16384 decisions wait for Redis already"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// B66, B38: whatever a server forgets of its scripts meanwhile, concurrent requests are
// counted once each.
func TestB66_ScriptFlushAmongConcurrentCalls(t *testing.T) {
	client := realRedis(t)
	store := New(client)
	for _, rule := range rulesOf(t, 1000, time.Hour) {
		stop := make(chan struct{})
		var flusher, callers sync.WaitGroup
		flusher.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					must(t, client.ScriptFlush(context.Background()).Err())
					time.Sleep(time.Millisecond)
				}
			}
		})
		var admitted atomic.Int64
		for range 32 {
			callers.Go(func() {
				for range 50 {
					if take(t, store, "k", rule.Example, 1).Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		callers.Wait()
		close(stop)
		flusher.Wait()
		if got := admitted.Load(); got < 1000 || rule.Name != "token_bucket" && rule.Name != "leaky_bucket" && got != 1000 || got > 1001 {
			t.Errorf("%s: %d of 1600 admitted, want 1000", rule.Name, got)
		}
	}
}

// A key that somebody has overwritten fails nobody: it starts anew, and its neighbours in
// the same script call don't notice.
func TestB25_AForeignKeyHealsAmongOthers(t *testing.T) {
	ctx := context.Background()
	client := realRedis(t)
	store := New(client)
	for _, rule := range rulesOf(t, 3, time.Hour) {
		good, bad := charge("good", rule.Example, 1), charge("bad", rule.Example, 1)
		for _, spoil := range []func(name string) error{
			func(name string) error { return client.LPush(ctx, name, "x").Err() },
			func(name string) error { return client.Set(ctx, name, "garbage", 0).Err() },
			func(name string) error { return client.Set(ctx, name, "nan", 0).Err() },
			func(name string) error { return client.Set(ctx, name, "-5", 0).Err() },
			func(name string) error { return client.Set(ctx, name, "1e300", 0).Err() },
			func(name string) error { return client.ZAdd(ctx, name, redis.Z{Score: 1, Member: "x"}).Err() },
		} {
			must(t, client.FlushDB(ctx).Err())
			name := store.name(&bad[0])
			must(t, spoil(name))
			trips := []trip{{calls: []*call{store.call(good, true), store.call(bad, true), store.call(good, true)}}}
			trips[0].cmd = trips[0].command(ctx)
			store.queue.exec(ctx, trips)
			trips[0].deliver()
			for i, c := range trips[0].calls {
				decisions := make([]algorithms.Decision, 1)
				if c.err == nil {
					c.err = read(c.reply, good, decisions, nil)
				}
				if want := []int64{2, 2, 1}[i]; c.err != nil || !decisions[0].Allowed || decisions[0].Remaining != want {
					t.Errorf("%s: call %d: %+v, %v; want %d left", rule.Name, i, decisions[0], c.err, want)
				}
			}
			if ttl := client.PTTL(ctx, name).Val(); ttl <= 0 {
				t.Errorf("%s: the key that was overwritten has TTL %v", rule.Name, ttl)
			}
		}
	}
}

// A reply lost on the way to many callers is an error for each of them, and is not asked
// for again.
func TestALostReplyToManyIsAnErrorOfEach(t *testing.T) {
	direct := realRedis(t)
	load(t, direct)
	p := lossyProxy(t, direct, "evalsha", false)
	client := redis.NewClient(&redis.Options{Addr: p.addr, MaxRetries: 3, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	store := New(client)
	rule := algorithms.FixedWindow{Limit: 100, Window: time.Hour}
	together := make([]*call, 20)
	for i := range together {
		together[i] = store.call(charge("k", rule, 1), true)
	}
	store.queue.send(together, 0)
	for i, c := range together {
		<-c.done
		if c.err == nil {
			t.Errorf("call %d: no error", i)
		}
	}
	if sent := p.seen.Load(); sent != 1 {
		t.Errorf("sent %d times, want once", sent)
	}
	if d := take(t, New(direct), "k", rule, 0); d.Remaining != 80 {
		t.Errorf("%d left, want 80: the lost call has counted, once", d.Remaining)
	}
}

// On a cluster calls of one hash tag and rule are one script call, the others stand
// beside it in the pipeline.
func TestOnlyKeysOfOneTagTravelInOneScriptOfACluster(t *testing.T) {
	q := &queue{sharded: true}
	s := &Store{prefix: DefaultPrefix, scripts: assemble(clockLua)}
	s.queue.sharded = true
	rule := algorithms.FixedWindow{Limit: 5, Window: time.Hour}
	var together []*call
	for _, key := range []string{"{a}:x", "{b}:x", "{a}:x", "{a}:y", "plain", "plain"} {
		together = append(together, s.call(charge(key, rule, 1), true))
	}
	var got []int
	for _, t := range q.pack(context.Background(), together) {
		got = append(got, len(t.calls))
	}
	if want := []int{3, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("script calls for %v keys, want %v", got, want)
	}
}
