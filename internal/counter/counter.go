// Package counter names counters in memory.
package counter

import (
	"hash/maphash"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// Hasher makes the hash that stands for a counter. 128 bits of a seeded hash do not
// collide by chance, and nobody outside knows the seeds, so the key itself need not be
// kept. It is safe for concurrent use.
type Hasher struct{ seeds [2]maphash.Seed }

// NewHasher is a hasher with seeds of its own.
func NewHasher() Hasher {
	return Hasher{[2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
}

// Hash is the hash of the charge's key under the shape of its rule. It is never all zero.
func (h *Hasher) Hash(charge *algorithms.Charge) [2]uint64 {
	shape := charge.Algorithm.Shape()
	mix := uint64(shape.Window)
	for i := range len(shape.Format) {
		mix = mix*31 + uint64(shape.Format[i])
	}
	mix *= 0x9e3779b97f4a7c15
	return [2]uint64{maphash.String(h.seeds[0], charge.Key) ^ mix, (maphash.String(h.seeds[1], charge.Key) + mix) | 1}
}
