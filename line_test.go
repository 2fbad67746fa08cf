package ratelimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lineTest is a line and who left it when.
type lineTest struct {
	lines *lines
	begin time.Time
	mu    sync.Mutex
	left  []string
	gone  map[string]context.CancelFunc
}

func (l *lineTest) slot(ms, units int64) slot {
	return slot{l.begin.Add(time.Duration(ms) * time.Millisecond), units}
}

// join puts a waiter of so many units with its slot in the line. That it leaves is noted
// as "name@ms".
func (l *lineTest) join(name string, ms, units int64) {
	l.enter(name, ms, units, false)
}

func (l *lineTest) enter(name string, ms, units int64, spare bool) {
	ctx, cancel := context.WithCancel(context.Background())
	l.gone[name] = cancel
	w := l.lines.join("k", l.slot(ms, units), units, spare)
	go func() {
		if w != nil && l.lines.wait(ctx, w) != nil {
			return
		}
		l.mu.Lock()
		l.left = append(l.left, fmt.Sprintf("%s@%d", name, time.Since(l.begin).Milliseconds()))
		l.mu.Unlock()
	}()
	synctest.Wait()
}

func (l *lineTest) cancel(name string) {
	l.gone[name]()
	synctest.Wait()
}

func (l *lineTest) claim(units, latest int64) string {
	s, ok := l.lines.claim("k", units, l.slot(latest, 0).at)
	if !ok {
		return "none"
	}
	return fmt.Sprint(s.at.Sub(l.begin).Milliseconds())
}

func TestWaitersLeaveAtTheSlotsOfTheirLine(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(l *lineTest) string // a claim's answer, if one is made
		want string
	}{
		{"each at its own", func(l *lineTest) string {
			l.join("a", 10, 1)
			l.join("b", 20, 1)
			l.join("c", 30, 1)
			return ""
		}, "a@10 b@20 c@30"},
		{"there is nothing to wait for", func(l *lineTest) string {
			l.join("a", 0, 1)
			return ""
		}, "a@0"},
		{"answers of the store overtake each other", func(l *lineTest) string {
			l.join("b", 20, 1)
			l.join("a", 10, 1)
			return ""
		}, "a@10 b@20"},
		{"those behind who gives up move up", func(l *lineTest) string {
			l.join("a", 10, 1)
			l.join("b", 20, 1)
			l.join("c", 30, 1)
			l.cancel("a")
			return ""
		}, "b@10 c@20"},
		{"who gives up in the middle holds up nobody", func(l *lineTest) string {
			l.join("a", 10, 1)
			l.join("b", 20, 1)
			l.join("c", 30, 1)
			l.cancel("b")
			return ""
		}, "a@10 c@20"},
		{"the slot at the end is spare", func(l *lineTest) string {
			l.join("a", 10, 1)
			l.join("b", 20, 1)
			l.cancel("a")
			return l.claim(1, 100)
		}, "b@10, claimed 20"},
		{"no slot is spare while each is needed", func(l *lineTest) string {
			l.join("a", 10, 1)
			return l.claim(1, 100)
		}, "a@10, claimed none"},
		{"a spare slot is used once", func(l *lineTest) string {
			l.join("a", 10, 1)
			l.cancel("a")
			return l.claim(1, 100) + " " + l.claim(1, 100)
		}, ", claimed 10 none"},
		{"a spare slot is too late", func(l *lineTest) string {
			l.join("a", 10, 1)
			l.cancel("a")
			return l.claim(1, 9)
		}, ", claimed none"},
		{"who has claimed a spare slot comes after those who were there", func(l *lineTest) string {
			for i, name := range []string{"a", "b", "c", "d"} {
				l.join(name, 10*int64(i+1), 1)
			}
			l.cancel("a")
			l.cancel("b")
			claimed := l.claim(1, 100)
			l.enter("e", 30, 1, true)
			return claimed
		}, "c@10 d@20 e@30, claimed 30"},
		{"who has claimed a spare slot comes before those who came since", func(l *lineTest) string {
			l.join("a", 10, 1)
			l.join("b", 20, 1)
			l.cancel("a")
			claimed := l.claim(1, 100)
			l.join("d", 30, 1) // while the store is asked
			l.enter("c", 20, 1, true)
			return claimed
		}, "b@10 c@20 d@30, claimed 20"},
		{"a spare slot that passes is lost", func(l *lineTest) string {
			l.join("a", 10, 1)
			l.cancel("a")
			time.Sleep(10 * time.Millisecond)
			return l.claim(1, 100)
		}, ", claimed none"},
		{"a slot that is given is of use", func(l *lineTest) string {
			l.join("a", 20, 1)
			l.lines.give("k", l.slot(10, 1))
			return l.claim(1, 100)
		}, "a@10, claimed 20"},
		{"a dear waiter doesn't fit a cheap slot, nor is it overtaken", func(l *lineTest) string {
			l.join("a", 10, 1)
			l.join("b", 20, 3)
			l.join("c", 50, 1)
			l.cancel("a")
			return l.claim(1, 100)
		}, "b@20 c@50, claimed none"},
		{"a cheap waiter fits a dear slot", func(l *lineTest) string {
			l.join("a", 10, 3)
			l.join("b", 40, 1)
			l.cancel("a")
			return l.claim(3, 100) + " " + l.claim(1, 100)
		}, "b@10, claimed none 40"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &lineTest{lines: newLines(100), begin: time.Now(), gone: make(map[string]context.CancelFunc)}
				claimed := tc.do(l)
				time.Sleep(time.Second)
				synctest.Wait()
				got := strings.Join(l.left, " ")
				if claimed != "" {
					got += ", claimed " + claimed
				}
				if got != tc.want {
					t.Errorf("got %q, want %q", got, tc.want)
				}
				wantNoLines(t, l.lines)
				for _, cancel := range l.gone {
					cancel()
				}
			})
		})
	}
}

