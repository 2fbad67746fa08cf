package redisstore

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
)

// realCluster starts three nodes that share the slots, and returns a client of the
// cluster and one of each node.
func realCluster(t *testing.T) (*redis.ClusterClient, []*redis.Client) {
	t.Helper()
	realRedis(t) // skips where there is none
	cluster := redistest.RunCluster(t, 3)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return client, cluster.Nodes
}

// B67: a cluster decides as one server does, whatever the keys hold.
func TestB67_Cluster(t *testing.T) {
	slow(t)
	ctx := context.Background()
	client, nodes := realCluster(t)
	store := New(client)

	var identities []string
	for i := range 100 {
		identities = append(identities, fmt.Sprintf([]string{
			"%d", "user %d", "{%d", "%d}", "{}%d", "}%d{", "{%d}", "{{%d}}", "a{%d}b{c}", "{ %d }", "\x00%d\r\n", "%d:{x",
		}[i%12], i))
	}

	t.Run("single charges", func(t *testing.T) {
		for _, rule := range rulesOf(t, 3, steady()) {
			for _, identity := range identities {
				for i := range int64(4) {
					d := take(t, store, identity, rule.Example, 1)
					if want := max(0, 2-i); d.Allowed != (i < 3) || d.Remaining != want {
						t.Errorf("%s, %q, request %d: %+v, want allowed %v, %d left", rule.Name, identity, i+1, d, i < 3, want)
					}
				}
			}
		}
	})

	t.Run("several charges of one hash tag", func(t *testing.T) {
		rules := rulesOf(t, 3, steady())
		for n := range 100 {
			var charges []algorithms.Charge
			for i, rule := range rules {
				key := fmt.Sprintf("{user:%d}:quota %d{x}", n, i%2)
				charges = append(charges, charge(key, rule.Example, 1)...)
			}
			decisions := make([]algorithms.Decision, len(charges))
			for i := range int64(4) {
				must(t, store.Take(ctx, charges, decisions))
				for j, d := range decisions {
					if want := max(0, 2-i); d.Allowed != (i < 3) || d.Remaining != want {
						t.Errorf("user %d, %s, request %d: %+v, want allowed %v, %d left", n, rules[j].Name, i+1, d, i < 3, want)
					}
				}
			}
			must(t, store.Settle(ctx, charges))
			must(t, store.Reset(ctx, charges))
			must(t, store.Peek(ctx, charges, decisions))
			for j, d := range decisions {
				if !d.Allowed || d.Remaining != 2 {
					t.Errorf("user %d, %s, peek after a reset: %+v, want it allowed with 2 left", n, rules[j].Name, d)
				}
			}
		}
	})

	t.Run("the slot is that of the hash tag", func(t *testing.T) {
		rules := rulesOf(t, 3, steady())
		slot := func(key string) int64 { return client.ClusterKeySlot(ctx, key).Val() }
		for _, identity := range identities {
			want := tag(identity)
			if want == "" {
				continue
			}
			for _, suffix := range []string{"", ":api", "}", "{other}"} {
				for _, rule := range rules {
					name := store.name(&charge(identity+suffix, rule.Example, 1)[0])
					if slot(name) != slot(want) {
						t.Errorf("slot of %q is %d, want %d, that of %q", name, slot(name), slot(want), want)
					}
				}
			}
		}
	})

	t.Run("charges of different slots", func(t *testing.T) {
		rule := algorithms.FixedWindow{Limit: 3, Window: steady()}
		charges := append(charge("here", rule, 2), charge("there", rule, 2)...)
		decisions := make([]algorithms.Decision, 2)
		for i, want := range []struct {
			allowed bool
			left    int64
		}{{true, 1}, {false, 1}} {
			must(t, store.Take(ctx, charges, decisions))
			for j, d := range decisions {
				if d.Allowed != want.allowed || d.Remaining != want.left {
					t.Errorf("request %d, charge %d: %+v, want allowed %v, %d left", i+1, j, d, want.allowed, want.left)
				}
			}
		}
		must(t, store.Reset(ctx, charges[:1]))
		must(t, store.Take(ctx, charges, decisions))
		if !decisions[0].Allowed || decisions[1].Allowed || decisions[0].Remaining != 3 {
			t.Errorf("one of two refuses: %+v, want the other to stand at 3", decisions)
		}
		if d := take(t, store, "here", rule, 0); d.Remaining != 3 {
			t.Errorf("a refused unit was counted: %d left, want 3", d.Remaining)
		}
	})

	t.Run("B66 one node forgets its scripts", func(t *testing.T) {
		must(t, nodes[1].ScriptFlush(ctx).Err())
		rule := algorithms.SlidingWindowCounter{Limit: 5, Window: steady()}
		for n := range 100 {
			for want := int64(4); want >= 3; want-- {
				if d := take(t, store, fmt.Sprintf("flushed %d", n), rule, 1); !d.Allowed || d.Remaining != want {
					t.Errorf("identity %d: %+v, want it allowed with %d left", n, d, want)
				}
			}
		}
	})

	t.Run("a slot that moved is followed and counted once", func(t *testing.T) {
		rule := algorithms.FixedWindow{Limit: 5, Window: steady()}
		name := store.name(&charge("moved", rule, 1)[0])
		slot := client.ClusterKeySlot(ctx, name).Val()
		from := int(slot / 5462)
		to := (from + 1) % 3
		id := nodes[to].Do(ctx, "cluster", "myid").Val()
		for _, node := range []*redis.Client{nodes[to], nodes[from], nodes[3-from-to]} {
			must(t, node.Do(ctx, "cluster", "setslot", slot, "node", id).Err())
		}
		for want := int64(4); want >= 3; want-- {
			if d := take(t, store, "moved", rule, 1); !d.Allowed || d.Remaining != want {
				t.Errorf("%+v, want it allowed with %d left", d, want)
			}
		}
		if got := nodes[to].Exists(ctx, name).Val(); got != 1 {
			t.Error("the counter is not on the node that the slot moved to")
		}
	})

	for _, node := range nodes {
		everyKeyExpires(t, node)
	}
}
