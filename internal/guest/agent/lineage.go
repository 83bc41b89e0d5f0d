package agent

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// lineage finds everything that descends from one process, including what
// left its session and process group and lost its parent (a daemon).
//
// Linux has no field for that, but resource limits are inherited by every
// child and kept by every program. RLIMIT_RSS has had no effect since Linux
// 2.4 (getrlimit(2)), so each process is started with a soft limit of its own:
// lineageBase + n, which still reads as "practically unlimited". Only a
// process that sets this limit itself is then found by session and parent
// alone.
type lineage struct {
	// hard is the hard limit; 0 when limits cannot be used.
	hard uint64
	next uint64
}

const lineageBase = 1 << 62

func newLineage() lineage {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_RSS, &limit); err != nil || limit.Max < lineageBase<<1 {
		return lineage{}
	}
	return lineage{hard: limit.Max}
}

// mark makes the next process that is started the first of a new lineage. It
// returns the mark, or 0 when there is none.
func (l *lineage) mark() uint64 {
	if l.hard == 0 {
		return 0
	}
	l.next++
	tag := lineageBase + l.next
	if err := unix.Setrlimit(unix.RLIMIT_RSS, &unix.Rlimit{Cur: tag, Max: l.hard}); err != nil {
		return 0
	}
	return tag
}

// descendants lists p's living descendants, and p itself. alive says that p
// has not been collected, so that its number still means its session.
func (l *lineage) descendants(p *process, alive bool) []int {
	table := readProcesses()
	self := os.Getpid()
	var found []int
	for pid, entry := range table {
		if pid == self || pid == 1 || entry.state == 'Z' || entry.state == 'X' {
			continue
		}
		belongs := p.tag != 0 && readTag(pid) == p.tag
		if !belongs && alive {
			belongs = entry.session == p.pid || table.descends(pid, p.pid)
		}
		if belongs {
			found = append(found, pid)
		}
	}
	return found
}

type processTable map[int]processEntry

type processEntry struct {
	state   byte
	parent  int
	session int
}

// descends reports whether ancestor is pid or above it.
func (t processTable) descends(pid, ancestor int) bool {
	// The table is not one instant; len bounds a loop that reuse of numbers
	// could feign.
	for range len(t) {
		if pid == ancestor {
			return true
		}
		entry, ok := t[pid]
		if !ok || entry.parent <= 1 {
			return false
		}
		pid = entry.parent
	}
	return false
}

func readProcesses() processTable {
	table := processTable{}
	dir, err := os.Open("/proc")
	if err != nil {
		return table
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		if entry, ok := parseStat(stat); ok {
			table[pid] = entry
		}
	}
	return table
}

// parseStat reads a line of /proc/PID/stat: pid (name) state ppid pgrp session
// and more. The name may hold spaces and brackets.
func parseStat(stat []byte) (processEntry, bool) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return processEntry{}, false
	}
	fields := bytes.Fields(stat[end+1:])
	if len(fields) < 4 {
		return processEntry{}, false
	}
	parent, err1 := strconv.Atoi(string(fields[1]))
	session, err2 := strconv.Atoi(string(fields[3]))
	if err1 != nil || err2 != nil {
		return processEntry{}, false
	}
	return processEntry{state: fields[0][0], parent: parent, session: session}, true
}

// readTag returns the soft RLIMIT_RSS of a process, or 0.
func readTag(pid int) uint64 {
	limits, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		// Some kernels have no such file, and prlimit needs more rights.
		var limit unix.Rlimit
		if unix.Prlimit(pid, unix.RLIMIT_RSS, nil, &limit) != nil {
			return 0
		}
		return limit.Cur
	}
	return parseTag(limits)
}

func parseTag(limits []byte) uint64 {
	const name = "Max resident set"
	_, line, ok := bytes.Cut(limits, []byte(name))
	if !ok {
		return 0
	}
	fields := bytes.Fields(line)
	if len(fields) == 0 {
		return 0
	}
	tag, err := strconv.ParseUint(string(fields[0]), 10, 64)
	if err != nil {
		return 0
	}
	return tag
}
