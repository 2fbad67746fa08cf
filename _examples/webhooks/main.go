// Webhooks sends webhooks through a queue to a receiver with a quota. The workers are
// processes that share nothing but Redis, and one leaky bucket there makes them an even
// stream. What the receiver refuses or fails goes back to the queue for as long as it says.
//
//	go run .                                        # Redis in this process
//	go run . -redis redis://127.0.0.1:6379/0
//	go run . -webhooks 1000 -workers 5
//
// It ends by itself, with a summary of what the receiver saw.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

func main() {
	log.SetFlags(0)
	webhooks := flag.Int("webhooks", 300, "how many webhooks to send")
	workers := flag.Int("workers", 3, "how many processes send them")
	redisURL := flag.String("redis", "", "Redis for the queue and the bucket, such as redis://127.0.0.1:6379/0; one in this process if empty")
	receiverURL := flag.String("worker-for", "", "be a worker, that sends to this URL what is in -queue, until its input is closed")
	queue := flag.String("queue", fmt.Sprintf("webhooks-%d", time.Now().UnixNano()), "name of the queue")
	flag.Parse()
	var err error
	if *receiverURL != "" {
		err = work(*redisURL, *queue, *receiverURL)
	} else {
		err = run(*redisURL, *queue, *webhooks, *workers)
	}
	if err != nil {
		log.Fatal("webhooks: ", err)
	}
}

// run queues webhooks, starts a receiver and the workers, and waits until all is done.
func run(redisURL, queue string, webhooks, workers int) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if redisURL == "" {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		redisURL = "redis://" + server.Addr()
	}
	rdb, err := connect(redisURL)
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close() }()
	to, err := startReceiver()
	if err != nil {
		return err
	}
	defer to.stop()

	if err := enqueue(rdb, queue, webhooks); err != nil {
		return err
	}
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	defer func() { _ = inspector.DeleteQueue(queue, true) }()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	for range workers {
		worker, err := startWorker(program, redisURL, queue, to.url)
		if err != nil {
			return err
		}
		defer worker.end()
	}
	if err := watch(ctx, inspector, queue, to); err != nil {
		return err
	}
	fmt.Print(to.summary(webhooks))
	return nil
}

// process is a worker, which works until its end is called or this process dies.
type process struct {
	*exec.Cmd
	stdin io.Closer
}

func startWorker(program, redisURL, queue, receiverURL string) (*process, error) {
	worker := exec.Command(program, "-redis", redisURL, "-queue", queue, "-worker-for", receiverURL)
	worker.Stderr = os.Stderr
	stdin, err := worker.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &process{worker, stdin}, worker.Start()
}

func (p *process) end() {
	_ = p.stdin.Close()
	_ = p.Wait()
}

// watch prints a line that lives until the queue is empty.
func watch(ctx context.Context, inspector *asynq.Inspector, queue string, to *receiver) error {
	line := "%4ds  %5d queued  %5d delivered  %4d delayed  %3d in the last second\n"
	if out, err := os.Stdout.Stat(); err == nil && out.Mode()&os.ModeCharDevice != 0 {
		line = "\r" + line[:len(line)-1]
		defer fmt.Println()
	}
	for begin := time.Now(); ; {
		now, err := inspector.GetQueueInfo(queue)
		if err != nil {
			return err
		}
		fmt.Printf(line, int(time.Since(begin).Seconds()), now.Pending+now.Active, to.delivered(), now.Retry+now.Scheduled, to.lastSecond())
		if now.Size == now.Archived {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stopped with %d webhooks in the queue", now.Size)
		case <-time.After(time.Second):
		}
	}
}

func connect(url string) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("-redis: want a URL such as redis://127.0.0.1:6379/0, got %q", url)
	}
	options.ContextTimeoutEnabled = true
	return redis.NewClient(options), nil
}
