package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// coldCreate is P1: from the create call to the end of the first exec, with the
// image there. Each sandbox is gone before the next is made.
func (b *bench) coldCreate(ctx context.Context, r *row) error {
	r.Name, r.Unit, r.Target = "P1 create to first exec", "ms", "≤ 1.5 × (floor + 5 ms)"
	bundle, err := b.raw.bundle("p1", "/bin/true")
	if err != nil {
		return err
	}
	for i := range b.runs + 1 {
		floor, err := milliseconds(func() error { return b.raw.run(ctx, fmt.Sprintf("p1-%04d", i), bundle) })
		if err != nil {
			return err
		}
		var id string
		ours, err := milliseconds(func() (err error) {
			if id, err = b.system.create(ctx); err != nil {
				return err
			}
			return b.system.exec(ctx, id, "/bin/true")
		})
		if err != nil {
			return err
		}
		if err := b.system.remove(ctx, id); err != nil {
			return err
		}
		if i > 0 { // the first of each fills caches
			r.Floor, r.Ours = append(r.Floor, floor), append(r.Ours, ours)
		}
	}
	r.Bound = 1.5 * (r.Floor.quantile(50) + 5)
	return nil
}

// exec is P3: `true` through gateway, tunnel, runner and guest, against fork and
// exec inside the same sandbox.
func (b *bench) exec(ctx context.Context, r *row) error {
	r.Name, r.Unit, r.Target = "P3 exec true", "ms", "≤ fork+exec inside + 2 ms"
	id, err := b.system.create(ctx)
	if err != nil {
		return err
	}
	shell := func(script string) func() error {
		return func() error { return b.system.exec(ctx, id, "/bin/sh", "-c", script) }
	}
	// A shell's loop of external commands, less one that runs none: fork+exec
	// alone.
	const loop = 100
	with := shell(fmt.Sprintf("i=0; while [ $i -lt %d ]; do /bin/true; i=$((i+1)); done", loop))
	without, err := timed(b.runs, shell("i=0; while [ $i -lt 0 ]; do /bin/true; done"))
	if err != nil {
		return err
	}
	const execsEach = 50
	for range max(b.runs/5, 3) {
		took, err := milliseconds(with)
		if err != nil {
			return err
		}
		r.Floor = append(r.Floor, (took-without.quantile(50))/loop)
		ours, err := timed(execsEach, func() error { return b.system.exec(ctx, id, "/bin/true") })
		if err != nil {
			return err
		}
		r.Ours = append(r.Ours, ours...)
	}
	r.Bound = r.Floor.quantile(50) + 2
	return nil
}

// runtimeExec is P3's other half: against the runtime's own exec.
func (b *bench) runtimeExec(ctx context.Context, r *row) error {
	r.Name, r.Unit = "P3 exec true, against the runtime's exec", "ms"
	factor := 5.0
	if b.runtime == "runsc" {
		factor = 2.5
	}
	r.Target = fmt.Sprintf("≥ %g × faster", factor)
	if err := b.raw.start(ctx, "p3-0001"); err != nil {
		return err
	}
	id, err := b.system.create(ctx)
	if err != nil {
		return err
	}
	const execsEach = 10
	for range b.runs {
		floor, err := milliseconds(func() error { return b.raw.command(ctx, "exec", "p3-0001", "/bin/true") })
		if err != nil {
			return err
		}
		r.Floor = append(r.Floor, floor)
		ours, err := timed(execsEach, func() error { return b.system.exec(ctx, id, "/bin/true") })
		if err != nil {
			return err
		}
		r.Ours = append(r.Ours, ours...)
	}
	r.Bound = r.Floor.quantile(50) / factor
	return nil
}

// throughput is P4: how many creates a second, sustained.
func (b *bench) throughput(ctx context.Context, r *row) error {
	r.Name, r.Unit, r.Target = fmt.Sprintf("P4 creates, %d at a time", b.parallelism), "1/s", "≥ 0.8 × floor"
	const rounds = 3
	count := max(b.runs/2, b.parallelism*5)
	rate := func(f func(ctx context.Context, i int) error) (float64, error) {
		begin := time.Now()
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(b.parallelism)
		for i := range count {
			group.Go(func() error { return f(ctx, i) })
		}
		err := group.Wait()
		return float64(count) / time.Since(begin).Seconds(), err
	}
	for range rounds {
		floor, err := rate(func(ctx context.Context, i int) error { return b.raw.start(ctx, fmt.Sprintf("p4-%04d", i)) })
		if err != nil {
			return err
		}
		r.Floor = append(r.Floor, floor)
		if err := b.raw.removeAll(); err != nil {
			return err
		}
		ours, err := rate(func(ctx context.Context, _ int) error {
			_, err := b.system.create(ctx)
			return err
		})
		if err != nil {
			return err
		}
		r.Ours = append(r.Ours, ours)
		if err := b.system.removeAll(ctx); err != nil {
			return err
		}
	}
	r.Bound = 0.8 * r.Floor.quantile(50)
	return nil
}

// createCPU is what P4 comes from: the CPU time of one create, the client's own
// and everything that the container has used by then included. Other load on the
// machine hardly changes it.
func (b *bench) createCPU(ctx context.Context, r *row) error {
	r.Name, r.Unit, r.Target = "CPU time of one create", "ms", "–"
	used := func(f func() error) (float64, error) {
		before, err := b.account.cpuMilliseconds()
		if err != nil {
			return 0, err
		}
		if err := f(); err != nil {
			return 0, err
		}
		after, err := b.account.cpuMilliseconds()
		return after - before, err
	}
	for i := range b.runs + 1 {
		floor, err := used(func() error { return b.raw.start(ctx, fmt.Sprintf("cpu-%04d", i)) })
		if err != nil {
			return err
		}
		var id string
		ours, err := used(func() (err error) {
			id, err = b.system.create(ctx)
			return err
		})
		if err != nil {
			return err
		}
		if err := b.system.remove(ctx, id); err != nil {
			return err
		}
		if err := b.raw.removeAll(); err != nil {
			return err
		}
		if i > 0 {
			r.Floor, r.Ours = append(r.Floor, floor), append(r.Ours, ours)
		}
	}
	return nil
}

// memory is P5: what one more idle sandbox takes, with what the processes beside
// it grow by (ours: server and runner).
func (b *bench) memory(ctx context.Context, r *row) error {
	r.Name, r.Unit, r.Target = fmt.Sprintf("P5 memory of one of %d idle sandboxes", b.idle), "MiB", "≤ floor + 8 MiB"
	grown := func(create func(i int) (id string, err error)) (series, error) {
		before, err := b.account.memoryMiB(nil)
		if err != nil {
			return nil, err
		}
		ids := make([]string, b.idle)
		for i := range ids {
			if ids[i], err = create(i); err != nil {
				return nil, err
			}
		}
		after, err := b.account.memoryMiB(ids)
		if err != nil {
			return nil, err
		}
		return series{(after - before) / float64(b.idle)}, nil
	}
	var err error
	if r.Floor, err = grown(func(i int) (string, error) {
		id := fmt.Sprintf("p5-%04d", i)
		return id, b.raw.start(ctx, id)
	}); err != nil {
		return err
	}
	r.Bound = r.Floor[0] + 8
	if err := b.raw.removeAll(); err != nil {
		return err
	}
	r.Ours, err = grown(func(int) (string, error) { return b.system.create(ctx) })
	return err
}
