package ratelimit_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

var update = flag.Bool("update", false, "rewrite golden files")

const module = "github.com/seed-601ed181/ratelimit"

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// The core stays light: what each package may link beyond the standard library.
func TestImportsPointOneWay(t *testing.T) {
	links := map[string][]string{
		"algorithms": {},
		"memstore":   {module + "/algorithms", module + "/internal/counter"},
		"storetest":  {module + "/algorithms"},
		".":          {module + "/algorithms", module + "/memstore", module + "/internal/counter", "github.com/felixge/httpsnoop"},
		"chiroutes":  {module, "github.com/felixge/httpsnoop", "github.com/go-chi/chi/v5"},
		"redisstore": {module + "/algorithms", "github.com/redis/go-redis/", "github.com/cespare/xxhash/", "go.uber.org/atomic", "golang.org/x/sys/"},
	}
	for _, dir := range publicPackages(t) {
		if pkg := filepath.Clean(dir); links[pkg] == nil {
			t.Errorf("say in this test what %s may link", pkg)
		}
	}
	for pkg, allowed := range links {
		self := strings.TrimSuffix(module+"/"+pkg, "/.")
		for dep := range strings.FieldsSeq(run(t, "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./"+pkg)) {
			if dep != self && !slices.ContainsFunc(allowed, func(a string) bool { return strings.HasPrefix(dep, a) }) {
				t.Errorf("%s links %s; see the shape in ARCHITECTURE.md, or give what needs it a package of its own", pkg, dep)
			}
		}
	}
}

func TestEveryAlgorithmHasItsFiles(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range algorithms.Rules() {
		for _, suffix := range []string{".go", "_test.go"} {
			if _, err := os.Stat("algorithms/" + rule.Name + suffix); err != nil {
				t.Errorf("rule %s needs algorithms/%s%s", rule.Name, rule.Name, suffix)
			}
		}
		if words := strings.ReplaceAll(rule.Name, "_", " "); !strings.Contains(strings.ToLower(string(readme)), words) {
			t.Errorf("README.md does not mention the %s", words)
		}
	}
	home := make(map[string]string) // the file of each registered type
	for _, rule := range algorithms.Rules() {
		home[reflect.TypeOf(rule.Example).Name()] = "algorithms/" + rule.Name + ".go"
	}
	method := regexp.MustCompile(`(?m)^func \((?:\w+ )?\*?(\w+)\) Step\(`)
	for _, file := range mustGlob("algorithms/*.go") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range method.FindAllSubmatch(text, -1) {
			if typ := string(match[1]); home[typ] != file {
				t.Errorf("%s declares %s.Step: list the rule in registry.go, under the name of this file", file, typ)
			}
		}
	}
}

// publicPackages are the folders with an API that users build on.
func publicPackages(t *testing.T) []string {
	t.Helper()
	var dirs []string
	for pkg := range strings.FieldsSeq(run(t, "go", "list", "./...")) {
		if dir := strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/"); !strings.Contains(dir, "internal") {
			dirs = append(dirs, "./"+dir)
		}
	}
	return dirs
}

