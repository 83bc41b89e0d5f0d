package provider

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// members are the attributes of one known object.
type members map[string]attr.Value

// set tells whether the attribute has a value, be it known or not.
func (m members) set(name string) bool { return m[name] != nil && !m[name].IsNull() }

// text is the attribute's text; false when there is none yet.
func (m members) text(name string) (string, bool) {
	value, ok := m[name].(types.String)
	return value.ValueString(), ok && !value.IsNull() && !value.IsUnknown()
}

// number is the attribute's number; false when there is none yet.
func (m members) number(name string) (int64, bool) {
	value, ok := m[name].(types.Int64)
	return value.ValueInt64(), ok && !value.IsNull() && !value.IsUnknown()
}

// finding is what a rule has to say against one attribute of an object, or
// against the object itself when attribute is empty.
type finding struct{ attribute, summary, detail string }

// objectRule checks what attributes of one object mean together.
type objectRule struct {
	description string
	check       func(members) []finding
}

func (r objectRule) Description(context.Context) string         { return r.description }
func (r objectRule) MarkdownDescription(context.Context) string { return r.description }

func (r objectRule) ValidateObject(_ context.Context, req validator.ObjectRequest, resp *validator.ObjectResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	for _, found := range r.check(req.ConfigValue.Attributes()) {
		where := req.Path
		if found.attribute != "" {
			where = where.AtName(found.attribute)
		}
		resp.Diagnostics.AddAttributeError(where, found.summary, named(where, found.detail))
	}
}

// exactlyOne demands one of the named attributes. While one of them is not
// known yet it can only tell that there are too many.
func exactlyOne(what string, names ...string) validator.Object {
	list := strings.Join(names, ", ")
	return objectRule{"exactly one " + what, func(m members) []finding {
		var chosen []string
		undecided := false
		for _, name := range names {
			switch {
			case !m.set(name):
			case m[name].IsUnknown():
				undecided = true
			default:
				chosen = append(chosen, name)
			}
		}
		switch {
		case len(chosen) > 1:
			return []finding{{
				chosen[1], "More than one " + what,
				fmt.Sprintf("%s cannot be set together. Set exactly one of %s.", strings.Join(chosen, " and "), list),
			}}
		case len(chosen) == 0 && !undecided:
			return []finding{{"", "Missing " + what, fmt.Sprintf("Set exactly one of %s.", list)}}
		}
		return nil
	}}
}

// notBoth refuses an older name next to the newer one.
func notBoth(older, newer string) validator.Object {
	return objectRule{"not both names of one setting", func(m members) []finding {
		if !m.set(older) || !m.set(newer) {
			return nil
		}
		return []finding{{
			older, "Setting given twice",
			fmt.Sprintf("cannot set both %s and %s: they are the older and the newer name of one setting. Keep %s.", older, newer, newer),
		}}
	}}
}

func exclusionIsOrdered() validator.Object {
	return objectRule{"end_time after start_time", func(m members) []finding {
		from, okFrom := m.text("start_time")
		to, okTo := m.text("end_time")
		start, errStart := time.Parse(time.RFC3339, from)
		end, errEnd := time.Parse(time.RFC3339, to)
		if !okFrom || !okTo || errStart != nil || errEnd != nil || end.After(start) {
			return nil
		}
		return []finding{{"end_time", "Invalid exclusion", fmt.Sprintf("end_time %s must be after start_time %s.", to, from)}}
	}}
}

func scalingIsOrdered() validator.Object {
	return objectRule{"min_replicas at most max_replicas", func(m members) []finding {
		low, okLow := m.number("min_replicas")
		high, okHigh := m.number("max_replicas")
		if !okLow || !okHigh || high == 0 || low <= high {
			return nil
		}
		return []finding{{"min_replicas", "Invalid scaling", fmt.Sprintf("min_replicas %d must not be more than max_replicas %d.", low, high)}}
	}}
}

