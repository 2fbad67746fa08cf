package redisstore

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// lanes is how many round trips are under way at a time while they are quick.
	lanes = 2
	// extraLanes is how many more there can be when they are slow, and longestWait for how
	// long calls wait until they get one. All lanes together are fewer than the connections
	// of go-redis's smallest pool, 10.
	extraLanes  = 6
	longestWait = 2 * time.Millisecond
	// toConnect is how much longer than its callers wait the round trip of an extra lane
	// may take. It may have to connect first, which takes several: callers who leave
	// meanwhile would never find a connection otherwise.
	toConnect = time.Second
	// maxTogether bounds the calls of one round trip, and with it how long a script
	// holds Redis: about a microsecond a call.
	maxTogether = 256
	// maxWaiting bounds the memory that a Redis which has stopped answering can cost.
	maxWaiting = 1 << 14
)

// queue sends calls to Redis. A call that comes while a lane is free leaves at once. Those
// that come while all are taken leave together with the next round trip: charges under
// one rule as one script call, the rest in its pipeline. So the more callers there are,
// the less a decision costs, and none waits for company. Nor does any wait long for a far
// Redis to answer others: then the waiting make a round trip of their own.
type queue struct {
	client  redis.UniversalClient
	sharded bool // keys of different hash tags may be on different servers
	patient bool // the client waits for its own time-outs, whatever the context says
	longest time.Duration

	mu      sync.Mutex
	waiting []*call
	taken   int         // lanes
	extra   int         // lanes besides
	late    *time.Timer // runs while calls wait
}

// call is one script call that somebody waits for.
type call struct {
	plan plan
	key  any // the name of the counter, when the plan is for single charges
	tag  string
	args []any // the whole of the arguments otherwise

	state    atomic.Int32
	deadline time.Time // zero: none
	done     chan struct{}
	reply    []int64
	own      [5]int64 // what reply is made of
	err      error
}

// plan is what one script call decides for many single charges.
type plan struct {
	script     *script
	count      int
	cost       int64
	parameters [3]int64
}

// The states of a call.
const (
	waits = iota
	sent
	left
)

var calls = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

func newCall(p plan) *call {
	c := calls.Get().(*call)
	c.plan = p
	return c
}

// free takes back a call that is done. One whose caller has left belongs to its round trip.
func (c *call) free() {
	*c = call{done: c.done}
	calls.Put(c)
}

// do sends the call and waits for its reply. A caller whose context ends leaves at once:
// a call still waiting then is never sent, and of one that was nobody knows whether it ran.
// Only if do returns true is the call the caller's again.
func (q *queue) do(ctx context.Context, c *call) (back bool, err error) {
	q.mu.Lock()
	if len(q.waiting) >= maxWaiting {
		q.mu.Unlock()
		return true, fmt.Errorf("%d decisions wait for Redis already", maxWaiting)
	}
	free := q.taken < lanes && len(q.waiting) == 0
	if free {
		q.taken++
	}
	if free && !q.patient {
		q.mu.Unlock()
		defer q.leaveLane()
		q.sendOne(ctx, c)
		return true, c.err
	}
	c.deadline, _ = ctx.Deadline()
	q.waiting = append(q.waiting, c)
	if len(q.waiting) == 1 && !free {
		q.watch()
	}
	q.mu.Unlock()
	if free {
		go q.drive()
	}

	select {
	case <-c.done:
		return true, c.err
	case <-ctx.Done():
		c.state.CompareAndSwap(waits, left)
		return false, ctx.Err()
	}
}

// leaveLane gives the lane to those who wait, or frees it.
func (q *queue) leaveLane() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.taken--
		return
	}
	go q.drive()
}

// watch sees to it that whoever waits now waits for the longest, and no longer.
func (q *queue) watch() {
	if q.late == nil {
		q.late = time.AfterFunc(q.longest, q.driveOnce)
		return
	}
	q.late.Reset(q.longest)
}

// drive makes round trips until nobody waits.
func (q *queue) drive() {
	for {
		// Callers who were just answered and are about to ask again come along.
		runtime.Gosched()
		q.mu.Lock()
		together := q.next()
		if together == nil {
			q.taken--
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		q.send(together, 0)
	}
}

// driveOnce makes a round trip for those who have waited long.
func (q *queue) driveOnce() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.extra == extraLanes {
		return // whoever is next to come back takes them along
	}
	if together := q.next(); together != nil {
		q.extra++
		q.mu.Unlock()
		q.send(together, toConnect)
		q.mu.Lock()
		q.extra--
	}
}

// next takes out the calls of the next round trip, nil if nobody waits.
func (q *queue) next() []*call {
	n := min(len(q.waiting), maxTogether)
	if n == 0 {
		return nil
	}
	together := q.waiting[:n:n]
	if q.waiting = q.waiting[n:]; len(q.waiting) == 0 {
		q.waiting = nil
	} else {
		q.watch()
	}
	return together
}

