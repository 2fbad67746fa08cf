package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/seed-601ed181/ratelimit/internal/redistest"
)

// Colours that stand out from white and from black.
var (
	ink      = color.RGBA{0x80, 0x88, 0x90, 0xff}
	coming   = color.RGBA{0xd9, 0x77, 0x06, 0xff}
	going    = color.RGBA{0x1f, 0x9d, 0x55, 0xff}
	plotRate = 20
)

// bursts is what the plot shows: crowds, and quiet between them.
func bursts() []arrival {
	arrivals := atOnce(40, 0)
	arrivals = append(arrivals, atOnce(10, 800*time.Millisecond)...)
	arrivals = append(arrivals, atOnce(25, 1500*time.Millisecond)...)
	return append(arrivals, atOnce(30, 4500*time.Millisecond)...)
}

// drawShaping sends bursts to two instances and draws when requests came and left.
func drawShaping(dir string) error {
	server, err := redistest.Start()
	if err != nil {
		return err
	}
	defer server.Stop()
	passages, err := round(contestant{"", memberWith(plotRate, 100, 0), 2}, server.Addr, bursts())
	if err != nil {
		return err
	}
	var came, left []time.Duration
	for _, p := range passages {
		if p.reached.IsZero() {
			return fmt.Errorf("a request of the plot was refused")
		}
		came, left = append(came, p.sent.Sub(passages[0].sent)), append(left, p.reached.Sub(passages[0].sent))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return drawSteps(filepath.Join(dir, "leaky-bucket.svg"), came, left)
}

func drawSteps(file string, came, left []time.Duration) error {
	p := plot.New()
	p.BackgroundColor = nil // that of the page
	p.Title.Text = fmt.Sprintf("Two instances, one leaky bucket of %d a second", plotRate)
	p.X.Label.Text, p.Y.Label.Text = "seconds", "requests so far"
	for _, style := range []*draw.TextStyle{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		style.Color = ink
	}
	for _, style := range []*draw.LineStyle{&p.X.LineStyle, &p.Y.LineStyle, &p.X.Tick.LineStyle, &p.Y.Tick.LineStyle} {
		style.Color = ink
	}
	p.X.Tick.Marker = plot.TickerFunc(func(_, high float64) (ticks []plot.Tick) {
		for second := 0.0; second <= high; second++ {
			ticks = append(ticks, plot.Tick{Value: second, Label: fmt.Sprint(second)})
		}
		return ticks
	})
	p.Legend.Top, p.Legend.Left = true, true
	end := slices.Max(left) + 200*time.Millisecond
	for _, line := range []struct {
		name   string
		times  []time.Duration
		colour color.Color
	}{{"arrivals", came, coming}, {"departures", left, going}} {
		steps, err := plotter.NewLine(soFar(line.times, end))
		if err != nil {
			return err
		}
		steps.StepStyle, steps.Color, steps.Width = plotter.PostStep, line.colour, vg.Points(1.5)
		p.Add(steps)
		p.Legend.Add(line.name, steps)
	}
	return p.Save(7*vg.Inch, 4*vg.Inch, file)
}

// soFar counts times up to the end, rounded to what a plot can show.
func soFar(times []time.Duration, end time.Duration) plotter.XYs {
	points := plotter.XYs{{}}
	for i, at := range slices.Sorted(slices.Values(times)) {
		points = append(points, plotter.XY{X: math.Round(at.Seconds()*1000) / 1000, Y: float64(i + 1)})
	}
	return append(points, plotter.XY{X: end.Seconds(), Y: float64(len(times))})
}
