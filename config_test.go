package ratelimit_test

import (
	"errors"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit"
	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

// mistakes are the messages in an error of New. Each must be a ConfigError that says
// where and what.
func mistakes(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("not joined: %v", err)
	}
	var messages []string
	for _, err := range joined.Unwrap() {
		var mistake *ratelimit.ConfigError
		if !errors.As(err, &mistake) || mistake.Path == "" || mistake.Reason == "" {
			t.Errorf("not a ConfigError with a path and a reason: %#v", err)
			continue
		}
		if !strings.HasPrefix(err.Error(), "ratelimit: "+mistake.Path+" "+mistake.Reason) {
			t.Errorf("the message is %q", err)
		}
		messages = append(messages, strings.TrimPrefix(err.Error(), "ratelimit: "))
	}
	return messages
}

// serveMuxs are the parts of ServeMux's own messages that are not worth a golden text:
// where a pattern was registered, and the lines that explain a conflict.
var serveMuxs = regexp.MustCompile(`(?s) \(registered at [^)]*\)|:\n.*(, got )`)

func TestEveryMistakeIsReportedAtOnce(t *testing.T) {
	minute := algorithms.FixedWindow{Limit: 10, Window: time.Minute}
	limiter, err := ratelimit.New(ratelimit.Config{
		Failure: 7,
		Policies: []ratelimit.Policy{
			{Name: "no-window", Limits: ratelimit.Limits{algorithms.SlidingWindowCounter{Limit: 100}}},
			{Name: "negative", Limits: ratelimit.Limits{minute, algorithms.TokenBucket{Capacity: -1, Refill: 0, Per: time.Second}}},
			{Name: "nothing"},
			{Name: "nil-rule", Limits: ratelimit.Limits{nil}},
			{Name: "twin", Limits: ratelimit.Limits{minute}},
			{Name: "twin", Limits: ratelimit.Limits{minute}},
			{Name: "shares", Limits: ratelimit.Limits{minute, algorithms.FixedWindow{Limit: 99, Window: time.Minute}}},
			{Name: "paid", Cost: -1, Limits: ratelimit.Limits{minute}},
			{Name: "dear", Cost: 11, Limits: ratelimit.Limits{minute}},
			{Name: "tiers-only", Tiers: map[string]ratelimit.Limits{"pro": {minute}}},
			{Name: "poor-tier", Cost: 5, Limits: ratelimit.Limits{minute}, Tiers: map[string]ratelimit.Limits{
				"free": {algorithms.FixedWindow{Limit: 4, Window: time.Minute}},
			}},
			{Name: "empty-tier", Limits: ratelimit.Limits{minute}, Tiers: map[string]ratelimit.Limits{"pro": {}}},
			{Name: "one", Quota: "shared", Limits: ratelimit.Limits{minute}},
			{Name: "two", Quota: "shared", Limits: ratelimit.Limits{minute}},
			{Name: "left", Quota: "unstated"},
			{Name: "right", Quota: "unstated"},
			{Name: "", Limits: ratelimit.Limits{minute}},
			{Name: "white space", Limits: ratelimit.Limits{minute}},
			{Name: "unlimited", Limits: ratelimit.Limits{minute}},
			{Name: "bad-quota", Quota: "a}b", Limits: ratelimit.Limits{minute}},
		},
		Routes: ratelimit.Routes{
			"/a/{x}":   {"nope"},
			"/b":       {"paid", "dear", "paid"},
			"/c/{":     {"paid"},
			"/d/{x}/e": {"paid"},
			"/d/e/{x}": {"paid"},
			"G@T /f":   {},
		},
	})
	if limiter != nil {
		t.Error("there is a limiter beside the error")
	}
	got := mistakes(t, err)
	for i := range got {
		got[i] = serveMuxs.ReplaceAllString(got[i], "$1")
	}
	const aLimit = "is required: a limit and its window, such as algorithms.SlidingWindowCounter{Limit: 100, Window: time.Minute}"
	want := []string{
		`Store is required: redisstore.New(rdb), or memstore.New(memstore.Config{}) for a single instance`,
		`Key is required: who is counted, such as ratelimit.FirstOf(ratelimit.APIKey(lookup), ratelimit.ClientIP())`,
		`Failure must be FailLocal, FailOpen or FailClosed, got 7`,
		`Policies["no-window"].Limits[0].Window must be between 1ms and 613200h0m0s, got 0s`,
		`Policies["negative"].Limits[1].Capacity must be >= 1, got -1`,
		`Policies["negative"].Limits[1].Refill must be between 1 and 2^53, got 0`,
		`Policies["nil-rule"].Limits[0] must be a rule, not nil`,
		`Policies["twin"].Name must be the name of one policy only, got "twin"`,
		`Policies["twin"].Limits must be left out: Policies["twin"] already states the limits of quota "twin"`,
		`Policies["shares"].Limits[1] must not share a counter with [0]: give it another window or algorithm, got "99 per 1m0s (fixed window)"`,
		`Policies["paid"].Cost must be >= 0 (0 means 1), got -1`,
		`Policies["tiers-only"].Limits must hold at least one limit`,
		`Policies["empty-tier"].Tiers["pro"] must hold at least one limit`,
		`Policies["two"].Limits must be left out: Policies["one"] already states the limits of quota "shared"`,
		`Policies[16].Name must be 1 to 64 of A-Z a-z 0-9 _ . -, got ""`,
		`Policies["white space"].Name must be 1 to 64 of A-Z a-z 0-9 _ . -, got "white space"`,
		`Policies["unlimited"].Name must not be a reserved name, got "unlimited"`,
		`Policies["bad-quota"].Quota must be 1 to 64 of A-Z a-z 0-9 _ . -, got "a}b"`,
		`Policies["nothing"].Limits ` + aLimit,
		`Policies["dear"].Cost must be <= 10, or it would never be admitted: 10 per 1m0s (fixed window), got 11`,
		`Policies["poor-tier"].Cost must be <= 4, or tier "free" would never be admitted: 4 per 1m0s (fixed window), got 5`,
		`Policies["left"].Limits ` + aLimit,
		`Policies["right"].Limits ` + aLimit,
		`Routes["/a/{x}"][0] must name one of the Policies (an empty list means never limited), got "nope"`,
		`Routes["/b"][2] must not name a policy twice, got "paid"`,
		`Routes["/c/{"] must be a pattern of http.ServeMux: parsing "/c/{": at offset 3: bad wildcard segment (must end with '}'), got "/c/{"`,
		`Routes["/d/{x}/e"] must be a pattern of http.ServeMux: pattern "/d/{x}/e" conflicts with pattern "/d/e/{x}", got "/d/{x}/e"`,
		`Routes["G@T /f"] must be a pattern of http.ServeMux: parsing "G@T /f": at offset 0: invalid method "G@T", got "G@T /f"`,
		`Default is required with several policies: the one for requests that no route matches, or ratelimit.Unlimited ("unlimited")`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestMistakesOfOneKind(t *testing.T) {
	var typedNil *memstore.Store
	valid := func() ratelimit.Config {
		return ratelimit.Config{
			Store: exampleStore(), Key: ratelimit.ClientIP(),
			Policies: []ratelimit.Policy{policy("read", 5), {Name: "search", Quota: "read", Cost: 5}, policy("login", 5)},
			Default:  "read",
		}
	}
	for _, tc := range []struct {
		name string
		do   func(*ratelimit.Config)
		want string // the beginning of the one message, "" if there is no mistake
	}{
		{"none", func(*ratelimit.Config) {}, ""},
		{"no store", func(c *ratelimit.Config) { c.Store = nil }, "Store is required: redisstore.New(rdb), or memstore.New("},
		{"a nil store of a type", func(c *ratelimit.Config) { c.Store = typedNil }, "Store is required: "},
		{"no key", func(c *ratelimit.Config) { c.Key = nil }, "Key is required: who is counted, such as ratelimit.FirstOf("},
		{"no policies", func(c *ratelimit.Config) { c.Policies, c.Default = nil, ratelimit.Unlimited }, "Policies must hold at least one policy"},
		{"no default", func(c *ratelimit.Config) { c.Default = "" }, `Default is required with several policies: the one for requests that no route matches, or ratelimit.Unlimited ("unlimited")`},
		{"unknown default", func(c *ratelimit.Config) { c.Default = "nope" }, `Default must name one of the Policies, or be "unlimited", got "nope"`},
		{"unlimited default", func(c *ratelimit.Config) { c.Default = ratelimit.Unlimited }, ""},
		{"one policy needs no default", func(c *ratelimit.Config) { c.Policies, c.Default = c.Policies[:1], "" }, ""},
		{"failure below", func(c *ratelimit.Config) { c.Failure = -1 }, "Failure must be FailLocal, FailOpen or FailClosed, got -1"},
		{"a name as long as allowed", func(c *ratelimit.Config) { c.Policies[2].Name = strings.Repeat("n", 64) }, ""},
		{"a longer name", func(c *ratelimit.Config) { c.Policies[2].Name = strings.Repeat("n", 65) }, `Policies["nnnn`},
		{"a name that isn't ASCII", func(c *ratelimit.Config) { c.Policies[2].Name = "política" }, `Policies["política"].Name must be 1 to 64 of A-Z a-z 0-9 _ . -, got "política"`},
		{"a name with a line end", func(c *ratelimit.Config) { c.Policies[2].Name = "a\r\nX: y" }, `Policies["a\r\nX: y"].Name must be 1 to 64`},
		{"limits of one rule and other windows", func(c *ratelimit.Config) {
			c.Policies[2].Limits = append(perMinute(5), algorithms.FixedWindow{Limit: 50, Window: time.Hour}, algorithms.SlidingWindowLog{Limit: 5, Window: time.Minute})
		}, ""},
		{"buckets that share a counter", func(c *ratelimit.Config) {
			c.Policies[2].Limits = ratelimit.Limits{
				algorithms.TokenBucket{Capacity: 5, Refill: 1, Per: time.Second}, algorithms.TokenBucket{Capacity: 50, Refill: 2, Per: time.Second},
			}
		}, `Policies["login"].Limits[1] must not share a counter with [0]: give it another window or algorithm`},
		{"a window that Redis can't keep", func(c *ratelimit.Config) {
			c.Policies[2].Limits = ratelimit.Limits{algorithms.FixedWindow{Limit: 1, Window: time.Microsecond}}
		}, `Policies["login"].Limits[0].Window must be between 1ms and `},
		{"B50 limit 0", func(c *ratelimit.Config) { c.Policies[2].Limits = perMinute(0) }, `Policies["login"].Limits[0].Limit must be >= 1, got 0`},
		{"a negative limit", func(c *ratelimit.Config) { c.Policies[2].Limits = perMinute(-5) }, `Policies["login"].Limits[0].Limit must be >= 1, got -5`},
		{"an empty route", func(c *ratelimit.Config) { c.Routes = ratelimit.Routes{"/x": {}, "/y": nil} }, ""},
		{"no pattern", func(c *ratelimit.Config) { c.Routes = ratelimit.Routes{"": {"read"}} }, `Routes[""] must be a pattern of http.ServeMux: `},
		{"a pattern that is a method", func(c *ratelimit.Config) { c.Routes = ratelimit.Routes{"GET": {"read"}} }, `Routes["GET"] must be a pattern of http.ServeMux: `},
		{"a nil rule of a type", func(c *ratelimit.Config) {
			c.Policies[2].Limits = ratelimit.Limits{(*algorithms.FixedWindow)(nil)}
		}, `Policies["login"].Limits[0] `},
		{"policies of a route that together cost more than the quota has", func(c *ratelimit.Config) {
			c.Routes = ratelimit.Routes{"/x": {"read", "search"}}
		}, `Routes["/x"]`},
		{"limits for a tier without a name", func(c *ratelimit.Config) {
			c.Policies[2].Tiers = map[string]ratelimit.Limits{"": perMinute(9)}
		}, `Policies["login"].Tiers[""] `},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("New panicked: %v", p)
				}
			}()
			config := valid()
			tc.do(&config)
			limiter, err := ratelimit.New(config)
			if (limiter == nil) != (err != nil) {
				t.Errorf("got limiter %v beside error %v", limiter, err)
			}
			got := mistakes(t, err)
			if tc.want == "" && len(got) == 0 || tc.want != "" && len(got) == 1 && strings.HasPrefix(got[0], tc.want) {
				return
			}
			t.Errorf("got %q, want one beginning %q", got, tc.want)
		})
	}
}

