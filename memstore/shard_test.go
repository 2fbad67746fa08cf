package memstore

import (
	"context"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// TestShardIsAMap holds the table against a map, with hashes that collide at the
// start, the middle and the end of it, where probing wraps around.
func TestShardIsAMap(t *testing.T) {
	type entry struct {
		state algorithms.State
		until int64
	}
	rapid.Check(t, func(t *rapid.T) {
		s, model, now := shard{maxKeys: 1000}, map[[2]uint64]entry{}, int64(1e15)
		homes := []uint64{0, 1, math.MaxUint64 / 2, math.MaxUint64 - 1, math.MaxUint64}
		draw := func(t *rapid.T) [2]uint64 {
			return [2]uint64{rapid.SampledFrom(homes).Draw(t, "home"), 1 + 2*rapid.Uint64Range(0, 12).Draw(t, "id")}
		}
		t.Repeat(map[string]func(*rapid.T){
			"store": func(t *rapid.T) {
				hash := draw(t)
				state := algorithms.State{At: now, Used: rapid.Int64Range(0, 9).Draw(t, "used")}
				switch hash[1] % 3 { // a key stays with its rule
				case 0:
					state.Unit = 7
				case 1:
					state.Previous = 3
					state.Log = []algorithms.Entry{{At: now, Total: state.Used}}
				}
				reset := rapid.Int64Range(0, 100).Draw(t, "reset")
				d := algorithms.Decision{Limit: 10, Remaining: rapid.Int64Range(0, 10).Draw(t, "remaining"), ResetAfter: time.Duration(reset) * time.Microsecond}
				if err := s.reserve(hash, now); err != nil {
					t.Fatal(err)
				}
				s.store(hash, &state, &d, now)
				if model[hash] = (entry{state, now + reset}); reset == 0 {
					delete(model, hash)
				}
			},
			"limit": func(t *rapid.T) { s.markLimited(draw(t)) },
			"forget": func(t *rapid.T) {
				hash := draw(t)
				s.forget(hash)
				delete(model, hash)
			},
			"sweep": func(t *rapid.T) {
				now += rapid.Int64Range(0, 60).Draw(t, "pause")
				s.sweep(now)
				for hash, e := range model {
					if e.until <= now {
						delete(model, hash)
					}
				}
			},
			"resize": func(t *rapid.T) { s.resize(s.keys + rapid.IntRange(1, 100).Draw(t, "free")) },
			"": func(t *rapid.T) {
				if s.keys != len(model) {
					t.Fatalf("%d keys, want %d", s.keys, len(model))
				}
				logs := 0
				for _, home := range homes {
					for id := uint64(1); id < 26; id += 2 {
						hash := [2]uint64{home, id}
						got, want := s.load(hash), model[hash].state
						if got.At != want.At || got.Used != want.Used || got.Previous != want.Previous || got.Unit != want.Unit || !slices.Equal(got.Log, want.Log) {
							t.Fatalf("%x: %+v, want %+v", hash, got, want)
						}
						logs += min(1, len(want.Log))
					}
				}
				if len(s.logs) != logs {
					t.Fatalf("%d logs, want %d", len(s.logs), logs)
				}
			},
		})
	})
}

func TestSweepFreesTheTable(t *testing.T) {
	now := time.Date(2025, 12, 1, 0, 0, 0, 0, time.UTC)
	s := New(Config{Clock: func() time.Time { return now }})
	decisions := make([]algorithms.Decision, 2)
	for i := range 20_000 {
		key := strconv.Itoa(i)
		if err := s.Take(context.Background(), []algorithms.Charge{
			{Key: key, Algorithm: algorithms.FixedWindow{Limit: 2, Window: time.Minute}, Cost: 1},
			{Key: key, Algorithm: algorithms.SlidingWindowLog{Limit: 2, Window: time.Minute}, Cost: 1},
		}, decisions); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(time.Minute)
	s.Sweep()
	slots, logs := 0, 0
	for i := range s.shards {
		slots += len(s.shards[i].slots)
		logs += len(s.shards[i].logs)
	}
	if s.Len() != 0 || slots > 16*len(s.shards) || logs != 0 {
		t.Errorf("%d keys in %d slots and %d logs after a sweep of all", s.Len(), slots, logs)
	}
}

// What has recovered stays at most until every shard has had its turn. After a pause
// without requests a few turns are made up for at a time, so that no request pays for
// the whole pause.
func TestSweepInPassingComesToEveryShard(t *testing.T) {
	now := time.Date(2025, 12, 1, 0, 0, 0, 0, time.UTC)
	s := New(Config{Clock: func() time.Time { return now }})
	take := func(key string) {
		charges := []algorithms.Charge{{Key: key, Algorithm: algorithms.FixedWindow{Limit: 2, Window: time.Second}, Cost: 1}}
		if err := s.Take(context.Background(), charges, make([]algorithms.Decision, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		take(strconv.Itoa(i))
	}
	now = now.Add(time.Hour)
	if take("one"); s.Len() < 500 {
		t.Errorf("%d keys of 1001 after one request, which swept more than a few shards", s.Len())
	}
	turn := time.Duration(sweepEvery) * time.Microsecond / time.Duration(len(s.shards))
	for range len(s.shards) {
		now = now.Add(turn)
		take("one")
	}
	if s.Len() != 1 {
		t.Errorf("%d keys after a round of turns, want 1", s.Len())
	}
}

// With no Clock the wall clock is read once: the time is that and the monotonic clock
// since, here as if the wall clock had been set back an hour in between.
func TestClockIgnoresTheWallClock(t *testing.T) {
	s := New(Config{})
	before := s.start
	*(*uint64)(unsafe.Pointer(&s.start)) += 3600 << 30 // the wall seconds of a time.Time
	if s.start.Unix()-before.Unix() != 3600 || s.start.Sub(before) != 0 {
		t.Skip("time.Time is laid out otherwise")
	}
	if ahead := s.now() - time.Now().UnixMicro(); ahead < 3590e6 || ahead > 3610e6 {
		t.Errorf("%d µs ahead of the wall clock, want an hour", ahead)
	}
}

func TestKeysOfDifferentShapesAreDifferentCounters(t *testing.T) {
	s := New(Config{})
	seen := map[[2]uint64]string{}
	for _, window := range []time.Duration{time.Second, time.Minute, time.Hour} {
		for _, rule := range []algorithms.Algorithm{
			algorithms.SlidingWindowCounter{Limit: 1, Window: window},
			algorithms.TokenBucket{Capacity: 1, Refill: 1, Per: window},
			algorithms.FixedWindow{Limit: 1, Window: window},
			algorithms.SlidingWindowLog{Limit: 1, Window: window},
			algorithms.LeakyBucket{Capacity: 1, Rate: 1, Per: window},
			algorithms.Concurrency{Limit: 1, Lease: window},
		} {
			for _, key := range []string{"", "a", "b"} {
				hash := s.hasher.Hash(&algorithms.Charge{Key: key, Algorithm: rule})
				if other, ok := seen[hash]; ok {
					t.Errorf("%q under %v has the counter of %s", key, rule, other)
				}
				seen[hash] = strconv.Quote(key) + " under " + rule.String()
			}
		}
	}
}
