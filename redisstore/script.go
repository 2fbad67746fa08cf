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

//go:embed settle.lua
var settleLua string

// scripts holds what goes over the wire: a script for single charges of each rule, by
// the format of its state, and two for several charges of any rules.
type scripts struct {
	take            map[string]*script
	takeAll, settle *script
}

func assemble(clock string) scripts {
	s := scripts{take: make(map[string]*script)}
	head := clock + algorithms.LuaConstants()
	all := head + "local rules = {}\n"
	for _, rule := range algorithms.Rules() {
		format := rule.Example.Shape().Format
		s.take[format] = newScript(head +
			"local p1, p2, p3 = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])\n" + rule.Lua + takeLua)
		all += "rules." + format + " = function(p1, p2, p3)\n" + rule.Lua +
			"return { read = read, step = step, settle = settle, write = write }\nend\n"
	}
	s.takeAll, s.settle = newScript(all+takeAllLua), newScript(all+settleLua)
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

// known is the command that runs the script by its digest, unknown the one that brings
// its source to a server that doesn't know it.
func (s *script) known(ctx context.Context, keysAndArgs ...any) onceCmd {
	return newOnce(ctx, append([]any{"evalsha", s.digest}, keysAndArgs...))
}

func (s *script) unknown(ctx context.Context, known onceCmd) onceCmd {
	return newOnce(ctx, append([]any{"eval", s.source}, known.Args()[2:]...))
}

// onceCmd is a command that go-redis sends at most once: a decision that may have run
// must not run again because its reply was lost.
type onceCmd struct{ *redis.IntSliceCmd }

func newOnce(ctx context.Context, args []any) onceCmd {
	return onceCmd{redis.NewIntSliceCmd(ctx, args...)}
}

func (onceCmd) NoRetry() bool { return true }

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
