package runner

import (
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/engine"
)

const gibibyte = 1 << 30

func TestWhatADisksFreeSpaceMeans(t *testing.T) {
	const total, reserve = 100 * gibibyte, 4 * gibibyte
	for _, test := range []struct {
		name     string
		disk     engine.Disk
		short    bool
		critical bool
		pause    time.Duration
		says     string
	}{
		{
			name: "with room the next look is far away",
			disk: engine.Disk{FreeBytes: 90 * gibibyte}, pause: maxDiskPause,
		},
		{
			name: "it comes before the fastest writer can be at the reserve",
			disk: engine.Disk{FreeBytes: reserve + 4*gibibyte}, pause: time.Second,
		},
		{
			name: "below the reserve nothing is begun",
			disk: engine.Disk{FreeBytes: reserve - 1}, short: true, pause: 499 * time.Millisecond, says: "its disk has 4095Mi of 100Gi free, and 4Gi are kept",
		},
		{
			name: "below half of it a sandbox has to go",
			disk: engine.Disk{FreeBytes: reserve/2 - 1}, short: true, critical: true, pause: minDiskPause, says: "its disk has 2047Mi of 100Gi",
		},
		{
			name: "too few files are as bad as too few bytes",
			disk: engine.Disk{FreeBytes: 90 * gibibyte, TotalFiles: 1000, FreeFiles: 20}, short: true, critical: true, pause: minDiskPause,
			says: "its disk has room for 20 more files of 1000",
		},
		{
			name: "a file system that does not bound its files has enough",
			disk: engine.Disk{FreeBytes: 90 * gibibyte}, pause: maxDiskPause,
		},
		{
			name: "what is critical is told, and not what is only short",
			disk: engine.Disk{FreeBytes: reserve - 1, TotalFiles: 1000, FreeFiles: 10}, short: true, critical: true, pause: minDiskPause,
			says: "files",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.disk.TotalBytes = total
			state := judgeDisk(test.disk, reserve)
			if state.short != test.short || state.critical != test.critical {
				t.Errorf("short %t and critical %t, want %t and %t", state.short, state.critical, test.short, test.critical)
			}
			if got := state.pause.Truncate(time.Millisecond); got != test.pause {
				t.Errorf("the next look is after %s, want %s", got, test.pause)
			}
			if text := state.shortage(); !strings.Contains(text, test.says) || (text == "") != !test.short {
				t.Errorf("it says %q, want %q", text, test.says)
			}
		})
	}
}

func TestNoDiskIsLookedAtTooLate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		reserve := rapid.Int64Range(1, 10*gibibyte).Draw(t, "reserve")
		free := rapid.Int64Range(0, 200*gibibyte).Draw(t, "free")
		state := judgeDisk(engine.Disk{TotalBytes: 200 * gibibyte, FreeBytes: free}, reserve)
		written := int64(state.pause.Seconds() * bytesPerSecond)
		threshold := reserve
		if free <= reserve {
			threshold = reserve / 2
		}
		if state.pause > minDiskPause && free-written < threshold-1 {
			t.Fatalf("after %s the fastest writer has left %d bytes, which is under %d", state.pause, free-written, threshold)
		}
		if state.critical && !state.short {
			t.Fatal("it is critical, and not short")
		}
	})
}

func TestTheReserveFollowsTheDisk(t *testing.T) {
	for _, test := range []struct {
		name    string
		reserve DiskReserve
		total   int64
		want    int64
	}{
		{"a small disk keeps 1 GiB", 0, 10 * gibibyte, gibibyte},
		{"a disk keeps a twentieth", 0, 100 * gibibyte, 5 * gibibyte},
		{"a large disk keeps 10 GiB", 0, 1000 * gibibyte, 10 * gibibyte},
		{"what is said counts", 64 << 20, 1000 * gibibyte, 64 << 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.reserve.of(engine.Disk{TotalBytes: test.total}); got != test.want {
				t.Errorf("%d bytes are kept, want %d", got, test.want)
			}
		})
	}
}

func TestReservesAreQuantities(t *testing.T) {
	for text, want := range map[string]DiskReserve{
		"0": 0, "1073741824": gibibyte, "512Mi": 512 << 20, "2G": 2_000_000_000,
		"": -1, "-1": -1, "much": -1, "5%": -1, "1e30": -1,
	} {
		var reserve DiskReserve
		err := reserve.UnmarshalText([]byte(text))
		if (err == nil) != (want >= 0) || err == nil && reserve != want {
			t.Errorf("%q is %d, %v; want %d", text, reserve, err, want)
		}
		if err == nil {
			var again DiskReserve
			if err := again.UnmarshalText([]byte(reserve.String())); err != nil || again != reserve {
				t.Errorf("%q is written as %q, which is %d, %v", text, reserve, again, err)
			}
		}
	}
}

