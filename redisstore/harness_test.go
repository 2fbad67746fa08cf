package redisstore

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/seed-601ed181/ratelimit/internal/redistest"
	"github.com/seed-601ed181/ratelimit/storetest"
)

// redisAddr is a real Redis for the tests of this package, "" where there is none.
var redisAddr string

func TestMain(m *testing.M) {
	stop := func() {}
	if redisAddr = os.Getenv("REDIS_ADDR"); redisAddr == "" {
		switch server, err := redistest.Start(); {
		case err == nil:
			redisAddr, stop = server.Addr, server.Stop
		case !errors.Is(err, redistest.ErrNoServer):
			panic(err)
		}
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		stop()
		os.Exit(code)
	}))
}

// realRedis returns an empty database of the real server. It skips the test on a
// machine without one, unless RATELIMIT_REQUIRE_REDIS says that there must be one.
func realRedis(t testing.TB) *redis.Client {
	t.Helper()
	if redisAddr == "" {
		redistest.Missing(t)
	}
	client := redis.NewClient(&redis.Options{Addr: redisAddr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	if err := client.FlushDB(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	return client
}

// everyKeyExpires is the invariant after each test: no key without a TTL.
func everyKeyExpires(t testing.TB, client *redis.Client) {
	t.Helper()
	ctx := context.Background()
	keys := client.Scan(ctx, 0, DefaultPrefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if ttl := client.PTTL(ctx, keys.Val()).Val(); ttl == -1 {
			t.Errorf("key %q has no TTL", keys.Val())
		}
	}
}

// openMini opens a store on miniredis, whose clock and expiry the suite moves.
func openMini(t *testing.T, start time.Time) (storetest.Store, func(time.Duration)) {
	server := miniredis.RunT(t)
	now := start
	server.SetTime(now)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() {
		everyKeyExpires(t, client)
		_ = client.Close()
	})
	return New(client), func(d time.Duration) {
		now = now.Add(d)
		server.SetTime(now)
		if d > 0 {
			server.FastForward(d)
		}
	}
}

// clockKey holds the time that the scripts of openReal read instead of TIME.
const clockKey = "test:clock"

// testClock is clock.lua with the suite's clock in the place of the server's. Keys
// live an hour of real time, as the suite's time has nothing to do with it.
func testClock() string {
	clock := strings.Replace(clockLua, "redis.call('TIME')", "redis.call('LRANGE', '"+clockKey+"', 0, 1)", 1)
	if clock == clockLua {
		panic("clock.lua does not read TIME where the tests expect it")
	}
	return clock + "ttl = function(reset) return 3600000 end\n"
}

// openReal opens a store on the real server under the suite's clock.
func openReal(t *testing.T, start time.Time) (storetest.Store, func(time.Duration)) {
	client := realRedis(t)
	return openUnderClock(t, start, client, client)
}

// openUnderClock opens a store on a client of some empty servers, which all read the
// suite's clock.
func openUnderClock(t *testing.T, start time.Time, client redis.UniversalClient, servers ...*redis.Client) (storetest.Store, func(time.Duration)) {
	for _, server := range servers {
		t.Cleanup(func() { everyKeyExpires(t, server) })
	}
	now := start
	set := func() {
		micro := now.UnixMicro()
		for _, server := range servers {
			pipe := server.TxPipeline()
			pipe.Del(context.Background(), clockKey)
			pipe.RPush(context.Background(), clockKey, micro/1e6, micro%1e6)
			if _, err := pipe.Exec(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	set()
	store := New(client)
	store.scripts = assemble(testClock())
	return store, func(d time.Duration) {
		now = now.Add(d)
		set()
		if d > longest {
			for _, server := range servers {
				forgetWindows(t, server)
			}
		}
	}
}

// longest is how long a counter of the suite's windows of clock time lives, and longer.
const longest = 3 * 24 * time.Hour

// forgetWindows does what time does on a server whose clock is its own: counters of
// windows long past expire.
func forgetWindows(t *testing.T, server *redis.Client) {
	ctx := context.Background()
	for _, format := range []string{"sw2", "fw2"} {
		keys := server.Keys(ctx, DefaultPrefix+"*:"+format+":*").Val()
		for len(keys) > 0 {
			n := min(len(keys), 1000)
			if err := server.Del(ctx, keys[:n]...).Err(); err != nil {
				t.Fatal(err)
			}
			keys = keys[n:]
		}
	}
}
