package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// arrival is a request that comes at an instant and, perhaps, leaves at another.
type arrival struct {
	at    time.Duration
	leave time.Duration // 0 for one that stays
}

func atOnce(n int, at time.Duration) []arrival { return slices.Repeat([]arrival{{at: at}}, n) }

const streamRate = 60

// overload is more at once than the queue holds, and then more than the rate.
func overload() []arrival {
	arrivals, random := atOnce(120, 0), rand.New(rand.NewPCG(1, 2))
	for at := time.Duration(0); at < 5*time.Second; {
		at += time.Duration(random.ExpFloat64() / streamRate * float64(time.Second))
		arrivals = append(arrivals, arrival{at: at})
	}
	return arrivals
}

// leaving is a queue half of which leaves, and others come.
func leaving() []arrival {
	arrivals := atOnce(burst, 0)
	for i := range arrivals {
		if i/2%2 == 0 { // of each of two proxies
			arrivals[i].leave = 500 * time.Millisecond
		}
	}
	return append(arrivals, atOnce(burst/2, 550*time.Millisecond)...)
}

// passage is what became of one request.
type passage struct {
	sent, reached time.Time // reached is zero if it didn't reach the backend
	refused       bool
}

// send sends the arrivals to the URLs in turn.
func send(arrivals []arrival, b *backend, urls []string) ([]passage, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: len(arrivals)}}
	defer client.CloseIdleConnections()
	for _, url := range urls { // connections and scripts are there before it begins
		if err := get(context.Background(), client, url, -1, nil); err != nil {
			return nil, err
		}
	}
	time.Sleep(time.Second) // until the queue is empty again
	b.mu.Lock()
	clear(b.reached)
	b.mu.Unlock()
	passages := make([]passage, len(arrivals))
	failed := make(chan error, len(arrivals))
	var wait sync.WaitGroup
	for i, begin := 0, time.Now(); i < len(arrivals); i++ {
		time.Sleep(time.Until(begin.Add(arrivals[i].at)))
		wait.Go(func() {
			ctx, cancel := context.Background(), func() {}
			if leave := arrivals[i].leave; leave > 0 {
				ctx, cancel = context.WithDeadline(ctx, begin.Add(leave))
			}
			defer cancel()
			passages[i].sent = time.Now()
			if err := get(ctx, client, urls[i%len(urls)], i, &passages[i]); err != nil && ctx.Err() == nil {
				failed <- err
			}
		})
	}
	wait.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for n, at := range b.reached {
		passages[n].reached = at
	}
	select {
	case err := <-failed:
		return nil, err
	default:
		return passages, nil
	}
}

func get(ctx context.Context, client *http.Client, url string, n int, p *passage) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if n >= 0 {
		r.Header.Set(number, strconv.Itoa(n))
	}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	switch _, err = io.Copy(io.Discard, resp.Body); {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusTooManyRequests && p != nil:
		p.refused = true
		return nil
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s answered %s", url, resp.Status)
	}
	return nil
}
