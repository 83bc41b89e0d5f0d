package provider

import (
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// The builders below make the optional attributes that a configuration is
// written with.

type attributes = map[string]schema.Attribute

func text(description string, validators ...validator.String) schema.StringAttribute {
	return schema.StringAttribute{Optional: true, MarkdownDescription: description, Validators: validators}
}

func requiredText(description string, validators ...validator.String) schema.StringAttribute {
	return schema.StringAttribute{
		Required: true, MarkdownDescription: description,
		Validators: append([]validator.String{stringvalidator.LengthAtLeast(1)}, validators...),
	}
}

func quantity(description string) schema.StringAttribute {
	return schema.StringAttribute{
		Optional: true, MarkdownDescription: description + " A Kubernetes quantity.",
		Validators:    []validator.String{isQuantity()},
		PlanModifiers: []planmodifier.String{keepSpelling(sameQuantity)},
	}
}

func jsonText(description string) schema.StringAttribute {
	return schema.StringAttribute{
		Optional: true, MarkdownDescription: description,
		Validators:    []validator.String{isJSONObject()},
		PlanModifiers: []planmodifier.String{keepSpelling(sameJSON)},
	}
}

func requiredTime(description string) schema.StringAttribute {
	return schema.StringAttribute{
		Required: true, MarkdownDescription: description + " An RFC 3339 time.",
		Validators:    []validator.String{isTime()},
		PlanModifiers: []planmodifier.String{keepSpelling(sameTime)},
	}
}

// choice is text that names a value of the enum; the unspecified one cannot be
// chosen.
func choice(description string, enum protoreflect.EnumDescriptor) schema.StringAttribute {
	return schema.StringAttribute{
		Optional: true, MarkdownDescription: description,
		Validators: []validator.String{stringvalidator.OneOf(enumNames(enum)...)},
	}
}

func enumNames(enum protoreflect.EnumDescriptor) []string {
	var names []string
	for i := range enum.Values().Len() {
		if value := enum.Values().Get(i); value.Number() != 0 {
			names = append(names, string(value.Name()))
		}
	}
	return names
}

func flag(description string) schema.BoolAttribute {
	return schema.BoolAttribute{Optional: true, MarkdownDescription: description}
}

func selection(description string) schema.BoolAttribute {
	return schema.BoolAttribute{
		Optional: true, MarkdownDescription: description + " Only `true` is meaningful; leave it out otherwise.",
		Validators: []validator.Bool{isSelected()},
	}
}

func count(description string, validators ...validator.Int64) schema.Int64Attribute {
	return schema.Int64Attribute{
		Optional: true, MarkdownDescription: description,
		Validators: append([]validator.Int64{int64validator.AtLeast(0)}, validators...),
	}
}

func textSet(description string, each ...validator.String) schema.SetAttribute {
	return schema.SetAttribute{
		Optional: true, MarkdownDescription: description, ElementType: types.StringType,
		Validators: []validator.Set{setvalidator.NoNullValues(), setvalidator.ValueStringsAre(each...)},
	}
}

func textList(description string) schema.ListAttribute {
	return schema.ListAttribute{
		Optional: true, MarkdownDescription: description, ElementType: types.StringType,
		Validators: []validator.List{listvalidator.NoNullValues()},
	}
}

func textMap(description string) schema.MapAttribute {
	return schema.MapAttribute{
		Optional: true, MarkdownDescription: description, ElementType: types.StringType,
		Validators: []validator.Map{mapvalidator.NoNullValues()},
	}
}

func group(description string, members attributes, validators ...validator.Object) schema.SingleNestedAttribute {
	return schema.SingleNestedAttribute{
		Optional: true, MarkdownDescription: description, Attributes: members, Validators: validators,
	}
}

func groupList(description string, members attributes, each ...validator.Object) schema.ListNestedAttribute {
	return schema.ListNestedAttribute{
		Optional: true, MarkdownDescription: description,
		Validators:   []validator.List{listvalidator.NoNullValues()},
		NestedObject: schema.NestedAttributeObject{Attributes: members, Validators: each},
	}
}

func groupSet(description string, members attributes, each ...validator.Object) schema.SetNestedAttribute {
	return schema.SetNestedAttribute{
		Optional: true, MarkdownDescription: description,
		Validators:   []validator.Set{setvalidator.NoNullValues()},
		NestedObject: schema.NestedAttributeObject{Attributes: members, Validators: each},
	}
}
