package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The functions below tell whether two spellings mean the same. Text that does
// not parse means the same only as itself.

func sameQuantity(a, b string) bool {
	x, errX := resource.ParseQuantity(a)
	y, errY := resource.ParseQuantity(b)
	return a == b || errX == nil && errY == nil && x.Cmp(y) == 0
}

func sameTime(a, b string) bool {
	x, errX := time.Parse(time.RFC3339, a)
	y, errY := time.Parse(time.RFC3339, b)
	return a == b || errX == nil && errY == nil && x.Equal(y)
}

func sameJSON(a, b string) bool {
	x, errX := canonicalJSON(a)
	y, errY := canonicalJSON(b)
	return a == b || errX == nil && errY == nil && bytes.Equal(x, y)
}

func canonicalJSON(text string) ([]byte, error) {
	var document any
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		return nil, err
	}
	return json.Marshal(document)
}

// keepSpelling plans the stored spelling of a value when the configured one
// means the same, so that the difference is no change.
func keepSpelling(same func(a, b string) bool) planmodifier.String {
	return spelling{same}
}

type spelling struct{ same func(a, b string) bool }

func (spelling) Description(context.Context) string {
	return "Another spelling of the same value is no change."
}

func (s spelling) MarkdownDescription(ctx context.Context) string { return s.Description(ctx) }

func (s spelling) PlanModifyString(_ context.Context, req planmodifier.StringRequest, resp *planmodifier.StringResponse) {
	stored, configured := req.StateValue, req.ConfigValue
	if stored.IsNull() || stored.IsUnknown() || configured.IsNull() || configured.IsUnknown() {
		return
	}
	if s.same(stored.ValueString(), configured.ValueString()) {
		resp.PlanValue = stored
	}
}
