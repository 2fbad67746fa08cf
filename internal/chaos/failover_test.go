//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
	"github.com/seed-601ed181/ratelimit/redisstore"
)

// Sentinel promotes a replica under load. For each key
//
//	admitted <= limit + lost + instances x share(limit)
//
// where lost is what the old master admitted and the new one never heard of. Replication
// is asynchronous, so that is what was admitted within the replication lag before the
// master died: lost <= rate of the key x lag. share(limit) is what each instance admits
// by itself while no master answers, limit / Config.Instances rounded up, once for a
// window. Decisions whose answer was lost are counted in Redis and again by the process;
// they make it less, not more.
func TestSentinelFailover(t *testing.T) {
	const perKey, users, rate, instances = 1000, 10, 2000, 2
	const lag = 200 * time.Millisecond // far more than loopback needs
	for _, test := range []struct{ replicas, sentinels int }{{1, 1}, {2, 3}} {
		name := fmt.Sprintf("fail-over: %d replicas, %d sentinels", test.replicas, test.sentinels)
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			master := redistest.Run(t, "--repl-diskless-sync-delay", "0")
			host, port, err := net.SplitHostPort(master.Addr)
			must(t, err)
			for range test.replicas {
				replica := redistest.Run(t, "--replicaof", host+" "+port, "--repl-diskless-sync-delay", "0")
				linked(t, connect(t, replica.Addr))
			}
			// A machine that stands still for as long looks like one more master that is down.
			sentinels := redistest.Sentinels(t, test.sentinels, "limits", master, test.replicas, time.Second)
			var service []*instance
			var clients []*redis.Client
			for range instances {
				client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "limits", SentinelAddrs: sentinels, ContextTimeoutEnabled: true})
				t.Cleanup(func() { _ = client.Close() })
				clients = append(clients, client)
				service = append(service, newInstance(t, client, ratelimit.Config{Instances: instances}, limit(perKey)))
			}

			load := (&load{instances: service, rate: rate, key: keys(users)}).start()
			time.Sleep(1500 * time.Millisecond)
			master.Stop()
			killed := time.Now()
			before := make(map[string]int) // admitted by the old master
			for _, one := range service {
				one.store.from(killed.Add(50 * time.Millisecond)) // answers under way are the old one's
				one.store.mu.Lock()
				for key, n := range one.store.admitted {
					before[key] += n
				}
				one.store.mu.Unlock()
			}
			sentinel := redis.NewSentinelClient(&redis.Options{Addr: sentinels[0]})
			defer func() { _ = sentinel.Close() }()
			masterNow := func() string {
				addr := sentinel.GetMasterAddrByName(ctx, "limits").Val()
				if len(addr) != 2 {
					return ""
				}
				return net.JoinHostPort(addr[0], addr[1])
			}
			var heir string
			redistest.Eventually(t, "a replica is the master", func() bool {
				heir = masterNow()
				return heir != "" && heir != master.Addr
			})
			promoted := time.Since(killed)
			redistest.Eventually(t, "both instances decide by Redis", func() bool {
				return service[0].store.healed() >= 0 && service[1].store.healed() >= 0
			})
			healed := max(service[0].store.healed(), service[1].store.healed())
			time.Sleep(6 * time.Second) // all limits are used up
			end := time.Now()
			all := load.stop()
			if now := masterNow(); now != heir {
				t.Fatalf("%s is the master, want %s: there was a second fail-over, and the bound is for one", now, heir)
			}

			// What the new master knows of, less what it admitted itself, it heard from the old one.
			after := make(map[string]int)
			for _, one := range service {
				for key, n := range one.store.admitted {
					after[key] += n
				}
			}
			lost := 0
			reader := redisstore.New(connect(t, heir))
			for key, n := range after {
				lost = max(lost, n-used(t, reader, key, perKey))
			}
			_, worst := all.beyond(perKey)
			mostLost := int(lag.Seconds() * rate / users)
			row{name, all, fmt.Sprintf("%d of a key (%d lost)", max(0, worst), lost), short(healed)}.add(t)
			t.Logf("promoted after %v", promoted)

			atMost(t, "lost by replication", lost, mostLost)
			local := instances * ((perKey + instances - 1) / instances)
			atMost(t, "beyond the limit of a key", worst, mostLost+local)
			for key, n := range all.admitted() {
				if n < perKey {
					t.Errorf("%s: %d admitted, want the limit of %d at least", key, n, perKey)
				}
			}
			if len(before) != users {
				t.Fatalf("the old master decided for %d users, want %d", len(before), users)
			}
			last := all.between(end.Add(-500*time.Millisecond), end)
			if last.count(http.StatusTooManyRequests) != len(last) || len(last) == 0 {
				t.Errorf("the limit goes on: %s, want 429 only", last.statuses())
			}
			atMost(t, "5xx", all.fiveHundreds(), 0)
			within(t, "first decision by the new master, once it is one", max(0, healed-promoted), 2*time.Second) // the clients may hear of it first
			everyKeyExpires(t, connect(t, heir))
		})
	}
}

