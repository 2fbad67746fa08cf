package redisstore

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
)

// These tests ask the real server, with the scripts as they are and real time.

// rulesOf is the registry with limit units a window in the place of the examples'
// numbers.
func rulesOf(t testing.TB, limit int64, window time.Duration) []algorithms.Rule {
	t.Helper()
	rules := algorithms.Rules()
	for i := range rules {
		switch rules[i].Example.(type) {
		case algorithms.SlidingWindowCounter:
			rules[i].Example = algorithms.SlidingWindowCounter{Limit: limit, Window: window}
		case algorithms.TokenBucket:
			rules[i].Example = algorithms.TokenBucket{Capacity: limit, Refill: limit, Per: window}
		case algorithms.FixedWindow:
			rules[i].Example = algorithms.FixedWindow{Limit: limit, Window: window}
		case algorithms.SlidingWindowLog:
			rules[i].Example = algorithms.SlidingWindowLog{Limit: limit, Window: window}
		case algorithms.LeakyBucket:
			rules[i].Example = algorithms.LeakyBucket{Capacity: limit, Rate: limit, Per: window}
		case algorithms.Concurrency:
			rules[i].Example = algorithms.Concurrency{Limit: limit, Lease: window}
		default:
			t.Fatalf("rulesOf does not know %s", rules[i].Name)
		}
		if err := rules[i].Example.Validate(); err != nil {
			t.Fatal(err)
		}
	}
	return rules
}

// steady is a window that doesn't turn, and in which no bucket of up to 2000 regains a
// unit, while a test runs.
func steady() time.Duration {
	const day = 24 * time.Hour
	for _, window := range []time.Duration{30 * day, 29 * day} {
		if left := window - time.Duration(time.Now().UnixNano())%window; left > time.Hour {
			return window
		}
	}
	panic("two windows turn within the hour")
}

func charge(key string, rule algorithms.Algorithm, cost int64) []algorithms.Charge {
	return []algorithms.Charge{{Key: key, Algorithm: rule, Cost: cost}}
}

