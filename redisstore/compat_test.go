package redisstore

import (
	"context"
	"errors"
	"net"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// introduced is the version of Redis that brought each command of the scripts.
var introduced = map[string]string{
	"TIME": "2.6.0", "GET": "1.0.0", "SET": "1.0.0", "INCR": "1.0.0", "INCRBY": "1.0.0", "DEL": "1.0.0", "PEXPIRE": "2.6.0",
	"ZADD": "1.2.0", "ZCARD": "1.2.0", "ZCOUNT": "2.0.0", "ZRANGE": "1.2.0", "ZREMRANGEBYRANK": "2.0.0", "ZREMRANGEBYSCORE": "1.2.0",
}

// B73: the oldest server is Redis 5, the first that lets a script write after TIME
// without asking (effects replication). Beyond that the scripts use only old commands.
func TestB73_ScriptsUseOnlyOldCommands(t *testing.T) {
	call := regexp.MustCompile(`redis\.p?call\('([A-Za-z]+)'([^\n]*)`)
	quoted := regexp.MustCompile(`'([A-Z]+)'`)
	used := make(map[string]bool)
	for name, s := range assembled() {
		for _, c := range call.FindAllStringSubmatch(s.source, -1) {
			if used[c[1]] = true; introduced[c[1]] == "" {
				t.Errorf("%s uses %s: say in this test and in docs/operations.md which Redis brought it", name, c[1])
			}
			for _, option := range quoted.FindAllStringSubmatch(c[2], -1) {
				if !slices.Contains([]string{"PX", "WITHSCORES"}, option[1]) { // SET PX 2.6.12, ZRANGE WITHSCORES 1.2
					t.Errorf("%s: %s has the option %s, which may need a newer Redis", name, c[1], option[1])
				}
			}
		}
	}
	for command := range introduced {
		if !used[command] {
			t.Errorf("no script uses %s any more", command)
		}
	}
}

// B75: what a script can't take never reaches Redis.
func TestB75_WrongArgumentsAreRefusedBeforeRedis(t *testing.T) {
	ctx := context.Background()
	dialled := false
	client := redis.NewClient(&redis.Options{DialerRetries: 1, Dialer: func(context.Context, string, string) (net.Conn, error) {
		dialled = true
		return nil, errors.New("dialled")
	}})
	defer func() { _ = client.Close() }()
	store := New(client)
	good := algorithms.FixedWindow{Limit: 3, Window: time.Minute}
	for name, charges := range map[string][]algorithms.Charge{
		"nil algorithm":         charge("k", nil, 1),
		"negative cost":         charge("k", good, -1),
		"no limit":              charge("k", algorithms.FixedWindow{Window: time.Minute}, 1),
		"negative limit":        charge("k", algorithms.SlidingWindowLog{Limit: -1, Window: time.Minute}, 1),
		"window of nanoseconds": charge("k", algorithms.FixedWindow{Limit: 3, Window: time.Second + 1}, 1),
		"one bad of two":        append(charge("k", good, 1), charge("l", nil, 1)...),
		"one counter twice":     append(charge("k", good, 1), charge("k", good, 1)...),
	} {
		decisions := make([]algorithms.Decision, len(charges))
		if err := store.Take(ctx, charges, decisions); err == nil || dialled {
			t.Errorf("%s: Take returned %v, dialled %v; want an error before any dialling", name, err, dialled)
		}
		if err := store.Peek(ctx, charges, decisions); err == nil || dialled {
			t.Errorf("%s: Peek returned %v, dialled %v; want an error before any dialling", name, err, dialled)
		}
		dialled = false
	}
	if err := store.Take(ctx, charge("k", good, 1), make([]algorithms.Decision, 1)); err == nil || !dialled {
		t.Errorf("a good charge: error %v, dialled %v; want it to reach the dialler", err, dialled)
	}
}