// TestTheLargestSandboxMakesRoomForTheOthers: only it is ended, and meanwhile
// nothing is begun.
func TestTheLargestSandboxMakesRoomForTheOthers(t *testing.T) {
	b := newBench(t)
	b.limits.DiskReserve = 100 << 20
	// Near the reserve, so that the watch looks often.
	free := int64(110 << 20)
	b.engine.disk = func() engine.Disk { return engine.Disk{TotalBytes: gibibyte, FreeBytes: free} }
	client, _ := b.serve()
	small, large := b.mustRun(client, 1, shell("sleep 1000")), b.mustRun(client, 2, shell("sleep 1000"))
	b.awaitHeartbeat(func(shortage string) bool { return shortage == "" })

	b.engine.mu.Lock()
	b.engine.held = map[string]engine.DiskUsage{small: {Bytes: 10 << 20, Files: 9000}, large: {Bytes: 90 << 20, Files: 10}}
	b.engine.disk = func() engine.Disk {
		if _, err := os.Stat(b.engine.path(large)); err != nil {
			return engine.Disk{TotalBytes: gibibyte, FreeBytes: 99 << 20} // under the reserve yet
		}
		return engine.Disk{TotalBytes: gibibyte, FreeBytes: 10 << 20}
	}
	b.engine.mu.Unlock()
	status := b.await(client, large, ended)
	if status.GetState() != sandboxv1.State_STATE_FAILED || !strings.Contains(status.GetStateReason(), "held the most of it: 90Mi in 10 files") {
		t.Errorf("the largest ended as %v", status)
	}
	b.awaitHeartbeat(func(shortage string) bool { return strings.Contains(shortage, "100Mi are kept") })
	if _, err := client.CreateSandbox(b.ctx(), b.request(3, shell("sleep 1000"))); apierr.ReasonOf(err) != apierr.StorageFull {
		t.Errorf("a new sandbox is answered with %v, want %s", err, apierr.StorageFull)
	}
	if got := b.run(client, small, "echo", "here"); got.Stdout != "here\n" {
		t.Errorf("the other answers %+v", got)
	}

	b.engine.mu.Lock()
	b.engine.disk = func() engine.Disk { return engine.Disk{TotalBytes: gibibyte, FreeBytes: free} }
	b.engine.mu.Unlock()
	b.awaitHeartbeat(func(shortage string) bool { return shortage == "" })
	b.mustRun(client, 4, shell("sleep 1000"))
	for _, id := range []string{small, newID(4)} {
		b.delete(client, id, 0)
	}
	b.nothingLeft()
}

// TestNoSandboxPaysForADiskThatOthersFill: ending it would free next to
// nothing.
func TestNoSandboxPaysForADiskThatOthersFill(t *testing.T) {
	b := newBench(t)
	b.limits.DiskReserve = 100 << 20
	b.engine.disk = func() engine.Disk { return engine.Disk{TotalBytes: gibibyte, FreeBytes: 110 << 20} }
	client, _ := b.serve()
	id := b.mustRun(client, 1, shell("sleep 1000"))
	looks := make(chan struct{})
	b.engine.mu.Lock()
	b.engine.held = map[string]engine.DiskUsage{id: {Bytes: 64 << 10, Files: 12}}
	b.engine.disk = func() engine.Disk {
		select {
		case looks <- struct{}{}:
		default:
		}
		return engine.Disk{TotalBytes: gibibyte}
	}
	b.engine.mu.Unlock()
	for range 5 {
		<-looks
	}
	if got := b.run(client, id, "echo", "here"); got.Stdout != "here\n" {
		t.Errorf("the sandbox answers %+v", got)
	}
	b.delete(client, id, 0)
	b.nothingLeft()
}

// awaitHeartbeat returns at the first heartbeat with a shortage as wanted.
func (b *bench) awaitHeartbeat(wanted func(shortage string) bool) {
	b.t.Helper()
	ctx := b.ctx()
	for {
		select {
		case capacity := <-b.gateway.heartbeats:
			if wanted(capacity.GetStorageShortage()) {
				return
			}
		case <-ctx.Done():
			b.t.Fatal("no such heartbeat came")
		}
	}
}
