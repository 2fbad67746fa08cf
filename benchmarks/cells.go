package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// The cells, as -only names them, and their figures. A figure's unit is in its column.
const (
	redisCell      = "redis"
	batchingCell   = "batching"
	redisKeyCell   = "redis-memory"
	abuserCell     = "abuser"
	memoryCell     = "memory"
	middlewareCell = "middleware"

	perSecond   = "decisions/s"
	p50         = "p50 µs"
	p99         = "p99 µs"
	redisCPU    = "Redis CPU µs"
	commands    = "commands"
	bytesIn     = "bytes to Redis"
	bytesOut    = "bytes from Redis"
	allocations = "allocations"
	failures    = "failed %"
	bytesAKey   = "bytes a key"
	seconds     = "seconds"
	serial      = "serial ns"
	parallel    = "parallel ns"
	admitted    = "admitted"
	refused     = "refused"
	nanoseconds = "ns"
)

// suite measures contestants in rounds: in each, one after the other.
type suite struct {
	results results
	effort  effort
	client  *redis.Client // nil without a server
	log     io.Writer
}

// effort is how long it may take.
type effort struct {
	rounds int
	time   time.Duration // of a load on Redis
	memory time.Duration // of one in memory
	most   int           // rounds of what takes long and varies little
}

var (
	full  = effort{rounds: 5, time: 700 * time.Millisecond, memory: 150 * time.Millisecond, most: 3}
	short = effort{rounds: 3, time: 100 * time.Millisecond, memory: 20 * time.Millisecond, most: 1}
)

var goroutines = []int{1, 16, 64, 256}

const plenty = 1_000_000 // units a minute that no key uses up in a load

func at(cell string, n int) string { return cell + " " + strconv.Itoa(n) }

// connect is the same client for all. go-redis's defaults hold but for one: that a
// context's deadline is honoured, which none of the loads makes use of.
func connect(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
}

// onRedis loads Redis with decisions that are all admitted.
func (s *suite) onRedis(cell string, contestants []redisContestant, goroutines []int) error {
	names := newKeys(10_000)
	for round := range s.effort.rounds {
		for _, n := range goroutines {
			for _, c := range rotated(contestants, round) {
				l := load{goroutines: n, keys: names, time: s.effort.time}
				if err := s.loadRedis(at(cell, n), c, l); err != nil {
					return err
				}
			}
		}
		s.progress(cell, round, s.effort.rounds)
	}
	return nil
}

func (s *suite) loadRedis(cell string, c redisContestant, l load) error {
	worker, err := s.fresh(c, plenty)
	if err != nil {
		return err
	}
	if err := l.keys.each(c, worker); err != nil {
		return err
	}
	before := s.stats()
	o := l.run(c, worker)
	used := s.stats().minus(before)
	if o.decided == 0 || o.failed > 0 && c.name != gcra {
		return fmt.Errorf("%s with %d goroutines: %d decided, %d failed: %w", c.name, l.goroutines, o.decided, o.failed, o.firstError)
	}
	n := float64(o.decided)
	add := func(figure string, value float64) { s.results.add(cell, c.name, figure, value) }
	add(perSecond, o.rate())
	if !c.gathers {
		add(p50, micros(o.latency.quantile(0.5)))
		add(p99, micros(o.latency.quantile(0.99)))
	}
	add(redisCPU, used.cpu*1e6/n)
	add(commands, used.commands/n)
	add(bytesIn, used.in/n)
	add(bytesOut, used.out/n)
	add(failures, 100*float64(o.failed)/(n+float64(o.failed)))
	if l.goroutines > 1 {
		add(allocations, float64(o.allocs)/n)
		return nil
	}
	d, i := worker(l), 0
	add(allocations, testing.AllocsPerRun(1000, func() {
		_, _ = d(context.Background(), l.keys.names[i%len(l.keys.names)])
		i++
	}))
	return nil
}

// redisKeys measures what a key takes in Redis.
func (s *suite) redisKeys(contestants []redisContestant) error {
	const n = 100_000
	names := newKeys(n)
	for _, c := range contestants {
		if c.floor || c.name == limiter {
			continue
		}
		// One unit a minute: what recovers sooner expires before it is measured.
		worker, err := s.fresh(c, 1)
		if err != nil {
			return err
		}
		if err := (&keys{names: names.names[:1]}).each(c, worker); err != nil { // connections and scripts
			return err
		}
		before := s.stats().memory
		if err := names.each(c, worker); err != nil {
			return err
		}
		s.results.add(redisKeyCell, c.name, bytesAKey, (s.stats().memory-before)/n)
	}
	s.progress(redisKeyCell, 0, 1)
	return nil
}

const (
	abuses     = 100_000
	abuseLimit = 100 // a minute
)

// abuser is one client that is far over its limit and doesn't stop.
func (s *suite) abuser(contestants []redisContestant) error {
	for round := range s.effort.most {
		for _, c := range rotated(contestants, round) {
			if c.floor {
				continue
			}
			worker, err := s.fresh(c, abuseLimit)
			if err != nil {
				return err
			}
			l := load{goroutines: 64, keys: newKeys(1), decisions: 2 * abuseLimit, refusals: true}
			l.run(c, worker)
			l.decisions = abuses
			before := s.stats()
			o := l.run(c, worker)
			used := s.stats().minus(before)
			if o.decided == 0 {
				return fmt.Errorf("%s: %w", c.name, o.firstError)
			}
			s.results.add(abuserCell, c.name, perSecond, o.rate())
			s.results.add(abuserCell, c.name, seconds, o.elapsed.Seconds())
			s.results.add(abuserCell, c.name, commands, used.commands)
			s.results.add(abuserCell, c.name, redisCPU, used.cpu*1e6/float64(o.decided))
			s.results.add(abuserCell, c.name, failures, 100*float64(o.failed)/abuses)
		}
		s.progress(abuserCell, round, s.effort.most)
	}
	return nil
}

