package ratelimit

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// batch is the charges of a request and their answers.
type batch struct {
	charges   []algorithms.Charge
	decisions []Decision
	owners    []*policy // of each charge
	blocks    []bool    // which charges are a Penalty's block
	entries   []entry
	waits     bool    // whatever the Action: the caller waits
	enforced  int     // how many of the charges can refuse; the others are shadows'
	tried     bool    // the shadows' have been taken too
	never     *policy // its limits can't be, so it refuses everything
}

// entry is one policy's part in the batch.
type entry struct {
	*policy
	identity string
	key      string // of its counters, "" if it has none
	cost     int64
	shadow   bool
}

var batches = sync.Pool{New: func() any { return new(batch) }}

func newBatch() *batch { return batches.Get().(*batch) }

// free keeps what the slices hold: a pool that nobody uses is emptied by the collector,
// and clearing a batch costs more than filling it.
func (b *batch) free() {
	*b = batch{charges: b.charges[:0], decisions: b.decisions[:0], owners: b.owners[:0], blocks: b.blocks[:0], entries: b.entries[:0]}
	batches.Put(b)
}

// toTake is the charges that can refuse: none if one of the policies refuses everything.
func (b *batch) toTake() []algorithms.Charge {
	if b.never != nil {
		return nil
	}
	return b.charges[:b.enforced]
}

// add charges the identity under the policy. Policies of one quota and identity add up
// to one charge, shadows apart.
func (b *batch) add(texts *strings.Builder, p *policy, identity string, limits Limits, cost int64, shadow bool) {
	if len(limits) == 0 {
		b.entries = append(b.entries, entry{p, identity, "", cost, shadow})
		if !shadow {
			b.never = p
		}
		return
	}
	key := counterKey(texts, p, identity)
	b.entries = append(b.entries, entry{p, identity, key, cost, shadow})
	from := 0
	if shadow {
		from = b.enforced
	}
	if i := b.find(key, from); i >= 0 {
		for ; i < len(b.charges) && b.charges[i].Key == key; i++ {
			b.charges[i].Cost += cost
		}
	} else {
		for _, a := range limits {
			b.append(p, algorithms.Charge{Key: key, Algorithm: a, Cost: cost}, false)
		}
	}
	if p.Penalty != (Penalty{}) {
		b.append(p, algorithms.Charge{Key: blockKey(p, identity), Algorithm: p.Penalty.block()}, true)
	}
	if !shadow {
		b.enforced = len(b.charges)
	}
}

func (b *batch) append(p *policy, charge algorithms.Charge, block bool) {
	b.charges = append(b.charges, charge)
	b.decisions = append(b.decisions, Decision{})
	b.owners = append(b.owners, p)
	b.blocks = append(b.blocks, block)
}

func (b *batch) find(key string, from int) int {
	for i := from; i < len(b.charges); i++ {
		if b.charges[i].Key == key {
			return i
		}
	}
	return -1
}

// tightest returns the decision to announce of the charges in a range, and whose it is;
// a nil policy if there are none.
func (b *batch) tightest(from, to int) (*policy, *Decision) {
	if b.never != nil && from == 0 {
		return b.never, &Decision{At: time.Now(), RetryAfter: Never} // no store was asked
	}
	for i := from; i < to; i++ {
		if b.blocks[i] {
			b.speakAsLimit(i)
		}
	}
	if from == to {
		return nil, nil
	}
	i := from + tightest(b.decisions[from:to])
	return b.owners[i], &b.decisions[i]
}

// answer is the decision of a limit, which refuses while a block of its policy holds.
func (b *batch) answer(i int) Decision {
	d := b.decisions[i]
	for j := range b.charges[:b.enforced] {
		block := &b.decisions[j]
		if b.blocks[j] && !block.Allowed && b.owners[j].quota == b.owners[i].quota &&
			b.identityOf(b.owners[j]) == b.identityOf(b.owners[i]) {
			d.Allowed, d.Remaining, d.RetryAfter = false, 0, max(d.RetryAfter, block.RetryAfter)
		}
	}
	return d
}

// delays says whether a charge is held until its turn, and for how long at most.
func (b *batch) delays(i int) (most time.Duration, delays bool) {
	most = forever
	for _, e := range b.entries {
		if (e.Action == Delay || b.waits) && e.key == b.charges[i].Key && e.shadow == (i >= b.enforced) {
			delays = true
			if e.MaxWait > 0 {
				most = min(most, e.MaxWait)
			}
		}
	}
	return most, delays
}

