package provider

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

const (
	// Version is the version of the provider.
	Version = "0.27.0"
	// Address is where Terraform looks for the provider.
	Address = "registry.terraform.io/coreweave/coreweave"

	defaultEndpoint    = "https://api.coreweave.com"
	defaultHTTPTimeout = 10 * time.Second
)

// The environment variables of the provider; each wins over the configuration.
const (
	envToken       = "COREWEAVE_API_TOKEN"
	envEndpoint    = "COREWEAVE_API_ENDPOINT"
	envHTTPTimeout = "COREWEAVE_HTTP_TIMEOUT"
)

// Pace says how long the provider waits between calls.
type Pace struct {
	// RetryMin and RetryMax bound the wait before a call is repeated.
	RetryMin, RetryMax time.Duration
	// DeletionPoll is the wait between two looks at a runner that is being
	// deleted, DeletionLimit the longest wait for its end.
	DeletionPoll, DeletionLimit time.Duration
}

// DefaultPace is the pace against a real server.
func DefaultPace() Pace {
	return Pace{
		RetryMin: 200 * time.Millisecond, RetryMax: 5 * time.Second,
		DeletionPoll: 2 * time.Second, DeletionLimit: 30 * time.Minute,
	}
}

// New makes the provider.
func New(pace Pace) provider.Provider {
	return &coreweave{pace: pace, getenv: os.Getenv}
}

type coreweave struct {
	pace   Pace
	getenv func(string) string
}

type configuration struct {
	Endpoint    types.String `tfsdk:"endpoint"`
	Token       types.String `tfsdk:"token"`
	HTTPTimeout types.String `tfsdk:"http_timeout"`
}

func (p *coreweave) Metadata(_ context.Context, _ provider.MetadataRequest, resp *provider.MetadataResponse) {
	resp.TypeName = "coreweave"
	resp.Version = Version
}

func (p *coreweave) Schema(_ context.Context, _ provider.SchemaRequest, resp *provider.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "Manages sandbox runners through the managed runner API.",
		Attributes: map[string]schema.Attribute{
			"endpoint": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "Base URL of the API, `" + defaultEndpoint + "` by default. `" + envEndpoint + "` wins over it.",
				Validators:          []validator.String{isEndpoint()},
			},
			"token": schema.StringAttribute{
				Optional: true, Sensitive: true,
				MarkdownDescription: "API access token. Better left out: `" + envToken + "` wins over it and stays out of files.",
			},
			"http_timeout": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "Longest time of one request, such as `30s`; a bare number is in seconds. 10 seconds by default. `" + envHTTPTimeout + "` wins over it.",
				Validators:          []validator.String{isTimeout()},
			},
		},
	}
}

func (p *coreweave) Configure(ctx context.Context, req provider.ConfigureRequest, resp *provider.ConfigureResponse) {
	var config configuration
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	if resp.Diagnostics.HasError() {
		return
	}
	connection := connection{
		endpoint:         p.setting(envEndpoint, "endpoint", config.Endpoint, defaultEndpoint, &resp.Diagnostics),
		token:            p.setting(envToken, "token", config.Token, "", &resp.Diagnostics),
		timeout:          p.timeout(config.HTTPTimeout, &resp.Diagnostics),
		terraformVersion: req.TerraformVersion,
		pace:             p.pace,
	}
	if resp.Diagnostics.HasError() {
		return
	}
	if connection.token == "" {
		resp.Diagnostics.AddAttributeError(path.Root("token"), "Missing API token",
			"A token with the permission SANDBOX_ADMIN is required. Set the environment variable "+envToken+".")
	}
	switch base, wrong := parseEndpoint(connection.endpoint); {
	case wrong != "":
		resp.Diagnostics.AddAttributeError(path.Root("endpoint"), "Invalid API endpoint",
			wrong+". Set "+envEndpoint+" or endpoint to a URL such as "+defaultEndpoint+".")
	case base.Scheme == "http" && !isLoopback(base.Hostname()):
		resp.Diagnostics.AddAttributeWarning(path.Root("endpoint"), "API token sent without encryption",
			"The endpoint "+connection.endpoint+" does not use TLS, so anyone on the way can read the token. Use https.")
	}
	if resp.Diagnostics.HasError() {
		return
	}
	resp.ResourceData = connection.client()
}

// setting is the environment's value, else the configured one, else fallback.
func (p *coreweave) setting(variable, attribute string, configured types.String, fallback string, diags *diag.Diagnostics) string {
	if value := p.getenv(variable); value != "" {
		return value
	}
	if configured.IsUnknown() {
		diags.AddAttributeError(path.Root(attribute), "Provider setting not known yet",
			attribute+" depends on something that is known only after apply. Set the environment variable "+variable+
				", or apply what it depends on first.")
	}
	if value := configured.ValueString(); value != "" {
		return value
	}
	return fallback
}

func (p *coreweave) timeout(configured types.String, diags *diag.Diagnostics) time.Duration {
	if value := p.getenv(envHTTPTimeout); value != "" {
		timeout, err := parseTimeout(value)
		if err == nil {
			return timeout
		}
		diags.AddWarning("Invalid "+envHTTPTimeout,
			fmt.Sprintf("%v. The default of %s is used.", err, defaultHTTPTimeout))
		return defaultHTTPTimeout
	}
	if timeout, err := parseTimeout(configured.ValueString()); err == nil {
		return timeout
	}
	return defaultHTTPTimeout
}

func parseTimeout(value string) (time.Duration, error) {
	timeout, err := time.ParseDuration(value)
	if seconds, e := strconv.ParseFloat(value, 64); e == nil {
		timeout, err = time.Duration(seconds*float64(time.Second)), nil
	}
	if err != nil || timeout <= 0 {
		return 0, fmt.Errorf("%q is not a positive duration", value)
	}
	return timeout, nil
}

// parseEndpoint answers the URL, or what is wrong with it.
func parseEndpoint(value string) (*url.URL, string) {
	base, err := url.Parse(value)
	switch {
	case err != nil:
		return nil, fmt.Sprintf("%q is not a URL", value)
	case base.Scheme != "http" && base.Scheme != "https", base.Host == "":
		return nil, fmt.Sprintf("%q is not an http or https URL", value)
	case base.User != nil, base.RawQuery != "", base.Fragment != "":
		return nil, "The URL has user information, a query or a fragment"
	}
	return base, ""
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

func isEndpoint() validator.String {
	return textRule{"Invalid API endpoint", "a URL such as " + defaultEndpoint, func(value string) string {
		_, wrong := parseEndpoint(value)
		return wrong
	}}
}

func isTimeout() validator.String {
	return textRule{"Invalid timeout", `a duration such as "30s", or a number of seconds`, func(value string) string {
		if _, err := parseTimeout(value); err != nil {
			return err.Error()
		}
		return ""
	}}
}

func (p *coreweave) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{newRunnerResource}
}

func (p *coreweave) DataSources(context.Context) []func() datasource.DataSource { return nil }
