package redistest

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Cluster is a Redis Cluster of masters that share the slots.
type Cluster struct {
	// Addrs are the masters' addresses, Nodes a client of each.
	Addrs []string
	Nodes []*redis.Client

	bus string // of the first
}

// slots is how many a Redis Cluster has.
const slots = 16384

// RunCluster starts a cluster for a test and stops it at its end. It skips the test
// where Run does.
func RunCluster(t testing.TB, masters int) *Cluster {
	t.Helper()
	ctx := context.Background()
	c := &Cluster{}
	each := (slots + masters - 1) / masters
	for i := range masters {
		node := c.start(t)
		must(t, node.ClusterAddSlotsRange(ctx, i*each, min((i+1)*each, slots)-1).Err())
		must(t, node.Do(ctx, "cluster", "set-config-epoch", i+1).Err())
		c.Addrs, c.Nodes = append(c.Addrs, node.Options().Addr), append(c.Nodes, node)
		if i > 0 {
			c.meet(t, node)
		}
	}
	for _, node := range c.Nodes {
		await(t, node, "cluster_state:ok", fmt.Sprintf("cluster_known_nodes:%d", masters), fmt.Sprintf("cluster_size:%d", masters))
	}
	return c
}

// Replica adds a replica of a master to the cluster and waits until it follows.
func (c *Cluster) Replica(t testing.TB, master int) *redis.Client {
	t.Helper()
	ctx := context.Background()
	replica := c.start(t)
	c.meet(t, replica)
	await(t, replica, fmt.Sprintf("cluster_known_nodes:%d", len(c.Addrs)+1))
	id := c.Nodes[master].Do(ctx, "cluster", "myid").Val()
	Eventually(t, "the master is known to its replica", func() bool { return replica.Do(ctx, "cluster", "replicate", id).Err() == nil })
	await(t, replica, "cluster_state:ok")
	Eventually(t, "the replica follows", func() bool {
		return strings.Contains(replica.Info(ctx, "replication").Val(), "master_link_status:up")
	})
	Eventually(t, "its master tells of the replica", func() bool {
		// Clients read CLUSTER SLOTS: start, end, the master and its replicas.
		for _, r := range c.Nodes[master].Do(ctx, "cluster", "slots").Val().([]any) {
			if len(r.([]any)) > 3 {
				return true
			}
		}
		return false
	})
	return replica
}

func (c *Cluster) start(t testing.TB) *redis.Client {
	t.Helper()
	// By default the bus is 10000 ports further up, which may be none.
	_, bus, _ := net.SplitHostPort(FreeAddr(t))
	server := Run(t, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0")
	node := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = node.Close() })
	if c.bus == "" {
		c.bus = bus
	}
	return node
}

func (c *Cluster) meet(t testing.TB, node *redis.Client) {
	t.Helper()
	host, port, err := net.SplitHostPort(c.Addrs[0])
	must(t, err)
	must(t, node.Do(context.Background(), "cluster", "meet", host, port, c.bus).Err())
}

// await waits until CLUSTER INFO holds the lines and the node knows who has every slot.
func await(t testing.TB, node *redis.Client, lines ...string) {
	t.Helper()
	ctx := context.Background()
	Eventually(t, fmt.Sprint("CLUSTER INFO says ", lines), func() bool {
		info := node.ClusterInfo(ctx).Val()
		for _, line := range lines {
			if !strings.Contains(info, line) {
				return false
			}
		}
		covered := 0
		for _, shard := range node.ClusterShards(ctx).Val() {
			for _, r := range shard.Slots {
				covered += int(r.End-r.Start) + 1
			}
		}
		return covered == slots
	})
}

// Sentinels starts n sentinels that watch the master under the name and agree by
// majority, waits until each knows the others and the replicas, and stops them at the
// end of the test. downAfter is when they call a silent master down.
func Sentinels(t testing.TB, n int, name string, master *Server, replicas int, downAfter time.Duration) (addrs []string) {
	t.Helper()
	host, port, err := net.SplitHostPort(master.Addr)
	must(t, err)
	ctx := context.Background()
	var clients []*redis.SentinelClient
	for range n {
		s := &Server{Addr: FreeAddr(t), sentinel: fmt.Sprintf(
			"sentinel monitor %[1]s %[2]s %[3]s %[4]d\nsentinel down-after-milliseconds %[1]s %[5]d\nsentinel failover-timeout %[1]s 5000\n",
			name, host, port, n/2+1, downAfter.Milliseconds())}
		must(t, s.start())
		t.Cleanup(s.Stop)
		client := redis.NewSentinelClient(&redis.Options{Addr: s.Addr})
		t.Cleanup(func() { _ = client.Close() })
		addrs, clients = append(addrs, s.Addr), append(clients, client)
	}
	for _, client := range clients {
		Eventually(t, "the sentinel knows the others and the replicas", func() bool {
			m := client.Master(ctx, name).Val()
			return m["num-other-sentinels"] == strconv.Itoa(n-1) && m["num-slaves"] == strconv.Itoa(replicas)
		})
	}
	return addrs
}

// Eventually waits until ok, and fails the test after 30 s.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 30*time.Second {
			t.Fatalf("after 30 s still not true that %s", what)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
