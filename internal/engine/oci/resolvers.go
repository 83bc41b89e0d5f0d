package oci

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strings"
)

// hostResolvers are the host's own, as far as sandboxes can reach them: those
// on loopback stand for others, which systemd-resolved lists elsewhere.
func hostResolvers() ([]netip.Addr, error) {
	for _, path := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		file, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find resolvers: %w", err)
		}
		resolvers, err := parseResolvers(file)
		_ = file.Close()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if len(resolvers) > 0 {
			return resolvers, nil
		}
	}
	return nil, nil
}

// parseResolvers reads the IPv4 name servers of a resolv.conf(5) that are not
// on loopback.
func parseResolvers(r io.Reader) ([]netip.Addr, error) {
	var resolvers []netip.Addr
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		address, err := netip.ParseAddr(fields[1])
		if err == nil && address.Is4() && !address.IsLoopback() {
			resolvers = append(resolvers, address)
		}
	}
	return resolvers, lines.Err()
}
