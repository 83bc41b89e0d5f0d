package provider

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

// titles are the summaries of errors by their code, in the words of the
// published provider. What breaks a rule of one field is titled by that field
// instead.
var titles = map[connect.Code]string{
	connect.CodeCanceled:           "Cancelled",
	connect.CodeInvalidArgument:    "Bad Request",
	connect.CodeDeadlineExceeded:   "Deadline Exceeded",
	connect.CodeNotFound:           "Not Found",
	connect.CodeAlreadyExists:      "Already Exists",
	connect.CodePermissionDenied:   "Unauthorized",
	connect.CodeResourceExhausted:  "Quota Exceeded",
	connect.CodeFailedPrecondition: "Failed Precondition",
	connect.CodeAborted:            "Aborted",
	connect.CodeOutOfRange:         "Out of Range",
	connect.CodeUnimplemented:      "Not Implemented",
	connect.CodeInternal:           "Internal Error",
	connect.CodeUnavailable:        "Unavailable",
	connect.CodeDataLoss:           "Data Loss",
	connect.CodeUnauthenticated:    "Unauthenticated",
}

// subjects are the attributes that a reason is about although no field is
// named: the request was sound, and what it names is not as it must be.
var subjects = map[apierr.Reason]string{
	apierr.ClusterNotFound: "cluster_id",
	apierr.ClusterTaken:    "cluster_id",
	apierr.RunnerExists:    "runner_id",
}

// advice says what to do about reasons whose message cannot know that the
// caller is Terraform.
var advice = map[apierr.Reason]string{
	apierr.ETagMismatch: "The policy was changed elsewhere since this plan was made. Nothing was written. " +
		"Refresh the state, review a new plan, and apply that.",
}

// explain turns an error of a call into diagnostics: one for every violation
// that the server names, at the attribute it is about, else one for the error.
func (r *runnerResource) explain(err error) diag.Diagnostics {
	var diags diag.Diagnostics
	var sent *connect.Error
	if !errors.As(err, &sent) {
		diags.AddError("Unexpected Error", err.Error())
		return diags
	}
	title, ok := titles[sent.Code()]
	if !ok {
		title = "Unknown Error"
	}
	suffix := suffix(err)
	for _, detail := range sent.Details() {
		value, unreadable := detail.Value()
		if unreadable != nil {
			continue
		}
		switch d := value.(type) {
		case *errdetails.BadRequest:
			for _, violation := range d.GetFieldViolations() {
				diags.Append(r.violation(violation, title, suffix))
			}
		case *errdetails.PreconditionFailure:
			for _, violation := range d.GetViolations() {
				diags.AddError(title, fmt.Sprintf("%s (%s): %s%s", violation.GetSubject(), violation.GetType(), violation.GetDescription(), suffix))
			}
		case *errdetails.QuotaFailure:
			for _, violation := range d.GetViolations() {
				diags.AddError(title, fmt.Sprintf("%s: %s%s", violation.GetSubject(), violation.GetDescription(), suffix))
			}
		case *errdetails.ResourceInfo:
			diags.AddError(title, fmt.Sprintf("%s %q: %s%s", d.GetResourceType(), d.GetResourceName(), sent.Message(), suffix))
		}
	}
	if len(diags) > 0 {
		return diags
	}
	if subject, ok := subjects[apierr.ReasonOf(err)]; ok {
		diags.AddAttributeError(path.Root(subject), title, sent.Message()+suffix)
	} else {
		diags.AddError(title, sent.Message()+suffix)
	}
	return diags
}

// named begins a text with the attribute that it is about. Terraform shows only
// the resource for what is inside an attribute, so that the text has to say it.
func named(at path.Path, text string) string { return at.String() + ": " + text }

// violation is the diagnostic of one.
func (r *runnerResource) violation(broken *errdetails.BadRequest_FieldViolation, title, suffix string) diag.Diagnostic {
	if broken.GetField() == "" {
		return diag.NewErrorDiagnostic(title, broken.GetDescription()+suffix)
	}
	at, name := r.attribute(broken.GetField())
	text := name + ": " + broken.GetDescription() + suffix
	if len(at.Steps()) == 0 {
		return diag.NewErrorDiagnostic(title, text)
	}
	summary := "Invalid " + name
	if broken.GetReason() == "REQUIRED" {
		summary = "Missing " + name
	}
	return diag.NewAttributeErrorDiagnostic(at, summary, text)
}

// suffix adds the reason, which can be searched for, and advice.
func suffix(err error) string {
	var lines []string
	reason := apierr.ReasonOf(err)
	if reason != "" {
		lines = append(lines, "Reason: "+string(reason))
	}
	switch more := advice[reason]; {
	case more != "":
		lines = append(lines, more)
	case reason == "" && (connect.CodeOf(err) == connect.CodeUnavailable || connect.CodeOf(err) == connect.CodeDeadlineExceeded):
		lines = append(lines, "The server did not answer, although it was asked several times. "+
			"Check "+envEndpoint+" and that the server runs.")
	}
	if len(lines) == 0 {
		return ""
	}
	return "\n\n" + strings.Join(lines, "\n")
}

// attribute finds the attribute that a violation's field is about, the deepest
// one that the schema knows, and the field's name as a configuration has it.
// The path is empty when no attribute is meant.
func (r *runnerResource) attribute(field string) (at path.Path, name string) {
	steps := fieldSteps(field)
	for len(steps) > 0 && (steps[0].name == "managed_runner" || steps[0].name == "identity") {
		steps = steps[1:]
	}
	at = path.Empty()
	var level any = r.schema.Attributes
	for i, step := range steps {
		next, deeper, ok := descend(level, step)
		if !ok {
			return at, spell(steps, i)
		}
		at, level = next(at), deeper
	}
	return at, spell(steps, len(steps))
}
