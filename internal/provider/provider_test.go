package provider

import (
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

func TestTheEnvironmentWinsOverTheConfiguration(t *testing.T) {
	p := &coreweave{getenv: func(name string) string { return map[string]string{envEndpoint: "https://env.example"}[name] }}
	var diags diag.Diagnostics
	if got := p.setting(envEndpoint, "endpoint", types.StringValue("https://config.example"), defaultEndpoint, &diags); got != "https://env.example" {
		t.Errorf("endpoint %s", got)
	}
	if got := p.setting(envToken, "token", types.StringValue("configured"), "", &diags); got != "configured" {
		t.Errorf("token %s", got)
	}
	if diags.HasError() {
		t.Error(diags)
	}
	p.setting(envToken, "token", types.StringUnknown(), "", &diags)
	if !diags.HasError() {
		t.Error("a token that is not known yet is accepted")
	}
}

func TestTimeoutsAreDurationsOrSeconds(t *testing.T) {
	for value, want := range map[string]time.Duration{"30s": 30 * time.Second, "7": 7 * time.Second, "1.5": 1500 * time.Millisecond} {
		if got, err := parseTimeout(value); err != nil || got != want {
			t.Errorf("%s is %v, %v", value, got, err)
		}
	}
	for _, value := range []string{"", "0", "-1s", "soon"} {
		if got, err := parseTimeout(value); err == nil {
			t.Errorf("%q is taken for %v", value, got)
		}
	}
}

func TestABadTimeoutInTheEnvironmentIsTheDefaultWithAWarning(t *testing.T) {
	p := &coreweave{getenv: func(string) string { return "soon" }}
	var diags diag.Diagnostics
	if got := p.timeout(types.StringValue("30s"), &diags); got != defaultHTTPTimeout || diags.WarningsCount() != 1 {
		t.Errorf("%v, %v", got, diags)
	}
}

func TestEndpointsAreURLs(t *testing.T) {
	for _, value := range []string{"api.coreweave.com", "ftp://api", "https://user@api", "https://api?x=1", "://"} {
		if _, wrong := parseEndpoint(value); wrong == "" {
			t.Errorf("%s is accepted", value)
		}
	}
	if base, wrong := parseEndpoint("http://127.0.0.1:8080/"); wrong != "" || !isLoopback(base.Hostname()) {
		t.Error("a loopback endpoint is refused")
	}
}
