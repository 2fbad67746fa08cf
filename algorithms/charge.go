package algorithms

import (
	"errors"
	"fmt"
	"time"
)

// Charge asks for Cost units of one key under one rule.
type Charge struct {
	// Key names who is counted. Any bytes; the same key under rules of different
	// shapes has a counter for each. Charges of one call that share a hash tag,
	// "{...}" as Redis Cluster defines it, can be decided together on a cluster.
	Key string
	// Algorithm is the rule. Required.
	Algorithm Algorithm
	// Cost in units, at least 0. Zero asks and takes nothing. When settling, what to
	// charge more or, negative, to give back.
	Cost int64
	// At is, when settling, the time of the decision that took the units
	// (Decision.At): they go back to the window that held them, and are lost if it has
	// passed. The zero time means that they were taken last.
	At time.Time
}

// Taken is At in microseconds, 0 for the zero time.
func (c *Charge) Taken() int64 {
	if c.At.IsZero() {
		return 0
	}
	return c.At.UnixMicro()
}

// Check is what every store asks of the charges it is to decide: a valid rule and a
// cost of at least 0 in each, no counter twice, and room for the decisions.
func Check(charges []Charge, decisions []Decision) error {
	if len(decisions) < len(charges) {
		return fmt.Errorf("ratelimit: %d charges need as many decisions, got room for %d", len(charges), len(decisions))
	}
	for i := range charges {
		if charges[i].Cost < 0 {
			return fmt.Errorf("ratelimit: charge: Cost must be >= 0, got %d (Settle gives units back)", charges[i].Cost)
		}
	}
	return CheckCounters(charges)
}

// CheckCounters is the part of [Check] that holds for Settle and Reset too, where a
// cost may be negative and nothing is decided.
func CheckCounters(charges []Charge) error {
	for i := range charges {
		a := charges[i].Algorithm
		if a == nil {
			return errors.New("ratelimit: charge: Algorithm is required, got nil")
		}
		if err := a.Validate(); err != nil {
			return fmt.Errorf("ratelimit: charge: %w", err)
		}
		for j := range i {
			if charges[j].Key == charges[i].Key && charges[j].Algorithm.Shape() == a.Shape() {
				return fmt.Errorf("ratelimit: charges %d and %d are of the same counter, add their costs", j, i)
			}
		}
	}
	return nil
}
