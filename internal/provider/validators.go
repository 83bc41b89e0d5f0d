package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"k8s.io/apimachinery/pkg/api/resource"
)

// textRule checks one known string.
type textRule struct {
	summary string
	// wants says what the value must be; it completes "The value must be ...".
	wants string
	// check answers what is wrong, or "".
	check func(string) string
}

func (r textRule) Description(context.Context) string             { return "value must be " + r.wants }
func (r textRule) MarkdownDescription(ctx context.Context) string { return r.Description(ctx) }

func (r textRule) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	if wrong := r.check(req.ConfigValue.ValueString()); wrong != "" {
		resp.Diagnostics.AddAttributeError(req.Path, r.summary, named(req.Path, fmt.Sprintf("%s. The value must be %s.", wrong, r.wants)))
	}
}

func isQuantity() validator.String {
	return textRule{"Invalid quantity", `a Kubernetes quantity such as "500m", "2" or "4Gi"`, func(value string) string {
		if _, err := resource.ParseQuantity(value); err != nil {
			return fmt.Sprintf("%q is not a quantity", value)
		}
		return ""
	}}
}

func isTime() validator.String {
	return textRule{"Invalid time", `an RFC 3339 time such as "2027-01-31T02:00:00Z"`, func(value string) string {
		if _, err := time.Parse(time.RFC3339, value); err != nil {
			return fmt.Sprintf("%q is not a time", value)
		}
		return ""
	}}
}

func isJSONObject() validator.String {
	return textRule{"Invalid JSON object", "a JSON object; jsonencode() makes one", func(value string) string {
		var object map[string]any
		if err := json.Unmarshal([]byte(value), &object); err != nil {
			return fmt.Sprintf("The text is not a JSON object: %v", err)
		}
		if object == nil {
			return "The text is null"
		}
		return ""
	}}
}

func isLowerCase() validator.String {
	return textRule{"Invalid zone", "in lower case; lower() makes it so", func(value string) string {
		if value != strings.ToLower(value) {
			return fmt.Sprintf("%q has upper-case letters", value)
		}
		return ""
	}}
}

func isCIDR() validator.String {
	return textRule{"Invalid CIDR block", `a canonical CIDR block such as "10.0.0.0/8" or "2001:db8::/32"`, func(value string) string {
		prefix, err := netip.ParsePrefix(value)
		switch {
		case err != nil:
			return fmt.Sprintf("%q is not a CIDR block", value)
		case prefix.Addr().Is4In6():
			return fmt.Sprintf("%q is an IPv4-mapped IPv6 block; write it as IPv4", value)
		case prefix.Masked().String() != value:
			return fmt.Sprintf("%q is not canonical; write %q", value, prefix.Masked())
		}
		return ""
	}}
}

func hasEntries() validator.Map { return mapvalidator.SizeAtLeast(1) }

func fitsInt32() validator.Int64 { return int64validator.AtMost(math.MaxInt32) }

// isSelected refuses false: such an attribute is true or left out.
func isSelected() validator.Bool { return selected{} }

type selected struct{}

func (selected) Description(context.Context) string               { return "value must be true or left out" }
func (s selected) MarkdownDescription(ctx context.Context) string { return s.Description(ctx) }

func (selected) ValidateBool(_ context.Context, req validator.BoolRequest, resp *validator.BoolResponse) {
	if !req.ConfigValue.IsNull() && !req.ConfigValue.IsUnknown() && !req.ConfigValue.ValueBool() {
		resp.Diagnostics.AddAttributeError(req.Path, "Invalid selection",
			named(req.Path, "false selects nothing. Set it to true, or leave it out."))
	}
}
