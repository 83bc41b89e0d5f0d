package gateway

import (
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sandbar-project/sandbar/internal/gateway/placement"
)

// demandOf is what a stored sandbox was promised: its effective requests, which
// are of its only container.
func demandOf(record *Record) placement.Amount {
	requests := record.Status.GetEffectiveResourceRequirements().GetRequests()
	return placement.Amount{
		CPUMillis:   quantity(requests.GetCpu(), (*resource.Quantity).MilliValue),
		MemoryBytes: quantity(requests.GetMemory(), (*resource.Quantity).Value),
		GPUCount:    requests.GetGpu().GetCount(),
	}
}

// quantity reads one that was valid when it was stored; it is rounded up.
func quantity(text string, value func(*resource.Quantity) int64) int64 {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0
	}
	return value(&q)
}