func take(t testing.TB, store *Store, key string, rule algorithms.Algorithm, cost int64) algorithms.Decision {
	t.Helper()
	decisions := make([]algorithms.Decision, 1)
	if err := store.Take(context.Background(), charge(key, rule, cost), decisions); err != nil {
		t.Fatalf("Take %d of %q under %v: %v", cost, key, rule, err)
	}
	return decisions[0]
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func slow(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
}

// B25: a counter that holds garbage and has no TTL, as a crash between two commands
// leaves it elsewhere, counts anew, has a TTL at once, and is gone with its window.
func TestB25_GarbageWithoutTTLHeals(t *testing.T) {
	ctx := context.Background()
	client := realRedis(t)
	store := New(client)
	ask := func(again bool) (reset time.Duration) {
		for _, garbage := range []string{"999", "", "1:2", "a:b:c", "-1:5:0", "1.5:5:0"} {
			for _, rule := range rulesOf(t, 5, 200*time.Millisecond) {
				if rule.Name == "sliding_window_log" {
					continue // ZADD and PEXPIRE are one script, and of its type no garbage is left elsewhere
				}
				name := store.name(&charge(garbage, rule.Example, 1)[0])
				if !again {
					must(t, client.Set(ctx, name, garbage, 0).Err())
				}
				d := take(t, store, garbage, rule.Example, 1)
				if ttl := client.PTTL(ctx, name).Val(); ttl == -1 || ttl > 400*time.Millisecond {
					t.Errorf("%s on %q: PTTL %v, want at most two windows", rule.Name, garbage, ttl)
				}
				if !d.Allowed || d.Remaining != 4 {
					t.Errorf("%s on %q, again %v: %+v, want it allowed with 4 left", rule.Name, garbage, again, d)
				}
				reset = max(reset, d.ResetAfter)
			}
		}
		return reset
	}
	time.Sleep(ask(false))
	ask(true)
}

// B28: when the window turns, the count starts again with it.
func TestB28_EachWindowStartsAtZero(t *testing.T) {
	slow(t)
	const window = 100 * time.Millisecond
	store := New(realRedis(t))
	for i := range 10 {
		time.Sleep(window*3/2 - time.Duration(time.Now().UnixNano())%window)
		d := take(t, store, "k", algorithms.FixedWindow{Limit: 5, Window: window}, 1)
		if !d.Allowed || d.Remaining != 4 {
			t.Errorf("window %d: %+v, want it allowed with 4 left", i, d)
		}
	}
}

// B29: a fast limit has a TTL, and leaves no key behind.
func TestB29_FastLimitsLeaveNoKey(t *testing.T) {
	slow(t)
	ctx := context.Background()
	client := realRedis(t)
	store := New(client)
	for _, rule := range rulesOf(t, 1000, time.Second) {
		take(t, store, "k", rule.Example, 1)
		name := store.name(&charge("k", rule.Example, 1)[0])
		// A bucket of 1000 a second is full again after a millisecond.
		if ttl := client.PTTL(ctx, name).Val(); ttl == -1 || ttl > 2*time.Second {
			t.Errorf("%s: PTTL %v right after a request, want one", rule.Name, ttl)
		}
	}
	time.Sleep(3 * time.Second)
	if n := client.DBSize(ctx).Val(); n != 0 {
		t.Errorf("%d keys three seconds later: %v", n, client.Keys(ctx, "*").Val())
	}
}

// B30: the TTL covers the recovery, not the burst.
func TestB30_TTLOfASlowBucketCoversItsRecovery(t *testing.T) {
	ctx := context.Background()
	client := realRedis(t)
	store := New(client)
	for _, rule := range []algorithms.Algorithm{
		algorithms.TokenBucket{Capacity: 1, Refill: 1, Per: 10 * time.Second},
		algorithms.LeakyBucket{Capacity: 1, Rate: 1, Per: 10 * time.Second},
	} {
		first, second := take(t, store, "k", rule, 1), take(t, store, "k", rule, 1)
		if !first.Allowed || second.Allowed {
			t.Errorf("%v: %+v, then %+v, want one of two allowed", rule, first, second)
		}
		ttl := client.PTTL(ctx, store.name(&charge("k", rule, 1)[0])).Val()
		if ttl < 9900*time.Millisecond || ttl > 10_001*time.Millisecond {
			t.Errorf("%v: PTTL %v, want about 10 s", rule, ttl)
		}
	}
}

// B32: no duration reaches Redis as a fraction or in the wrong unit.
func TestB32_OddWindowsHaveWholeTTLs(t *testing.T) {
	ctx := context.Background()
	client := realRedis(t)
	store := New(client)
	for _, window := range []time.Duration{
		600*time.Second + time.Millisecond, 1500 * time.Millisecond, 1500 * time.Microsecond, time.Hour,
		time.Millisecond, time.Second/3 - time.Second/3%time.Microsecond, 70 * 365 * 24 * time.Hour,
	} {
		for _, rule := range rulesOf(t, 2, window) {
			before := time.Now()
			d := take(t, store, "k", rule.Example, 2)
			if !d.Allowed || d.ResetAfter <= 0 || d.ResetAfter > 2*window {
				t.Errorf("%s, window %v: %+v, want it allowed, and new again within two windows", rule.Name, window, d)
			}
			ttl := client.PTTL(ctx, store.name(&charge("k", rule.Example, 2)[0])).Val()
			least := d.ResetAfter - time.Since(before) - 2*time.Millisecond
			if ttl == -2 && least <= 0 {
				continue // gone before we could ask
			}
			if most := d.ResetAfter + 2*time.Millisecond; ttl < 0 || ttl > most || ttl < least {
				t.Errorf("%s, window %v: PTTL %v, want about %v", rule.Name, window, ttl, d.ResetAfter)
			}
		}
	}
	for _, window := range []time.Duration{0, -time.Second, time.Millisecond - time.Microsecond, 1500 * time.Nanosecond, time.Millisecond + 1} {
		if err := (algorithms.FixedWindow{Limit: 1, Window: window}).Validate(); err == nil {
			t.Errorf("a window of %v is valid", window)
		}
	}
}

// A key lives until its counter is as good as new, never shorter, and no more than the
// rest of that millisecond longer.
func TestTTLIsTheTimeToFullRecovery(t *testing.T) {
	ctx := context.Background()
	client := realRedis(t)
	store := New(client)
	least := make(map[string]time.Duration)
	check := func(rule algorithms.Rule, key string, cost int64, d algorithms.Decision, roundTrip time.Duration) {
		t.Helper()
		name := store.name(&charge(key, rule.Example, 1)[0])
		expires := client.PExpireTime(ctx, name).Val()
		if expires < 0 {
			t.Errorf("%s: PEXPIRETIME %v, want a time", rule.Name, expires)
			return
		}
		longer := expires - time.Duration(d.At.Add(d.ResetAfter).UnixNano())
		if longer < 0 {
			t.Errorf("%s: the key ends %v before its recovery: %+v", rule.Name, -longer, d)
		}
		if !d.Allowed || cost == 0 {
			return // written by another decision
		}
		// The server may have paused, or seen a millisecond turn, between TIME and the write.
		if longer >= 2*time.Millisecond+roundTrip {
			t.Errorf("%s: the key outlives its recovery by %v: %+v", rule.Name, longer, d)
		}
		if before, ok := least[rule.Name]; !ok || longer < before {
			least[rule.Name] = longer
		}
	}
	for _, window := range []time.Duration{time.Minute, 12_345_678 * time.Microsecond, 24 * time.Hour} {
		rules := rulesOf(t, 10, window)
		for i := range 14 { // the last ones are refused
			for _, rule := range rules {
				before, cost := time.Now(), int64(i%3)
				if d := take(t, store, "k", rule.Example, cost); d.ResetAfter > 0 {
					check(rule, "k", cost, d, time.Since(before))
				}
			}
		}
		charges, decisions := []algorithms.Charge(nil), make([]algorithms.Decision, len(rules))
		for _, rule := range rules {
			charges = append(charges, charge("several", rule.Example, 3)...)
		}
		before := time.Now()
		must(t, store.Take(ctx, charges, decisions))
		for i, rule := range rules {
			check(rule, "several", 3, decisions[i], time.Since(before))
		}
	}
	for name, longer := range least {
		if longer >= time.Millisecond {
			t.Errorf("%s: its keys outlive their recovery by %v at least, want less than 1ms", name, longer)
		}
	}
}

// B34: two instances, 1000 requests at once, a limit of 5.
func TestB34_TwoInstancesAdmitExactlyTheLimit(t *testing.T) {
	stores := []*Store{New(realRedis(t)), New(realRedis(t))}
	for _, rule := range rulesOf(t, 5, steady()) {
		start := make(chan struct{})
		var admitted, refused atomic.Int64
		var wait sync.WaitGroup
		for i := range 1000 {
			wait.Go(func() {
				decisions := make([]algorithms.Decision, 1)
				<-start
				if err := stores[i%2].Take(context.Background(), charge("k", rule.Example, 1), decisions); err != nil {
					t.Errorf("%s: %v", rule.Name, err)
				} else if decisions[0].Allowed {
					admitted.Add(1)
				} else {
					refused.Add(1)
				}
			})
		}
		close(start)
		wait.Wait()
		if admitted.Load() != 5 || refused.Load() != 995 {
			t.Errorf("%s: %d admitted, %d refused, want 5 and 995", rule.Name, admitted.Load(), refused.Load())
		}
	}
}

// B44: requests of the same moment are different entries of the log.
func TestB44_LogHoldsAnEntryForEachRequest(t *testing.T) {
	rule := algorithms.SlidingWindowLog{Limit: 3, Window: 10 * time.Second}
	for name, open := range map[string]func() *Store{
		"real time": func() *Store { return New(realRedis(t)) },
		"one moment": func() *Store {
			store, _ := openReal(t, time.Now())
			return store.(*Store)
		},
	} {
		store, admitted := open(), 0
		for range 10 {
			if take(t, store, "k", rule, 1).Allowed {
				admitted++
			}
		}
		entries := store.client.ZCard(context.Background(), store.name(&charge("k", rule, 1)[0])).Val()
		if admitted != 3 || entries != 3 {
			t.Errorf("%s: %d of 10 admitted, %d entries, want 3 and 3", name, admitted, entries)
		}
	}
}

// B46: the last unit is given, the one after it is not.
func TestB46_ExactlyTheLimitPasses(t *testing.T) {
	store := New(realRedis(t))
	for _, rule := range rulesOf(t, 10, steady()) {
		for i := range int64(12) {
			d := take(t, store, "k", rule.Example, 1)
			if want := max(0, 9-i); d.Allowed != (i < 10) || d.Remaining != want {
				t.Errorf("%s, request %d: %+v, want allowed %v and %d left", rule.Name, i+1, d, i < 10, want)
			}
		}
	}
}

// Waiting exactly RetryAfter of real time passes.
func TestRetryAfterHoldsInRealTime(t *testing.T) {
	store := New(realRedis(t))
	for _, rule := range rulesOf(t, 2, 40*time.Millisecond) {
		for range 3 {
			d := take(t, store, "k", rule.Example, 2)
			if d.Allowed {
				continue
			}
			if d.RetryAfter <= 0 || d.RetryAfter > 80*time.Millisecond {
				t.Fatalf("%s: %+v, want a RetryAfter within two windows", rule.Name, d)
			}
			time.Sleep(time.Until(d.At.Add(d.RetryAfter)))
			if then := take(t, store, "k", rule.Example, 2); !then.Allowed && !then.At.Before(d.At.Add(d.RetryAfter)) {
				t.Errorf("%s: refused at %v with RetryAfter %v, and again at %v: %+v", rule.Name, d.At, d.RetryAfter, then.At, then)
			}
		}
	}
}

// B66: Redis may forget the scripts at any time.
func TestB66_ForgottenScriptsAreSentAgain(t *testing.T) {
	ctx := context.Background()
	client := realRedis(t)
	store := New(client)
	for _, rule := range rulesOf(t, 5, steady()) {
		for want := int64(4); want >= 3; want-- {
			if d := take(t, store, "k", rule.Example, 1); !d.Allowed || d.Remaining != want {
				t.Errorf("%s: %+v, want it allowed with %d left", rule.Name, d, want)
			}
			must(t, client.ScriptFlush(ctx).Err())
		}
		must(t, store.Settle(ctx, charge("k", rule.Example, -1)))
		must(t, client.ScriptFlush(ctx).Err())
		if d := take(t, store, "k", rule.Example, 0); d.Remaining != 4 {
			t.Errorf("%s: %d left after giving one back, want 4", rule.Name, d.Remaining)
		}
	}
}

func TestB66_ScriptsForgottenUnderLoad(t *testing.T) {
	ctx := context.Background()
	client := realRedis(t)
	store := New(client)
	rules := rulesOf(t, 150, steady())
	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		flushes := 0
		for ; ; flushes++ {
			select {
			case <-stop:
				stopped <- flushes
				return
			default:
				client.ScriptFlush(ctx)
			}
		}
	}()
	admitted := make([]atomic.Int64, len(rules))
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			decisions := make([]algorithms.Decision, 1)
			for i := range 100 {
				rule := i % len(rules)
				if err := store.Take(ctx, charge("k", rules[rule].Example, 1), decisions); err != nil {
					t.Errorf("%s: %v", rules[rule].Name, err)
				} else if decisions[0].Allowed {
					admitted[rule].Add(1)
				}
			}
		})
	}
	wait.Wait()
	close(stop)
	if flushes := <-stopped; flushes < 20 {
		t.Errorf("only %d flushes during the load", flushes)
	}
	for i, rule := range rules {
		if got := admitted[i].Load(); got != 150 {
			t.Errorf("%s: %d of 400 admitted, want 150", rule.Name, got)
		}
	}
}

