package ratelimit

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Code names a kind of misuse that a limiter looks for while it serves. What it finds
// goes to Config.Logger as a warning, once for each code and limiter, with the
// attributes "code" and "help", the section of docs/misuse.md that says how to mend it.
// It never changes an answer. Config.Silence turns single codes off.
type Code string

// The codes. Those that look at requests look at the first 1,000 of a limiter.
const (
	// ForwardedUntrusted: requests arrive with X-Forwarded-For or the like, but count
	// against the address of the connection, which is a proxy's.
	ForwardedUntrusted Code = "RL001"
	// CountedTwice: two limiters around each other charge a request to one counter.
	CountedTwice Code = "RL002"
	// UserNeverFound: most requests have Authorization, but only addresses count.
	UserNeverFound Code = "RL003"
	// OneAddress: all requests come from one address, perhaps a load balancer's.
	OneAddress Code = "RL004"
	// KeysNeverRepeat: no key was seen twice, or the key has the connection's port.
	KeysNeverRepeat Code = "RL005"
	// CostOverLimit: CostOf asks for more than the limit, so no wait will do.
	CostOverLimit Code = "RL006"
	// BuiltInHandler: New was called while a request was served.
	BuiltInHandler Code = "RL007"
	// RouteNeverMatched: a pattern of Config.Routes matched none of 100,000 requests.
	RouteNeverMatched Code = "RL008"
	// StoreReadOnly: the store is a replica of Redis, which takes no writes.
	StoreReadOnly Code = "RL009"
	// StoreSettings: the store, or the client it was given, is set up so that a promise
	// doesn't hold. Said by New.
	StoreSettings Code = "RL010"
)

var misuses = [...]struct {
	code    Code
	message string
}{
	{ForwardedUntrusted, "ratelimit: requests were forwarded by a proxy that isn't trusted, so its clients share one key"},
	{CountedTwice, "ratelimit: two limiters charge one request to the same counter"},
	{UserNeverFound, "ratelimit: requests have Authorization, but no user or API key was ever found"},
	{OneAddress, "ratelimit: all requests come from one address"},
	{KeysNeverRepeat, "ratelimit: every request has a key of its own, so nobody is limited"},
	{CostOverLimit, "ratelimit: a request costs more than its limit and can never pass"},
	{BuiltInHandler, "ratelimit: a limiter was made while a request was served"},
	{RouteNeverMatched, "ratelimit: a route matches no request"},
	{StoreReadOnly, "ratelimit: the store is a read-only replica"},
	{StoreSettings, "ratelimit: the store's client has settings that break a promise"},
}

// find is the place of the code in misuses, -1 if it is none.
func (c Code) find() int {
	for i := range misuses {
		if misuses[i].code == c {
			return i
		}
	}
	return -1
}

func checkSilence(codes []Code, mistake func(string, any, string)) {
	for i, code := range codes {
		if code.find() < 0 {
			mistake(fmt.Sprintf("Silence[%d]", i), string(code), fmt.Sprintf("must be a Code, %s to %s", misuses[0].code, misuses[len(misuses)-1].code))
		}
	}
}

const (
	watchedRequests = 1000
	watchedRoutes   = 100_000
	// A client can write X-Forwarded-For too, so one request proves nothing.
	fewForwarded = 10
)

// watch looks for misuse. When the first requests are over, looking costs an atomic load.
type watch struct {
	logger *slog.Logger
	said   [len(misuses)]atomic.Bool // or silenced

	over atomic.Bool
	mu   sync.Mutex
	seen seen

	routesOver atomic.Bool
	routed     atomic.Int64
	routes     map[string]*atomic.Bool // which patterns have matched
}

// seen is what the first requests had in common.
type seen struct {
	requests   int
	authorized int // had Authorization
	byAddress  int // count against an address
	forwarded  int // of these: against the connection's, with a header of a proxy
	proxied    bool
	someone    bool // a user, an API key or a kind of the service's own was found
	first      Key
	several    bool // not all keys are the first
	seed       maphash.Seed
	hashes     []uint64 // of the keys, as long as each could be a new one
}

func newWatch(c *compiled) *watch {
	w := &watch{logger: c.Logger, routes: make(map[string]*atomic.Bool)}
	for _, code := range c.Silence {
		w.said[code.find()].Store(true)
	}
	for pattern := range c.Routes {
		w.routes[pattern] = new(atomic.Bool)
	}
	w.routesOver.Store(len(w.routes) == 0)
	w.seen.seed = maphash.MakeSeed()
	w.built()
	w.settings(c.Store)
	return w
}

