// Package redisstore keeps counters in Redis, through go-redis, so that all instances
// of a service share them.
//
// A decision is one EVALSHA, for one charge or several: all of them are counted or
// none, and the expiry is set in the same script. Time is the server's; the clocks of
// the instances don't matter. A decision is never sent twice: go-redis's own retries
// are off for it, and only NOSCRIPT, which says that nothing ran, is asked again.
//
// # Keys
//
// A counter is one key, such as
//
//	rl:{user:42}:api:sw2:60s
//
// the prefix, the charge's key, the format of the stored state and the window. A
// charge's key of more than 200 bytes is replaced by its hash tag and its SHA-256. Every key has a TTL:
// the time until the counter would be as good as new, in milliseconds, rounded up.
//
// # Several charges on a cluster
//
// A cluster runs a script on keys of one slot. Charges whose keys have a common hash tag
// ("{user:42}:api", "{user:42}:login"), as the limiter gives those of one identity, are
// one script there too. Charges of several hash tags, such as a limit per user and a
// backstop per address, are one script a tag on a *redis.ClusterClient or *redis.Ring,
// in the order of the tags; when one refuses, what those before it took is given back.
// That never lets more through than the limits. It can let less: between taking and
// giving back, other requests see the units as used, and if giving back fails they stay
// used until their window passes.
package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// DefaultPrefix begins every key unless Options say otherwise.
const DefaultPrefix = "rl:"

// Options are the optional settings of [New] and [Open].
type Options struct {
	// Prefix begins every key; "" means [DefaultPrefix]. A "{...}" in it would be the
	// hash tag of all keys and put them in one cluster slot.
	Prefix string
}

// Store is a store in Redis. Make it with [New] or [Open]. It is safe for concurrent
// use.
type Store struct {
	client  redis.UniversalClient
	owned   bool
	prefix  string
	scripts scripts
	queue   queue

	readTimeout time.Duration // of the client
}

// New makes a store on a client of yours: *redis.Client, *redis.ClusterClient or
// *redis.Ring. It sends nothing, so Redis may be away. At most one Options is used.
func New(client redis.UniversalClient, options ...Options) *Store {
	s := &Store{client: client, prefix: DefaultPrefix, scripts: assemble(clockLua), queue: queue{client: client, longest: longestWait}}
	var honoursDeadlines bool
	switch client := client.(type) {
	case *redis.Client:
		if client != nil {
			honoursDeadlines, s.readTimeout = client.Options().ContextTimeoutEnabled, client.Options().ReadTimeout
		}
	case *redis.ClusterClient:
		if s.queue.sharded = true; client != nil {
			honoursDeadlines, s.readTimeout = client.Options().ContextTimeoutEnabled, client.Options().ReadTimeout
		}
	case *redis.Ring:
		if s.queue.sharded = true; client != nil {
			honoursDeadlines, s.readTimeout = client.Options().ContextTimeoutEnabled, client.Options().ReadTimeout
		}
	}
	s.queue.patient = !honoursDeadlines
	for _, o := range options {
		if o.Prefix != "" {
			s.prefix = o.Prefix
		}
	}
	return s
}

// Open makes a store with a client of its own for a Redis URL such as
// redis://user:password@host:6379/0, rediss://... for TLS, or unix://... for a socket.
// It sends nothing, so Redis may be away. Settings that the URL does not name are made
// for deciding while a request waits: a context's deadline is honoured, dialling takes
// at most 1 s and is tried once, a read or write 500 ms, waiting for a connection
// 500 ms. Close it in the end.
func Open(url string, options ...Options) (*Store, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		// The parser's error may repeat the URL, and that holds a password.
		return nil, errors.New("ratelimit: redisstore: not a Redis URL, want redis://[user:password@]host:port/db")
	}
	o.ContextTimeoutEnabled = true
	o.DialerRetries = 1
	setDefault(&o.DialTimeout, time.Second)
	setDefault(&o.ReadTimeout, 500*time.Millisecond)
	setDefault(&o.WriteTimeout, 500*time.Millisecond)
	setDefault(&o.PoolTimeout, 500*time.Millisecond)
	s := New(redis.NewClient(o), options...)
	s.owned = true
	return s, nil
}

// Warnings says which settings of the client break a promise, and how to mend them. A
// limiter logs them once.
func (s *Store) Warnings() []string {
	const most = time.Second
	if !s.queue.patient || 0 < s.readTimeout && s.readTimeout <= most {
		return nil
	}
	return []string{fmt.Sprintf("ContextTimeoutEnabled is false, so a Redis that hangs keeps a connection for ReadTimeout (%v); set ContextTimeoutEnabled, or ReadTimeout to %v at most",
		s.readTimeout, most)}
}

// Close closes the client that [Open] made. On a store from [New] it does nothing: that
// client is yours. Closing twice is fine.
func (s *Store) Close() error {
	if !s.owned {
		return nil
	}
	if err := s.client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		return err
	}
	return nil
}

// Take decides the charges as one unit: every charge admits and is counted, or none is.
//
// When the context ends or the connection breaks after the script was sent, Take
// returns an error although the charges may have been counted.
func (s *Store) Take(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision) error {
	return s.decide(ctx, charges, decisions, nil, true)
}

// TakeState is Take, and also tells the state that each charge was decided on.
func (s *Store) TakeState(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision, states []algorithms.State) error {
	return s.decide(ctx, charges, decisions, states, true)
}

// Peek decides as Take would, and counts nothing.
func (s *Store) Peek(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision) error {
	return s.decide(ctx, charges, decisions, nil, false)
}