// B69: a store is made while Redis is away, fails, and works when Redis is there.
func TestB69_RedisMayStartLater(t *testing.T) {
	realRedis(t) // skips where there is none
	rule := algorithms.FixedWindow{Limit: 5, Window: steady()}
	for _, c := range []struct {
		name   string
		failed int // requests while Redis is away
		heals  time.Duration
	}{
		{"one request", 1, 0},
		// go-redis then asks once a second whether Redis is back.
		{"more than the pool holds", 5, 3 * time.Second},
	} {
		addr := redistest.FreeAddr(t)
		client := redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1, PoolSize: 3})
		opened, err := Open("redis://" + addr + "?pool_size=3")
		must(t, err)
		stores := []*Store{New(client), opened}
		for _, store := range stores {
			for range c.failed {
				if err := store.Take(context.Background(), charge("k", rule, 1), make([]algorithms.Decision, 1)); err == nil {
					t.Fatal("Take decided without a Redis")
				}
			}
		}
		server, err := redistest.StartAt(addr)
		must(t, err)
		started := time.Now()
		for i, store := range stores {
			decisions := make([]algorithms.Decision, 1)
			for {
				err = store.Take(context.Background(), charge("k", rule, 1), decisions)
				if err == nil || time.Since(started) > c.heals {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if want := int64(4 - i); err != nil || decisions[0].Remaining != want {
				t.Errorf("%s, store %d: %v, %+v, want %d left", c.name, i, err, decisions[0], want)
			}
		}
		must(t, opened.Close())
		must(t, client.Close())
		server.Stop()
	}
}

