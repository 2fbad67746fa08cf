// Command benchmarks measures this library beside its peers on one machine: all of them
// in turn, in rounds whose order changes, with the same client settings and keys. It
// starts a redis-server of its own and prints Markdown.
//
//	cd benchmarks && go run .
//	go run . -short                       # less than a minute, less exact
//	go run . -only abuser,memory          # redis, redis-memory, abuser, memory, middleware, batching
//	go run . -plot ../docs/img            # also draws the figures of Redis
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/seed-601ed181/ratelimit/internal/redistest"
)

// cells are what can be measured. The last compares how a store could work, not
// limiters, and is measured only when it is asked for.
var cells = []string{redisCell, redisKeyCell, abuserCell, memoryCell, middlewareCell, batchingCell}

var memorySizes = []int{1, 10_000, 1_000_000}

func main() {
	brief := flag.Bool("short", false, "measure for less than a minute")
	only := flag.String("only", strings.Join(cells[:len(cells)-1], ","), "cells to measure, separated by commas")
	plots := flag.String("plot", "", "directory for the plots of the figures on Redis")
	flag.Parse()
	e := full
	if *brief {
		e = short
	}
	if err := run(os.Stdout, os.Stderr, e, strings.Split(*only, ","), *plots); err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
}

func run(out, log io.Writer, e effort, only []string, plots string) error {
	for _, cell := range only {
		if !slices.Contains(cells, cell) {
			return fmt.Errorf("-only: there is no cell %q, want some of %s", cell, strings.Join(cells[:len(cells)-1], ","))
		}
	}
	server, err := redistest.Start()
	if err != nil {
		return err
	}
	defer server.Stop()
	s, err := newSuite(server.Addr, e, log)
	if err != nil {
		return err
	}
	defer func() { _ = s.client.Close() }()
	measures := map[string]func() error{
		redisCell:      func() error { return s.onRedis(redisCell, redisContestants, goroutines) },
		batchingCell:   func() error { return s.onRedis(batchingCell, waysToBatch, goroutines) },
		redisKeyCell:   func() error { return s.redisKeys(redisContestants) },
		abuserCell:     func() error { return s.abuser(redisContestants) },
		memoryCell:     func() error { s.inMemory(memoryContestants, memorySizes); return nil },
		middlewareCell: func() error { s.middlewares(middlewareContestants); return nil },
	}
	for _, cell := range cells {
		if !slices.Contains(only, cell) {
			continue
		}
		if err := measures[cell](); err != nil {
			return err
		}
	}
	report(out, s.results, s.version())
	if plots == "" {
		return nil
	}
	return drawPlots(plots, s.results)
}

func newSuite(addr string, e effort, log io.Writer) (*suite, error) {
	s := &suite{results: make(results), effort: e, client: connect(addr), log: log}
	return s, s.client.Ping(context.Background()).Err()
}

func (s *suite) version() string {
	_, rest, _ := strings.Cut(s.client.Info(context.Background(), "server").Val(), "redis_version:")
	version, _, _ := strings.Cut(rest, "\r")
	return "Redis " + version
}
