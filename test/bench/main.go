// Command bench measures Sandbar against floors taken in the same run on the
// same machine: the bare container runtime, without Sandbar. Floor and ours take
// turns, so that they see the same machine. It prints a table and writes the
// figures as JSON. It judges nothing: the targets of the project are printed
// beside what was seen. docs/performance.md says what each row means.
//
// It needs root and an OCI runtime, starts and stops its own system, and leaves
// nothing behind, also when it is interrupted.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"text/tabwriter"
	"time"
)

type options struct {
	runtime     string
	runs        int
	parallelism int
	idle        int
	output      string
	bin         string
}

func main() {
	var o options
	flag.StringVar(&o.runtime, "runtime", "runsc", "the container runtime: runsc, crun or runc")
	flag.IntVar(&o.runs, "n", 50, "how often each thing is measured")
	flag.IntVar(&o.parallelism, "parallelism", 4, "creators at a time, for sustained creates")
	flag.IntVar(&o.idle, "idle", 50, "idle sandboxes, for memory")
	flag.StringVar(&o.output, "o", "", "also write the figures to this JSON file")
	flag.StringVar(&o.bin, "bin", "bin", "where the programs are")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal ends the measuring, a second one the cleaning up.
	context.AfterFunc(ctx, stop)
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// row is one line of the table.
type row struct {
	Name   string `json:"name"`
	Unit   string `json:"unit"`
	Floor  series `json:"floor"`
	Ours   series `json:"ours"`
	Target string `json:"target"`
	// Bound is the target worked out with this run's floor; 0 when it has none.
	Bound float64 `json:"bound,omitempty"`
	// Error is why the row is not complete.
	Error string `json:"error,omitempty"`
}

// bench is what the rows measure with.
type bench struct {
	options

	raw     *rawRuntime
	system  *system
	account *account
}

func run(ctx context.Context, o options) (err error) {
	b := &bench{options: o}
	var closers []func() error
	defer func() {
		for i := len(closers) - 1; i >= 0; i-- {
			err = errors.Join(err, closers[i]())
		}
	}()
	if b.account, err = openAccount(); err != nil {
		return err
	}
	closers = append(closers, b.account.close)
	if b.raw, err = newRawRuntime(o.runtime, b.account.group); err != nil {
		return err
	}
	closers = append(closers, b.raw.close)
	if b.system, err = startSystem(ctx, o); err != nil {
		return err
	}
	closers = append(closers, b.system.stop)

	rows, err := b.measureAll(ctx)
	printTable(os.Stdout, o, rows)
	return errors.Join(err, writeJSON(o, rows))
}

// measureAll goes on after a row that fails: its error is in the row, and in
// the answer.
func (b *bench) measureAll(ctx context.Context) ([]row, error) {
	var rows []row
	var failures []error
	for _, measure := range []func(context.Context, *row) error{
		b.coldCreate, b.exec, b.runtimeExec, b.throughput, b.createCPU, b.memory,
	} {
		var r row
		err := measure(ctx, &r)
		err = errors.Join(err, b.raw.removeAll(), b.system.removeAll(context.WithoutCancel(ctx)))
		if err != nil {
			r.Error = err.Error()
			failures = append(failures, fmt.Errorf("%s: %w", r.Name, err))
		}
		rows = append(rows, r)
		fmt.Fprintf(os.Stderr, "%s: done\n", r.Name)
		if ctx.Err() != nil {
			break
		}
	}
	return rows, errors.Join(failures...)
}

func printTable(out io.Writer, o options, rows []row) {
	fmt.Fprintf(out, "\nruntime %s, %d CPUs, %s; floor: the bare runtime, in the same run\n\n",
		o.runtime, runtime.NumCPU(), time.Now().UTC().Format(time.DateOnly))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "what\tunit\tfloor p50\tours p50\tratio\tn\tp95\tp99\ttarget\tbound\t")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t\n", r.Name, r.Unit,
			r.Floor.text(50), r.Ours.text(50), ratio(r), len(r.Ours), r.Ours.text(95), r.Ours.text(99), r.Target, bound(r))
	}
	_ = w.Flush()
	for _, r := range rows {
		if r.Error != "" {
			fmt.Fprintf(out, "\n%s: not complete: %s\n", r.Name, r.Error)
		}
	}
}

func ratio(r row) string {
	if floor := r.Floor.quantile(50); floor > 0 && len(r.Ours) > 0 {
		return fmt.Sprintf("%.2f", r.Ours.quantile(50)/floor)
	}
	return "–"
}

func bound(r row) string {
	if r.Bound == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", r.Bound)
}

func writeJSON(o options, rows []row) error {
	if o.output == "" {
		return nil
	}
	data, err := json.MarshalIndent(map[string]any{
		"runtime": o.runtime, "cpus": runtime.NumCPU(), "time": time.Now().UTC(), "rows": rows,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.output, append(data, '\n'), 0o644)
}
