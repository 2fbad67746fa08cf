package ratelimit

import (
	"strings"
	"sync"
	"time"
)

// cache remembers answers for some time, a bounded number of them. At the bound a new
// one takes the place of any other. It is safe for concurrent use.
type cache[V any] struct {
	keep time.Duration
	size int

	mu      sync.Mutex
	entries map[string]cached[V]
}

type cached[V any] struct {
	value V
	until time.Time
}

func (c *cache[V]) get(key string) (V, bool) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if !ok || !now.Before(e.until) {
		var none V
		return none, false
	}
	return e.value, true
}

func (c *cache[V]) put(key string, value V) {
	until := time.Now().Add(c.keep)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = make(map[string]cached[V])
	}
	if _, ok := c.entries[key]; !ok && len(c.entries) >= c.size {
		for evicted := range c.entries {
			delete(c.entries, evicted)
			break
		}
	}
	c.entries[strings.Clone(key)] = cached[V]{value, until}
}
