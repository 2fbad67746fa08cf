package ratelimit

import (
	"container/list"
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// lines are the waiters of this process, a line for each counter that somebody waits
// for. A store hands out turns; here they are kept as slots, instants of this process's
// own clock, and the first waiter leaves when the first slot's instant has come. There
// is one timer a line, and no goroutine.
//
// Waiters stand in the order in which the store handed out the slots they came with. A
// waiter that gives up leaves its slot behind, so those after it move up, and the slot at
// the end becomes a spare one, which the next arrival takes before it asks the store.
type lines struct {
	most int // that may wait

	mu      sync.Mutex
	waiting int
	slots   int // of all lines
	queued  int // in all lines
	byKey   map[string]*line
}

// slot is an instant at which so many units may leave. It is of as many units as the
// store counted for it: the next slot is that much later.
type slot struct {
	at    time.Time
	units int64
}

// line has a slot for each waiter: the one it came with, or an earlier one. Only where
// costs differ and answers of the store overtake each other can the last slot be too
// small for the last waiter, who then leaves with it.
type line struct {
	key     string
	slots   []slot     // in time
	waiters *list.List // of *waiter
	timer   *time.Timer
}

type waiter struct {
	came  slot
	units int64
	turn  chan struct{} // closed when it comes

	line    *line // nil when it has left
	element *list.Element
}

func newLines(most int) *lines { return &lines{most: most, byKey: make(map[string]*line)} }

// enter counts one more who waits, unless there are too many.
func (l *lines) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting >= l.most {
		return false
	}
	l.waiting++
	return true
}

// exit counts one less.
func (l *lines) exit() {
	l.mu.Lock()
	l.waiting--
	l.mu.Unlock()
}

func (l *lines) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting
}

// join puts a waiter of some units with its slot in the line: behind those of earlier slots,
// or with a spare one behind as many as there are earlier slots, so before those who have
// come since it was claimed. It is nil where there is nothing to wait for.
func (l *lines) join(key string, s slot, units int64, spare bool) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	ln := l.byKey[key]
	if !s.at.After(now) && (ln == nil || ln.waiters.Len() == 0) {
		return nil
	}
	ln = l.line(key)
	w := &waiter{came: s, units: units, turn: make(chan struct{}), line: ln}
	earlier := l.insert(ln, s)
	before := ln.waiters.Back()
	for n := ln.waiters.Len(); n > 0 && (spare && n > earlier || !spare && before.Value.(*waiter).came.at.After(s.at)); n-- {
		before = before.Prev()
	}
	if before == nil {
		w.element = ln.waiters.PushFront(w)
	} else {
		w.element = ln.waiters.InsertAfter(w, before)
	}
	l.queued++
	l.release(ln, now)
	return w
}

// wait waits for the turn. When the context ends before, the waiter leaves.
func (l *lines) wait(ctx context.Context, w *waiter) error {
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
	}
	if l.leave(w) {
		return ctx.Err()
	}
	return nil // its turn came first
}

// leave takes the waiter out of its line and leaves its slot to the others. It is false
// when the turn has come.
func (l *lines) leave(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := w.line
	if ln == nil {
		return false
	}
	l.remove(w)
	if l.slots-l.queued > l.most {
		if last := len(ln.slots) - 1; ln.spare() <= last {
			l.discard(ln, last) // no memory for what nobody may ever use
		}
	}
	l.release(ln, time.Now())
	return true
}

// give leaves a slot, that nobody stands in line with, to whoever can use it.
func (l *lines) give(key string, s slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !s.at.After(now) || l.slots-l.queued >= l.most {
		return
	}
	ln := l.line(key)
	l.insert(ln, s)
	l.release(ln, now)
}

// claim takes a spare slot for so many units out of the line, if there is one in time.
func (l *lines) claim(key string, units int64, latest time.Time) (slot, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.byKey[key]
	if ln == nil {
		return slot{}, false
	}
	now := time.Now()
	l.release(ln, now)
	for i := ln.spare(); i < len(ln.slots) && !ln.slots[i].at.After(latest); i++ {
		if s := ln.slots[i]; s.units >= units {
			l.discard(ln, i)
			l.release(ln, now)
			return s, true
		}
	}
	return slot{}, false
}

// ahead tells, of a key that somebody waits for, how long it takes until the first in
// its line leaves, and until the last does.
func (l *lines) ahead(key string) (first, last time.Duration, some bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.byKey[key]
	if ln == nil || ln.waiters.Len() == 0 {
		return 0, 0, false
	}
	now := time.Now()
	return max(0, ln.slots[0].at.Sub(now)), max(0, ln.slots[len(ln.slots)-1].at.Sub(now)), true
}

func (l *lines) line(key string) *line {
	ln := l.byKey[key]
	if ln == nil {
		ln = &line{key: strings.Clone(key), waiters: list.New()}
		ln.timer = time.AfterFunc(forever, func() { l.due(ln) })
		l.byKey[ln.key] = ln
	}
	return ln
}

// insert tells how many slots are earlier.
func (l *lines) insert(ln *line, s slot) int {
	i := len(ln.slots)
	for i > 0 && ln.slots[i-1].at.After(s.at) {
		i--
	}
	ln.slots = slices.Insert(ln.slots, i, s)
	l.slots++
	return i
}

func (l *lines) discard(ln *line, i int) {
	ln.slots = slices.Delete(ln.slots, i, i+1)
	l.slots--
}

// spare is the place of the first slot that is left when all who wait have theirs.
func (ln *line) spare() int {
	if len(ln.slots) == ln.waiters.Len() {
		return len(ln.slots)
	}
	i := 0
	for e := ln.waiters.Front(); e != nil && i < len(ln.slots); i++ {
		if e.Value.(*waiter).units <= ln.slots[i].units {
			e = e.Next()
		}
	}
	return i
}

func (l *lines) remove(w *waiter) {
	w.line.waiters.Remove(w.element)
	w.line = nil
	l.queued--
}

// due is called by the line's timer.
func (l *lines) due(ln *line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byKey[ln.key] == ln {
		l.release(ln, time.Now())
	}
}

// release lets go whose turn has come, and sets the timer to the next.
func (l *lines) release(ln *line, now time.Time) {
	for len(ln.slots) > 0 && !ln.slots[0].at.After(now) {
		s := ln.slots[0]
		ln.slots = ln.slots[1:]
		l.slots--
		// A slot too small for the first stays empty, so that nobody is overtaken.
		if first := ln.waiters.Front(); first != nil && first.Value.(*waiter).units <= s.units {
			l.call(first)
		}
	}
	if len(ln.slots) > 0 {
		ln.timer.Reset(ln.slots[0].at.Sub(now))
		return
	}
	for ln.waiters.Len() > 0 { // see line
		l.call(ln.waiters.Front())
	}
	ln.timer.Stop()
	delete(l.byKey, ln.key)
}

func (l *lines) call(e *list.Element) {
	w := e.Value.(*waiter)
	l.remove(w)
	close(w.turn)
}
