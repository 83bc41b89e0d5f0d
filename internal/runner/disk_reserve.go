package runner

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sandbar-project/sandbar/internal/engine"
)

// DiskReserve is how many bytes of the sandboxes' disk are kept free; 0 means
// that the runner decides by the disk's size.
type DiskReserve int64

// What is kept of a disk when nobody says: a twentieth, within bounds. Less would
// be written full before a runner notices, and more is too much of a large disk.
const (
	defaultReservePart = 20
	minDefaultReserve  = 1 << 30
	maxDefaultReserve  = 10 << 30
)

// of is the reserve for a disk.
func (r DiskReserve) of(disk engine.Disk) int64 {
	if r > 0 {
		return int64(r)
	}
	return min(max(disk.TotalBytes/defaultReservePart, minDefaultReserve), maxDefaultReserve)
}

// MarshalText implements encoding.TextMarshaler.
func (r DiskReserve) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It takes quantities as in
// resources: 512Mi, 2G, 1073741824.
func (r *DiskReserve) UnmarshalText(text []byte) error {
	quantity, err := resource.ParseQuantity(string(text))
	if err != nil || quantity.Sign() < 0 || quantity.CmpInt64(math.MaxInt64) >= 0 {
		return fmt.Errorf("%q is not an amount of disk space; write one like 512Mi or 10Gi, or 0 for the default", text)
	}
	*r = DiskReserve(quantity.Value())
	return nil
}

// String is the reserve as it is written on a command line.
func (r DiskReserve) String() string {
	return resource.NewQuantity(int64(r), resource.BinarySI).String()
}
