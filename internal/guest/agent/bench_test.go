package agent

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

func BenchmarkPing(b *testing.B) {
	s := newCommandSandbox(b)
	for b.Loop() {
		if err := s.client.Ping(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRunTrue compares an exec with its floor: the same program started
// and awaited by this process itself, with the same pipes.
func BenchmarkRunTrue(b *testing.B) {
	b.Run("floor", func(b *testing.B) {
		for b.Loop() {
			cmd := exec.Command(busybox, "true")
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("exec", func(b *testing.B) {
		s := newCommandSandbox(b).startIdle()
		for b.Loop() {
			if r := s.exec(command("/bin/busybox", "true")); r.exit.GetCode() != 0 {
				b.Fatal(r)
			}
		}
	})
}

const benchmarkBytes = 64 << 20

// BenchmarkOutput compares an exec's stdout with cat through a pipe.
func BenchmarkOutput(b *testing.B) {
	produce := fmt.Sprintf("dd if=/dev/zero bs=64k count=%d 2>/dev/null | cat", benchmarkBytes/(64<<10))
	b.Run("floor", func(b *testing.B) {
		b.SetBytes(benchmarkBytes)
		for b.Loop() {
			cmd := exec.Command("/bin/sh", "-c", produce)
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			n, err := io.Copy(io.Discard, struct{ io.Reader }{stdout})
			if err != nil || n != benchmarkBytes || cmd.Wait() != nil {
				b.Fatal(n, err)
			}
		}
	})
	b.Run("exec", func(b *testing.B) {
		s := newCommandSandbox(b).startIdle()
		s.sh("busybox mknod /dev/zero c 1 5")
		b.SetBytes(benchmarkBytes)
		for b.Loop() {
			session, err := s.client.Exec(b.Context(), &guestv1.Exec{Process: shell(produce)})
			if err != nil {
				b.Fatal(err)
			}
			n := 0
			for {
				response, err := session.Recv()
				if err == io.EOF {
					break
				}
				if err != nil {
					b.Fatal(err)
				}
				n += len(response.GetOutput().GetData())
			}
			_ = session.Close()
			if n != benchmarkBytes {
				b.Fatal(n)
			}
		}
	})
}

// BenchmarkStdin compares an exec's stdin with a pipe written here.
func BenchmarkStdin(b *testing.B) {
	const consume = "cat > /dev/null"
	b.Run("floor", func(b *testing.B) {
		b.SetBytes(benchmarkBytes)
		for b.Loop() {
			cmd := exec.Command(busybox, "sh", "-c", consume)
			cmd.Stdin = io.LimitReader(neverEnding{}, benchmarkBytes)
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("exec", func(b *testing.B) {
		s := newCommandSandbox(b).startIdle()
		b.SetBytes(benchmarkBytes)
		for b.Loop() {
			r := s.execWithStdin(shell(consume), io.LimitReader(neverEnding{}, benchmarkBytes))
			if r.exit.GetCode() != 0 {
				b.Fatal(r)
			}
		}
	})
}

func BenchmarkFile(b *testing.B) {
	b.Run("write floor", func(b *testing.B) {
		b.SetBytes(benchmarkBytes)
		path := filepath.Join(newRoot(b), "f")
		for b.Loop() {
			file, err := os.Create(path)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.CopyBuffer(struct{ io.Writer }{file}, io.LimitReader(neverEnding{}, benchmarkBytes), make([]byte, 64<<10)); err != nil {
				b.Fatal(err)
			}
			_ = file.Close()
		}
	})
	s := newCommandSandbox(b)
	b.Run("write", func(b *testing.B) {
		b.SetBytes(benchmarkBytes)
		for b.Loop() {
			if err := s.client.WriteFile(b.Context(), "/tmp/f", 0, io.LimitReader(neverEnding{}, benchmarkBytes)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(benchmarkBytes)
		for b.Loop() {
			file, err := s.client.ReadFile(b.Context(), "/tmp/f", 0)
			if err != nil {
				b.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, file); err != nil || n != benchmarkBytes {
				b.Fatal(n, err)
			}
			_ = file.Close()
		}
	})
}

// BenchmarkMemory reports the command's memory in KiB, from idle to busy.
func BenchmarkMemory(b *testing.B) {
	s := newCommandSandbox(b)
	for b.Loop() {
	}
	report := func(when string) {
		for _, field := range []string{"VmRSS", "VmHWM", "RssAnon", "Threads"} {
			b.ReportMetric(s.memory("status", field), when+"-"+field)
		}
		b.ReportMetric(s.memory("smaps_rollup", "Pss"), when+"-Pss")
	}
	report("new")
	s.startIdle()
	report("idle")
	for range 100 {
		s.exec(command("/bin/busybox", "true"))
	}
	report("after-100-execs")
	session := s.execWithStdin(command("cat"), io.LimitReader(neverEnding{}, benchmarkBytes))
	if len(session.stdout) != benchmarkBytes {
		b.Fatal("cat lost something")
	}
	report("after-64MiB-cat")
}

// memory reads a field of a file of /proc about the guest.
func (s *sandbox) memory(file, field string) float64 {
	s.t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", s.cmd.Process.Pid, file))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		if name, value, _ := strings.Cut(line, ":"); name == field {
			number, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			if err != nil {
				s.t.Fatal(err)
			}
			return number
		}
	}
	s.t.Fatalf("no %s in %s", field, file)
	return 0
}
