package redisstore

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

//go:embed clock.lua
var clockLua string

//go:embed take.lua
var takeLua string

//go:embed take_all.lua
var takeAllLua string

// scripts holds what goes over the wire: a script for one charge of each rule, by the
// format of its state, and one for several charges of any rules.
type scripts struct {
	take    map[string]*script
	takeAll *script
}

func assemble(clock string) scripts {
	s := scripts{take: make(map[string]*script)}
	all := clock + algorithms.LuaConstants() + "local rules = {}\n\n"
	for _, rule := range algorithms.Rules() {
		format := rule.Example.Shape().Format
		s.take[format] = newScript(clock + algorithms.LuaConstants() + rule.Lua + takeLua)
		// A function, so that a call makes only the rules it needs.
		all += "rules." + format + " = function()\n\n" + rule.Lua +
			"return { read = read, step = step, settle = settle, write = write }\nend\n\n"
	}
	s.takeAll = newScript(all + takeAllLua)
	return s
}

// script is a Lua source and the digest Redis knows it by.
type script struct {
	source, digest string
}

func newScript(source string) *script {
	source = stripComments(source)
	sum := sha1.Sum([]byte(source))
	return &script{source: source, digest: hex.EncodeToString(sum[:])}
}

// run asks once by digest. Only the answer that Redis doesn't know the script, which
// means that it didn't run, is asked again, with the source; Redis then knows it.
func (s *script) run(ctx context.Context, client redis.UniversalClient, keysAndArgs []any) ([]int64, error) {
	reply, err := process(ctx, client, append([]any{"evalsha", s.digest}, keysAndArgs...))
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return process(ctx, client, append([]any{"eval", s.source}, keysAndArgs...))
	}
	return reply, err
}

// onceCmd is a command that go-redis sends at most once: a decision that may have run
// must not run again because its reply was lost.
type onceCmd struct{ *redis.IntSliceCmd }

func (onceCmd) NoRetry() bool { return true }

func process(ctx context.Context, client redis.UniversalClient, args []any) ([]int64, error) {
	cmd := onceCmd{redis.NewIntSliceCmd(ctx, args...)}
	if err := client.Process(ctx, cmd); err != nil {
		return nil, err
	}
	return cmd.Result()
}

// stripComments drops whole-line comments and blank lines: Redis parses them on each
// load, and the digest should not change with a word of explanation.
func stripComments(source string) string {
	var b strings.Builder
	for line := range strings.Lines(source) {
		if trimmed := strings.TrimSpace(line); trimmed != "" && !strings.HasPrefix(trimmed, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}
