package main

import (
	"fmt"
	"slices"
	"time"
)

// series are measurements in the row's unit.
type series []float64

// quantile is the p-th percentile by nearest rank; 0 of an empty series.
func (s series) quantile(p int) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := (len(sorted)*p + 99) / 100
	return sorted[max(rank, 1)-1]
}

func (s series) text(p int) string {
	if len(s) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", s.quantile(p))
}

// milliseconds is how long f takes.
func milliseconds(f func() error) (float64, error) {
	begin := time.Now()
	err := f()
	return float64(time.Since(begin).Microseconds()) / 1000, err
}

// timed measures n calls in milliseconds, after one that does not count.
func timed(n int, f func() error) (series, error) {
	if err := f(); err != nil {
		return nil, err
	}
	var s series
	for range n {
		took, err := milliseconds(f)
		if err != nil {
			return s, err
		}
		s = append(s, took)
	}
	return s, nil
}
