package main

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/internal/redistest"
)

// build makes the program, whose workers are processes.
func build(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "webhooks")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}

func TestWhatCameTooEarlyIsNoFailure(t *testing.T) {
	early := &ratelimit.WaitError{Policy: "webhooks", Wait: 2 * time.Second, RetryAfter: time.Second}
	for _, tc := range []struct {
		name     string
		err      error
		failures int
		failure  bool
		delay    time.Duration
	}{
		{"no turn in time", early, 3, false, time.Second},
		{"no turn in time, wrapped", fmt.Errorf("webhook-1: %w", early), 3, false, time.Second},
		{"no turn ever", &ratelimit.WaitError{RetryAfter: ratelimit.Never}, 0, true, time.Second},
		{"the receiver says when", &refused{"429 Too Many Requests", 7 * time.Second}, 3, false, 7 * time.Second},
		{"a first failure", errors.New("connection reset"), 0, true, time.Second},
		{"a third failure", errors.New("connection reset"), 2, true, 4 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := isFailure(tc.err); got != tc.failure {
				t.Errorf("a failure: %v, want %v", got, tc.failure)
			}
			if got := retryDelay(tc.failures, tc.err, nil); got != tc.delay {
				t.Errorf("back after %v, want %v", got, tc.delay)
			}
		})
	}
	if isFailure(nil) {
		t.Error("success is a failure")
	}
}

func TestTheProgramDeliversAllAndEnds(t *testing.T) {
	out, err := exec.Command(build(t), "-webhooks", "45", "-workers", "2").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("\n%s", out)
	for _, line := range []string{"\ndelivered         45\n", "sent back         2 busy (503), 1 failed (500)"} {
		if !strings.Contains(string(out), line) {
			t.Errorf("the summary lacks %q", line)
		}
	}
}

// A worker that is killed takes what it was about to deliver with it. asynq gives it
// back when its lease has been over for 30 s, which no setting shortens, and a worker
// that starts then finds it.
func TestKillingAWorkerLosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes the minute that asynq gives a silent worker")
	}
	const webhooks = 100
	server := redistest.Run(t)
	program, redisURL, queue := build(t), "redis://"+server.Addr, "webhooks"
	rdb, err := connect(redisURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	to, err := startReceiver()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(to.stop)
	if err := enqueue(rdb, queue, webhooks); err != nil {
		t.Fatal(err)
	}
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	queueOnce := func(what string, patience time.Duration, is func(*asynq.QueueInfo) bool) *asynq.QueueInfo {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
			info, err := inspector.GetQueueInfo(queue)
			if err == nil && is(info) {
				return info
			}
			if time.Now().After(end) {
				t.Fatalf("%s: not within %v; %+v %v", what, patience, info, err)
			}
		}
	}
	start := func() *process {
		worker, err := startWorker(program, redisURL, queue, to.url)
		if err != nil {
			t.Fatal(err)
		}
		return worker
	}

	first, second := start(), start()
	t.Cleanup(first.end)
	queueOnce("both work", 10*time.Second, func(q *asynq.QueueInfo) bool { return to.delivered() > webhooks/4 && q.Active > concurrency })
	if err := second.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	second.end()
	queueOnce("the first does the rest", 30*time.Second, func(q *asynq.QueueInfo) bool { return q.Size == q.Active && q.Active <= concurrency })
	time.Sleep(2 * maxWait) // for what the first still held
	missing := webhooks - to.delivered()
	t.Logf("the killed worker held %d webhooks that nobody had delivered", missing)
	if missing == 0 {
		t.Fatal("the killed worker held nothing, so the test shows nothing")
	}

	time.Sleep(time.Until(killed.Add(61 * time.Second)))
	t.Cleanup(start().end)
	queueOnce("what the killed one held", 10*time.Second, func(q *asynq.QueueInfo) bool { return q.Size == 0 })
	once, twice := to.deliveries()
	if once != webhooks {
		t.Errorf("%d of %d webhooks came", once, webhooks)
	}
	if twice > concurrency {
		t.Errorf("%d came twice, of the %d that the killed worker can have held", twice, concurrency)
	}
	t.Logf("\n%s", to.summary(webhooks))
}
