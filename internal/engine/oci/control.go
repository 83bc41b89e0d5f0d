package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// The control channel is a unix socket that the guest binds in a directory of
// the host's, on a tiny file system of the sandbox's own:
//
//	control/           tmpfs
//	  export/          seen in the sandbox as /.sandbar
//	    guest          where the guest binary is mounted
//	    guest.sock     bound by the guest; moved to private/ once it listens
//	  private/
//	    guest.sock     where the host connects
//
// After the move the file system is made read-only as a whole, which also holds
// for the mount that the sandbox has. A socket belongs to its inode, so the host
// still connects; the workload, which starts after this, finds no socket and can
// neither make one nor fill the file system.
const (
	socketName  = "guest.sock"
	controlSize = "size=64k,nr_inodes=16,mode=0700"
)

func mountControl(dir directory) error {
	if err := os.Mkdir(dir.control(), 0o700); err != nil {
		return fmt.Errorf("make the control channel: %w", err)
	}
	if err := unix.Mount("sandbar", dir.control(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, controlSize); err != nil {
		return fmt.Errorf("mount the control channel: %w", err)
	}
	for _, path := range []string{dir.export(), dir.private()} {
		if err := os.Mkdir(path, 0o755); err != nil {
			return fmt.Errorf("make the control channel: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir.export(), "guest"), nil, 0o555); err != nil {
		return fmt.Errorf("make the guest's mount point: %w", err)
	}
	return nil
}

// sealControl moves the socket out of the sandbox's sight and makes the file
// system read-only.
func sealControl(dir directory) error {
	if err := os.Rename(filepath.Join(dir.export(), socketName), filepath.Join(dir.private(), socketName)); err != nil {
		return fmt.Errorf("seal the control channel: %w", err)
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount("sandbar", dir.control(), "tmpfs", flags, controlSize); err != nil {
		return fmt.Errorf("seal the control channel: %w", err)
	}
	return nil
}

// socketWatch tells when the guest has made its socket.
type socketWatch struct {
	path   string
	events *os.File
}

// watchSocket must be called before the guest starts.
func watchSocket(dir directory) (*socketWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch for the guest's socket: %w", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, dir.export(), unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		_ = events.Close()
		return nil, fmt.Errorf("watch for the guest's socket: %w", err)
	}
	return &socketWatch{path: filepath.Join(dir.export(), socketName), events: events}, nil
}

func (w *socketWatch) close() { _ = w.events.Close() }

// wait returns once the socket's file is there.
func (w *socketWatch) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = w.events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, 4096)
	for {
		_, err := os.Lstat(w.path)
		if err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if _, err := w.events.Read(buffer); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("watch for the guest's socket: %w", err)
		}
	}
}

// dialControl connects to the socket in a directory. A path may be longer than a socket's
// address can be, so the address goes by way of an open directory.
func dialControl(ctx context.Context, dir string) (net.Conn, error) {
	parent, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("connect to the guest: %w", engine.ErrNotRunning)
		}
		return nil, fmt.Errorf("connect to the guest: %w", err)
	}
	defer parent.Close()
	path := "/proc/self/fd/" + strconv.Itoa(int(parent.Fd())) + "/" + socketName
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("connect to the guest: %w: %w", engine.ErrNotRunning, err)
	default:
		return nil, fmt.Errorf("connect to the guest: %w", err)
	}
}

// awaitListener returns once the guest accepts connections. It has bound the
// socket already and is about to listen, so this seldom takes a second try.
func awaitListener(ctx context.Context, dir string) error {
	for {
		conn, err := dialControl(ctx, dir)
		if err == nil {
			return conn.Close()
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
}
