package main

import (
	"testing"
	"time"
)

func TestFiguresOfARound(t *testing.T) {
	begin := time.Now()
	reached := func(at time.Duration) passage { return passage{sent: begin, reached: begin.Add(at)} }
	f := summarise([]passage{
		reached(0), reached(20 * time.Millisecond), reached(100 * time.Millisecond),
		reached(40 * time.Millisecond), reached(1020 * time.Millisecond),
		{sent: begin, refused: true}, {sent: begin},
	})
	for _, tc := range []struct {
		name      string
		got, want any
	}{
		{"admitted", f.admitted, 5},
		{"refused", f.refused, 1},
		{"left", f.left, 1},
		{"longest wait", f.longestWait, 1020 * time.Millisecond},
		{"whole", f.whole, 1020 * time.Millisecond},
		{"most within a second", f.most, 4}, // a second after the one at 20 ms is another second
		{"shortest gap", f.gap(0), 20 * time.Millisecond},
		{"median gap", f.gap(50), 60 * time.Millisecond},
		{"off the rate, at the median", f.off(), 40 * time.Millisecond},
		{"unused turns", f.unused(), 47},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, tc.got, tc.want)
		}
	}
}
