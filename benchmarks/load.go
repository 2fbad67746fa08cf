package main

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// load is what a contestant is put under: goroutines that decide one key after the
// other for some time, or so many decisions in all.
type load struct {
	goroutines int
	keys       *keys
	time       time.Duration
	decisions  int // 0: as many as there is time for
	refusals   bool
}

// outcome is what came of a load.
type outcome struct {
	decided, failed int
	firstError      error
	elapsed         time.Duration
	latency         histogram
	allocs          uint64
}

func (o *outcome) rate() float64 { return float64(o.decided) / o.elapsed.Seconds() }

// run has the goroutines begin at once, each with a decide of its own.
func (l load) run(c redisContestant, worker func(load) decide) outcome {
	workers := l.goroutines
	if c.gathers {
		workers = min(2, workers)
	}
	outcomes := make([]outcome, workers)
	decides := make([]decide, workers)
	for i := range decides {
		decides[i] = worker(l)
	}
	var start, done sync.WaitGroup
	start.Add(1)
	for i := range workers {
		done.Go(func() {
			start.Wait()
			l.work(decides[i], l.decisions/workers, &outcomes[i])
		})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := time.Now()
	start.Done()
	done.Wait()
	var all outcome
	all.elapsed = time.Since(begin)
	runtime.ReadMemStats(&after)
	all.allocs = after.Mallocs - before.Mallocs
	for i := range outcomes {
		o := &outcomes[i]
		all.decided += o.decided
		all.failed += o.failed
		all.latency.add(&o.latency)
		if all.firstError == nil {
			all.firstError = o.firstError
		}
	}
	return all
}

func (l load) work(d decide, most int, o *outcome) {
	ctx := context.Background()
	place := rand.IntN(len(l.keys.order))
	now := time.Now()
	end := now.Add(l.time)
	for n := 0; most == 0 || n < most; n++ {
		admitted, err := d(ctx, l.keys.names[l.keys.order[place]])
		if place++; place == len(l.keys.order) {
			place = 0
		}
		if err == nil && !admitted && !l.refusals {
			err = errRefused
		}
		was := now
		now = time.Now()
		if err == nil {
			o.decided++
			o.latency.record(now.Sub(was))
		} else {
			o.failed++
			o.firstError = err
		}
		if most == 0 && now.After(end) {
			return
		}
	}
}

// keys are names and the order they are asked in.
type keys struct {
	names []string
	order []uint32
}

// newKeys makes n keys, asked as clients of an API come: few often, most seldom.
func newKeys(n int) *keys {
	k := &keys{names: make([]string, n), order: make([]uint32, 1<<16)}
	for i := range k.names {
		k.names[i] = "user:" + strconv.Itoa(100_000_000+i)
	}
	if n == 1 {
		return k
	}
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 1, uint64(n-1))
	for i := range k.order {
		k.order[i] = uint32(zipf.Uint64())
	}
	return k
}

// each asks once for every key, from 64 goroutines.
func (k *keys) each(c redisContestant, worker func(load) decide) error {
	const goroutines = 64
	var wg sync.WaitGroup
	errs := make([]error, goroutines)
	for g := range goroutines {
		wg.Go(func() {
			d := worker(load{goroutines: goroutines})
			for i := g; i < len(k.names); i += goroutines {
				if _, err := d(context.Background(), k.names[i]); err != nil {
					errs[g] = err
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && c.name != gcra { // which fails when its compare and swap does, and goes on
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// histogram counts durations in steps of 3 %.
type histogram [1024]uint32

const steps = 32 // for each doubling

func (h *histogram) record(d time.Duration) {
	n := uint64(max(d, steps))
	exponent := bits.Len64(n) - bits.Len64(steps)
	h[min(exponent*steps+int(n>>exponent)-steps, len(h)-1)]++
}

func (h *histogram) add(other *histogram) {
	for i := range h {
		h[i] += other[i]
	}
}

// quantile is the duration that this part of all is at most.
func (h *histogram) quantile(q float64) time.Duration {
	total := 0
	for _, n := range h {
		total += int(n)
	}
	left := int(math.Ceil(q * float64(total)))
	for i, n := range h {
		if left -= int(n); left <= 0 {
			exponent := i / steps
			return time.Duration(uint64(steps+i%steps+1) << exponent)
		}
	}
	return 0
}