// say logs a code unless that was done, or the code is silenced.
func (w *watch) say(ctx context.Context, code Code, details ...slog.Attr) {
	i := code.find()
	if !w.said[i].CompareAndSwap(false, true) {
		return
	}
	attrs := append([]slog.Attr{
		slog.String("code", string(code)),
		slog.String("help", "docs/misuse.md#"+strings.ToLower(string(code))),
	}, details...)
	w.logger.LogAttrs(ctx, slog.LevelWarn, misuses[i].message, attrs...)
}

// request looks at a request whose charges are known.
func (w *watch) request(r *http.Request, p *passed) {
	if w.over.Load() {
		return
	}
	w.countedTwice(p)
	w.mu.Lock()
	found := w.seen.add(r, p.admission.Key)
	if w.seen.requests == watchedRequests {
		found = append(found, w.seen.conclude()...)
		w.seen = seen{requests: watchedRequests + 1} // those who came in meanwhile are too late
		w.over.Store(true)
	}
	w.mu.Unlock()
	for _, f := range found { // not under the lock: a log may be slow
		w.say(p, f.code, f.details...)
	}
}

type finding struct {
	code    Code
	details []slog.Attr
}

// add takes a request into account and says what it proves by itself.
func (s *seen) add(r *http.Request, key Key) (found []finding) {
	if s.requests >= watchedRequests {
		return nil
	}
	if s.requests++; s.requests == 1 {
		s.first = key
	}
	if r.Header.Get("Authorization") != "" {
		s.authorized++
	}
	s.several = s.several || key.ID != s.first.ID || key.Kind != s.first.Kind
	s.someone = s.someone || key.Kind != "ip" && key.Kind != anonymous.Kind
	network, isNetwork := parseNetwork(key.ID)
	if key.Kind == "ip" && isNetwork {
		found = s.addAddress(r, key, network)
	}

	// An address by itself holds nothing that could be new each time; a busy service
	// may well get 1,000 requests from as many.
	if isNetwork || key == anonymous {
		return found
	}
	if _, err := netip.ParseAddrPort(key.ID); err == nil && key.ID == r.RemoteAddr {
		found = append(found, finding{KeysNeverRepeat, []slog.Attr{slog.String("kind", key.Kind), slog.String("because", "the key has the port of the connection")}})
	}
	if s.hashes == nil {
		s.hashes = make([]uint64, 0, watchedRequests)
	}
	s.hashes = append(s.hashes, maphash.String(s.seed, key.ID))
	return found
}

var forwardingHeaders = [...]string{"X-Forwarded-For", "Forwarded", "X-Real-Ip", "Cf-Connecting-Ip", "True-Client-Ip"}

// addAddress takes a request that counts against an address into account.
func (s *seen) addAddress(r *http.Request, key Key, network netip.Prefix) []finding {
	s.byAddress++
	peer, ok := parseHop(r.RemoteAddr)
	if !ok || !network.Contains(peer) {
		s.proxied = true // somebody's header is believed
		return nil
	}
	for _, name := range forwardingHeaders {
		value := r.Header.Get(name)
		// A header that names the peer is the peer's own doing, or RemoteAddr was
		// rewritten from it.
		if value == "" || strings.Contains(value, peer.String()) {
			continue
		}
		s.forwarded++
		if s.untrusted() {
			return []finding{{ForwardedUntrusted, []slog.Attr{slog.String("header", name), slog.String("address", key.ID)}}}
		}
		return nil
	}
	return nil
}

// untrusted says that clients are behind a proxy whose word nobody takes.
func (s *seen) untrusted() bool {
	return !s.proxied && s.forwarded >= fewForwarded && 2*s.forwarded >= s.byAddress
}

// conclude says what all the requests prove together.
func (s *seen) conclude() (found []finding) {
	if !s.someone && 2*s.authorized >= s.requests {
		found = append(found, finding{UserNeverFound, nil})
	}
	if s.first.Kind == "ip" && !s.several && !s.untrusted() {
		found = append(found, finding{OneAddress, []slog.Attr{slog.String("address", s.first.ID)}})
	}
	if len(s.hashes) == s.requests {
		slices.Sort(s.hashes)
		if len(slices.Compact(s.hashes)) == s.requests {
			found = append(found, finding{KeysNeverRepeat, []slog.Attr{slog.String("kind", s.first.Kind)}})
		}
	}
	return found
}

