package provider

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
)

// maxRetries is how often one call is repeated.
const maxRetries = 10

// connection is what is needed to reach the API.
type connection struct {
	endpoint, token  string
	timeout          time.Duration
	terraformVersion string
	pace             Pace
}

// client is a connected API with its pace.
type client struct {
	runners sandboxv1connect.RunnerManagementServiceClient
	pace    Pace
}

func (c connection) client() *client {
	return &client{
		runners: sandboxv1connect.NewRunnerManagementServiceClient(
			c.http(), strings.TrimSuffix(c.endpoint, "/"),
			connect.WithProtoJSON(), connect.WithInterceptors(c.headers(), logCalls())),
		pace: c.pace,
	}
}

// http repeats requests that failed on the way or that the server could not
// take (429, 5xx but 501). Every call may be repeated: a create carries its
// request id, an update of a policy its etag, a delete allows that the runner
// is gone.
func (c connection) http() *http.Client {
	repeating := retryablehttp.NewClient()
	repeating.Logger = nil
	repeating.RetryMax = maxRetries
	repeating.RetryWaitMin = c.pace.RetryMin
	repeating.RetryWaitMax = c.pace.RetryMax
	repeating.ErrorHandler = retryablehttp.PassthroughErrorHandler
	repeating.HTTPClient.Timeout = c.timeout
	standard := repeating.StandardClient()
	// A redirect would carry the token to a server that nobody named.
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	standard.CheckRedirect, repeating.HTTPClient.CheckRedirect = refuse, refuse
	return standard
}

func (c connection) headers() connect.UnaryInterceptorFunc {
	agent := fmt.Sprintf("Terraform/%s terraform-provider-coreweave/%s (+https://github.com/sandbar-project/sandbar)", c.terraformVersion, Version)
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			req.Header().Set("Authorization", "Bearer "+c.token)
			req.Header().Set("User-Agent", agent)
			return next(ctx, req)
		}
	}
}

// logCalls writes one line for each call. Messages are left out: they hold
// environment variables and policies.
func logCalls() connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			began := time.Now()
			resp, err := next(ctx, req)
			fields := map[string]any{"procedure": req.Spec().Procedure, "duration_ms": time.Since(began).Milliseconds()}
			if named, ok := req.Any().(interface{ GetRunnerId() string }); ok {
				fields["runner_id"] = named.GetRunnerId()
			}
			if update, ok := req.Any().(*sandboxv1.UpdateManagedRunnerRequest); ok {
				fields["update_mask"] = update.GetUpdateMask().GetPaths()
			}
			if err != nil {
				fields["code"] = connect.CodeOf(err).String()
			}
			tflog.Debug(ctx, "API call", fields)
			return resp, err
		}
	}
}
