package policy

import (
	"slices"
	"strconv"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// protocol is an index into the ranges of a portSet.
type protocol int

const (
	tcp protocol = iota
	udp
	sctp
	protocolCount
)

func (p protocol) String() string {
	switch p {
	case udp:
		return "UDP"
	case sctp:
		return "SCTP"
	default:
		return "TCP"
	}
}

// parseProtocol reads a protocol; TCP when it is left out.
func parseProtocol(text string) (protocol, bool) {
	switch text {
	case "", "TCP":
		return tcp, true
	case "UDP":
		return udp, true
	case "SCTP":
		return sctp, true
	}
	return 0, false
}

// portRange is inclusive.
type portRange struct {
	first, last int32
}

// portSet is a set of ports by protocol, as ranges in order that neither
// overlap nor touch.
type portSet struct {
	// all is every port of every protocol, those without ports included.
	all    bool
	ranges [protocolCount][]portRange
}

// parsePorts reads the ports of a rule; none mean all.
func parsePorts(ports []*sandboxv1.PortRange) (portSet, []problem) {
	if len(ports) == 0 {
		return portSet{all: true}, nil
	}
	var set portSet
	var problems []problem
	for i, p := range ports {
		at := func(name string) string { return element("ports", i) + "." + name }
		over, ok := parseProtocol(p.GetProtocol())
		if !ok {
			problems = append(problems, problem{at("protocol"), "INVALID_PROTOCOL", quote(p.GetProtocol()) + ` is not a protocol; write "TCP", "UDP" or "SCTP"`})
		}
		if p.GetPort() < 1 || p.GetPort() > 65535 {
			problems = append(problems, problem{at("port"), "INVALID_PORT", strconv.Itoa(int(p.GetPort())) + " is not a port; write 1 to 65535"})
		}
		end := p.GetEndPort()
		if end == 0 {
			end = p.GetPort()
		}
		if end < p.GetPort() || end > 65535 {
			problems = append(problems, problem{at("end_port"), "INVALID_PORT", strconv.Itoa(int(end)) + " must be 0, or a port that is not below port"})
		}
		if problems == nil {
			set.ranges[over] = append(set.ranges[over], portRange{p.GetPort(), end})
		}
	}
	if problems != nil {
		return portSet{}, problems
	}
	for i := range set.ranges {
		set.ranges[i] = merge(set.ranges[i])
	}
	return set, nil
}

// merge puts ranges in order and joins those that overlap or touch.
func merge(ranges []portRange) []portRange {
	if len(ranges) < 2 {
		return ranges
	}
	slices.SortFunc(ranges, func(a, b portRange) int { return int(a.first - b.first) })
	out := ranges[:1]
	for _, r := range ranges[1:] {
		if last := &out[len(out)-1]; r.first <= last.last+1 {
			last.last = max(last.last, r.last)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// contains says whether every port of other is in s.
func (s portSet) contains(other portSet) bool {
	if s.all {
		return true
	}
	if other.all {
		return false
	}
	for protocol, ranges := range other.ranges {
		for _, r := range ranges {
			if !slices.ContainsFunc(s.ranges[protocol], func(own portRange) bool {
				return own.first <= r.first && r.last <= own.last
			}) {
				return false
			}
		}
	}
	return true
}

// https is the one port that a grant by name is for.
func https() portSet {
	return portSet{ranges: [protocolCount][]portRange{tcp: {{443, 443}}}}
}

// onlyHTTPS says whether the set is what a grant by name may have: all (not
// given) or exactly TCP 443.
func (s portSet) onlyHTTPS() bool {
	return s.all || https().contains(s)
}
