package redisstore

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// A decision whose reply was lost may have been counted. It is never sent again: not by
// us, and not by go-redis, which repeats other commands three times.
func TestLostReplyIsNeverSentAgain(t *testing.T) {
	ctx := context.Background()
	rule := algorithms.FixedWindow{Limit: 10, Window: steady()}
	other := algorithms.TokenBucket{Capacity: 10, Refill: 1, Per: steady()}
	one := charge("{k}", rule, 1)
	two := append(charge("{k}", rule, 1), charge("{k}", other, 1)...)

	type operation struct {
		name string
		do   func(*Store) error
	}
	operations := []operation{
		{"Take", func(s *Store) error { return s.Take(ctx, one, make([]algorithms.Decision, 1)) }},
		{"Take of two", func(s *Store) error { return s.Take(ctx, two, make([]algorithms.Decision, 2)) }},
		{"Settle", func(s *Store) error { return s.Settle(ctx, one) }},
	}
	clients := map[string]func(addr string, timeout time.Duration) redis.UniversalClient{
		"client": func(addr string, timeout time.Duration) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: addr, MaxRetries: 3, ReadTimeout: timeout})
		},
		"cluster": func(addr string, timeout time.Duration) redis.UniversalClient {
			slots := []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}
			return redis.NewClusterClient(&redis.ClusterOptions{
				ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return slots, nil },
				MaxRetries:   3, ReadTimeout: timeout,
			})
		},
		"ring": func(addr string, timeout time.Duration) redis.UniversalClient {
			return redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"only": addr}, MaxRetries: 3, ReadTimeout: timeout})
		},
	}
	for _, lost := range []struct {
		name    string
		command string // whose first reply is lost
		hang    bool   // until the read time-out, rather than a closed connection
		timeout time.Duration
	}{
		{"closed, EVALSHA", "evalsha", false, 0},
		{"closed, EVAL", "eval", false, 0},
		{"hanging, EVALSHA", "evalsha", true, 150 * time.Millisecond},
		{"hanging, EVAL", "eval", true, 150 * time.Millisecond},
	} {
		for name, open := range clients {
			for _, op := range operations {
				if lost.hang && op.name != "Take" {
					continue // the same path, and it takes time
				}
				t.Run(lost.name+"/"+name+"/"+op.name, func(t *testing.T) {
					direct := realRedis(t)
					if lost.command == "evalsha" {
						load(t, direct)
					} else {
						must(t, direct.ScriptFlush(ctx).Err())
					}
					p := lossyProxy(t, direct, lost.command, lost.hang)
					client := open(p.addr, lost.timeout)
					defer func() { _ = client.Close() }()
					store := New(client)

					if err := op.do(store); err == nil {
						t.Error("no error, although the reply was lost")
					}
					if sent := p.seen.Load(); sent != 1 {
						t.Errorf("%s was sent %d times, want once", lost.command, sent)
					}
					if d := take(t, New(direct), "{k}", rule, 0); d.Remaining != 9 {
						t.Errorf("%d left on the server, want 9: counted once", d.Remaining)
					}
					if err := op.do(store); err != nil {
						t.Errorf("the next call: %v", err)
					}
				})
			}
		}
	}
}

// The proof that the test above can fail: an ordinary script call of go-redis through
// the same proxy runs twice.
func TestOrdinaryScriptCallIsSentAgain(t *testing.T) {
	ctx := context.Background()
	rule := algorithms.FixedWindow{Limit: 10, Window: steady()}
	for name, hang := range map[string]bool{"closed": false, "hanging": true} {
		direct := realRedis(t)
		load(t, direct)
		p := lossyProxy(t, direct, "evalsha", hang)
		client := redis.NewClient(&redis.Options{Addr: p.addr, MaxRetries: 3, ReadTimeout: 150 * time.Millisecond})
		store := New(client)
		args := argumentsOf(store.call(charge("{k}", rule, 1), true))
		err := client.EvalSha(ctx, store.scripts.take["fw2"].digest, []string{args[1].(string)}, args[2:]...).Err()
		if sent := p.seen.Load(); err != nil || sent != 2 {
			t.Errorf("%s: sent %d times, error %v; want twice and none", name, sent, err)
		}
		if d := take(t, New(direct), "{k}", rule, 0); d.Remaining != 8 {
			t.Errorf("%s: %d left on the server, want 8: counted twice", name, d.Remaining)
		}
		_ = client.Close()
	}
}

// The same with the settings of Open and the deadline of the request: the deadline ends
// the wait, and nothing is sent again after it.
func TestDeadlineEndsTheWaitAndNothingIsSentAgain(t *testing.T) {
	direct := realRedis(t)
	load(t, direct)
	p := lossyProxy(t, direct, "evalsha", true)
	store, err := Open("redis://" + p.addr)
	must(t, err)
	defer func() { _ = store.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	rule := algorithms.FixedWindow{Limit: 10, Window: steady()}
	start := time.Now()
	if err := store.Take(ctx, charge("k", rule, 1), make([]algorithms.Decision, 1)); err == nil {
		t.Error("no error, although the reply was lost")
	}
	if took := time.Since(start); took > 300*time.Millisecond {
		t.Errorf("took %v, want about 30ms", took)
	}
	time.Sleep(50 * time.Millisecond)
	if sent := p.seen.Load(); sent != 1 {
		t.Errorf("sent %d times, want once", sent)
	}
}

// argumentsOf is what comes after EVALSHA and the digest.
func argumentsOf(c *call) []any {
	t := trip{calls: []*call{c}}
	return t.command(context.Background()).Args()[2:]
}

// load makes the server know every script.
func load(t *testing.T, client *redis.Client) {
	t.Helper()
	scripts := assemble(clockLua)
	must(t, client.ScriptLoad(context.Background(), scripts.takeAll.source).Err())
	must(t, client.ScriptLoad(context.Background(), scripts.settle.source).Err())
	for _, s := range scripts.take {
		must(t, client.ScriptLoad(context.Background(), s.source).Err())
	}
}

// proxy stands in front of a server, counts a command, and loses the reply to the first.
type proxy struct {
	addr string
	seen atomic.Int64
}

func lossyProxy(t *testing.T, server *redis.Client, command string, hang bool) *proxy {
	p := new(proxy)
	p.addr = serve(t, func(client net.Conn) {
		server, err := net.Dial("tcp", server.Options().Addr)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = server.Close() }()
		var losing atomic.Bool
		replies := make(chan struct{})
		go func() {
			defer close(replies)
			buffer := make([]byte, 4096)
			for {
				n, err := server.Read(buffer)
				if err != nil {
					return
				}
				if !losing.Load() {
					_, _ = client.Write(buffer[:n])
				} else if !hang {
					_ = client.Close()
				}
			}
		}()
		r := bufio.NewReader(client)
		for {
			args, err := readCommand(r)
			if err != nil {
				break
			}
			if args[0] == command && p.seen.Add(1) == 1 {
				losing.Store(true)
			}
			if err := writeCommand(server, args); err != nil {
				break
			}
		}
		_ = client.Close()
		_ = server.Close()
		<-replies
	})
	return p
}

func writeCommand(w io.Writer, args []string) error {
	command := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, arg := range args {
		command = fmt.Appendf(command, "$%d\r\n%s\r\n", len(arg), arg)
	}
	_, err := w.Write(command)
	return err
}
