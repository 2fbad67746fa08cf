package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/redisstore"
)

const (
	rate = 20 // webhooks a second of all workers together, less than the receiver's quota

	// A webhook waits in its worker at most so long, or goes back to the queue. All that
	// three workers can hold, 3 x 5, have a turn in this time, which has 20. With more
	// workers some are taken from the queue only to be put back.
	maxWait     = time.Second
	concurrency = 5

	maxFailures = 5 // of one webhook
)

func enqueue(rdb redis.UniversalClient, queue string, webhooks int) error {
	client := asynq.NewClientFromRedisClient(rdb)
	for i := range webhooks {
		id := fmt.Sprintf("webhook-%d", i)
		task := asynq.NewTask("webhook", fmt.Appendf(nil, `{"id":%q,"event":"order.paid"}`, id))
		// asynq archives a task at its last retry, even if that was refused and no
		// failure. So it is never the last: the worker gives up before.
		_, err := client.Enqueue(task, asynq.TaskID(id), asynq.Queue(queue), asynq.MaxRetry(2*maxFailures))
		if err != nil {
			return err
		}
	}
	return nil
}

// work delivers what is in the queue until its input is closed.
func work(redisURL, queue, receiverURL string) error {
	rdb, err := connect(redisURL)
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close() }()
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: redisstore.New(rdb),
		Key:   func(*http.Request) (ratelimit.Key, error) { return ratelimit.Key{}, nil }, // Wait is told the key
		Policies: []ratelimit.Policy{{
			Name:    "webhooks",
			Limits:  ratelimit.Limits{algorithms.LeakyBucket{Capacity: 100, Rate: rate, Per: time.Second}},
			Action:  ratelimit.Delay,
			MaxWait: maxWait,
		}},
		Failure: ratelimit.FailClosed, // the queue is in the same Redis
		Timeout: time.Second,          // nobody waits for the answer
	})
	if err != nil {
		return err
	}
	server := asynq.NewServerFromRedisClient(rdb, asynq.Config{
		Queues:                   map[string]int{queue: 1},
		Concurrency:              concurrency,
		RetryDelayFunc:           retryDelay,
		IsFailure:                isFailure,
		DelayedTaskCheckInterval: 100 * time.Millisecond, // how exactly delays are kept
		TaskCheckInterval:        100 * time.Millisecond,
		LogLevel:                 asynq.ErrorLevel,
	})
	d := &deliverer{limiter: limiter, url: receiverURL, client: &http.Client{Timeout: 5 * time.Second}}
	if err := server.Start(d); err != nil {
		return err
	}
	signal.Ignore(os.Interrupt) // a terminal sends it to the workers too
	_, err = io.Copy(io.Discard, os.Stdin)
	server.Shutdown()
	return err
}

type deliverer struct {
	limiter *ratelimit.Limiter
	url     string
	client  *http.Client
}

// ProcessTask waits for a turn and delivers a webhook.
func (d *deliverer) ProcessTask(ctx context.Context, task *asynq.Task) error {
	err := d.deliver(ctx, task)
	if wait, early := retryAfter(err); early {
		pause(ctx, min(wait, maxWait)) // or it would put back the whole queue, one after the other
	}
	if failures, _ := asynq.GetRetryCount(ctx); isFailure(err) && failures >= maxFailures {
		return fmt.Errorf("%w, and %d times before: %w", err, failures, asynq.SkipRetry)
	}
	return err
}

func (d *deliverer) deliver(ctx context.Context, task *asynq.Task) error {
	if err := d.limiter.Wait(ctx, ratelimit.Key{Kind: "receiver", ID: d.url}, "webhooks"); err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url, bytes.NewReader(task.Payload()))
	if err != nil {
		return err
	}
	id, _ := asynq.GetTaskID(ctx)
	r.Header.Set("Webhook-Id", id) // by which the receiver knows one that comes again
	resp, err := d.client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	switch {
	case resp.StatusCode < 300:
		return nil
	case err == nil && (resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable):
		return &refused{resp.Status, time.Duration(seconds) * time.Second}
	}
	return fmt.Errorf("the receiver answered %s", resp.Status)
}

func pause(ctx context.Context, wait time.Duration) {
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
}

// refused is a receiver that says when to come again.
type refused struct {
	status     string
	retryAfter time.Duration
}

func (e *refused) Error() string {
	return fmt.Sprintf("the receiver answered %s, to come again in %v", e.status, e.retryAfter)
}

// retryAfter is how long the webhook has to wait if it merely came too early.
func retryAfter(err error) (time.Duration, bool) {
	var byLimiter *ratelimit.WaitError
	var byReceiver *refused
	switch {
	case errors.As(err, &byLimiter) && byLimiter.RetryAfter != ratelimit.Never:
		return byLimiter.RetryAfter, true
	case errors.As(err, &byReceiver):
		return byReceiver.retryAfter, true
	}
	return 0, false
}

// isFailure counts only what didn't merely come too early.
func isFailure(err error) bool {
	_, early := retryAfter(err)
	return err != nil && !early
}

// retryDelay is the wait that an error tells, else longer with every failure.
func retryDelay(failures int, err error, _ *asynq.Task) time.Duration {
	if wait, early := retryAfter(err); early {
		return wait
	}
	return time.Second << min(failures, 10)
}