// send makes one round trip and wakes its callers. It may take so much longer than they wait.
func (q *queue) send(together []*call, longer time.Duration) {
	ctx, cancel := deadlineOf(together, longer)
	defer cancel()
	trips := q.pack(ctx, together)
	if len(trips) == 0 {
		return
	}
	q.exec(ctx, trips)
	for i := range trips {
		trips[i].deliver()
	}
}

// deadlineOf is a context for as long as any of the callers waits, and longer. It is
// nobody's own: one who leaves takes no other along.
func deadlineOf(together []*call, longer time.Duration) (context.Context, context.CancelFunc) {
	var latest time.Time
	for _, c := range together {
		if c.deadline.IsZero() {
			return context.WithCancel(context.Background())
		}
		if c.deadline.After(latest) {
			latest = c.deadline
		}
	}
	return context.WithDeadline(context.Background(), latest.Add(longer))
}

func (q *queue) sendOne(ctx context.Context, c *call) {
	t := trip{calls: []*call{c}}
	t.cmd = t.command(ctx)
	trips := []trip{t}
	q.exec(ctx, trips)
	c.reply, c.err = trips[0].cmd.Val(), trips[0].cmd.Err()
}

// trip is one command of a round trip, for one call or for several single charges.
type trip struct {
	calls []*call
	cmd   onceCmd
}

// pack makes the commands of a round trip, in the order of their first calls, without
// those of callers who have left.
func (q *queue) pack(ctx context.Context, together []*call) []trip {
	var trips []trip
next:
	for _, c := range together {
		if !c.state.CompareAndSwap(waits, sent) {
			continue
		}
		if c.args == nil {
			for i := range trips {
				if t := &trips[i]; t.calls[0].goesWith(c, q.sharded) {
					t.calls = append(t.calls, c)
					continue next
				}
			}
		}
		trips = append(trips, trip{calls: []*call{c}})
	}
	for i := range trips {
		trips[i].cmd = trips[i].command(ctx)
	}
	return trips
}

func (c *call) goesWith(other *call, sharded bool) bool {
	return c.args == nil && c.plan == other.plan && (!sharded || c.tag == other.tag)
}

func (t *trip) command(ctx context.Context) onceCmd {
	p := t.calls[0].plan
	if t.calls[0].args != nil {
		return p.script.known(ctx, t.calls[0].args...)
	}
	args := make([]any, 0, 8+len(t.calls))
	args = append(args, "evalsha", p.script.digest, len(t.calls))
	for _, c := range t.calls {
		args = append(args, c.key)
	}
	args = append(args, p.count, p.cost, p.parameters[0], p.parameters[1], p.parameters[2])
	return newOnce(ctx, args)
}

// exec sends the commands by the digests of their scripts. Only the answer that Redis
// doesn't know one, which means that it didn't run, is asked again, with the source.
func (q *queue) exec(ctx context.Context, trips []trip) {
	q.process(ctx, trips)
	var again []*trip
	for i := range trips {
		if redis.HasErrorPrefix(trips[i].cmd.Err(), "NOSCRIPT") {
			again = append(again, &trips[i])
		}
	}
	for _, t := range again {
		t.cmd = t.calls[0].plan.script.unknown(ctx, t.cmd)
		_ = q.client.Process(ctx, t.cmd) // the command keeps its error
	}
}

func (q *queue) process(ctx context.Context, trips []trip) {
	if len(trips) == 1 {
		_ = q.client.Process(ctx, trips[0].cmd)
		return
	}
	pipeline := q.client.Pipeline()
	for i := range trips {
		_ = pipeline.Process(ctx, trips[i].cmd)
	}
	_, _ = pipeline.Exec(ctx) // each command keeps its own error
}

// deliver gives each call its part of the reply.
func (t *trip) deliver() {
	reply, err := t.cmd.Val(), t.cmd.Err()
	if err == nil && t.calls[0].args == nil {
		err = t.split(reply)
	} else {
		t.calls[0].reply = reply
	}
	for _, c := range t.calls {
		c.err = err
		c.done <- struct{}{}
	}
}

// split makes of the reply to many single charges one for each.
func (t *trip) split(reply []int64) error {
	n := len(t.calls)
	if len(reply) < 1+3*n {
		return errReply(reply, n)
	}
	for i, c := range t.calls {
		c.own = [5]int64{reply[0], reply[1+3*i], reply[2+3*i], reply[3+3*i], 1}
		c.reply = c.own[:4]
	}
	for _, refused := range reply[1+3*n:] {
		if refused < 1 || refused > int64(n) {
			return errReply(reply, n)
		}
		c := t.calls[refused-1]
		c.reply = c.own[:5]
	}
	return nil
}

func errReply(reply []int64, charges int) error {
	return fmt.Errorf("no reply to %d charges has the numbers %v; does a proxy rewrite replies?", charges, reply)
}
