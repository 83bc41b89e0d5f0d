package runner

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/engine"
)

// What a disk can be filled with in a second, at the most. The watch looks again
// before what is left above a threshold can be used up.
const (
	bytesPerSecond = 4 << 30
	filesPerSecond = 200_000

	minDiskPause = 100 * time.Millisecond
	maxDiskPause = 10 * time.Second
)

// filesReservePart of the files that a disk can have are kept free.
const filesReservePart = 20

// A sandbox that holds less is not ended: that would help nobody.
const (
	minEvictedBytes = 1 << 20
	minEvictedFiles = 256
)

// evictionTime is how long an ended sandbox may take to give its space back
// before the next one is chosen.
const evictionTime = 30 * time.Second

// diskState is what a measurement of the disk means. Below the reserve nothing
// new is begun; below half of it sandboxes are ended, the one that holds most
// first, until there is more again.
type diskState struct {
	disk    engine.Disk
	reserve int64
	// short: nothing new is to be begun. critical: a sandbox has to go.
	short, critical bool
	// files: it is files that there are too few of, and not bytes.
	files bool
	// pause is until the next measurement.
	pause time.Duration
}

func judgeDisk(disk engine.Disk, reserve int64) diskState {
	state := diskState{disk: disk, reserve: reserve, pause: maxDiskPause}
	state.judge(disk.FreeBytes, reserve, bytesPerSecond, false)
	if disk.TotalFiles > 0 {
		state.judge(disk.FreeFiles, disk.TotalFiles/filesReservePart, filesPerSecond, true)
	}
	return state
}

func (s *diskState) judge(free, reserve, perSecond int64, files bool) {
	critical := free < reserve/2
	if critical && !s.critical || free < reserve && !s.short {
		s.files = files
	}
	s.short = s.short || free < reserve
	s.critical = s.critical || critical
	above := free - reserve
	if above <= 0 {
		above = free - reserve/2
	}
	pause := time.Duration(float64(above) / float64(perSecond) * float64(time.Second))
	s.pause = min(s.pause, max(pause, minDiskPause))
}

// shortage says why nothing is begun; empty when there is room.
func (s diskState) shortage() string {
	switch {
	case !s.short:
		return ""
	case s.files:
		return fmt.Sprintf("its disk has room for %d more files of %d, and a twentieth is kept", s.disk.FreeFiles, s.disk.TotalFiles)
	default:
		return fmt.Sprintf("its disk has %s of %s free, and %s are kept",
			diskText(s.disk.FreeBytes), diskText(s.disk.TotalBytes), diskText(s.reserve))
	}
}

// diskText is a number of bytes for people, in whole units.
func diskText(bytes int64) string {
	unit := int64(1)
	for next := unit << 10; bytes >= 10*next; next <<= 10 {
		unit = next
	}
	return resource.NewQuantity(bytes/unit*unit, resource.BinarySI).String()
}

// most is what a sandbox holds of that which is short.
func (s diskState) most(usage engine.DiskUsage) (held, least int64) {
	if s.files {
		return usage.Files, minEvictedFiles
	}
	return usage.Bytes, minEvictedBytes
}

// diskWatch keeps one sandbox from taking the disk from all the others.
type diskWatch struct {
	host *host
	// helpless: it has been said that no sandbox is to blame.
	helpless bool
	// failing: it has been said that the disk cannot be measured.
	failing bool
}

// run looks at the disk until ctx ends.
func (w *diskWatch) run(ctx context.Context) {
	for {
		if !w.host.sleep(ctx, w.look(ctx)) {
			return
		}
	}
}

// look measures the disk, does what is to be done, and says when to look again.
func (w *diskWatch) look(ctx context.Context) time.Duration {
	disk, err := w.host.engine.Disk(ctx)
	if err != nil {
		if !w.failing && ctx.Err() == nil {
			w.host.logger.ErrorContext(ctx, "the disk cannot be measured", "error", err)
		}
		w.failing = true
		return maxDiskPause
	}
	w.failing = false
	state := judgeDisk(disk, w.host.limits.DiskReserve.of(disk))
	if text := state.shortage(); w.host.ledger.setShortage(text) {
		if text == "" {
			text = "it has room again"
		}
		w.host.logger.WarnContext(ctx, "the disk's room has changed: "+text, "free_bytes", disk.FreeBytes, "free_files", disk.FreeFiles)
	}
	if state.critical {
		w.relieve(ctx, state)
	} else {
		w.helpless = false
	}
	return state.pause
}

// relieve ends the sandbox that holds most, and waits for its space.
func (w *diskWatch) relieve(ctx context.Context, state diskState) {
	largest, usage := w.largest(ctx, state)
	if largest == nil {
		if !w.helpless {
			w.host.logger.ErrorContext(ctx, "the disk is nearly full, and no sandbox holds much of it: "+state.shortage())
		}
		w.helpless = true
		return
	}
	largest.logger.WarnContext(ctx, "ending a sandbox for the sake of the disk", "bytes", usage.Bytes, "files", usage.Files, "free_bytes", state.disk.FreeBytes)
	largest.evict(fmt.Sprintf("evicted: the disk of its runner was nearly full, and this sandbox held the most of it: %s in %d files",
		diskText(usage.Bytes), usage.Files))
	timer := w.host.clock.NewTimer(evictionTime)
	defer timer.Stop()
	select {
	case <-largest.gone:
	case <-largest.detached:
	case <-timer.C():
	case <-ctx.Done():
	}
}

// largest finds the live sandbox that holds most of what is short; nil when
// none holds enough to matter.
func (w *diskWatch) largest(ctx context.Context, state diskState) (largest *sandbox, usage engine.DiskUsage) {
	_, most := state.most(engine.DiskUsage{})
	for _, s := range w.host.evictable() {
		measured, err := w.host.engine.DiskUsage(ctx, s.id)
		if err != nil {
			// It has ended meanwhile, or the others have to do.
			s.logger.DebugContext(ctx, "a sandbox's files could not be measured", "error", err)
			continue
		}
		if held, _ := state.most(measured); held >= most {
			largest, usage, most = s, measured, held
		}
	}
	return largest, usage
}

// evictable are the sandboxes whose processes can write.
func (h *host) evictable() []*sandbox {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*sandbox
	for _, s := range h.sandboxes {
		if state := s.state(); state == sandboxv1.State_STATE_RUNNING || state == sandboxv1.State_STATE_TERMINATING {
			all = append(all, s)
		}
	}
	return all
}
