package fleet

import (
	"errors"
	"slices"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/encoding/protojson"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

func TestInvalidCreationsNameEveryFieldThatIsWrong(t *testing.T) {
	rules, err := protovalidate.New()
	if err != nil {
		t.Fatal(err)
	}
	management := &Management{cfg: Config{Rules: rules}}
	const identity = `"identity":{"runner_id":"r","zone":"z","cluster_id":"4382e0d3-fb93-4310-9fa8-ad2d039d199c"}`
	for name, test := range map[string]struct {
		body string
		want []string
	}{
		"nothing wrong":      {`{` + identity + `}`, nil},
		"no identity":        {`{}`, []string{"identity"}},
		"all of identity":    {`{"identity":{"runner_id":"A_","zone":"a b","cluster_id":"x"}}`, []string{"identity.runner_id", "identity.zone", "identity.cluster_id"}},
		"quantities":         {`{` + identity + `,"spec":{"overrides":{"resources":{"cpu_request":"x","memory_limit":"-1"}}}}`, []string{"spec.overrides.resources.cpu_request", "spec.overrides.resources.memory_limit"}},
		"request over limit": {`{` + identity + `,"spec":{"overrides":{"resources":{"cpu_request":"2","cpu_limit":"1"}}}}`, []string{"spec.overrides.resources.cpu_request"}},
		"cron":               {`{` + identity + `,"spec":{"maintenance_policy":{"windows":[{"cron":"@daily","duration_seconds":3600}]}}}`, []string{"spec.maintenance_policy.windows[0].cron"}},
		"scaling":            {`{` + identity + `,"spec":{"overrides":{"scaling":{"min_replicas":3,"max_replicas":2}}}}`, []string{"spec.overrides.scaling.min_replicas"}},
		"data plane":         {`{` + identity + `,"spec":{"data_plane":{}}}`, []string{"spec.data_plane"}},
		"relative URI":       {`{` + identity + `,"spec":{"data_plane":{"custom":{"advertised_uri":"/x"}}}}`, []string{"spec.data_plane.custom.advertised_uri"}},
		"hidden characters":  {`{` + identity + `,"display_name":"a\u202eb"}`, []string{"display_name"}},
		"legacy bindings":    {`{` + identity + `,"profile_bindings":[{}]}`, []string{"profile_bindings"}},
	} {
		t.Run(name, func(t *testing.T) {
			runner := &sandboxv1.ManagedRunner{}
			if err := protojson.Unmarshal([]byte(test.body), runner); err != nil {
				t.Fatal(err)
			}
			err := management.validateCreate(&sandboxv1.CreateManagedRunnerRequest{ManagedRunner: runner})
			var got []string
			var invalid *apierr.Error
			if errors.As(err, &invalid) {
				for _, violation := range invalid.Violations() {
					got = append(got, violation.Field)
				}
			}
			if err == nil != (test.want == nil) || !slices.Equal(got, test.want) {
				t.Errorf("violations of %v, %v; want %v", got, err, test.want)
			}
		})
	}
}
