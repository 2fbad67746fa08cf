package main

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
)

// report writes what was measured as Markdown.
func report(w io.Writer, r results, server string) {
	fmt.Fprintf(w, "# Benchmarks\n\nMedian (least to greatest) of the rounds. %s, %s/%s, GOMAXPROCS %d, %s; client, server and load on this one machine.\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), server)
	summary(w, r)
	redis := redisNames()
	for _, n := range goroutines {
		title := fmt.Sprintf("Decisions on Redis, %s, 10,000 keys, all admitted", count(n, "goroutine"))
		table(w, r, title, at(redisCell, n), redis, perSecond, p50, p99, redisCPU, commands, bytesIn, bytesOut, allocations, failures)
	}
	table(w, r, "Memory of a key in Redis, 100,000 keys", redisKeyCell, redis, bytesAKey)
	table(w, r, "One abuser, 100,000 requests far over the limit, 64 goroutines", abuserCell, redis, seconds, perSecond, commands, redisCPU, failures)
	memory := namesOf(memoryContestants, func(c memoryContestant) string { return c.name })
	for _, n := range memorySizes {
		table(w, r, "Decisions in memory, "+count(n, "key"), at(memoryCell, n), memory, serial, parallel, allocations, bytesAKey)
	}
	whole := namesOf(middlewareContestants, func(c middlewareContestant) string { return c.name })
	for _, cell := range []string{admitted, refused} {
		table(w, r, "The whole middleware with headers, in memory, "+cell, middlewareCell+" "+cell, whole, nanoseconds, allocations)
	}
	ways := namesOf(waysToBatch, func(c redisContestant) string { return c.name })
	for _, n := range goroutines {
		table(w, r, "Ways to batch, "+count(n, "goroutine"), at(batchingCell, n), ways, perSecond, p50, p99, redisCPU, bytesIn, bytesOut, allocations)
	}
	if len(r) > 0 {
		fmt.Fprint(w, notes)
	}
	writeTargets(w, r)
}

const notes = `
Figures are a decision's, but for the abuser's commands, which are all of its requests'. Commands are what Redis ran, those
inside scripts and those of expiry not left out. Bytes are of the network. "ours: redisstore" is Store.Take, to compare with
a peer's limiter; "ours: Limiter" is Limiter.Take, with its time-out, its failure mode and the local answer to who is over
the limit. A throttled decision that fails lost its compare and swap ten times.
`

// table writes one cell: a row for each contestant that was in it, a column for each
// figure that somebody has.
func table(w io.Writer, r results, title, cell string, contestants []string, figures ...string) {
	var rows, columns []string
	for _, c := range contestants {
		for _, f := range figures {
			if len(r[place{cell, c, f}]) > 0 {
				rows = append(rows, c)
				break
			}
		}
	}
	for _, f := range figures {
		for _, c := range rows {
			if len(r[place{cell, c, f}]) > 0 {
				columns = append(columns, f)
				break
			}
		}
	}
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n## %s\n\n| | %s |\n|---|%s\n", title, strings.Join(columns, " | "), strings.Repeat("---:|", len(columns)))
	for _, c := range rows {
		fmt.Fprintf(w, "| %s |", c)
		for _, f := range columns {
			median, least, most, ok := r.spread(place{cell, c, f})
			switch low, high := number(least), number(most); {
			case !ok:
				fmt.Fprint(w, " |")
			case low == high:
				fmt.Fprintf(w, " %s |", number(median))
			default:
				fmt.Fprintf(w, " %s (%s to %s) |", number(median), low, high)
			}
		}
		fmt.Fprintln(w)
	}
}

// number has three digits or, if large, all before the point in threes.
func number(v float64) string {
	switch a := math.Abs(v); {
	case v == math.Trunc(v) && a < 1000:
		return fmt.Sprintf("%.0f", v)
	case a < 1:
		return fmt.Sprintf("%.3f", v)
	case a < 10:
		return fmt.Sprintf("%.2f", v)
	case a < 100:
		return fmt.Sprintf("%.1f", v)
	case a < 1000:
		return fmt.Sprintf("%.0f", v)
	}
	digits := fmt.Sprintf("%.0f", v)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return number(float64(n)) + " " + what + "s"
}

func namesOf[T any](contestants []T, name func(T) string) []string {
	var names []string
	for _, c := range contestants {
		names = append(names, name(c))
	}
	return names
}

func redisNames() []string {
	return namesOf(redisContestants, func(c redisContestant) string { return c.name })
}