// only leaves one charge with a decision that no store made.
func (b *batch) only(i int, d Decision) {
	b.charges[0], b.owners[0], b.blocks[0], b.decisions[0] = b.charges[i], b.owners[i], b.blocks[i], d
	b.charges, b.owners, b.blocks, b.decisions = b.charges[:1], b.owners[:1], b.blocks[:1], b.decisions[:1]
	b.enforced = 1
}

// item is the name of a limit in the RateLimit fields: the policy's, and the limit's
// place where the policy has several.
func (b *batch) item(i int) string {
	p, first, last := b.owners[i], i, i
	for first > 0 && b.charges[first-1].Key == b.charges[i].Key {
		first--
	}
	for last+1 < b.enforced && b.charges[last+1].Key == b.charges[i].Key {
		last++
	}
	if first == last {
		return p.Name
	}
	return p.Name + p.dots + strconv.Itoa(i-first+1)
}

// violated names the limits that refuse.
func (b *batch) violated() []string {
	var items []string
	for i := range b.charges[:b.enforced] {
		if !b.blocks[i] && !b.answer(i).Allowed {
			items = append(items, b.item(i))
		}
	}
	if b.never != nil {
		items = append(items, b.never.Name)
	}
	return items
}

func (b *batch) identityOf(p *policy) string {
	for _, e := range b.entries {
		if e.policy == p {
			return e.identity
		}
	}
	return ""
}

// speakAsLimit makes the decision of a block one of its policy's limit: with nothing
// left while it holds, and the least tight of all while it doesn't.
func (b *batch) speakAsLimit(block int) {
	d := &b.decisions[block]
	if d.Allowed {
		d.Remaining = math.MaxInt64
		return
	}
	d.Remaining, d.ResetAfter = 0, d.RetryAfter
	for i := range b.charges {
		sameLimits := b.owners[i].quota == b.owners[block].quota && b.identityOf(b.owners[i]) == b.identityOf(b.owners[block])
		if sameLimits && !b.blocks[i] {
			d.Limit = b.decisions[i].Limit
			return
		}
	}
}

// settle adds to the charges of a settlement those that change what the entry used up by n
// units. Where entries share a counter, their changes add up to one charge. What is held
// under a lease comes back with it.
func (b *batch) settle(charges []algorithms.Charge, e entry, n int64) []algorithms.Charge {
	from, to := b.countersOf(e)
	for j := from; j < to; j++ {
		if b.decisions[j].Lease > 0 {
			continue
		}
		charge := b.charges[j]
		i := slices.IndexFunc(charges, func(c algorithms.Charge) bool {
			return c.Key == charge.Key && c.Algorithm.Shape() == charge.Algorithm.Shape()
		})
		if i < 0 {
			charge.Cost, charge.At = 0, b.decisions[j].At
			i = len(charges)
			charges = append(charges, charge)
		}
		charges[i].Cost += n
	}
	return charges
}

// countersOf is the run of charges, one for each limit, that the entry has taken: none
// of a shadow that refused.
func (b *batch) countersOf(e entry) (from, to int) {
	first, end := 0, b.enforced
	if e.shadow {
		first, end = end, len(b.charges)
	}
	from = b.find(e.key, first)
	if from < 0 || from >= end || e.shadow && !b.tried {
		return 0, 0
	}
	to = from
	for to < end && b.charges[to].Key == e.key {
		to++
	}
	return from, to
}

// The keys of one identity share a hash tag, and with it a slot of a cluster.

func counterKey(texts *strings.Builder, p *policy, identity string) string {
	from := texts.Len()
	texts.WriteByte('{')
	texts.WriteString(identity)
	texts.WriteString("}:")
	texts.WriteString(p.quota.name)
	return texts.String()[from:]
}

func blockKey(p *policy, identity string) string { return "{" + identity + "}:" + p.Name + "!block" }

func pauseKey(counter string) string { return counter + "!pause" }

// isBlock says whether a key is of a block or a pause. No name of a quota has such an end.
func isBlock(key string) bool {
	return strings.HasSuffix(key, "!block") || strings.HasSuffix(key, "!pause")
}

func refusalsKey(p *policy, identity string) string {
	return "{" + identity + "}:" + p.Name + "!refusals"
}