func portsAreOrdered() validator.Object {
	return objectRule{"end_port 0 or at least port", func(m members) []finding {
		first, okFirst := m.number("port")
		last, okLast := m.number("end_port")
		if !okFirst || !okLast || last == 0 || last >= first {
			return nil
		}
		return []finding{{"end_port", "Invalid port range", fmt.Sprintf("end_port %d must be 0 or at least port %d.", last, first)}}
	}}
}

func noHostnames() validator.Object {
	return objectRule{"no hostnames in default_egress", func(m members) []finding {
		var found []finding
		for _, name := range []string{"https_hostname", "dns_name", "https_hostname_except", "dns_name_except"} {
			if m.set(name) {
				found = append(found, finding{
					name, "Hostname in default_egress",
					"default_egress cannot have hostname rules. Put them into allowed_egress, and let sandboxes or templates ask for them.",
				})
			}
		}
		return found
	}}
}

func notNodeDefaultForNested() validator.Object {
	return objectRule{"nested virtualization needs a RuntimeClass", func(m members) []finding {
		class, _ := m.text("runtime_class")
		if class != sandboxv1.RuntimeClass_RUNTIME_CLASS_CPU_NESTED_VIRT.String() || !m.set("node_default") {
			return nil
		}
		return []finding{{
			"node_default", "Invalid runtime class mapping",
			class + " cannot be mapped to the node's default. Set kubernetes_runtime_class_name.",
		}}
	}}
}

func mappingsStandAlone() validator.Object {
	return objectRule{"runtime_class_mappings without the older settings", func(m members) []finding {
		if !m.set("runtime_class_mappings") {
			return nil
		}
		var found []finding
		for _, name := range []string{"allowed_runtime_classes", "default_cpu_runtime_class", "default_gpu_runtime_class"} {
			if m.set(name) {
				found = append(found, finding{
					name, "Conflicting runtime class settings",
					"runtime_class_mappings cannot be combined with " + name + ". Keep one of them.",
				})
			}
		}
		return found
	}}
}

// setRule checks the known elements of a set together.
type setRule struct {
	description string
	check       func([]attr.Value) []finding
}

func (r setRule) Description(context.Context) string         { return r.description }
func (r setRule) MarkdownDescription(context.Context) string { return r.description }

func (r setRule) ValidateSet(_ context.Context, req validator.SetRequest, resp *validator.SetResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	for _, found := range r.check(req.ConfigValue.Elements()) {
		resp.Diagnostics.AddAttributeError(req.Path, found.summary, named(req.Path, found.detail))
	}
}

func eachClassOnce() validator.Set {
	return setRule{"each runtime class once", func(elements []attr.Value) []finding {
		var found []finding
		seen := map[string]bool{}
		for _, element := range elements {
			mapping, ok := element.(types.Object)
			if !ok {
				continue
			}
			class, ok := members(mapping.Attributes()).text("runtime_class")
			if ok && seen[class] {
				found = append(found, finding{"", "Duplicate runtime class mapping", class + " is mapped more than once. Keep one mapping of it."})
			}
			seen[class] = ok
		}
		return found
	}}
}

func noneCovered() validator.Set {
	return setRule{"no block inside another", func(elements []attr.Value) []finding {
		var prefixes []netip.Prefix
		for _, element := range elements {
			if text, ok := element.(types.String); ok {
				if prefix, err := netip.ParsePrefix(text.ValueString()); err == nil {
					prefixes = append(prefixes, prefix)
				}
			}
		}
		// Wider blocks first, so that each is compared with those that could cover it.
		slices.SortFunc(prefixes, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
		var found []finding
		for i, prefix := range prefixes {
			for _, wider := range prefixes[:i] {
				if wider.Overlaps(prefix) {
					found = append(found, finding{
						"", "Redundant CIDR block",
						fmt.Sprintf("%s is covered by %s. Remove one of them.", prefix, wider),
					})
					break
				}
			}
		}
		return found
	}}
}
