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

// titles are the summaries of errors by their code.
var titles = map[connect.Code]string{
	connect.CodeNotFound:           "Not Found",
	connect.CodeAlreadyExists:      "Already Exists",
	connect.CodeFailedPrecondition: "Failed Precondition",
	connect.CodeInvalidArgument:    "Bad Request",
	connect.CodeOutOfRange:         "Bad Request",
	connect.CodeUnauthenticated:    "Unauthenticated",
	connect.CodePermissionDenied:   "Unauthorized",
	connect.CodeResourceExhausted:  "Quota Exceeded",
	connect.CodeUnavailable:        "Unavailable",
	connect.CodeDeadlineExceeded:   "Unavailable",
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
		title = "Internal Error"
	}
	suffix := suffix(err, title)
	for _, detail := range sent.Details() {
		value, unreadable := detail.Value()
		if unreadable != nil {
			continue
		}
		switch d := value.(type) {
		case *errdetails.BadRequest:
			for _, violation := range d.GetFieldViolations() {
				text := violation.GetDescription() + suffix
				if at, ok := r.attribute(violation.GetField()); ok {
					diags.AddAttributeError(at, title, text)
				} else {
					diags.AddError(title, strings.TrimPrefix(violation.GetField()+": "+text, ": "))
				}
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
	if len(diags) == 0 {
		diags.AddError(title, sent.Message()+suffix)
	}
	return diags
}

// suffix adds the reason, which can be searched for, and advice.
func suffix(err error, title string) string {
	var lines []string
	reason := apierr.ReasonOf(err)
	if reason != "" {
		lines = append(lines, "Reason: "+string(reason))
	}
	switch more := advice[reason]; {
	case more != "":
		lines = append(lines, more)
	case reason == "" && title == titles[connect.CodeUnavailable]:
		lines = append(lines, "The server did not answer, although it was asked several times. "+
			"Check "+envEndpoint+" and that the server runs.")
	}
	if len(lines) == 0 {
		return ""
	}
	return "\n\n" + strings.Join(lines, "\n")
}

// attribute finds the attribute that a violation's field is about: the deepest
// one that the schema knows.
func (r *runnerResource) attribute(field string) (path.Path, bool) {
	steps := fieldSteps(field)
	for len(steps) > 0 && (steps[0].name == "managed_runner" || steps[0].name == "identity") {
		steps = steps[1:]
	}
	at := path.Empty()
	var level any = r.schema.Attributes
	for _, step := range steps {
		next, deeper, ok := descend(level, step)
		if !ok {
			break
		}
		at, level = next(at), deeper
	}
	return at, len(at.Steps()) > 0
}
