package main

import (
	"fmt"
	"io"
)

// target is a figure that the project holds itself to. measure tells it, and whom it was
// compared with; it has nothing to tell where its cell was not run.
type target struct {
	figure  string
	most    bool // or at least
	bound   float64
	measure func(results) (value float64, against string)
}

var targets = []target{
	{"decisions/s, 1 goroutine, to the best peer", false, 0.95, toBest(at(redisCell, 1), store, perSecond, redisPeers, false)},
	{"decisions/s, 64 goroutines, to ulule", false, 3, toBest(at(redisCell, 64), store, perSecond, []string{ululeV3}, false)},
	{"decisions/s, 64 goroutines, to redis_rate", false, 4, toBest(at(redisCell, 64), store, perSecond, []string{redisV10}, false)},
	{"decisions/s, 256 goroutines, to ulule", false, 5, toBest(at(redisCell, 256), store, perSecond, []string{ululeV3}, false)},
	{"p99, 64 goroutines, to the best peer", true, 0.5, toBest(at(redisCell, 64), store, p99, redisPeers, true)},
	{"Redis CPU, 64 goroutines, to the best peer", true, 0.35, toBest(at(redisCell, 64), store, redisCPU, redisPeers, true)},
	{"bytes of a key in Redis, to ulule", true, 1.15, toBest(redisKeyCell, store, bytesAKey, []string{ululeV3}, true)},
	{"decisions/s of an abuser, to the best peer", false, 20, toBest(abuserCell, limiter, perSecond, redisPeers, false)},
	{"Redis commands of an abuser's 100,000 requests", true, 500, itself(abuserCell, limiter, commands)},
	{"ns in memory, 10,000 keys, serial, to the best peer", true, 1, toBest(at(memoryCell, 10_000), ourMemory, serial, memoryPeers, true)},
	{"allocations in memory, 10,000 keys", true, 0, itself(at(memoryCell, 10_000), ourMemory, allocations)},
	{"bytes of a key in memory, 1,000,000 keys", true, 64, itself(at(memoryCell, 1_000_000), ourMemory, bytesAKey)},
	{"ns of the middleware, admitted, to the best peer", true, 0.6, toBest(middlewareCell+" "+admitted, middleware, nanoseconds, middlewarePeers, true)},
	{"allocations of the middleware, admitted", true, 2, itself(middlewareCell+" "+admitted, middleware, allocations)},
}

func (t target) met(value float64) bool {
	if t.most {
		return value <= t.bound
	}
	return value >= t.bound
}

// toBest is our figure as a multiple of the best of the peers'.
func toBest(cell, ours, figure string, peers []string, less bool) func(results) (float64, string) {
	return func(r results) (float64, string) {
		best := r.best(cell, figure, peers, less)
		if best == "" || len(r[place{cell, ours, figure}]) == 0 {
			return 0, ""
		}
		return r.ratio(place{cell, ours, figure}, place{cell, best, figure}), best
	}
}

func itself(cell, ours, figure string) func(results) (float64, string) {
	return func(r results) (float64, string) {
		p := place{cell, ours, figure}
		if len(r[p]) == 0 {
			return 0, ""
		}
		return r.median(p), "itself"
	}
}

func writeTargets(w io.Writer, r results) {
	head := "\n## Targets\n\nRatios are the median of the rounds' own.\n\n| figure | target | measured | against | met |\n|---|---:|---:|---|---|\n"
	for _, t := range targets {
		value, against := t.measure(r)
		if against == "" {
			continue
		}
		fmt.Fprint(w, head)
		head = ""
		bound, met := "at least", "**no**"
		if t.most {
			bound = "at most"
		}
		if t.met(value) {
			met = "yes"
		}
		fmt.Fprintf(w, "| %s | %s %s | %s | %s | %s |\n", t.figure, bound, number(t.bound), number(value), against, met)
	}
}