// An error reads the same each time, whatever the order of a map.
func TestMistakesComeInAnOrder(t *testing.T) {
	tiers := make(map[string]ratelimit.Limits)
	routes := make(ratelimit.Routes)
	for _, name := range strings.Split("abcdefgh", "") {
		tiers[name], routes["/"+name] = perMinute(1), []string{"nope-" + name}
	}
	var first string
	for range 20 {
		_, err := ratelimit.New(ratelimit.Config{
			Store: exampleStore(), Key: ratelimit.ClientIP(),
			Policies: []ratelimit.Policy{{Name: "api", Cost: 2, Limits: perMinute(2), Tiers: tiers}}, Routes: routes,
		})
		if first == "" {
			first = err.Error()
		}
		if err.Error() != first {
			t.Fatalf("got\n%v\nthen\n%v", first, err)
		}
	}
}

func TestAMessageNamesNoFileOfOurs(t *testing.T) {
	_, err := ratelimit.New(ratelimit.Config{
		Store: exampleStore(), Key: ratelimit.ClientIP(), Policies: []ratelimit.Policy{policy("api", 1)},
		Routes: ratelimit.Routes{"/d/{x}/e": {"api"}, "/d/e/{x}": {"api"}, "/c/{": {}},
	})
	if err == nil || strings.Contains(err.Error(), ".go") {
		t.Errorf("got %v", err)
	}
}

// Config grows without breaking anybody: its literals name their fields, and nobody
// compares it or makes it a map key.
func TestConfigIsClosed(t *testing.T) {
	config := reflect.TypeFor[ratelimit.Config]()
	if config.Comparable() {
		t.Error("it can be compared")
	}
	first := config.Field(0)
	if first.Type != reflect.TypeFor[[0]func()]() || first.IsExported() || first.Type.Size() != 0 {
		t.Errorf("its first field is %v: literals without field names compile", first)
	}
}

func TestNewAsksTheStoreNothing(t *testing.T) { // B69
	store := newCounting(newFaulty(isAway))
	limiter := build(t, ratelimit.Config{Store: store, Routes: ratelimit.Routes{"/x": {"api"}}})
	limiter.Handler(http.NotFoundHandler())
	limiter.For("api")
	if store.calls != 0 {
		t.Errorf("it was asked %d times", store.calls)
	}
}
