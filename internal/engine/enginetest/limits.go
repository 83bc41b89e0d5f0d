package enginetest

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandbar-project/sandbar/internal/engine"
)

func testLimits(t *testing.T, s *suite) {
	t.Run("processes", func(t *testing.T) {
		if s.UserspaceKernel {
			t.Skip("the kernel of such a sandbox counts its own threads; the limit protects the host and ends the sandbox")
		}
		s.leavesNothing(t)
		spec := s.spec()
		spec.Resources.PidsLimit = 40
		box := s.create(t, spec)
		r := box.run(t, "forks", "100")
		if r.ok() || !strings.Contains(r.Output, "resource temporarily unavailable") {
			t.Errorf("100 processes under a limit of 40: %+v", r)
		}
		count, err := strconv.Atoi(strings.Fields(r.Output)[0])
		if err != nil || count < 1 || count >= 40 {
			t.Errorf("%d processes started, %v", count, err)
		}
		box.want(t, "true")
	})
	t.Run("memory", func(t *testing.T) {
		s.leavesNothing(t)
		spec := s.spec()
		spec.Resources.MemoryLimitBytes = 96 << 20
		box := s.create(t, spec)
		box.want(t, "touch", "32")
		r, err := box.call(t, "touch", "512")
		if err == nil && r.ok() {
			t.Errorf("512 MiB under a limit of 96 MiB: %+v", r)
		}
		if !s.UserspaceKernel {
			usage, err := s.Engine.Usage(t.Context(), box.id)
			if err != nil || usage.OOMKills == 0 {
				t.Errorf("Usage() = %+v, %v; want an OOM kill", usage, err)
			}
			box.shutdown(t)
		}
		exit, err := s.Engine.Wait(t.Context(), box.id)
		if err != nil || !exit.OOMKilled {
			t.Errorf("Wait() = %+v, %v; want OOMKilled", exit, err)
		}
	})
	t.Run("CPU", func(t *testing.T) {
		s.leavesNothing(t)
		spec := s.spec()
		spec.Resources.CPULimitMillis = 250
		box := s.create(t, spec)
		usage := func() time.Duration {
			u, err := s.Engine.Usage(t.Context(), box.id)
			if err != nil {
				t.Fatalf("Usage: %v", err)
			}
			return time.Duration(u.CPUNanos)
		}
		// The kernel keeps this bound however busy the machine is: a quarter of
		// the time, and what one period may lend.
		const lent = 150 * time.Millisecond
		begin, before := time.Now(), usage()
		box.want(t, "burn", "2s")
		used, elapsed := usage()-before, time.Since(begin)
		if used > elapsed/4+lent {
			t.Errorf("used %s of CPU time in %s under a limit of a quarter", used, elapsed)
		}
	})
	t.Run("none", func(t *testing.T) {
		s.leavesNothing(t)
		spec := s.spec()
		spec.Resources = engine.Resources{}
		box := s.create(t, spec)
		box.want(t, "forks", "20")
		box.want(t, "touch", "64")
	})
}