// Random lives of lines: each waiter leaves at a slot, no slot is used twice, nobody
// later than the slot it came with, and of equal costs nobody overtakes.
func TestNoSlotIsUsedTwiceAndNobodyWaitsLongerThanItsOwn(t *testing.T) {
	for _, most := range []int64{1, 4} {
		for seed := range uint64(200) {
			synctest.Test(t, func(t *testing.T) { liveLine(t, rand.New(rand.NewPCG(seed, uint64(most))), most) })
		}
	}
}

func liveLine(t *testing.T, random *rand.Rand, mostUnits int64) {
	type departure struct {
		number  int
		at, own time.Time
	}
	lines := newLines(1000)
	var mu sync.Mutex
	var left []departure
	handed := make(map[time.Time]int64) // units of each slot
	next := time.Now()
	var cancels []context.CancelFunc
	cancelled := 0
	for number := range 60 {
		time.Sleep(time.Duration(random.IntN(15)) * time.Millisecond)
		units := 1 + random.Int64N(mostUnits)
		s, ok := lines.claim("k", units, time.Now().Add(time.Hour))
		if !ok {
			if next.Before(time.Now()) {
				next = time.Now()
			}
			s = slot{next, units}
			handed[next] = units
			next = next.Add(time.Duration(units) * 10 * time.Millisecond)
		}
		w := lines.join("k", s, units, ok)
		ctx, cancel := context.WithCancel(context.Background())
		cancels = append(cancels, cancel)
		go func() {
			if w != nil && lines.wait(ctx, w) != nil {
				return
			}
			mu.Lock()
			left = append(left, departure{number: number, at: time.Now(), own: s.at})
			mu.Unlock()
		}()
		synctest.Wait()
		for random.IntN(3) == 0 {
			cancels[random.IntN(len(cancels))]()
			cancelled++
			synctest.Wait()
		}
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	for _, cancel := range cancels {
		cancel()
	}
	seen := make(map[time.Time]bool)
	for i, d := range left {
		if handed[d.at] == 0 || seen[d.at] {
			t.Fatalf("%d left at %v, which is no slot or was used (%v)", d.number, d.at, seen[d.at])
		}
		if d.at.After(d.own) {
			t.Fatalf("%d left at %v, and came with %v", d.number, d.at, d.own)
		}
		if i > 0 && d.number < left[i-1].number {
			t.Fatalf("%d left after %d", d.number, left[i-1].number)
		}
		seen[d.at] = true
	}
	if len(left) == 0 || cancelled == 0 {
		t.Fatal("a life without departures or without cancellations")
	}
	wantNoLines(t, lines)
}

func wantNoLines(t *testing.T, l *lines) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.byKey) != 0 || l.slots != 0 || l.queued != 0 {
		t.Errorf("at the end there are %d lines, %d slots, %d waiters", len(l.byKey), l.slots, l.queued)
	}
}

// What those who left behind is bounded as they are.
func TestSpareSlotsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := newLines(10)
		far := time.Now().Add(time.Hour)
		for i := range 1000 {
			key := fmt.Sprint(i)
			lines.leave(lines.join(key, slot{far, 1}, 1, false))
			lines.give(key, slot{far, 1})
		}
		lines.mu.Lock()
		if lines.slots > 10 || len(lines.byKey) > 10 {
			t.Errorf("%d spare slots in %d lines, want at most 10", lines.slots, len(lines.byKey))
		}
		lines.mu.Unlock()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		wantNoLines(t, lines)
	})
}