// A client that knows only an address finds a replica there. READONLY is a failure of the
// store, never an answer to a client, and passes when the address has a master again.
func TestReadOnlyAfterFailoverByAddress(t *testing.T) {
	const perKey, users = 5000, 2000
	for _, test := range []struct {
		name string
		heal func(t *testing.T, p *proxy, old, heir *redis.Client)
	}{
		{"made master again", func(t *testing.T, _ *proxy, old, _ *redis.Client) {
			must(t, old.SlaveOf(context.Background(), "no", "one").Err())
		}},
		{"address points to the new master", func(t *testing.T, p *proxy, _, heir *redis.Client) {
			p.pointTo(t, heir.Options().Addr)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := context.Background()
			old := connect(t, redistest.Run(t, "--repl-diskless-sync-delay", "0").Addr)
			heir := connect(t, redistest.Run(t, "--repl-diskless-sync-delay", "0").Addr)
			p := newProxy(t, old.Options().Addr)
			one := newInstance(t, connect(t, p.Listen), ratelimit.Config{}, limit(perKey))
			load := (&load{instances: []*instance{one}, rate: 2000, key: keys(users)}).start()
			time.Sleep(time.Second)

			host, port, _ := net.SplitHostPort(heir.Options().Addr)
			must(t, old.SlaveOf(ctx, host, port).Err())
			demoted := time.Now()
			linked(t, old)
			one.store.from(time.Now())
			time.Sleep(1500 * time.Millisecond)
			if d := one.store.healed(); d >= 0 {
				t.Error("a replica decided")
			}
			readonly := errorCount(t, old, "READONLY")
			one.store.from(time.Now())
			test.heal(t, p, old, heir)
			cured := time.Now()
			time.Sleep(2500 * time.Millisecond)
			all := load.stop()
			healed := one.store.healed()

			row{"READONLY, " + test.name, all, "", short(healed)}.add(t)
			meanwhile := all.between(demoted, cured)
			row{"- meanwhile", meanwhile, "", ""}.add(t)
			t.Logf("%d READONLY", readonly)
			if readonly == 0 {
				t.Error("the replica never said READONLY")
			}
			atMost(t, "answers other than 200", len(all)-all.count(http.StatusOK), 0)
			within(t, "worst added", all.added(1), 200*time.Millisecond)
			within(t, "first decision by a master", healed, 2*time.Second)
		})
	}
}

// A cluster client that may read from replicas still asks masters to decide.
func TestReplicasAreNeverAsked(t *testing.T) {
	cluster := redistest.RunCluster(t, 1)
	replica := cluster.Replica(t, 0)
	for _, test := range []struct {
		name    string
		options redis.ClusterOptions
	}{
		{"ReadOnly", redis.ClusterOptions{ReadOnly: true}},
		{"RouteByLatency", redis.ClusterOptions{RouteByLatency: true, RouteByLatencyTolerance: time.Second}},
		{"RouteRandomly", redis.ClusterOptions{RouteRandomly: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.options.Addrs, test.options.ContextTimeoutEnabled = cluster.Addrs, true
			client := redis.NewClusterClient(&test.options)
			t.Cleanup(func() { _ = client.Close() })
			ctx := context.Background()
			redistest.Eventually(t, "the client reads from the replica", func() bool {
				_ = client.Get(ctx, "x").Err()
				return statistic(t, replica, "commandstats", "cmdstat_get", "calls=") > 0
			})
			// Two rules a charge, so that pipelines and scripts for several keys are there too.
			one := newInstance(t, client, ratelimit.Config{}, limit(100), second(100))
			masters := calls(t, cluster.Nodes[0])
			all := (&load{instances: []*instance{one}, rate: 2000, key: keys(100)}).run(time.Second)
			_, worst := all.beyond(100)
			row{"cluster client with " + test.name, all, fmt.Sprintf("%d of a key", worst), ""}.add(t)
			if n := calls(t, replica); n > 0 {
				t.Errorf("a replica was asked %d times", n)
			}
			if calls(t, cluster.Nodes[0]) == masters {
				t.Error("the master was never asked")
			}
			atMost(t, "store failures", int(one.failures.Load()), 0)
			must(t, cluster.Nodes[0].FlushAll(ctx).Err())
			must(t, replica.ConfigResetStat(ctx).Err())
		})
	}
}

// linked waits until a replica has its master's data.
func linked(t *testing.T, replica *redis.Client) {
	t.Helper()
	redistest.Eventually(t, "the replica follows its master", func() bool {
		return strings.Contains(replica.Info(context.Background(), "replication").Val(), "master_link_status:up")
	})
}

// used is how much of its limit the key has used by the counter in Redis.
func used(t *testing.T, store *redisstore.Store, key string, perKey int64) int {
	t.Helper()
	d := make([]ratelimit.Decision, 1)
	must(t, store.Peek(context.Background(), []algorithms.Charge{{Key: key, Algorithm: limit(perKey)}}, d))
	return int(perKey - d[0].Remaining)
}
