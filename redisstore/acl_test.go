package redisstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
	"github.com/seed-601ed181/ratelimit/storetest"
)

// rights are all that a store's user needs: these commands, on keys of the prefix.
// docs/operations.md shows them.
var rights = []string{
	"+evalsha", "+eval", "+time", "+get", "+set", "+incr", "+incrby", "+del", "+pexpire",
	"+zadd", "+zcard", "+zcount", "+zrange", "+zremrangebyrank", "+zremrangebyscore",
}

// clusterRights are what a cluster client asks besides.
var clusterRights = []string{"+cluster|slots", "+command"}

// asUser makes a user with rights and returns a client of the admin and one of the user.
func asUser(t *testing.T, server *redistest.Server, rights ...string) (admin, user *redis.Client) {
	t.Helper()
	admin = redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = admin.Close() })
	must(t, admin.FlushAll(context.Background()).Err())
	setUser(t, admin, rights...)
	user = redis.NewClient(&redis.Options{Addr: server.Addr, Username: "limiter", Password: "secret", DisableIdentity: true})
	t.Cleanup(func() { _ = user.Close() })
	return admin, user
}

func setUser(t *testing.T, admin *redis.Client, rights ...string) {
	t.Helper()
	ctx := context.Background()
	args := []any{"acl", "setuser", "limiter", "reset", "on", ">secret", "~" + DefaultPrefix + "*"}
	for _, right := range rights {
		args = append(args, right)
	}
	must(t, admin.Do(ctx, args...).Err())
	must(t, admin.Do(ctx, "acl", "log", "reset").Err())
}

func TestStoreAsUserOfFewRights(t *testing.T) {
	server := redistest.Run(t)
	storetest.Run(t, func(t *testing.T, start time.Time) (storetest.Store, func(time.Duration)) {
		// The suite's clock is a list beside the counters.
		admin, user := asUser(t, server, append(rights, "+lrange", "%R~"+clockKey)...)
		return openUnderClock(t, start, user, admin)
	})
}

// Without any of the rights something is denied, and with all of them nothing is: what
// the scripts touch is the declared keys. A denial is an error, never a counter that
// seems to be new; +incr and +incrby only save work, SET does without them.
func TestEachRightIsNeeded(t *testing.T) {
	server := redistest.Run(t)
	for i := range append(rights, "") {
		fewer := append([]string(nil), rights...)
		missing := "none"
		if i < len(rights) {
			missing = rights[i]
			fewer = append(fewer[:i], fewer[i+1:]...)
		}
		admin, user := asUser(t, server, fewer...)
		failed := exercise(New(user))
		denied, err := admin.Do(context.Background(), "acl", "log").Slice()
		must(t, err)
		if (len(denied) > 0) != (missing != "none") {
			t.Errorf("missing %s: denied %v, failed %v", missing, denied, failed)
		}
		if bears := missing == "none" || missing == "+incr" || missing == "+incrby"; bears != (failed == nil) {
			t.Errorf("missing %s: the store's error is %v", missing, failed)
		}
		t.Logf("missing %s: %d denied, failed with %v", missing, len(denied), failed)
	}
}

// exercise makes a store use all its commands.
func exercise(store *Store) (failed error) {
	ctx := context.Background()
	note := func(err error) {
		if failed == nil {
			failed = err
		}
	}
	for _, rule := range algorithms.Rules() {
		for _, cost := range []int64{1, 1, 3} {
			note(store.Take(ctx, charge("k", rule.Example, cost), make([]algorithms.Decision, 1)))
		}
		note(store.Settle(ctx, charge("k", rule.Example, -1)))
		note(store.Reset(ctx, charge("k", rule.Example, 0)))
	}
	return failed
}

// A user that may not touch the keys is an error, never an answer.
func TestForeignPrefixIsAnError(t *testing.T) {
	_, user := asUser(t, redistest.Run(t), rights...)
	for _, rule := range algorithms.Rules() {
		err := New(user, Options{Prefix: "other:"}).Take(context.Background(), charge("k", rule.Example, 1), make([]algorithms.Decision, 1))
		if err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("%s: error %v, want NOPERM", rule.Name, err)
		}
	}
}

func TestClusterAsUserOfFewRights(t *testing.T) {
	cluster := redistest.RunCluster(t, 3)
	for _, node := range cluster.Nodes {
		setUser(t, node, append(rights, clusterRights...)...)
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs, Username: "limiter", Password: "secret", DisableIdentity: true})
	defer func() { _ = client.Close() }()
	must(t, exercise(New(client)))
	for _, node := range cluster.Nodes {
		denied, err := node.Do(context.Background(), "acl", "log").Slice()
		must(t, err)
		if len(denied) > 0 {
			t.Errorf("denied %v", denied)
		}
	}
}
