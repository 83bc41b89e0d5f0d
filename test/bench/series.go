package main

import (
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

// timed measures n calls in milliseconds, after one that does not count.
func timed(n int, f func(i int) error) (series, error) {
	if err := f(-1); err != nil {
		return nil, err
	}
	var s series
	for i := range n {
		begin := time.Now()
		if err := f(i); err != nil {
			return nil, err
		}
		s = append(s, float64(time.Since(begin).Microseconds())/1000)
	}
	return s, nil
}
