package runner_test

import (
	"testing"

	"github.com/sandbar-project/sandbar/internal/runner"
)

func TestFactorsAreNumbersWithinBounds(t *testing.T) {
	for text, ok := range map[string]bool{
		"1": true, "10": true, "0.1": true, "2.5": true, "100": true, "1e1": true,
		"": false, "0": false, "0.09": false, "-1": false, "101": false, "NaN": false, "Inf": false, "ten": false, "10x": false,
	} {
		var factor runner.Factor
		if err := factor.UnmarshalText([]byte(text)); (err == nil) != ok {
			t.Errorf("%q: %v, want accepted: %t", text, err, ok)
		}
	}
}