// fresh opens a contestant on an empty Redis.
func (s *suite) fresh(c redisContestant, limit int) (func(load) decide, error) {
	if err := s.client.FlushAll(context.Background()).Err(); err != nil {
		return nil, err
	}
	worker, err := c.open(s.client, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	return worker, nil
}

// inMemory measures decisions on so many keys in this process.
func (s *suite) inMemory(contestants []memoryContestant, sizes []int) {
	for round := range s.effort.rounds {
		for _, n := range sizes {
			if n > 100_000 && round >= s.effort.most {
				continue
			}
			for _, c := range rotated(contestants, round) {
				s.decideInMemory(c, n)
			}
		}
		s.progress(memoryCell, round, s.effort.rounds)
	}
}

func (s *suite) decideInMemory(c memoryContestant, n int) {
	names := newKeys(n).names
	before := heap()
	worker := c.open(n)
	decide := worker()
	for _, name := range names {
		// A name comes with its request: what a limiter keeps of it, it keeps from the collector.
		if !decide(strings.Clone(name)) {
			panic(c.name + ": " + errRefused.Error())
		}
	}
	cell := at(memoryCell, n)
	if n == 1_000_000 {
		s.results.add(cell, c.name, bytesAKey, (heap()-before)/float64(n))
	}
	loop := func(d func(string) bool, seed uint64, until time.Time) (decided int) {
		random := seed
		for time.Now().Before(until) {
			for range 512 {
				random = random*6364136223846793005 + 1442695040888963407
				d(names[(random>>33)*uint64(n)>>31])
			}
			decided += 512
		}
		return decided
	}
	runtime.GC() // what others left
	begin, mallocs := time.Now(), mallocs()
	decided := loop(decide, 1, begin.Add(s.effort.memory))
	s.results.add(cell, c.name, serial, float64(time.Since(begin).Nanoseconds())/float64(decided))
	s.results.add(cell, c.name, allocations, float64(mallocs.since()/uint64(decided)))

	workers := runtime.GOMAXPROCS(0)
	counts := make([]int, workers)
	var wg sync.WaitGroup
	begin = time.Now()
	for i := range workers {
		d := worker()
		wg.Go(func() { counts[i] = loop(d, uint64(i+1)<<40, begin.Add(s.effort.memory)) })
	}
	wg.Wait()
	elapsed := time.Since(begin)
	decided = 0
	for _, n := range counts {
		decided += n
	}
	s.results.add(cell, c.name, parallel, float64(elapsed.Nanoseconds())/float64(decided))
}

// middlewares measures whole requests.
func (s *suite) middlewares(contestants []middlewareContestant) {
	all := requests()
	for round := range s.effort.rounds {
		for _, cell := range []string{admitted, refused} {
			for _, c := range rotated(contestants, round) {
				limit := memoryLimit
				if cell == refused {
					limit = 1
				}
				passed := 0
				h := c.wrap(limit, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed++ }))
				w := newDiscard()
				ask := func() {
					for _, r := range all {
						clear(w.header)
						h.ServeHTTP(w, r)
					}
				}
				ask()
				runtime.GC() // what others left
				warm, asked := passed, 0
				begin, mallocs := time.Now(), mallocs()
				for time.Since(begin) < s.effort.memory {
					ask()
					asked += len(all)
				}
				elapsed, made := time.Since(begin), mallocs.since()
				if passes := passed - warm; (cell == admitted) != (passes == asked) {
					panic(fmt.Sprintf("%s: %d of %d requests %s", c.name, passes, asked, cell))
				}
				s.results.add(middlewareCell+" "+cell, c.name, nanoseconds, float64(elapsed.Nanoseconds())/float64(asked))
				s.results.add(middlewareCell+" "+cell, c.name, allocations, float64(made/uint64(asked)))
			}
		}
		s.progress(middlewareCell, round, s.effort.rounds)
	}
}

func (s *suite) progress(cell string, round, of int) {
	fmt.Fprintf(s.log, "%s: round %d of %d\n", cell, round+1, of)
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

func heap() float64 {
	runtime.GC()
	runtime.GC() // what the first one finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

type mallocCount uint64

func mallocs() mallocCount {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return mallocCount(m.Mallocs)
}

func (c mallocCount) since() uint64 { return uint64(mallocs() - c) }

// stats is what the server says of itself.
type stats struct{ cpu, commands, in, out, memory float64 }

func (s *suite) stats() stats {
	info := s.client.Info(context.Background(), "all").Val()
	number := func(field string) float64 {
		_, rest, _ := strings.Cut(info, "\n"+field+":")
		value, _, _ := strings.Cut(rest, "\r")
		return must(strconv.ParseFloat(value, 64))
	}
	return stats{
		cpu:      number("used_cpu_user") + number("used_cpu_sys"),
		commands: number("total_commands_processed"),
		in:       number("total_net_input_bytes"),
		out:      number("total_net_output_bytes"),
		memory:   number("used_memory"),
	}
}

func (s stats) minus(before stats) stats {
	return stats{s.cpu - before.cpu, s.commands - before.commands - 1, s.in - before.in, s.out - before.out, s.memory - before.memory}
}
