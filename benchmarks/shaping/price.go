package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	heldRequests = 2000
	holdRate     = 200
)

// price writes what it costs to hold requests: memory for each while all are held, and
// processor time for each until the last is through.
func price(out io.Writer, rounds int, redisAddr string, contestants []contestant) error {
	fmt.Fprintln(out, "| | memory of one | processor time of one |")
	fmt.Fprintln(out, "| --- | --- | --- |")
	for _, c := range contestants {
		var memory, cpu []float64
		for range rounds {
			kib, micros, err := priceOnce(c, redisAddr)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			memory, cpu = append(memory, kib), append(cpu, micros)
		}
		slices.Sort(memory)
		slices.Sort(cpu)
		fmt.Fprintf(out, "| %s | %.1f KiB | %.0f µs |\n", c.name, memory[rounds/2], cpu[rounds/2])
	}
	return nil
}

func priceOnce(c contestant, redisAddr string) (kib, micros float64, err error) {
	b, err := startBackend()
	if err != nil {
		return 0, 0, err
	}
	defer b.stop()
	p, err := c.start(b, redisAddr)
	if err != nil {
		return 0, 0, err
	}
	defer p.stop()
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: heldRequests}}
	defer client.CloseIdleConnections()
	if err := get(context.Background(), client, p.url(), -1, nil); err != nil {
		return 0, 0, err
	}
	idle, before := memoryOf(p), processorOf(p)
	failed := make(chan error, heldRequests)
	var wait sync.WaitGroup
	for i := range heldRequests {
		wait.Go(func() {
			if err := get(context.Background(), client, p.url(), i, nil); err != nil {
				failed <- err
			}
		})
	}
	time.Sleep(heldRequests / holdRate * time.Second / 5) // all have come, and four of five wait
	b.mu.Lock()
	held := heldRequests - len(b.reached)
	b.mu.Unlock()
	kib = (memoryOf(p) - idle) / float64(held)
	wait.Wait()
	select {
	case err := <-failed:
		return 0, 0, err
	default:
	}
	return kib, (processorOf(p) - before) / heldRequests, nil
}

// memoryOf is the resident memory of its processes, in KiB.
func memoryOf(p proxy) (kib float64) {
	for _, pid := range p.pids() {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		for line := range bytes.Lines(status) {
			if fields := bytes.Fields(line); len(fields) > 1 && string(fields[0]) == "VmRSS:" {
				n, _ := strconv.ParseFloat(string(fields[1]), 64)
				kib += n
			}
		}
	}
	return kib
}

// processorOf is the processor time of its processes, in µs: Linux counts in hundredths.
func processorOf(p proxy) (micros float64) {
	for _, pid := range p.pids() {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		for _, field := range fields[11:13] {
			n, _ := strconv.ParseFloat(string(field), 64)
			micros += n * 10_000
		}
	}
	return micros
}
