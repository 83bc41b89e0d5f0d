package storetest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

// crashWriters is how many goroutines the writing process has.
const crashWriters = 4

// WriteUntilKilled is what the writing process of Crash does: it inserts and
// changes sandboxes, and writes a line to out for each write that the store
// has answered. It ends only with an error.
func WriteUntilKilled(ctx context.Context, store gateway.Store, out io.Writer) error {
	failures := make(chan error, crashWriters)
	for writer := range crashWriters {
		go func() { failures <- write(ctx, store, out, writer) }()
	}
	return <-failures
}

func write(ctx context.Context, store gateway.Store, out io.Writer, writer int) error {
	for i := 0; ; i++ {
		id := fmt.Sprintf("sb-%d-%06d", writer, i)
		record := Sandbox("org", id, epoch, "crash")
		record.RequestID = "request-" + id
		if _, _, err := store.InsertSandbox(ctx, record); err != nil {
			return err
		}
		// One short write: lines of several goroutines do not mix.
		if _, err := fmt.Fprintf(out, "inserted %s 1\n", id); err != nil {
			return err
		}
		_, err := store.ChangeSandbox(ctx, "org", id, func(r *gateway.Record) bool {
			r.Generation = 2
			r.Status.State = sandboxv1.State_STATE_COMPLETED
			return true
		})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "changed %s 2\n", id); err != nil {
			return err
		}
	}
}

// Crash kills a process in the middle of its writes, several times, and wants
// to find everything that was answered. command starts the process, which
// calls WriteUntilKilled with the same store every time; reopen opens that
// store here.
func Crash(t *testing.T, command func() *exec.Cmd, reopen func(*testing.T) gateway.Store) {
	for _, answered := range []int{1, 50, 333} {
		t.Run(fmt.Sprintf("killed after %d answers", answered), func(t *testing.T) {
			generations := killAfter(t, command(), answered)
			store := reopen(t)
			for id, generation := range generations {
				record, err := store.Sandbox(t.Context(), "org", id)
				if err != nil {
					t.Errorf("%s was answered and is lost: %v", id, err)
					continue
				}
				if record.Generation < generation {
					t.Errorf("%s is at generation %d, and %d was answered", id, record.Generation, generation)
				}
				if again, err := store.SandboxByRequest(t.Context(), "org", record.RequestID); err != nil || again.SandboxID != id {
					t.Errorf("%s is not found by its request: %v", id, err)
				}
			}
			records, err := store.Sandboxes(t.Context(), gateway.ListQuery{
				OrganizationID: "org", Tags: []string{"crash"}, IncludeEnded: true, Limit: 1 << 20,
			})
			if err != nil || len(records) < len(generations) {
				t.Errorf("the tag finds %d sandboxes, %v; want at least %d", len(records), err, len(generations))
			}
		})
	}
}

// killAfter runs the process until it has told of that many writes, kills it,
// and answers with everything that it told of.
func killAfter(t *testing.T, cmd *exec.Cmd, answered int) map[string]int64 {
	t.Helper()
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	generations := map[string]int64{}
	lines := bufio.NewReader(output)
	for n := 0; ; n++ {
		if n == answered {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		fields := strings.Fields(line)
		if len(fields) != 3 {
			t.Fatalf("the writing process said %q", line)
		}
		generation, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		generations[fields[1]] = max(generation, generations[fields[1]])
	}
	// It was killed: how it ended says nothing.
	_ = cmd.Wait()
	if len(generations) == 0 {
		t.Fatal("the writing process answered nothing")
	}
	return generations
}