// B71: an error reply is an error of the call, sent once; the next good reply counts.
func TestB71_ErrorRepliesAreErrorsOnce(t *testing.T) {
	rule := algorithms.FixedWindow{Limit: 5, Window: time.Minute}
	var reply atomic.Value
	server := fakeRedis(t, func([]string) string { return reply.Load().(string) })
	store := New(server.client(t))
	for _, bad := range []string{
		"OOM command not allowed when used memory > 'maxmemory'.",
		"LOADING Redis is loading the dataset in memory",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"READONLY You can't write against a read only replica.",
		"CLUSTERDOWN The cluster is down",
		"ERR max number of clients reached",
		"ERR Error running script",
	} {
		before := len(server.seen())
		reply.Store("-" + bad + "\r\n")
		decisions := make([]algorithms.Decision, 1)
		err := store.Take(context.Background(), charge("k", rule, 1), decisions)
		if err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("Take on -%.10s: %v, want that error", bad, err)
		}
		if decisions[0] != (algorithms.Decision{}) {
			t.Errorf("Take on -%.10s left a decision: %+v", bad, decisions[0])
		}
		if sent := len(server.seen()) - before; sent != 1 {
			t.Errorf("-%.10s: sent %d times, want once", bad, sent)
		}
		reply.Store(goodReply)
		if d := take(t, store, "k", rule, 1); !d.Allowed || d.Remaining != 4 {
			t.Errorf("after -%.10s: %+v, want the good reply", bad, d)
		}
	}
	before := len(server.seen())
	reply.Store("-NOSCRIPT No matching script. Please use EVAL.\r\n")
	if err := store.Take(context.Background(), charge("k", rule, 1), make([]algorithms.Decision, 1)); err == nil {
		t.Error("Take on -NOSCRIPT to EVALSHA and EVAL: no error")
	}
	if sent := len(server.seen()) - before; sent != 2 {
		t.Errorf("-NOSCRIPT: sent %d times, want EVALSHA and EVAL", sent)
	}
}

