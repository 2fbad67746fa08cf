package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Colours that stand out from white and from black.
var (
	ink     = color.RGBA{0x80, 0x88, 0x90, 0xff}
	colours = []color.Color{
		color.RGBA{0x1f, 0x9d, 0x55, 0xff},
		color.RGBA{0xd9, 0x77, 0x06, 0xff},
		color.RGBA{0x3b, 0x82, 0xf6, 0xff},
		color.RGBA{0xdb, 0x3a, 0x8a, 0xff},
		ink,
	}
	lines = []string{store, ululeV3, redisV10, gcra, "floor: PING"}
)

// drawPlots draws the main figures by goroutines, into files of the directory.
func drawPlots(dir string, r results) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range []struct{ file, title, figure string }{
		{"decisions.svg", "Decisions a second on one Redis", perSecond},
		{"redis-cpu.svg", "Redis CPU a decision, µs", redisCPU},
	} {
		if err := drawPlot(filepath.Join(dir, p.file), p.title, p.figure, r); err != nil {
			return fmt.Errorf("%s: %w", p.file, err)
		}
	}
	return nil
}

func drawPlot(file, title, figure string, r results) error {
	p := plot.New()
	p.BackgroundColor = nil // that of the page
	p.Title.Text, p.X.Label.Text = title, "goroutines"
	for _, style := range []*draw.TextStyle{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		style.Color = ink
	}
	for _, style := range []*draw.LineStyle{&p.X.LineStyle, &p.Y.LineStyle, &p.X.Tick.LineStyle, &p.Y.Tick.LineStyle} {
		style.Color = ink
	}
	p.Legend.Top, p.Legend.Left = true, figure == perSecond
	p.Y.Min = 0
	var names []string
	for _, n := range goroutines {
		names = append(names, fmt.Sprint(n))
	}
	p.NominalX(names...)
	p.Y.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick {
		ticks := plot.DefaultTicks{}.Ticks(low, high)
		for i := range ticks {
			if ticks[i].Label != "" {
				ticks[i].Label = number(ticks[i].Value)
			}
		}
		return ticks
	})
	for i, name := range lines {
		var points plotter.XYs
		for x, n := range goroutines {
			if y, _, _, ok := r.spread(place{at(redisCell, n), name, figure}); ok {
				points = append(points, plotter.XY{X: float64(x), Y: y})
			}
		}
		if len(points) == 0 {
			return fmt.Errorf("there are no figures of %s: measure the cell %q too", name, redisCell)
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, line.Width = colours[i], vg.Points(2)
		dots.Color, dots.Shape = colours[i], draw.CircleGlyph{}
		p.Add(line, dots)
		p.Legend.Add(name, line, dots)
	}
	return p.Save(7*vg.Inch, 4*vg.Inch, file)
}
