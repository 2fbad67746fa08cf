package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// figures are what one round showed.
type figures struct {
	admitted, refused, left int
	gaps                    []time.Duration // between departures, in order of length
	longestWait             time.Duration
	whole                   time.Duration // from the first departure to the last
	most                    int           // within any second
}

func summarise(passages []passage) (f figures) {
	var departures []time.Time
	for _, p := range passages {
		switch {
		case !p.reached.IsZero():
			departures = append(departures, p.reached)
			f.longestWait = max(f.longestWait, p.reached.Sub(p.sent))
		case p.refused:
			f.refused++
		default:
			f.left++
		}
	}
	slices.SortFunc(departures, time.Time.Compare)
	f.admitted = len(departures)
	for i, at := range departures {
		if i > 0 {
			f.gaps = append(f.gaps, at.Sub(departures[i-1]))
		}
		first := i
		for first > 0 && at.Sub(departures[first-1]) < time.Second {
			first--
		}
		f.most = max(f.most, i-first+1)
		f.whole = at.Sub(departures[0])
	}
	slices.Sort(f.gaps)
	return f
}

func (f figures) gap(percent int) time.Duration { return f.gaps[len(f.gaps)*percent/100] }

// off is how far the gaps are from those of the rate, at the median.
func (f figures) off() time.Duration {
	var off []time.Duration
	for _, gap := range f.gaps {
		off = append(off, (gap - time.Second/rate).Abs())
	}
	slices.Sort(off)
	return off[len(off)/2]
}

// unused is how many turns passed while there was somebody who could have had them. It
// would be below zero where the first departure was noted late.
func (f figures) unused() int {
	return max(0, int((f.whole*rate+time.Second/2)/time.Second)+1-f.admitted)
}

// rounds are the figures of each contestant, a column of the rounds each.
type rounds struct {
	contestants []contestant
	figures     [][]figures
}

// measure lets contestants take turns.
func measure(n int, redisAddr string, arrivals func() []arrival, contestants []contestant) (*rounds, error) {
	r := &rounds{contestants, make([][]figures, len(contestants))}
	for range n {
		for i, c := range contestants {
			passages, err := round(c, redisAddr, arrivals())
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			r.figures[i] = append(r.figures[i], summarise(passages))
		}
	}
	return r, nil
}

func round(c contestant, redisAddr string, arrivals []arrival) ([]passage, error) {
	b, err := startBackend()
	if err != nil {
		return nil, err
	}
	defer b.stop()
	var urls []string
	for range c.fleet {
		p, err := c.start(b, redisAddr)
		if err != nil {
			return nil, err
		}
		defer p.stop()
		urls = append(urls, p.url())
	}
	return send(arrivals, b, urls)
}

func (r *rounds) evenness(out io.Writer) {
	fmt.Fprintln(out, "| | admitted | refused | gap: median | 5 % below | 5 % above | off 20 ms | most in a second | longest wait |")
	fmt.Fprintln(out, "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for i, c := range r.contestants {
		f := r.figures[i]
		fmt.Fprintf(out, "| %s | %d | %d | %s | %s | %s | %s | %d | %s |\n", c.name,
			median(f, func(f figures) int { return f.admitted }), median(f, func(f figures) int { return f.refused }),
			ms(median(f, func(f figures) time.Duration { return f.gap(50) })), ms(median(f, func(f figures) time.Duration { return f.gap(5) })),
			ms(median(f, func(f figures) time.Duration { return f.gap(95) })), ms(median(f, figures.off)),
			median(f, func(f figures) int { return f.most }), seconds(median(f, func(f figures) time.Duration { return f.longestWait })))
	}
}

func (r *rounds) turns(out io.Writer) {
	fmt.Fprintln(out, "| | reached the backend | left | refused | in | turns nobody used | longest gap |")
	fmt.Fprintln(out, "| --- | --- | --- | --- | --- | --- | --- |")
	for i, c := range r.contestants {
		f := r.figures[i]
		fmt.Fprintf(out, "| %s | %d | %d | %d | %s | %d | %s |\n", c.name,
			median(f, func(f figures) int { return f.admitted }), median(f, func(f figures) int { return f.left }), median(f, func(f figures) int { return f.refused }),
			seconds(median(f, func(f figures) time.Duration { return f.whole })), median(f, figures.unused),
			ms(median(f, func(f figures) time.Duration { return f.gaps[len(f.gaps)-1] })))
	}
}

func median[T int | time.Duration](f []figures, of func(figures) T) T {
	var values []T
	for _, one := range f {
		values = append(values, of(one))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func ms(d time.Duration) string      { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }
func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
