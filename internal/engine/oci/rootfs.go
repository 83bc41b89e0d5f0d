package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// mountRootfs lays the sandbox's own writable directory over the image, which
// all sandboxes of the image share.
func mountRootfs(dir directory, imageRootfs string) error {
	for _, path := range []string{dir.upper(), dir.work(), dir.rootfs()} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("make the root file system's directories: %w", err)
		}
	}
	options := "lowerdir=" + imageRootfs + ",upperdir=" + dir.upper() + ",workdir=" + dir.work()
	// Device nodes of an image stay lifeless. The upper directory never outlives
	// the sandbox, so nothing is won by flushing it to the disk at the end.
	err := unix.Mount("overlay", dir.rootfs(), "overlay", unix.MS_NODEV, options+",volatile")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("overlay", dir.rootfs(), "overlay", unix.MS_NODEV, options)
	}
	if err != nil {
		return fmt.Errorf("mount the root file system (overlay on %s): %w", dir.upper(), err)
	}
	return nil
}

// writeHostFiles gives the sandbox its own /etc/hostname, hosts and
// resolv.conf. The image is not trusted: its links are followed within the root
// file system only, and not at all for the files themselves.
func writeHostFiles(dir directory, spec engine.Spec, address netip.Addr, resolvers []netip.Addr) error {
	root, err := os.OpenRoot(dir.rootfs())
	if err != nil {
		return fmt.Errorf("open the root file system: %w", err)
	}
	defer func() { _ = root.Close() }()
	if err := root.Mkdir("etc", 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make /etc: %w", err)
	}
	if info, err := root.Stat("etc"); err != nil || !info.IsDir() {
		return fmt.Errorf("/etc of the image is not a directory: %w", errors.Join(err, engine.ErrImageInvalid))
	}
	for _, file := range []struct{ name, content string }{
		{"etc/hostname", spec.Hostname + "\n"},
		{"etc/hosts", hostsFile(spec.Hostname, address)},
		{"etc/resolv.conf", resolverFile(spec.Network.DNS, resolvers)},
	} {
		if err := root.RemoveAll(file.name); err != nil {
			return fmt.Errorf("replace /%s: %w", file.name, err)
		}
		if err := writeNew(root, file.name, file.content); err != nil {
			return fmt.Errorf("write /%s: %w", file.name, err)
		}
	}
	return nil
}

func writeNew(root *os.Root, name, content string) error {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	return errors.Join(err, file.Chmod(0o644), file.Close())
}

func hostsFile(hostname string, address netip.Addr) string {
	own := netip.MustParseAddr("127.0.1.1")
	if address.IsValid() {
		own = address
	}
	return "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + own.String() + "\t" + hostname + "\n"
}

func resolverFile(granted bool, resolvers []netip.Addr) string {
	if !granted {
		return "# This sandbox may not ask a resolver.\n"
	}
	var b strings.Builder
	for _, resolver := range resolvers {
		b.WriteString("nameserver " + resolver.String() + "\n")
	}
	return b.String()
}

// unmountAll takes away whatever is mounted on path, however often.
func unmountAll(path string) error {
	for {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		switch {
		case err == nil:
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		default:
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// unmountBelow looks through every mount of the host.
func unmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("list mounts below %s: %w", dir, err)
	}
	for _, mount := range slices.Backward(mounts) {
		if err := unmountAll(mount.Mountpoint); err != nil {
			return err
		}
	}
	return nil
}