// B72: an evicted counter starts anew.
func TestB72_EvictedCounterStartsAnew(t *testing.T) {
	ctx := context.Background()
	client := realRedis(t)
	store := New(client)
	for _, rule := range rulesOf(t, 3, steady()) {
		take(t, store, "k", rule.Example, 3)
		if n := client.Del(ctx, store.name(&charge("k", rule.Example, 1)[0])).Val(); n != 1 {
			t.Errorf("%s: its key is not under its name", rule.Name)
		}
		if d := take(t, store, "k", rule.Example, 1); !d.Allowed || d.Remaining != 2 {
			t.Errorf("%s: %+v, want it allowed with 2 left", rule.Name, d)
		}
	}
}

// B74: whatever comes as a reply, the answer is a decision or an error, and the next
// request doesn't read the rest of it.
func TestB74_WrongRepliesAreErrors(t *testing.T) {
	rule := algorithms.FixedWindow{Limit: 5, Window: time.Minute}
	var reply atomic.Value
	server := fakeRedis(t, func([]string) string { return reply.Load().(string) })
	store := New(server.client(t))
	for name, bad := range map[string]string{
		"status":           "+OK\r\n",
		"integer":          ":1\r\n",
		"text":             "$3\r\n0.4\r\n",
		"null":             "$-1\r\n",
		"null array":       "*-1\r\n",
		"null of RESP3":    "_\r\n",
		"empty":            "*0\r\n",
		"one short":        "*3\r\n:1\r\n:0\r\n:0\r\n",
		"one long":         "*5\r\n:1\r\n:0\r\n:0\r\n:0\r\n:0\r\n",
		"text inside":      "*4\r\n:1\r\n:0\r\n$3\r\n0.4\r\n:0\r\n",
		"float inside":     "*4\r\n:1\r\n:0\r\n,0.4\r\n:0\r\n",
		"null inside":      "*4\r\n$-1\r\n:0\r\n:0\r\n:0\r\n",
		"array inside":     "*4\r\n:1\r\n*2\r\n:1\r\n:1\r\n:0\r\n:0\r\n",
		"error inside":     "*4\r\n:1\r\n-ERR inside\r\n:0\r\n:0\r\n",
		"not a number":     "*4\r\n:1\r\n:x\r\n:0\r\n:0\r\n",
		"too large":        "*4\r\n:99999999999999999999\r\n:0\r\n:0\r\n:0\r\n",
		"above 2^53":       "*4\r\n:9007199254740993\r\n:0\r\n:0\r\n:0\r\n",
		"negative":         "*4\r\n:1\r\n:0\r\n:-1\r\n:0\r\n",
		"refuses wrongly":  "*5\r\n:1\r\n:0\r\n:0\r\n:0\r\n:1\r\n",
		"admits wrongly":   "*4\r\n:1\r\n:0\r\n:5\r\n:0\r\n",
		"refuses no key":   "*5\r\n:1\r\n:0\r\n:5\r\n:0\r\n:2\r\n",
		"map":              "%2\r\n:1\r\n:0\r\n:0\r\n:0\r\n",
		"not the protocol": "HTTP/1.1 400 Bad Request\r\n\r\n",
	} {
		reply.Store(bad)
		if err := store.Take(context.Background(), charge("k", rule, 1), make([]algorithms.Decision, 1)); err == nil {
			t.Errorf("%s: no error", name)
		}
		reply.Store(goodReply)
		for range 3 {
			if d := take(t, store, "k", rule, 1); !d.Allowed || d.Remaining != 4 || d.At.UnixMicro() != goodTime {
				t.Errorf("after %s: %+v, want the good reply", name, d)
			}
		}
	}
}

