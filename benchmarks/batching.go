package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

// The ways in which decisions of one process can travel together, all with the script of
// the store and keys as the store names them. docs/adr/0008 says why it is the last.
var waysToBatch = []redisContestant{
	{name: "each by itself", open: openEach},
	{name: "go-redis's AutoPipeline", open: openAutoPipeline},
	{name: "a pipeline of ours", open: openPipeline},
	{name: store, open: openStore},
}

const scriptFile = "../redisstore/testdata/take_sliding_window_counter.lua.golden"

// evalSha is the question of one key, as redisstore asks it.
type evalSha func(ctx context.Context, digest string, keys []string, args ...any) *redis.Cmd

func openEach(client *redis.Client, limit int) (func(load) decide, error) {
	return openWith(client, limit, client.EvalSha)
}

func openAutoPipeline(client *redis.Client, limit int) (func(load) decide, error) {
	pipeline, err := client.AutoPipeline()
	if err != nil {
		return nil, err
	}
	return openWith(client, limit, pipeline.EvalSha)
}

func openWith(client *redis.Client, limit int, ask evalSha) (func(load) decide, error) {
	digest, err := loadScript(client)
	return shared(func(ctx context.Context, key string) (bool, error) {
		return admits(ask(ctx, digest, []string{nameOf(key)}, arguments(limit)...))
	}), err
}

// openPipeline has as many goroutines as the store has lanes, which send what waits.
func openPipeline(client *redis.Client, limit int) (func(load) decide, error) {
	digest, err := loadScript(client)
	if err != nil {
		return nil, err
	}
	type call struct {
		key      string
		admitted bool
		err      error
		done     chan struct{}
	}
	const lanes, most = 2, 256
	waiting := make(chan *call, most)
	for range lanes {
		go func() {
			for c := range waiting {
				together := []*call{c}
				for len(waiting) > 0 && len(together) < most {
					together = append(together, <-waiting)
				}
				pipeline, ctx := client.Pipeline(), context.Background()
				for _, c := range together {
					pipeline.EvalSha(ctx, digest, []string{nameOf(c.key)}, arguments(limit)...)
				}
				commands, _ := pipeline.Exec(ctx) // each keeps its own error
				for i, c := range together {
					c.admitted, c.err = admits(commands[i].(*redis.Cmd))
					c.done <- struct{}{}
				}
			}
		}()
	}
	return func(load) decide {
		c := &call{done: make(chan struct{}, 1)}
		return func(_ context.Context, key string) (bool, error) {
			c.key = key
			waiting <- c
			<-c.done
			return c.admitted, c.err
		}
	}, nil
}

func loadScript(client *redis.Client) (digest string, err error) {
	source, err := os.ReadFile(scriptFile)
	if err != nil {
		return "", fmt.Errorf("run it in the folder benchmarks: %w", err)
	}
	return client.ScriptLoad(context.Background(), string(source)).Result()
}

func nameOf(key string) string { return "rl:" + key + ":sw2:60s" }

func arguments(limit int) []any { return []any{1, 1, limit, time.Minute.Microseconds(), 0} }

// admits reads the reply to one key: a time and three numbers, and one more if it refuses.
func admits(reply *redis.Cmd) (bool, error) {
	numbers, err := reply.Int64Slice()
	return len(numbers) == 4, err
}
