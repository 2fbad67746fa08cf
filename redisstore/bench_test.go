package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
)

// benchKeys are as many clients as the benchmarks have, with limits they don't reach.
const benchKeys = 1000

func benchRules(b *testing.B) []algorithms.Rule { return rulesOf(b, 100_000, time.Minute) }

// A decision as a service sees it, with the network and the client in it:
//
//	go test -run - -bench Take -count 5 ./redisstore
func BenchmarkTake(b *testing.B) {
	rules := benchRules(b)
	bench := func(name string, goroutines int, rules ...algorithms.Rule) {
		b.Run(fmt.Sprintf("%s/charges=%d/goroutines=%d", name, len(rules), goroutines), func(b *testing.B) {
			realRedis(b)
			client := redis.NewClient(&redis.Options{Addr: redisAddr, ContextTimeoutEnabled: true, PoolSize: goroutines})
			defer func() { _ = client.Close() }()
			store := New(client)
			loop := func(next func() bool) {
				decisions := make([]algorithms.Decision, len(rules))
				charges := make([]algorithms.Charge, len(rules))
				for next() {
					key := "{user:" + strconv.Itoa(rand.IntN(benchKeys)) + "}:api"
					for i := range charges {
						charges[i] = algorithms.Charge{Key: key, Algorithm: rules[i].Example, Cost: 1}
					}
					if err := store.Take(context.Background(), charges, decisions); err != nil {
						b.Error(err)
						return
					}
				}
			}
			b.ReportAllocs()
			if goroutines == 1 {
				loop(b.Loop)
				return
			}
			b.SetParallelism(max(1, goroutines/runtime.GOMAXPROCS(0)))
			b.RunParallel(func(pb *testing.PB) { loop(pb.Next) })
		})
	}
	for _, rule := range rules {
		bench(rule.Name, 1, rule)
	}
	bench("counter and bucket", 1, rules[:2]...)
	bench(rules[0].Name, 64, rules[0])
	bench(rules[0].Name, 256, rules[0])
	bench("counter and bucket", 64, rules[:2]...)
}

// The server's own time for each script, from its statistics of EVALSHA, without the
// socket as far as that goes: calls travel by hundreds.
//
//	for i in 1 2 3 4 5; do go test -run - -bench ScriptCPU -benchtime 20000x ./redisstore; done
//
// Compare the smallest of several runs, not of -count, which asks for one script many
// times before it comes to the next while the machine changes.
func BenchmarkScriptCPU(b *testing.B) {
	ctx := context.Background()
	server := redistest.Run(b)
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	b.Cleanup(func() { _ = client.Close() })
	store := New(client)
	rules := benchRules(b)

	bench := func(name string, decisions float64, s *script, arguments func(key string) []any) {
		b.Run(name, func(b *testing.B) {
			must(b, client.FlushAll(ctx).Err())
			must(b, client.ScriptLoad(ctx, s.source).Err())
			calls := make([][]any, benchKeys)
			for i := range calls {
				calls[i] = append([]any{"evalsha", s.digest}, arguments("{user:"+strconv.Itoa(i)+"}:api")...)
			}
			pipe, n := client.Pipeline(), 0
			send := func() {
				if _, err := pipe.Exec(ctx); err != nil {
					b.Fatal(err)
				}
			}
			call := func() {
				pipe.Do(ctx, calls[n%benchKeys]...)
				if n++; n%100 == 0 {
					send()
				}
			}
			for range benchKeys { // every key exists
				call()
			}
			must(b, client.ConfigResetStat(ctx).Err())
			for b.Loop() {
				call()
			}
			send()
			b.ReportMetric(microsPerCall(b, client)/decisions, "redis-µs/decision")
		})
	}
	take := func(charges ...algorithms.Rule) func(string) []any {
		return func(key string) []any {
			var all []algorithms.Charge
			for _, rule := range charges {
				all = append(all, charge(key, rule.Example, 1)...)
			}
			return argumentsOf(store.call(all, true))
		}
	}

	counter := rules[0]
	bench("floor: empty", 1, newScript("return 0"), take(counter))
	bench("floor: clock and reply", 1, newScript(clockLua+"return { now, 1, 2, 3 }"), take(counter))
	for _, rule := range rules {
		bench(rule.Name, 1, store.scripts.take[rule.Example.Shape().Format], take(rule))
	}
	for _, rule := range rulesOf(b, 1, time.Hour) {
		bench("refused/"+rule.Name, 1, store.scripts.take[rule.Example.Shape().Format], take(rule))
	}
	const together = 64
	for _, rule := range rules {
		bench(fmt.Sprintf("%d together/%s", together, rule.Name), together, store.scripts.take[rule.Example.Shape().Format], func(key string) []any {
			t := trip{}
			for i := range together {
				t.calls = append(t.calls, store.call(charge(key+strconv.Itoa(i), rule.Example, 1), true))
			}
			return t.command(ctx).Args()[2:]
		})
	}
	bench("take_all/counter and bucket", 1, store.scripts.takeAll, take(rules[:2]...))
	bench("take_all/all", 1, store.scripts.takeAll, take(rules...))
}

// microsPerCall is what the server spent on an EVALSHA since its statistics were reset.
func microsPerCall(b *testing.B, client *redis.Client) float64 {
	info := client.Info(context.Background(), "commandstats").Val()
	_, line, ok := strings.Cut(info, "cmdstat_evalsha:")
	if !ok {
		b.Fatalf("no cmdstat_evalsha in %q", info)
	}
	var calls, micros float64
	if _, err := fmt.Sscanf(line, "calls=%f,usec=%f,", &calls, &micros); err != nil {
		b.Fatalf("%v in %q", err, line)
	}
	return micros / calls
}