// FuzzReply: whatever numbers come, the answer is an error or decisions that can be.
func FuzzReply(f *testing.F) {
	f.Add([]byte{}, 1)
	good := []byte{}
	for _, n := range []uint64{goodTime, 0, 0, 0} {
		good = binary.BigEndian.AppendUint64(good, n)
	}
	f.Add(good, 1)
	f.Add(make([]byte, 4*8), 1)
	f.Add(make([]byte, 7*8), 2)
	f.Add(slices.Repeat([]byte{0xff}, 4*8), 1)
	f.Add(slices.Repeat([]byte{0, 0xf}, 11*4), 2)
	f.Fuzz(func(t *testing.T, raw []byte, n int) {
		n &= 7
		var reply []int64
		for ; len(raw) >= 8; raw = raw[8:] {
			reply = append(reply, int64(binary.BigEndian.Uint64(raw)))
		}
		charges := make([]algorithms.Charge, n)
		for i := range charges {
			charges[i].Cost, charges[i].Algorithm = int64(i%3), algorithms.Rules()[i%len(algorithms.Rules())].Example
		}
		decisions := make([]algorithms.Decision, n)
		if err := read(reply, charges, decisions, nil); err != nil {
			return
		}
		if len(reply) < 1+3*n || len(reply) > 1+4*n {
			t.Fatalf("%d numbers to %d charges: no error", len(reply), n)
		}
		for i, d := range decisions {
			if d.Limit != charges[i].Algorithm.Parameters()[0] || d.Remaining < 0 || d.Remaining > d.Limit || d.ResetAfter < 0 || d.Delay < 0 || d.Allowed != (d.RetryAfter == 0) {
				t.Fatalf("decision %d of %v: %+v", i, reply, d)
			}
		}
	})
}

// B77, first half: a request that is already dead sends nothing.
func TestB77_CancelledContextSendsNothing(t *testing.T) {
	server := fakeRedis(t, func([]string) string { return goodReply })
	store := New(server.client(t))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	charges := charge("k", algorithms.FixedWindow{Limit: 5, Window: time.Minute}, 1)
	for name, err := range map[string]error{
		"Take":   store.Take(ctx, charges, make([]algorithms.Decision, 1)),
		"Peek":   store.Peek(ctx, charges, make([]algorithms.Decision, 1)),
		"Settle": store.Settle(ctx, charges),
		"Reset":  store.Reset(ctx, charges),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want context.Canceled", name, err)
		}
	}
	if seen := server.seen(); len(seen) != 0 {
		t.Errorf("sent %q, want nothing", seen)
	}
}

// No instance tells Redis the time: nothing it sends is a time of this year, in any
// unit, so its clock can't matter.
func TestNoTimeIsSent(t *testing.T) {
	var charges []algorithms.Charge
	for _, rule := range algorithms.Rules() {
		charges = append(charges, charge("k", rule.Example, 1)...)
	}
	server := fakeRedis(t, func(args []string) string {
		if args[0] == "evalsha" && slices.Contains(args, "take") {
			numbers := 1 + 3*len(charges)
			return "*" + strconv.Itoa(numbers) + "\r\n:" + strconv.Itoa(goodTime) + "\r\n" + strings.Repeat(":0\r\n", numbers-1)
		}
		return goodReply
	})
	store := New(server.client(t))
	ctx, decisions := context.Background(), make([]algorithms.Decision, len(charges))
	for i := range charges {
		must(t, store.Take(ctx, charges[i:i+1], decisions))
		must(t, store.Peek(ctx, charges[i:i+1], decisions))
		must(t, store.Settle(ctx, charges[i:i+1]))
	}
	must(t, store.Take(ctx, charges, decisions))
	commands := server.seen()
	if len(commands) != 3*len(charges)+1 {
		t.Fatalf("%d commands seen, want %d", len(commands), 3*len(charges)+1)
	}
	now := float64(time.Now().UnixMicro())
	const year = 365 * 24 * 3600 * 1e6
	for _, args := range commands {
		for _, arg := range args[1:] {
			n, err := strconv.ParseFloat(arg, 64)
			for _, unit := range []float64{1e6, 1e3, 1, 1e-3} {
				if gap := n*unit - now; err == nil && gap > -year && gap < year {
					t.Errorf("%q in %q is a time of this year", arg, args)
				}
			}
		}
	}
}

