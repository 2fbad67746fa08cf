package redisstore

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	luaparse "github.com/yuin/gopher-lua/parse"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

var update = flag.Bool("update", false, "write the golden files anew")

// assembled is every script that goes over the wire, by the name of its golden file.
func assembled() map[string]*script {
	s := assemble(clockLua)
	all := map[string]*script{"take_all": s.takeAll, "settle": s.settle}
	for _, rule := range algorithms.Rules() {
		all["take_"+rule.Name] = s.take[rule.Example.Shape().Format]
	}
	return all
}

// What goes over the wire changes only on purpose: a changed script has a new digest,
// which no server knows during a rolling deploy.
//
//	go test ./redisstore -run Golden -update
func TestGoldenScripts(t *testing.T) {
	all := assembled()
	for name, s := range all {
		file := filepath.Join("testdata", name+".lua.golden")
		if *update {
			must(t, os.WriteFile(file, []byte(s.source), 0o644))
		}
		golden, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		} else if string(golden) != s.source {
			t.Errorf("%s differs from %s; if that is meant, run with -update", name, file)
		}
	}
	files, err := filepath.Glob(filepath.Join("testdata", "*.lua.golden"))
	must(t, err)
	if len(files) != len(all) {
		t.Errorf("golden files %q for %d scripts", files, len(all))
	}
}

// A cluster and an ACL look at the declared keys. Every call of Redis in a script names
// one of them, by a variable, but for TIME.
func TestScriptsTouchOnlyDeclaredKeys(t *testing.T) {
	call := regexp.MustCompile(`redis\.p?call\b(.{0,40})`)
	named := regexp.MustCompile(`^\('[A-Z]+', (key|KEYS\[i\]|keys\[i\])[,)]`)
	access := regexp.MustCompile(`\b(?:read|write)\((\w+(?:\[\w+\])?)`)
	for name, s := range assembled() {
		calls := call.FindAllStringSubmatch(s.source, -1)
		if len(calls) < 2 || strings.Count(s.source, "redis.") != len(calls) {
			t.Errorf("%s: %d calls found, and %d uses of redis", name, len(calls), strings.Count(s.source, "redis."))
		}
		times := 0
		for _, c := range calls {
			if strings.HasPrefix(c[1], "('TIME')") {
				times++
			} else if !named.MatchString(c[1]) {
				t.Errorf("%s: redis.call%s does not name a declared key", name, c[1])
			}
		}
		if times != 1 {
			t.Errorf("%s reads the clock %d times, want once", name, times)
		}
		for _, a := range access.FindAllStringSubmatch(s.source, -1) {
			if !slices.Contains([]string{"key", "keys[i]", "KEYS[i]"}, a[1]) {
				t.Errorf("%s: %s is not a declared key", name, a[0])
			}
		}
	}
}

// Redis forbids a script to set globals, but only when it comes to that line.
func TestScriptsSetNoGlobals(t *testing.T) {
	known := []string{"redis", "KEYS", "ARGV", "math", "string", "tonumber", "ipairs", "type", "error"}
	for name, s := range assembled() {
		set, read := globals(t, s.source)
		if len(set) > 0 {
			t.Errorf("%s sets the globals %q", name, set)
		}
		for _, global := range read {
			if !slices.Contains(known, global) {
				t.Errorf("%s reads the global %q, which Redis doesn't have", name, global)
			}
		}
	}
	if set, _ := globals(t, "local f = function() if ARGV[1] == 'never' then oops = 1 end end"); !slices.Equal(set, []string{"oops"}) {
		t.Errorf("globals found %q, want oops", set)
	}
}

// globals compiles a script and returns the names its functions set and read.
func globals(t *testing.T, source string) (set, read []string) {
	t.Helper()
	chunk, err := luaparse.Parse(strings.NewReader(source), "script")
	must(t, err)
	compiled, err := lua.Compile(chunk, "script")
	must(t, err)
	var walk func(*lua.FunctionProto)
	walk = func(f *lua.FunctionProto) {
		for _, instruction := range f.Code {
			op, name := int(instruction>>26), func() string { return f.Constants[instruction&0x3ffff].String() }
			switch op {
			case lua.OP_SETGLOBAL:
				set = append(set, name())
			case lua.OP_GETGLOBAL:
				read = append(read, name())
			}
		}
		for _, inner := range f.FunctionPrototypes {
			walk(inner)
		}
	}
	walk(compiled)
	return set, read
}

// A comment is not sent, and nothing else is lost.
func TestStripComments(t *testing.T) {
	got := stripComments("-- head\n\nlocal a = 1 -- stays\n  -- inside\n\treturn a\n")
	if want := "local a = 1 -- stays\n\treturn a\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
