// Command bench measures Sandbar against floors taken in the same run on the
// same machine: the bare container runtime, without Sandbar. It prints a table
// and writes the figures as JSON. It judges nothing: the targets of
// the project are printed beside what was seen.
//
// It needs root and an OCI runtime, and starts and stops its own system.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
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
	flag.IntVar(&o.runs, "n", 30, "how often each thing is measured")
	flag.IntVar(&o.parallelism, "parallelism", 4, "creators at a time, for sustained creates")
	flag.IntVar(&o.idle, "idle", 50, "idle sandboxes, for memory")
	flag.StringVar(&o.output, "o", "", "also write the figures to this JSON file")
	flag.StringVar(&o.bin, "bin", "bin", "where the programs are")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
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
	Bound float64 `json:"bound"`
}

func run(ctx context.Context, o options) (err error) {
	raw, err := newRawRuntime(o.runtime)
	if err != nil {
		return err
	}
	defer raw.close()
	ours, err := startSystem(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		if e := ours.stop(); err == nil {
			err = e
		}
	}()

	var rows []row
	for _, measure := range []func(context.Context, options, *rawRuntime, *system) (row, error){
		measureColdCreate, measureExec, measureRuntimeExec, measureThroughput, measureMemory,
	} {
		r, err := measure(ctx, o, raw, ours)
		if err != nil {
			return err
		}
		rows = append(rows, r)
		fmt.Fprintf(os.Stderr, "%s: done\n", r.Name)
	}
	printTable(o, rows)
	if o.output == "" {
		return nil
	}
	data, err := json.MarshalIndent(map[string]any{"runtime": o.runtime, "rows": rows}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.output, append(data, '\n'), 0o644)
}

func printTable(o options, rows []row) {
	fmt.Printf("\nruntime %s; floor: the bare runtime, in the same run\n\n", o.runtime)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "what\tunit\tfloor p50\tours p50\tratio\tn\tp95\tp99\ttarget\tbound\t")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%.2f\t%.2f\t%.2f\t%d\t%.2f\t%.2f\t%s\t%.2f\t\n", r.Name, r.Unit,
			r.Floor.quantile(50), r.Ours.quantile(50), r.Ours.quantile(50)/r.Floor.quantile(50), len(r.Ours),
			r.Ours.quantile(95), r.Ours.quantile(99), r.Target, r.Bound)
	}
	_ = w.Flush()
}
