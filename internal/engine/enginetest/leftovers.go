package enginetest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
)

// Snapshot is what a machine has at one instant of the things that containers
// are made of, each as one line: "mount PATH", "netns NAME", "link NAME",
// "nftables TABLE", "nftables TABLE chain NAME", "nftables TABLE set NAME: N
// elements", "cgroup PATH", "process PID COMMAND".
type Snapshot map[string]struct{}

// TakeSnapshot looks at the whole machine. With marks it keeps only lines that
// contain one of them, so that others may work on the machine meanwhile; a
// process is also kept when its cgroup
// contains one.
func TakeSnapshot(marks ...string) (Snapshot, error) {
	s := snapshotter{found: make(Snapshot), marks: marks}
	err := errors.Join(s.mounts(), s.namespaces(), s.links(), s.tables(), s.cgroups(), s.processes())
	if err != nil {
		return nil, fmt.Errorf("take a snapshot of the machine: %w", err)
	}
	return s.found, nil
}

// Leftovers takes a snapshot and lists what was not there before, sorted.
func Leftovers(before Snapshot, marks ...string) ([]string, error) {
	now, err := TakeSnapshot(marks...)
	if err != nil {
		return nil, err
	}
	return now.Since(before), nil
}

// Since lists what s has and before has not, sorted.
func (s Snapshot) Since(before Snapshot) []string {
	var added []string
	for line := range s {
		if _, ok := before[line]; !ok {
			added = append(added, line)
		}
	}
	slices.Sort(added)
	return added
}

type snapshotter struct {
	found Snapshot
	marks []string
}

// add keeps a line when it, or what else is known of the thing, has a mark.
func (s *snapshotter) add(line string, also ...string) {
	if len(s.marks) == 0 || slices.ContainsFunc(s.marks, func(mark string) bool {
		return slices.ContainsFunc(append(also, line), func(text string) bool { return strings.Contains(text, mark) })
	}) {
		s.found[line] = struct{}{}
	}
}

func (s *snapshotter) mounts() error {
	mounts, err := mountinfo.GetMounts(nil)
	for _, mount := range mounts {
		s.add("mount " + mount.Mountpoint)
	}
	return err
}

// namespaces lists those that ip-netns(8) would.
func (s *snapshotter) namespaces() error {
	entries, err := os.ReadDir("/run/netns")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		s.add("netns " + entry.Name())
	}
	return err
}

func (s *snapshotter) links() error {
	links, err := netlink.LinkList()
	for _, link := range links {
		s.add("link " + link.Attrs().Name)
	}
	return err
}

func (s *snapshotter) tables() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return err
	}
	for _, chain := range chains {
		s.add("nftables " + chain.Table.Name)
		s.add("nftables " + chain.Table.Name + " chain " + chain.Name)
	}
	tables, err := conn.ListTables()
	if err != nil {
		return err
	}
	for _, table := range tables {
		s.add("nftables " + table.Name)
		sets, err := conn.GetSets(table)
		if err != nil {
			return err
		}
		for _, set := range sets {
			elements, err := conn.GetSetElements(set)
			if err != nil {
				return err
			}
			s.add(fmt.Sprintf("nftables %s set %s: %d elements", table.Name, set.Name, len(elements)))
		}
	}
	return nil
}

func (s *snapshotter) cgroups() error {
	hierarchies, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "cgroup" && m.FSType != "cgroup2", false
	})
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		err := filepath.WalkDir(hierarchy.Mountpoint, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return ignoreGone(err)
			}
			if entry.IsDir() {
				s.add("cgroup " + path)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *snapshotter) processes() error {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		// A process may end while it is looked at. What has ended and waits to be
		// reaped, like the kernel's own threads, has no command line.
		command, err := os.ReadFile(dir + "/cmdline")
		if err != nil || len(command) == 0 {
			continue
		}
		groups, err := os.ReadFile(dir + "/cgroup")
		if err != nil {
			continue
		}
		words := strings.ReplaceAll(strings.TrimRight(string(command), "\x00"), "\x00", " ")
		s.add("process "+filepath.Base(dir)+" "+words, string(groups))
	}
	return nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
