package main

import (
	"errors"
	"fmt"
	"net/http"
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

// queueing is a queue of webhooks on a real Redis, and a receiver of them.
type queueing struct {
	*testing.T
	program, redisURL string
	inspector         *asynq.Inspector
	to                *receiver
}

const queue = "webhooks"

func newQueueing(t *testing.T, webhooks int) *queueing {
	t.Helper()
	q := &queueing{T: t, program: build(t), redisURL: "redis://" + redistest.Run(t).Addr}
	rdb, err := connect(q.redisURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	q.inspector = asynq.NewInspectorFromRedisClient(rdb)
	if q.to, err = startReceiver(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.to.stop)
	if err := enqueue(rdb, queue, webhooks); err != nil {
		t.Fatal(err)
	}
	return q
}

func (q *queueing) startWorker() *process {
	q.Helper()
	worker, err := startWorker(q.program, q.redisURL, queue, q.to.url)
	if err != nil {
		q.Fatal(err)
	}
	return worker
}

// once returns when the queue is as it should become.
func (q *queueing) once(what string, patience time.Duration, is func(*asynq.QueueInfo) bool) *asynq.QueueInfo {
	q.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		info, err := q.inspector.GetQueueInfo(queue)
		if err == nil && is(info) {
			return info
		}
		if time.Now().After(end) {
			q.Fatalf("%s: not within %v; %+v %v", what, patience, info, err)
		}
	}
}

// More workers than have turns within maxWait put some webhooks back, and those don't
// count as failed.
func TestTooManyWorkersPutBackWhatHasNoTurn(t *testing.T) {
	const webhooks = 80
	q := newQueueing(t, webhooks)
	for range 2 * rate / concurrency {
		t.Cleanup(q.startWorker().end)
	}
	putBack := 0
	done := q.once("all delivered", 30*time.Second, func(info *asynq.QueueInfo) bool {
		tasks, err := q.inspector.ListRetryTasks(queue)
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			if strings.Contains(task.LastErr, `waiting for policy "webhooks" takes`) {
				putBack++
			}
		}
		return info.Size == 0
	})
	if putBack == 0 {
		t.Error("no webhook was put back, so the test shows nothing")
	}
	if once, _ := q.to.deliveries(); once != webhooks {
		t.Errorf("%d of %d webhooks came", once, webhooks)
	}
	if done.FailedTotal != q.to.answered(http.StatusInternalServerError) {
		t.Errorf("%d attempts count as failed, want those that were answered 500, %d", done.FailedTotal, q.to.answered(http.StatusInternalServerError))
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
	q := newQueueing(t, webhooks)
	first, second := q.startWorker(), q.startWorker()
	t.Cleanup(first.end)
	q.once("both work", 10*time.Second, func(info *asynq.QueueInfo) bool { return q.to.delivered() > webhooks/4 && info.Active > concurrency })
	if err := second.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	second.end()
	q.once("the first does the rest", 30*time.Second, func(info *asynq.QueueInfo) bool { return info.Size == info.Active && info.Active <= concurrency })
	time.Sleep(2 * maxWait) // for what the first still held
	missing := webhooks - q.to.delivered()
	t.Logf("the killed worker held %d webhooks that nobody had delivered", missing)
	if missing == 0 {
		t.Fatal("the killed worker held nothing, so the test shows nothing")
	}

	time.Sleep(time.Until(killed.Add(61 * time.Second)))
	t.Cleanup(q.startWorker().end)
	q.once("what the killed one held", 10*time.Second, func(info *asynq.QueueInfo) bool { return info.Size == 0 })
	once, twice := q.to.deliveries()
	if once != webhooks {
		t.Errorf("%d of %d webhooks came", once, webhooks)
	}
	if twice > concurrency {
		t.Errorf("%d came twice, of the %d that the killed worker can have held", twice, concurrency)
	}
	t.Logf("\n%s", q.to.summary(webhooks))
}