func TestPublicAPIIsGolden(t *testing.T) {
	var want []string
	for _, dir := range publicPackages(t) {
		got := publicAPI(t, dir)
		golden := filepath.Join("api", filepath.Base(strings.TrimSuffix(module+"/"+dir, "/./"))+".txt")
		want = append(want, golden)
		if *update {
			if err := os.MkdirAll("api", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if text, _ := os.ReadFile(golden); string(text) != got {
			t.Errorf("the API of %s is not that of %s; if it should change, go test . -run API -update and a line in CHANGELOG.md", dir, golden)
		}
	}
	found, _ := filepath.Glob("api/*.txt")
	for _, file := range found {
		if !slices.Contains(want, file) {
			t.Errorf("%s is of no package", file)
		}
	}
}

// publicAPI prints the exported declarations of a package, without comments.
func publicAPI(t *testing.T, dir string) string {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	matches, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	for _, name := range matches {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	p, err := doc.NewFromFiles(fset, files, dir)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	show := func(decl ast.Decl) {
		if f, ok := decl.(*ast.FuncDecl); ok {
			f.Body = nil
		}
		if err := format.Node(&out, fset, decl); err != nil {
			t.Fatal(err)
		}
		out.WriteString("\n")
	}
	values := func(values []*doc.Value) {
		for _, v := range values {
			show(v.Decl)
		}
	}
	funcs := func(funcs []*doc.Func) {
		for _, f := range funcs {
			show(f.Decl)
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs(p.Funcs)
	for _, typ := range p.Types {
		show(typ.Decl)
		values(typ.Consts)
		values(typ.Vars)
		funcs(typ.Funcs)
		funcs(typ.Methods)
	}
	// A comment leaves a blank line behind, and gofmt aligns fields from one to the next.
	blank := regexp.MustCompile(`\n\s*\n`)
	text, err := format.Source([]byte(blank.ReplaceAllString(out.String(), "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return blank.ReplaceAllString(string(text), "\n")
}

// standIns are what fragments in the documents use without declaring it.
var standIns = map[string]string{
	"rdb":         "var rdb redis.UniversalClient",
	"r":           "var r chi.Router",
	"mux":         "var mux *http.ServeMux",
	"h":           "var h http.HandlerFunc",
	"limiter":     "var limiter *ratelimit.Limiter",
	"ctx":         "var ctx context.Context",
	"req":         "var req *http.Request",
	"w":           "var w http.ResponseWriter",
	"proxies":     "var proxies []netip.Prefix",
	"lookup":      "var lookup ratelimit.Lookup",
	"fromContext": "var fromContext func(context.Context) string",
}

var docImports = []string{
	"context", "errors", "log", "net/http", "net/http/httputil", "net/netip", "os", "testing", "time",
	"github.com/go-chi/chi/v5", "github.com/redis/go-redis/v9",
	module, module + "/algorithms", module + "/chiroutes", module + "/memstore", module + "/redisstore", module + "/storetest",
}

var (
	fence     = regexp.MustCompile("(?s)```go\n(.*?)```")
	comment   = regexp.MustCompile(`(?m)//.*$`)
	topLevel  = regexp.MustCompile(`^(func|type|var|const|import) `)
	shortDecl = regexp.MustCompile(`(?m)^([a-z]\w*(?:, [a-z]\w*)*) :=`)
)

func TestCodeInTheDocumentsCompiles(t *testing.T) {
	dir, err := os.MkdirTemp(".", "_documents")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	documents, _ := filepath.Glob("*.md")
	more, _ := filepath.Glob("docs/*.md")
	var packages []string
	for _, document := range append(documents, more...) {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range fence.FindAllSubmatch(text, -1) {
			name := fmt.Sprintf("%s%d", strings.NewReplacer("/", "_", ".", "_").Replace(document), i+1)
			pkg := filepath.Join(dir, name)
			if err := os.Mkdir(pkg, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(pkg, "main.go"), []byte(program(string(block[1]))), 0o644); err != nil {
				t.Fatal(err)
			}
			packages = append(packages, "./"+pkg)
		}
	}
	if len(packages) == 0 {
		t.Fatal("no Go code in any document")
	}
	out, err := exec.Command("go", append([]string{"vet", "-unusedresult=false"}, packages...)...).CombinedOutput()
	if err != nil {
		t.Errorf("a Go block of a document does not compile (the folder is named after the document and the block's number):\n%s", out)
	}
}

// program makes a file of a block: as it is if it is one, else with imports, stand-ins
// and, for statements, a function around them.
func program(block string) string {
	if strings.HasPrefix(block, "package ") {
		return block
	}
	mentions := func(name string) bool { return regexp.MustCompile(`(^|[^.\w"])` + name + `\b`).MatchString(block) }
	var head, body strings.Builder
	for _, name := range sorted(standIns) {
		// A local variable of that name hides the stand-in; only a global one would clash.
		declared := regexp.MustCompile(`(?m)^(func|type|var|const) ` + name + `\b`).MatchString(block)
		if mentions(name) && !declared {
			body.WriteString(standIns[name] + "\n")
		}
	}
	if topLevel.MatchString(block) {
		body.WriteString(block)
	} else {
		body.WriteString("func _() {\n" + block)
		for _, match := range shortDecl.FindAllStringSubmatch(block, -1) {
			body.WriteString(strings.Repeat("_, ", strings.Count(match[1], ",")) + "_ = " + match[1] + "\n")
		}
		body.WriteString("}\n")
	}
	for _, path := range docImports {
		name := strings.TrimPrefix(filepath.Base(strings.TrimSuffix(strings.TrimSuffix(path, "/v5"), "/v9")), "go-")
		if regexp.MustCompile(`\b` + name + `\.`).MatchString(comment.ReplaceAllString(body.String(), "")) {
			head.WriteString(fmt.Sprintf("import %q\n", path))
		}
	}
	return "package main\n" + head.String() + "func main() {}\n" + body.String()
}

func sorted(m map[string]string) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func TestArchitectureNamesWhatIsThere(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	path := regexp.MustCompile("`([\\w./-]+)`")
	for _, match := range path.FindAllStringSubmatch(string(text), -1) {
		name := match[1]
		if !strings.Contains(name, "/") && !regexp.MustCompile(`\.(go|lua|md)$`).MatchString(name) {
			continue
		}
		if _, err := os.Stat(name); err != nil {
			t.Errorf("ARCHITECTURE.md names %s, which is not there", name)
		}
	}
	for _, file := range mustGlob("*.go") {
		if !strings.HasSuffix(file, "_test.go") && file != "doc.go" && !strings.Contains(string(text), "`"+file+"`") {
			t.Errorf("ARCHITECTURE.md says nothing of %s", file)
		}
	}
}

func mustGlob(pattern string) []string {
	files, err := filepath.Glob(pattern)
	if err != nil {
		panic(err)
	}
	return files
}

func TestExamplesBuild(t *testing.T) {
	entries, err := os.ReadDir("_examples")
	if err != nil || len(entries) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		dir := filepath.Join("_examples", entry.Name())
		cmd := exec.Command("go", "vet", ".")
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", dir, err, out)
		}
	}
}
