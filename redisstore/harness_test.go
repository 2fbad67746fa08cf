package redisstore

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/seed-601ed181/ratelimit/storetest"
)

// redisAddr is a real Redis for the tests of this package, "" where there is none.
var redisAddr string

func TestMain(m *testing.M) {
	stop := func() {}
	if redisAddr = os.Getenv("REDIS_ADDR"); redisAddr == "" {
		redisAddr, stop = startRedis()
	}
	code := m.Run()
	stop()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// startRedis starts a redis-server of its own on a free port, if there is a binary.
func startRedis(args ...string) (addr string, stop func()) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return "", func() {}
	}
	addr = freeAddr()
	_, port, _ := strings.Cut(addr, ":")
	dir, err := os.MkdirTemp("", "redisstore")
	if err != nil {
		panic(err)
	}
	server := exec.Command(binary, append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", dir}, args...)...)
	if err := server.Start(); err != nil {
		panic(err)
	}
	stop = func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		_ = os.RemoveAll(dir)
	}
	for range 500 {
		if conn, err := net.Dial("tcp", addr); err == nil {
			_ = conn.Close()
			return addr, stop
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	panic("redis-server does not listen on " + addr)
}

func freeAddr() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// realRedis returns an empty database of the real server. It skips the test on a
// machine without one, unless RATELIMIT_REQUIRE_REDIS says that there must be one.
func realRedis(t testing.TB) *redis.Client {
	t.Helper()
	if redisAddr == "" {
		if os.Getenv("RATELIMIT_REQUIRE_REDIS") != "" {
			t.Fatal("RATELIMIT_REQUIRE_REDIS is set, but there is no redis-server on PATH and no REDIS_ADDR")
		}
		t.Skip("no redis-server on PATH and no REDIS_ADDR")
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
	t.Cleanup(func() { everyKeyExpires(t, client) })
	now := start
	set := func() {
		micro := now.UnixMicro()
		pipe := client.TxPipeline()
		pipe.Del(context.Background(), clockKey)
		pipe.RPush(context.Background(), clockKey, micro/1e6, micro%1e6)
		if _, err := pipe.Exec(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	set()
	store := New(client)
	store.scripts = assemble(testClock())
	return store, func(d time.Duration) {
		now = now.Add(d)
		set()
	}
}
