//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
)

// Slots move between the nodes of a cluster, key by key, under load. Redis loses nothing
// then, so no key gets one request beyond its limit. A user's two counters are in one
// slot; while one has moved and the other hasn't, Redis says TRYAGAIN. As only NOSCRIPT is
// ever asked again, that is a failure of the store: no more than one for each TRYAGAIN.
func TestReshard(t *testing.T) {
	const perKey, users = 300, 30
	for _, test := range []struct {
		name   string
		limits []algorithms.Algorithm
		asks   string // what Redis answers while a slot moves
	}{
		{"one limit", []algorithms.Algorithm{limit(perKey)}, "ASK"},
		{"two limits", []algorithms.Algorithm{limit(perKey), second(perKey)}, "TRYAGAIN"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cluster := redistest.RunCluster(t, 3)
			client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs, ContextTimeoutEnabled: true})
			t.Cleanup(func() { _ = client.Close() })
			one := newInstance(t, client, ratelimit.Config{Failure: ratelimit.FailClosed}, test.limits...)
			load := (&load{instances: []*instance{one}, rate: 2000, key: keys(users)}).start()
			time.Sleep(500 * time.Millisecond)

			moved := 0
			for i := range users {
				moved += moveSlot(t, cluster, client, fmt.Sprintf("{user:u%d}", i))
			}
			time.Sleep(5 * time.Second) // all limits are used up
			all := load.stop()
			_, worst := all.beyond(perKey)
			row{"resharding, " + test.name, all, fmt.Sprintf("%d of a key", worst), ""}.add(t)
			redirects := make(map[string]int)
			for _, node := range cluster.Nodes {
				for _, kind := range []string{"ASK", "MOVED", "TRYAGAIN"} {
					redirects[kind] += errorCount(t, node, kind)
				}
				everyKeyExpires(t, node)
			}
			t.Logf("%d keys moved; Redis answered %v", moved, redirects)
			for _, kind := range []string{test.asks, "MOVED"} {
				if redirects[kind] == 0 {
					t.Errorf("Redis never said %s: the load was not in its way", kind)
				}
			}
			for key, n := range all.admitted() {
				if n != perKey {
					t.Errorf("%s: %d admitted, want %d", key, n, perKey)
				}
			}
			atMost(t, "5xx", all.fiveHundreds(), redirects["TRYAGAIN"])
			atMost(t, "store failures", int(one.failures.Load()), redirects["TRYAGAIN"])
		})
	}
}

// moveSlot moves the slot of a key to the next node while the load goes on, and returns
// how many keys it held.
func moveSlot(t *testing.T, cluster *redistest.Cluster, client *redis.ClusterClient, key string) int {
	t.Helper()
	ctx := context.Background()
	slot := int(client.ClusterKeySlot(ctx, key).Val())
	from := owner(t, cluster, slot)
	to := (from + 1) % len(cluster.Nodes)
	source, target := cluster.Nodes[from], cluster.Nodes[to]
	must(t, target.Do(ctx, "cluster", "setslot", slot, "importing", source.Do(ctx, "cluster", "myid").Val()).Err())
	id := target.Do(ctx, "cluster", "myid").Val()
	must(t, source.Do(ctx, "cluster", "setslot", slot, "migrating", id).Err())
	host, port, _ := net.SplitHostPort(cluster.Addrs[to])
	found := source.ClusterGetKeysInSlot(ctx, slot, 1000).Val()
	for _, name := range found {
		must(t, source.Migrate(ctx, host, port, name, 0, time.Second).Err())
		time.Sleep(10 * time.Millisecond)
	}
	for _, node := range append([]*redis.Client{target, source}, cluster.Nodes...) {
		must(t, node.Do(ctx, "cluster", "setslot", slot, "node", id).Err())
	}
	return len(found)
}

// owner is the node that has the slot.
func owner(t *testing.T, cluster *redistest.Cluster, slot int) int {
	t.Helper()
	for i, node := range cluster.Nodes {
		id := node.Do(context.Background(), "cluster", "myid").Val()
		for _, shard := range node.ClusterShards(context.Background()).Val() {
			for _, r := range shard.Slots {
				if r.Start <= int64(slot) && int64(slot) <= r.End && shard.Nodes[0].ID == id {
					return i
				}
			}
		}
	}
	t.Fatalf("no node has slot %d", slot)
	return -1
}

// Somebody flushes the scripts all the time. Counts are exact all the same.
func TestScriptFlush(t *testing.T) {
	const perKey, users = 200, 20
	ctx := context.Background()
	admin := connect(t, redistest.Run(t).Addr)
	one := newInstance(t, connect(t, admin.Options().Addr), ratelimit.Config{Failure: ratelimit.FailClosed}, limit(perKey), second(perKey))
	end := make(chan struct{})
	var flushing sync.WaitGroup
	flushes := 0
	flushing.Go(func() {
		for {
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
				if admin.ScriptFlush(ctx).Err() == nil {
					flushes++
				}
			}
		}
	})
	all := (&load{instances: []*instance{one}, rate: 3000, key: keys(users)}).run(3 * time.Second)
	close(end)
	flushing.Wait()
	unknown := errorCount(t, admin, "NOSCRIPT")
	_, worst := all.beyond(perKey)
	row{"SCRIPT FLUSH all the time", all, fmt.Sprintf("%d of a key", worst), ""}.add(t)
	t.Logf("%d flushes, %d times NOSCRIPT", flushes, unknown)
	if unknown < 100 {
		t.Errorf("%d NOSCRIPT, want the load to meet the flushes", unknown)
	}
	for i := range users {
		if n := all.admitted()[keys(users)(i)]; n != perKey {
			t.Errorf("%s: %d admitted, want %d", keys(users)(i), n, perKey)
		}
	}
	if n := len(all) - all.count(http.StatusOK) - all.count(http.StatusTooManyRequests); n > 0 {
		t.Errorf("%d errors reached clients", n)
	}
	atMost(t, "store failures", int(one.failures.Load()), 0)
	everyKeyExpires(t, admin)
}
