package policy

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Bounds on any one quantity. They keep sums inside an int64 and turn away
// what can only be a slip.
const (
	// maxQuantityLength is in bytes; the longest useful quantity is far shorter.
	maxQuantityLength = 32
	maxCores          = 1_000_000
	maxMemoryBytes    = 1 << 50
)

// unit is a resource that quantities measure.
type unit int

const (
	cpu unit = iota
	memory
)

func (u unit) String() string {
	if u == cpu {
		return "cpu"
	}
	return "memory"
}

// format writes an amount the way people write quantities.
func (u unit) format(amount int64) string {
	if u == cpu {
		return resource.NewMilliQuantity(amount, resource.DecimalSI).String()
	}
	return resource.NewQuantity(amount, resource.BinarySI).String()
}

// CPUText writes thousandths of a core as a quantity ("2", "500m").
func CPUText(millis int64) string { return cpu.format(millis) }

// MemoryText writes bytes as a quantity ("512Mi").
func MemoryText(bytes int64) string { return memory.format(bytes) }

// parse reads a Kubernetes quantity as millicores or bytes; problem is empty
// when that went well.
func (u unit) parse(text string) (amount int64, problem string) {
	// An exponent of many digits would be expanded to a number of that many.
	if len(text) > maxQuantityLength || exponentDigits(text) > 2 {
		return 0, "is not a quantity that anything here could hold"
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, u.expected()
	}
	if q.Sign() <= 0 {
		return 0, "must be greater than zero"
	}
	if u == cpu {
		if q.CmpInt64(maxCores) > 0 {
			return 0, "is more than 1000000 cores"
		}
		return q.MilliValue(), ""
	}
	if q.CmpInt64(maxMemoryBytes) > 0 {
		return 0, "is more than 1Pi"
	}
	amount = q.Value()
	if q.CmpInt64(amount) != 0 {
		return 0, `is not a whole number of bytes (the suffix "m" means thousandths; did you mean "Mi"?)`
	}
	return amount, ""
}

func (u unit) expected() string {
	if u == cpu {
		return `is not a quantity; write cores such as "2", "0.5" or "500m"`
	}
	return `is not a quantity; write bytes such as "512Mi", "4Gi" or "2G"`
}

// exponentDigits is how many characters follow an exponent's e; 0 for the
// suffixes E and Ei, and where there is none.
func exponentDigits(text string) int {
	at := strings.IndexAny(text, "eE")
	if at < 0 {
		return 0
	}
	rest := strings.TrimLeft(text[at+1:], "+-")
	if rest == "i" {
		return 0
	}
	return len(rest)
}

// bound is a quantity that a policy or the platform gives; the zero value is
// one that was left out.
type bound struct {
	text   string
	amount int64
}

func (b bound) set() bool { return b.text != "" }

// addSaturating adds two amounts that are not negative.
func addSaturating(a, b int64) int64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return 1<<63 - 1
}