// Settle gives units back (negative Cost) or charges more (positive), never refusing.
// After an error the charges may have been settled.
func (s *Store) Settle(ctx context.Context, charges []algorithms.Charge) error {
	if err := s.check(ctx, charges); err != nil || len(charges) == 0 {
		return err
	}
	var errs error
	for group := range s.groups(charges) {
		errs = errors.Join(errs, s.settle(ctx, group))
	}
	return wrap(errs)
}

// Reset forgets the counters of the charges.
func (s *Store) Reset(ctx context.Context, charges []algorithms.Charge) error {
	if err := s.check(ctx, charges); err != nil || len(charges) == 0 {
		return err
	}
	var errs error
	for group := range s.groups(charges) {
		names := make([]string, len(group))
		for i := range group {
			names[i] = s.name(&group[i])
		}
		errs = errors.Join(errs, s.client.Del(ctx, names...).Err())
	}
	return wrap(errs)
}

func (s *Store) check(ctx context.Context, charges []algorithms.Charge) error {
	if s.client == nil {
		return errors.New("ratelimit: redisstore: New was given a nil client")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return algorithms.CheckCounters(charges)
}

func (s *Store) decide(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision, states []algorithms.State, count bool) error {
	if err := algorithms.Check(charges, decisions); err != nil {
		return err
	}
	if err := s.check(ctx, charges); err != nil || len(charges) == 0 {
		return err
	}
	if s.queue.sharded && len(charges) > 1 {
		return s.decideGroups(ctx, charges, decisions, states, count)
	}
	return s.decideTogether(ctx, charges, decisions, states, count)
}

// decideTogether decides charges whose counters are on one server, in one script.
func (s *Store) decideTogether(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision, states []algorithms.State, count bool) error {
	c := s.call(charges, count)
	back, err := s.queue.do(ctx, c)
	if err == nil {
		err = read(c.reply, charges, decisions, states)
	}
	if back {
		c.free()
	}
	return wrap(err)
}

func (s *Store) settle(ctx context.Context, charges []algorithms.Charge) error {
	args := s.names(charges)
	for i := range charges {
		a := charges[i].Algorithm
		p := a.Parameters()
		args = append(args, a.Shape().Format, charges[i].Cost, charges[i].Taken(), p[0], p[1], p[2])
	}
	c := newCall(plan{script: s.scripts.settle})
	c.args = args
	back, err := s.queue.do(ctx, c)
	if back {
		c.free()
	}
	return err
}

// call is the question whether the charges are admitted.
func (s *Store) call(charges []algorithms.Charge, count bool) *call {
	if len(charges) == 1 {
		charge := &charges[0]
		p := plan{script: s.scripts.take[charge.Algorithm.Shape().Format], cost: charge.Cost, parameters: charge.Algorithm.Parameters()}
		if count {
			p.count = 1
		}
		c := newCall(p)
		name := s.name(charge)
		if c.key = name; s.queue.sharded {
			c.tag = tagOf(name)
		}
		return c
	}
	mode := "peek"
	if count {
		mode = "take"
	}
	args := append(s.names(charges), mode)
	for i := range charges {
		a := charges[i].Algorithm
		p := a.Parameters()
		args = append(args, a.Shape().Format, charges[i].Cost, p[0], p[1], p[2])
	}
	c := newCall(plan{script: s.scripts.takeAll})
	c.args = args
	return c
}

// names begins the arguments of a script: how many keys, and the keys.
func (s *Store) names(charges []algorithms.Charge) []any {
	args := make([]any, 0, 2+7*len(charges))
	args = append(args, len(charges))
	for i := range charges {
		args = append(args, s.name(&charges[i]))
	}
	return args
}

// maxKey and maxTag are the longest charge key and hash tag that stand in a Redis key as
// they are. All names then are at most 256 bytes under a prefix of up to 24.
const (
	maxKey = 200
	maxTag = 120
)

// name is the Redis key of a counter.
func (s *Store) name(charge *algorithms.Charge) string {
	name := make([]byte, 0, len(s.prefix)+min(len(charge.Key), maxKey)+24)
	name = append(name, s.prefix...)
	name = appendKey(name, charge.Key)
	shape := charge.Algorithm.Shape()
	name = append(name, ':')
	name = append(name, shape.Format...)
	name = append(name, ':')
	if shape.Window%time.Second == 0 {
		name = strconv.AppendInt(name, int64(shape.Window/time.Second), 10)
		name = append(name, 's')
	} else {
		name = strconv.AppendInt(name, shape.Window.Microseconds(), 10)
		name = append(name, "us"...)
	}
	return string(name)
}

const hashMark = "sha256:"

// appendKey appends the key as it is, or the hash of one that is long, keeping its hash
// tag. What could be taken for a hash is hashed too.
func appendKey(name []byte, key string) []byte {
	tag := hashTag(key)
	if len(key) <= maxKey && len(tag) <= maxTag && !strings.Contains(key, hashMark) {
		return append(name, key...)
	}
	switch {
	case len(tag) > maxTag:
		name = append(name, '{')
		name = append(appendHash(name, tag), '}')
	case tag != "":
		name = append(name, '{')
		name = append(append(name, tag...), '}')
	}
	return appendHash(name, key)
}

func appendHash(name []byte, s string) []byte {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.AppendEncode(append(name, hashMark...), sum[:])
}

// hashTag is the part of a key that decides where a cluster keeps it, "" for all of it
// (Redis Cluster specification, hash tags).
func hashTag(key string) string {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok {
			return tag
		}
	}
	return ""
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("ratelimit: redisstore: %w", err)
}

func setDefault(d *time.Duration, to time.Duration) {
	if *d == 0 {
		*d = to
	}
}