// parseNetwork reads an address or a prefix of addresses, as [ClientAddress] makes them.
func parseNetwork(id string) (netip.Prefix, bool) {
	if addr, err := netip.ParseAddr(id); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	prefix, err := netip.ParsePrefix(id)
	return prefix, err == nil
}

// countedTwice looks for another limiter outside this one that charges the same counter.
func (w *watch) countedTwice(p *passed) {
	outer, _ := p.Context.Value(admissionKey{}).(*passed)
	for outer != nil {
		if policy := p.chargedBy(outer); policy != "" {
			w.say(p, CountedTwice, slog.String("policy", policy))
			return
		}
		outer, _ = outer.Context.Value(admissionKey{}).(*passed)
	}
}

// chargedBy names a policy of this pass that draws on a counter which the outer pass of
// another limiter has charged, "" if there is none.
func (p *passed) chargedBy(outer *passed) string {
	if outer.limiter == p.limiter || !sameStore(outer.limiter.config.Load().Store, p.limiter.config.Load().Store) {
		return ""
	}
	outer.mu.Lock()
	defer outer.mu.Unlock()
	if outer.batch == nil {
		return ""
	}
	for i, charge := range p.batch.charges {
		for _, other := range outer.batch.charges {
			if charge.Key == other.Key && charge.Algorithm.Shape() == other.Algorithm.Shape() {
				return p.batch.owners[i].Name
			}
		}
	}
	return ""
}

func sameStore(a, b Store) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// refused looks at a refused request for a cost that no wait will make affordable.
func (w *watch) refused(p *passed) {
	b := p.batch
	for i, charge := range b.charges[:b.enforced] {
		if b.decisions[i].Allowed || b.decisions[i].RetryAfter != Never {
			continue
		}
		for _, e := range b.entries {
			if e.CostOf != nil && e.key == charge.Key {
				w.say(p, CostOverLimit, slog.String("policy", e.Name), slog.Int64("cost", charge.Cost), slog.Int64("limit", b.decisions[i].Limit))
			}
		}
	}
}

// route notes that a pattern of Config.Routes matched a request, or "" that none did.
func (w *watch) route(ctx context.Context, pattern string) {
	if w.routesOver.Load() {
		return
	}
	if matched := w.routes[pattern]; matched != nil && !matched.Load() {
		matched.Store(true)
	}
	if w.routed.Add(1) != watchedRoutes {
		return
	}
	w.routesOver.Store(true)
	var never []string
	for pattern, matched := range w.routes {
		if !matched.Load() {
			never = append(never, pattern)
		}
	}
	if len(never) > 0 {
		slices.Sort(never)
		w.say(ctx, RouteNeverMatched, slog.Any("routes", never))
	}
}

// storeFailed looks at an error of the store. The text is Redis's own and older than any
// client; the limiter links none that could give it a type.
func (w *watch) storeFailed(ctx context.Context, err error) {
	if strings.Contains(err.Error(), "READONLY ") {
		w.say(ctx, StoreReadOnly)
	}
}

// places are the lines that made a limiter while serving a request. It is kept outside
// of limiters, because each of these would report itself, one a request.
var places sync.Map

// settings asks a store that can tell what of its setup breaks a promise.
func (w *watch) settings(store Store) {
	if s, ok := store.(interface{ Warnings() []string }); ok {
		if warnings := s.Warnings(); len(warnings) > 0 {
			w.say(context.Background(), StoreSettings, slog.Any("settings", warnings))
		}
	}
}

// built looks whether New runs in a handler. A limiter made there once, under a
// sync.Once, is fine.
func (w *watch) built() {
	var pcs [128]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(4, pcs[:])]) // from the caller of New
	place, handling := "", false
	for more := true; more && !handling; {
		var f runtime.Frame
		f, more = frames.Next()
		if place == "" {
			place = fmt.Sprintf("%s:%d", f.File, f.Line)
		}
		switch {
		case strings.HasPrefix(f.Function, "sync.(*Once)"):
			return
		case f.Function == "net/http.HandlerFunc.ServeHTTP", f.Function == "net/http.serverHandler.ServeHTTP":
			handling = true
		}
	}
	if !handling || w.said[BuiltInHandler.find()].Load() {
		return
	}
	if _, known := places.LoadOrStore(place, true); !known {
		w.say(context.Background(), BuiltInHandler, slog.String("place", place))
	}
}
