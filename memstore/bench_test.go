package memstore_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/seed-601ed181/ratelimit/algorithms"
	"github.com/seed-601ed181/ratelimit/memstore"
)

// go test -bench . -run - ./memstore
func BenchmarkTake(b *testing.B) {
	rule := algorithms.SlidingWindowCounter{Limit: 100_000_000, Window: time.Minute}
	for _, keys := range []int{1, 10_000, 1_000_000} {
		names := make([]string, keys)
		for i := range names {
			names[i] = "client " + strconv.Itoa(i)
		}
		store := memstore.New(memstore.Config{MaxKeys: 2 * keys})
		charges := []algorithms.Charge{{Algorithm: rule, Cost: 1}}
		decisions := make([]algorithms.Decision, 1)
		for _, charges[0].Key = range names {
			if err := store.Take(context.Background(), charges, decisions); err != nil {
				b.Fatal(err)
			}
		}
		b.Run("serial/keys="+strconv.Itoa(keys), func(b *testing.B) {
			b.ReportAllocs()
			random := rand.New(rand.NewPCG(1, 2))
			for b.Loop() {
				charges[0].Key = names[random.IntN(keys)]
				if err := store.Take(context.Background(), charges, decisions); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("parallel/keys="+strconv.Itoa(keys), func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				charges := []algorithms.Charge{{Algorithm: rule, Cost: 1}}
				decisions := make([]algorithms.Decision, 1)
				for pb.Next() {
					charges[0].Key = names[rand.IntN(keys)]
					if err := store.Take(context.Background(), charges, decisions); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
