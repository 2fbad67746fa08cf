package redisstore

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/seed-601ed181/ratelimit/algorithms"
)

// groups are the charges by the server that holds their counters: all of them on a
// single server, those of each hash tag on a sharded one, in the order of the tags.
func (s *Store) groups(charges []algorithms.Charge) iter.Seq[[]algorithms.Charge] {
	return func(yield func([]algorithms.Charge) bool) {
		if !s.queue.sharded {
			yield(charges)
			return
		}
		ordered := slices.SortedStableFunc(slices.Values(charges), func(a, b algorithms.Charge) int {
			return cmp.Compare(s.tag(&a), s.tag(&b))
		})
		for from := 0; from < len(ordered); {
			to := from + 1
			for to < len(ordered) && s.tag(&ordered[to]) == s.tag(&ordered[from]) {
				to++
			}
			if !yield(ordered[from:to]) {
				return
			}
			from = to
		}
	}
}

func (s *Store) tag(charge *algorithms.Charge) string { return tagOf(s.name(charge)) }

// tagOf is the part of a counter's name that decides where it is.
func tagOf(name string) string {
	if tag := hashTag(name); tag != "" {
		return tag
	}
	return name
}

// decideGroups takes from one group after the other and, when one refuses or fails,
// gives back what was taken before it.
func (s *Store) decideGroups(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision, states []algorithms.State, count bool) error {
	var taken []algorithms.Charge
	refused := false
	for group := range s.groups(charges) {
		answers, told := make([]algorithms.Decision, len(group)), make([]algorithms.State, len(group))
		// After a refusal nothing more is taken, only asked.
		err := s.decideTogether(ctx, group, answers, told, count && !refused)
		if err != nil {
			return errors.Join(err, s.giveBack(ctx, taken))
		}
		for i := range group {
			j := slices.IndexFunc(charges, same(&group[i]))
			if decisions[j] = answers[i]; states != nil {
				states[j] = told[i]
			}
			refused = refused || !answers[i].Allowed
		}
		if count && !refused {
			for i := range group {
				group[i].At = answers[i].At
			}
			taken = append(taken, group...)
		}
	}
	if !refused {
		return nil
	}
	if err := s.giveBack(ctx, taken); err != nil {
		return err
	}
	return s.standing(ctx, charges, decisions)
}

// standing replaces the decisions of charges that would have passed by how they stand.
func (s *Store) standing(ctx context.Context, charges []algorithms.Charge, decisions []algorithms.Decision) error {
	for i, charge := range charges {
		if !decisions[i].Allowed {
			continue
		}
		charge.Cost = 0
		if err := s.decideTogether(ctx, []algorithms.Charge{charge}, decisions[i:i+1], nil, false); err != nil {
			return err
		}
		decisions[i].Allowed, decisions[i].RetryAfter = true, 0
	}
	return nil
}

// giveBack undoes a take, also for a caller who has left.
func (s *Store) giveBack(ctx context.Context, taken []algorithms.Charge) error {
	if len(taken) == 0 {
		return nil
	}
	for i := range taken {
		taken[i].Cost = -taken[i].Cost
	}
	return s.Settle(context.WithoutCancel(ctx), taken)
}

func same(charge *algorithms.Charge) func(algorithms.Charge) bool {
	return func(c algorithms.Charge) bool {
		return c.Key == charge.Key && c.Algorithm.Shape() == charge.Algorithm.Shape()
	}
}
