package main

import "slices"

// results are the measured values by cell, contestant and figure, one a round.
type results map[place][]float64

type place struct{ cell, contestant, figure string }

func (r results) add(cell, contestant, figure string, value float64) {
	p := place{cell, contestant, figure}
	r[p] = append(r[p], value)
}

// spread is the median, least and greatest of the rounds.
func (r results) spread(p place) (median, least, most float64, ok bool) {
	values := r[p]
	if len(values) == 0 {
		return 0, 0, 0, false
	}
	return medianOf(values), slices.Min(values), slices.Max(values), true
}

func (r results) median(p place) float64 { return medianOf(r[p]) }

// ratio is the median of what the rounds' own ratios are: contestants of one round met
// the same machine.
func (r results) ratio(p, to place) float64 {
	var ratios []float64
	for i := range min(len(r[p]), len(r[to])) {
		ratios = append(ratios, r[p][i]/r[to][i])
	}
	return medianOf(ratios)
}

// best is the contestant whose median is greatest, or least where less is better.
func (r results) best(cell, figure string, contestants []string, less bool) string {
	best := ""
	for _, c := range contestants {
		if len(r[place{cell, c, figure}]) == 0 {
			continue
		}
		if best == "" {
			best = c
			continue
		}
		a, b := r.median(place{cell, c, figure}), r.median(place{cell, best, figure})
		if a != b && (a < b) == less {
			best = c
		}
	}
	return best
}

func medianOf(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// rotated is the contestants in the order of this round, so that none is always first
// after a rest or last on a warm machine.
func rotated[T any](contestants []T, round int) []T {
	n := round % len(contestants)
	return slices.Concat(contestants[n:], contestants[:n])
}