// No key is without a TTL at any moment, whatever runs.
func TestNoKeyIsEverWithoutTTL(t *testing.T) {
	ctx := context.Background()
	client := realRedis(t)
	store := New(client)
	rules := append(rulesOf(t, 20, 50*time.Millisecond), rulesOf(t, 20, time.Minute)...)
	var load sync.WaitGroup
	defer load.Wait()
	for g := range 64 {
		load.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 1))
			decisions := make([]algorithms.Decision, 2)
			for range 100 {
				key := strconv.Itoa(random.IntN(10))
				first := random.IntN(len(rules))
				charges := append(charge(key, rules[first].Example, random.Int64N(5)),
					charge(key, rules[(first+1)%len(rules)].Example, random.Int64N(5))...)
				var err error
				switch random.IntN(5) {
				case 0:
					charges[0].Cost, charges[1].Cost = random.Int64N(41)-20, random.Int64N(41)-20
					err = store.Settle(ctx, charges)
				case 1:
					err = store.Take(ctx, charges, decisions)
				case 2:
					err = store.Peek(ctx, charges, decisions)
				default:
					err = store.Take(ctx, charges[:1], decisions)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { load.Wait(); close(done) }()
	looked := 0
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		names, _ := client.Scan(ctx, 0, "*", 1000).Val()
		ttls := make([]*redis.DurationCmd, len(names))
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, name := range names {
				ttls[i] = p.PTTL(ctx, name)
			}
			return nil
		})
		must(t, err)
		for i, ttl := range ttls {
			if looked++; ttl.Val() == -1 {
				t.Fatalf("key %q has no TTL", names[i])
			}
		}
	}
	if looked < 1000 {
		t.Errorf("only %d keys looked at", looked)
	}
}

// tag is the part of a key that Redis Cluster hashes: what stands in the first braces,
// unless that is nothing.
func tag(key string) string {
	if _, after, ok := strings.Cut(key, "{"); ok {
		if inside, _, ok := strings.Cut(after, "}"); ok && inside != "" {
			return "{" + inside + "}"
		}
	}
	return ""
}

// FuzzName: a Redis key is at most 256 bytes; two are the same exactly when key and
// shape are; charges of one hash tag have Redis keys of one hash tag.
func FuzzName(f *testing.F) {
	for _, seed := range []struct{ a, b string }{
		{"", ""}, {"a", "a:"}, {"a:fw2:60s", "a"}, {"a:fw2", "a"}, {"{user:1}:api", "{user:1}:login"}, {"a{b", "a}b"}, {"{}", "{}a"},
		{"}{", "{}{x}"}, {"\x00", ""}, {"\r\n", " "}, {"ключ", "\xff"}, {"rl:", "rl"}, {"{{a}}", "{a}"},
		{strings.Repeat("k", 200), strings.Repeat("k", 201)}, {strings.Repeat("k", 10_000), strings.Repeat("k", 10_001)},
		{"{u}" + strings.Repeat("k", 197), "{u}" + strings.Repeat("k", 198)}, {"{" + strings.Repeat("u", 190) + "}", "{" + strings.Repeat("u", 190) + "}more than 200"},
		{"{" + strings.Repeat("u", 500) + "}a", "{" + strings.Repeat("u", 500) + "}b"}, {strings.Repeat("}{", 101), strings.Repeat("{}", 101)},
	} {
		f.Add(seed.a, seed.b, uint8(0), uint8(1), int64(60_000_000), int64(60_000_001))
		f.Add(seed.a, seed.b, uint8(2), uint8(2), int64(60_000_000), int64(60_000_000))
		f.Add(seed.a, seed.a, uint8(2), uint8(3), int64(60_000_000), int64(60))
	}
	store := New(nil)
	f.Fuzz(func(t *testing.T, a, b string, ruleA, ruleB uint8, windowA, windowB int64) {
		const century = 70 * 365 * 24 * 3600 * 1e6
		counter := func(key string, rule uint8, window int64) algorithms.Charge {
			rules := rulesOf(t, 1, time.Duration(1000+uint64(window)%(century-1000))*time.Microsecond)
			return charge(key, rules[int(rule)%len(rules)].Example, 1)[0]
		}
		charges := []algorithms.Charge{counter(a, ruleA, windowA), counter(b, ruleB, windowB)}
		model := make(map[string]algorithms.Charge)
		for _, c := range charges {
			name := store.name(&c)
			if len(name) > 256 {
				t.Errorf("%d bytes: %q", len(name), name)
			}
			if other, ok := model[name]; ok && (other.Key != c.Key || other.Algorithm.Shape() != c.Algorithm.Shape()) {
				t.Errorf("%q names %q under %v and %q under %v", name, other.Key, other.Algorithm, c.Key, c.Algorithm)
			}
			model[name] = c
		}
		if len(model) == 2 && a == b && charges[0].Algorithm.Shape() == charges[1].Algorithm.Shape() {
			t.Errorf("%q under %v has two names", a, charges[0].Algorithm)
		}
		ours, theirs := tag(store.name(&charges[0])), tag(store.name(&charges[1]))
		if tag(a) != "" && tag(a) == tag(b) && (ours == "" || ours != theirs) {
			t.Errorf("%q and %q have a hash tag in common, their names %q and %q", a, b, ours, theirs)
		}
	})
}

