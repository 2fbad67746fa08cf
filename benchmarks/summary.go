package main

import (
	"fmt"
	"io"
	"strings"
)

// summary is the short form of the report, as the README shows it: medians.
func summary(w io.Writer, r results) {
	sideBySide(w, r, redisPeers, []line{
		{"decisions/s on Redis, 1 goroutine", at(redisCell, 1), store, perSecond},
		{"decisions/s, 64 goroutines", at(redisCell, 64), store, perSecond},
		{"decisions/s, 256 goroutines", at(redisCell, 256), store, perSecond},
		{"p99 in µs, 64 goroutines", at(redisCell, 64), store, p99},
		{"Redis CPU a decision in µs, 64 goroutines", at(redisCell, 64), store, redisCPU},
		{"bytes of a key in Redis", redisKeyCell, store, bytesAKey},
		{"decisions/s of a client far over its limit", abuserCell, limiter, perSecond},
		{"Redis commands for 100,000 requests of it", abuserCell, limiter, commands},
	})
	sideBySide(w, r, middlewarePeers, []line{
		{"ns a decision in memory, 10,000 keys", at(memoryCell, 10_000), ourMemory, serial},
		{"allocations of it", at(memoryCell, 10_000), ourMemory, allocations},
		{"bytes of a key in memory", at(memoryCell, 1_000_000), ourMemory, bytesAKey},
		{"ns a request through the middleware", middlewareCell + " " + admitted, middleware, nanoseconds},
		{"allocations of it", middlewareCell + " " + admitted, middleware, allocations},
	})
}

// line is a row of a summary: a figure, and which of ours it is of.
type line struct{ title, cell, ours, figure string }

func sideBySide(w io.Writer, r results, peers []string, lines []line) {
	head := fmt.Sprintf("\n| | ours | %s |\n|---|%s\n", strings.Join(peers, " | "), strings.Repeat("---:|", 1+len(peers)))
	for _, l := range lines {
		if len(r[place{l.cell, l.ours, l.figure}]) == 0 {
			continue
		}
		fmt.Fprintf(w, "%s| %s |", head, l.title)
		head = ""
		for _, c := range append([]string{l.ours}, peers...) {
			if value, _, _, ok := r.spread(place{l.cell, c, l.figure}); ok {
				fmt.Fprintf(w, " %s |", number(value))
			} else {
				fmt.Fprint(w, " |")
			}
		}
		fmt.Fprintln(w)
	}
}
