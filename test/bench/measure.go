package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// measureColdCreate is P1: from the create call to the end of the first exec,
// with the image there.
func measureColdCreate(ctx context.Context, o options, raw *rawRuntime, s *system) (row, error) {
	r := row{Name: "P1 create to first exec", Unit: "ms", Target: "≤ 1.5 × (floor + 5 ms)"}
	bundle, err := raw.bundle("p1", "/bin/true")
	if err != nil {
		return r, err
	}
	r.Floor, err = timed(o.runs, func(i int) error {
		return raw.command(ctx, "run", "--bundle", bundle, fmt.Sprintf("p1-%04d", i+1))
	})
	if err != nil {
		return r, err
	}
	var ids []string
	r.Ours, err = timed(o.runs, func(int) error {
		id, err := s.create(ctx)
		if err != nil {
			return err
		}
		ids = append(ids, id)
		return s.exec(ctx, id, "/bin/true")
	})
	if err != nil {
		return r, err
	}
	r.Bound = 1.5 * (r.Floor.quantile(50) + 5)
	return r, s.removeAll(ctx, ids)
}

// measureExec is P3: `true` through gateway, tunnel, runner and guest, against
// fork and exec inside the same sandbox.
func measureExec(ctx context.Context, o options, _ *rawRuntime, s *system) (row, error) {
	r := row{Name: "P3 exec true", Unit: "ms", Target: "≤ fork+exec inside + 2 ms"}
	id, err := s.create(ctx)
	if err != nil {
		return r, err
	}
	// A shell's loop of n external commands, less one without: fork+exec alone.
	const n = 100
	loop := func(count int) (series, error) {
		script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do /bin/true; i=$((i+1)); done", count)
		return timed(max(o.runs/5, 3), func(int) error { return s.exec(ctx, id, "/bin/sh", "-c", script) })
	}
	with, err := loop(n)
	if err != nil {
		return r, err
	}
	without, err := loop(0)
	if err != nil {
		return r, err
	}
	for i := range with {
		r.Floor = append(r.Floor, (with[i]-without.quantile(50))/n)
	}
	if r.Ours, err = timed(o.runs*10, func(int) error { return s.exec(ctx, id, "/bin/true") }); err != nil {
		return r, err
	}
	r.Bound = r.Floor.quantile(50) + 2
	return r, s.remove(ctx, id)
}

// measureRuntimeExec is P3's other half: against the runtime's own exec.
func measureRuntimeExec(ctx context.Context, o options, raw *rawRuntime, s *system) (row, error) {
	r := row{Name: "P3 exec true, against the runtime's exec", Unit: "ms", Target: "≥ 5 × faster (runsc: 2.5 ×)"}
	if err := raw.start(ctx, "p3-0001"); err != nil {
		return r, err
	}
	var err error
	if r.Floor, err = timed(o.runs, func(int) error { return raw.command(ctx, "exec", "p3-0001", "/bin/true") }); err != nil {
		return r, err
	}
	if err := raw.remove(ctx, "p3-0001"); err != nil {
		return r, err
	}
	id, err := s.create(ctx)
	if err != nil {
		return r, err
	}
	if r.Ours, err = timed(o.runs*10, func(int) error { return s.exec(ctx, id, "/bin/true") }); err != nil {
		return r, err
	}
	factor := 5.0
	if o.runtime == "runsc" {
		factor = 2.5
	}
	r.Bound = r.Floor.quantile(50) / factor
	return r, s.remove(ctx, id)
}

// measureThroughput is P4: how many creates a second, sustained.
func measureThroughput(ctx context.Context, o options, raw *rawRuntime, s *system) (row, error) {
	r := row{Name: fmt.Sprintf("P4 creates, %d at a time", o.parallelism), Unit: "1/s", Target: "≥ 0.8 × floor"}
	count := max(o.runs, o.parallelism*5)
	rate := func(f func(ctx context.Context, i int) error) (float64, error) {
		begin := time.Now()
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(o.parallelism)
		for i := range count {
			group.Go(func() error { return f(ctx, i) })
		}
		err := group.Wait()
		return float64(count) / time.Since(begin).Seconds(), err
	}
	for range 3 {
		floor, err := rate(func(ctx context.Context, i int) error { return raw.start(ctx, fmt.Sprintf("p4-%04d", i)) })
		if err != nil {
			return r, err
		}
		r.Floor = append(r.Floor, floor)
		for i := range count {
			if err := raw.remove(ctx, fmt.Sprintf("p4-%04d", i)); err != nil {
				return r, err
			}
		}
		ids := make([]string, count)
		ours, err := rate(func(ctx context.Context, i int) (err error) {
			ids[i], err = s.create(ctx)
			return err
		})
		if err != nil {
			return r, err
		}
		r.Ours = append(r.Ours, ours)
		if err := s.removeAll(ctx, ids); err != nil {
			return r, err
		}
	}
	r.Bound = 0.8 * r.Floor.quantile(50)
	return r, nil
}

// measureMemory is P5: what an idle sandbox takes from the machine.
func measureMemory(ctx context.Context, o options, raw *rawRuntime, s *system) (row, error) {
	r := row{Name: fmt.Sprintf("P5 memory of one of %d idle sandboxes", o.idle), Unit: "MiB", Target: "≤ floor + 8 MiB"}
	before, err := availableMiB()
	if err != nil {
		return r, err
	}
	for i := range o.idle {
		if err := raw.start(ctx, fmt.Sprintf("p5-%04d", i)); err != nil {
			return r, err
		}
	}
	with, err := availableMiB()
	if err != nil {
		return r, err
	}
	r.Floor = series{(before - with) / float64(o.idle)}
	for i := range o.idle {
		if err := raw.remove(ctx, fmt.Sprintf("p5-%04d", i)); err != nil {
			return r, err
		}
	}

	if before, err = availableMiB(); err != nil {
		return r, err
	}
	var ids []string
	for range o.idle {
		id, err := s.create(ctx)
		if err != nil {
			return r, err
		}
		ids = append(ids, id)
	}
	if with, err = availableMiB(); err != nil {
		return r, err
	}
	r.Ours = series{(before - with) / float64(o.idle)}
	r.Bound = r.Floor[0] + 8
	return r, s.removeAll(ctx, ids)
}

func (s *system) removeAll(ctx context.Context, ids []string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for _, id := range ids {
		group.Go(func() error { return s.remove(ctx, id) })
	}
	return group.Wait()
}

// availableMiB is the kernel's own estimate of memory that can be given away.
func availableMiB() (float64, error) {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 1 && fields[0] == "MemAvailable:" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no MemAvailable")
}
