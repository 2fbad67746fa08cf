// Package ratelimit is net/http middleware that limits how much one client may ask of
// an API, with the counters in Redis, where every instance of the service sees them, or
// in the memory of one process.
//
// It answers one question a request: has this key used up what it may use? Three
// choices make that concrete, each written out in the [Config]:
//
//   - the key: who is counted. [APIKey], [UserID], [ClientIP], a function of yours, or
//     the [FirstOf] several;
//   - the limit and its window, which only mean something together: a rule of package
//     algorithms, named in a [Policy] for a class of routes;
//   - the action: pass on, or 429 with Retry-After, or [Delay] the request until its turn.
//     Code that is no handler asks [Limiter.Take], or waits in [Limiter.Wait].
//
// In short:
//
//	limiter, err := ratelimit.New(ratelimit.Config{
//		Store: redisstore.New(rdb),
//		Key:   ratelimit.FirstOf(ratelimit.APIKey(lookup), ratelimit.ClientIP()),
//		Policies: []ratelimit.Policy{{
//			Name:   "api",
//			Limits: ratelimit.Limits{algorithms.SlidingWindowCounter{Limit: 100, Window: time.Minute}},
//		}},
//	})
//	...
//	http.ListenAndServe(":8080", limiter.Handler(mux))
//
// # Words and units
//
// A limit is a number of units per window, a capacity the most a bucket holds; a
// request takes its cost in units, 1 unless the policy says otherwise. Policies draw on
// a quota, their own or a shared one. A tier is the plan a key is on. Durations are
// time.Duration, exact to the microsecond; in headers they are whole seconds, rounded
// up. X-RateLimit-Reset is seconds of the Unix epoch unless [Headers] say otherwise.
//
// # Rules for the surroundings
//
//   - Mount the limiter inside the authentication if it counts users, inside the CORS
//     middleware so that a browser can read a 429, and outside everything that is dear.
//   - Expose the headers to browsers: Access-Control-Expose-Headers takes what
//     [Limiter.HeaderNames] returns. A reverse proxy behind the limiter needs
//     [Limiter.StripUpstream] if its upstream sends such headers too.
//   - Behind reverse proxies name their networks in [ClientIP]; otherwise everybody has
//     the proxy's address. Don't rewrite RemoteAddr from headers before the limiter.
//   - Routes in Config match by net/http's rules. If your router has rules of its own,
//     let Config.Router ask it, or state the policy at the route with [Limiter.For].
//   - Redis should keep the counters: maxmemory-policy noeviction or volatile-ttl.
//
// # Compatibility
//
// Before version 1.0 the Go API may change between minor versions; CHANGELOG.md says
// how. The names and meanings of headers don't change without a major version. The
// format of stored state has a version in each key, so instances of an old and a new
// version can run side by side during a deploy; where the format changed, each counts
// by itself meanwhile.
package ratelimit