// A long key's stand-in is nobody else's key.
func TestHashedKeyMeetsNoOther(t *testing.T) {
	rule := algorithms.FixedWindow{Limit: 1, Window: time.Minute}
	store := New(nil)
	long := store.name(&charge(strings.Repeat("k", maxKey+1), rule, 1)[0])
	key := strings.TrimSuffix(strings.TrimPrefix(long, DefaultPrefix), ":fw2:60s")
	if short := store.name(&charge(key, rule, 1)[0]); short == long {
		t.Errorf("a key of %d bytes and the key %q are both %q", maxKey+1, key, long)
	}
}

// Charges of one hash tag share a slot, however long their keys are.
func TestLongKeyKeepsItsHashTag(t *testing.T) {
	rule := algorithms.FixedWindow{Limit: 1, Window: time.Minute}
	store := New(nil)
	key := "{user:42}:" + strings.Repeat("k", maxKey)
	if name := store.name(&charge(key, rule, 1)[0]); tag(name) != "{user:42}" {
		t.Errorf("hash tag of %q is %q, want {user:42}", name, tag(name))
	}
}

// Keys of any bytes reach Redis as they are, under the prefix that was asked for.
func TestKeysAreBytesUnderThePrefix(t *testing.T) {
	ctx := context.Background()
	client := realRedis(t)
	rule := algorithms.FixedWindow{Limit: 2, Window: 30 * time.Minute}
	var want []string
	for _, prefix := range []string{"", "app1:", "\x00 \"'*?[\n"} {
		store := New(client, Options{Prefix: prefix})
		for _, key := range []string{"user \"42\"\r\n*1\r\n", "\x00", "\xff\xfe", "ключ", "*", "?[a]", "%s"} {
			// Neither another prefix nor another key has used it.
			if d := take(t, store, key, rule, 2); !d.Allowed {
				t.Errorf("prefix %q, key %q: %+v, want it allowed", prefix, key, d)
			}
			if prefix == "" {
				want = append(want, "rl:"+key+":fw2:1800s")
			} else {
				want = append(want, prefix+key+":fw2:1800s")
			}
		}
	}
	got := client.Keys(ctx, "*").Val()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("keys %q\nwant %q", got, want)
	}
}

// goodReply says that a charge of a counter never used was admitted at goodTime.
const (
	goodTime  = 1_764_584_707_000_123
	goodReply = "*4\r\n:1764584707000123\r\n:0\r\n:0\r\n:0\r\n"
)

// fake is a server that speaks just enough of the protocol to answer scripts.
type fake struct {
	addr     string
	mu       sync.Mutex
	commands [][]string
}

// fakeRedis answers every command with what answer returns, but for those that a
// connection begins with.
func fakeRedis(t *testing.T, answer func(args []string) string) *fake {
	f := new(fake)
	f.addr = serve(t, func(conn net.Conn) {
		r := bufio.NewReader(conn)
		for {
			args, err := readCommand(r)
			if err != nil {
				return
			}
			reply := ""
			switch args[0] {
			case "hello":
				reply = "-ERR unknown command 'hello'\r\n"
			case "client", "ping":
				reply = "+OK\r\n"
			default:
				f.mu.Lock()
				f.commands = append(f.commands, args)
				f.mu.Unlock()
				reply = answer(args)
			}
			if _, err := io.WriteString(conn, reply); err != nil {
				return
			}
		}
	})
	return f
}

func (f *fake) seen() [][]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.commands)
}

func (f *fake) client(t *testing.T) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: f.addr})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// serve handles each connection to the returned address until the test ends.
func serve(t *testing.T, handle func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var wait sync.WaitGroup
	var mu sync.Mutex
	conns := make(map[net.Conn]bool)
	wait.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[conn] = true
			mu.Unlock()
			wait.Go(func() {
				handle(conn)
				_ = conn.Close()
				mu.Lock()
				delete(conns, conn)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		wait.Wait()
	})
	return l.Addr().String()
}

// readCommand reads a command as clients send it, an array of bulk strings. Its name
// comes back in lower case.
func readCommand(r *bufio.Reader) ([]string, error) {
	var n int
	if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil || n < 1 {
		return nil, fmt.Errorf("not a command of %d words: %w", n, err)
	}
	args := make([]string, n)
	for i := range args {
		var size int
		if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(r, word); err != nil {
			return nil, err
		}
		args[i] = string(word[:size])
	}
	args[0] = strings.ToLower(args[0])
	return args, nil
}
