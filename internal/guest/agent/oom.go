package agent

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	oomScorePath = "/proc/self/oom_score_adj"
	// oomScoreRaise is added to what the sandbox was given, for the workload:
	// when memory is short it goes before the guest.
	oomScoreRaise = 500
	maxOOMScore   = 1000
)

// oomScore gives started processes a higher oom_score_adj than the guest's. A
// child inherits it at birth, so the guest takes it on for the moment of the
// start; going back down to what one began with needs no privilege. Where the
// score cannot be set nothing is.
type oomScore struct {
	own    []byte
	raised []byte
}

func readOOMScore() oomScore {
	text, err := os.ReadFile(oomScorePath)
	if err != nil {
		return oomScore{}
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return oomScore{}
	}
	return oomScore{
		own:    []byte(strconv.Itoa(own)),
		raised: []byte(strconv.Itoa(min(own+oomScoreRaise, maxOOMScore))),
	}
}

func (s *oomScore) raise()   { writeOOMScore(s.raised) }
func (s *oomScore) restore() { writeOOMScore(s.own) }

func writeOOMScore(score []byte) {
	if score == nil {
		return
	}
	fd, err := unix.Open(oomScorePath, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_, _ = unix.Write(fd, score)
	_ = unix.Close(fd)
}
