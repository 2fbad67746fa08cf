package ratelimit

import (
	"container/list"
	"context"
	"strings"
	"sync"
	"time"
)

// askers are the callers of Wait under limits that hand out no turns. Of those who wait
// for one counter only the first asks the store, again when it was told to; the others
// stand behind it. So a key costs the store, however many wait, one question at a time.
type askers struct {
	lines *lines // counts who waits

	mu    sync.Mutex
	byKey map[string]*asking
}

// asking is who waits for one counter.
type asking struct {
	queue list.List // of *asker; the first asks
	until time.Time // the first isn't admitted before; zero if nobody knows
}

type asker struct {
	deadline time.Time // zero for none
	entered  bool      // counts as one who waits
	first    chan struct{}
	tooLate  chan struct{} // closed when the deadline can't be met
	until    time.Time     // the first wasn't admitted before, as far as was known then
	element  *list.Element
}

func newAskers(lines *lines) *askers { return &askers{lines: lines, byKey: make(map[string]*asking)} }

// join puts the asker at the end of its key's queue. Where it would be too late or one
// too many, it stands in none.
func (a *askers) join(key string, w *asker) (tooMany bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.byKey[key]
	if q == nil {
		q = new(asking)
		a.byKey[strings.Clone(key)] = q
	}
	w.first, w.tooLate, w.until = make(chan struct{}), make(chan struct{}), q.until
	switch {
	case q.queue.Len() == 0:
		close(w.first)
	case w.misses(q.until):
		close(w.tooLate)
		return false
	default:
		if w.entered = a.lines.enter(); !w.entered {
			return true
		}
	}
	w.element = q.queue.PushBack(w)
	return false
}

// wait is how long it takes at best, for an asker that isn't let wait.
func (w *asker) wait() time.Duration { return max(0, time.Until(w.until)) }

// misses says whether the asker can't be admitted by its deadline.
func (w *asker) misses(until time.Time) bool {
	return !w.deadline.IsZero() && w.deadline.Before(until)
}

// refused notes until when the first won't be admitted, and turns away all whose
// deadline is earlier.
func (a *askers) refused(key string, until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.byKey[key]
	q.until = until
	for e := q.queue.Front().Next(); e != nil; {
		w, next := e.Value.(*asker), e.Next()
		if w.misses(until) {
			q.queue.Remove(e)
			w.element, w.until = nil, until
			close(w.tooLate)
		}
		e = next
	}
}

// leave takes the asker out, and the next one may ask.
func (a *askers) leave(key string, w *asker) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.entered {
		w.entered = false
		a.lines.exit()
	}
	if w.element == nil {
		return
	}
	q := a.byKey[key]
	wasFirst := q.queue.Front() == w.element
	q.queue.Remove(w.element)
	w.element = nil
	if first := q.queue.Front(); first == nil {
		delete(a.byKey, key)
	} else if wasFirst {
		q.until = time.Time{}
		close(first.Value.(*asker).first)
	}
}

// sleep returns after so long, or when the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
