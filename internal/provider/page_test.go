package provider_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/config"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
)

// page is the published page; it is not part of the repository.
func page(t *testing.T) string {
	t.Helper()
	found, _ := filepath.Glob("../../../shared/seed/manage-runners-with-terraform*.md") // beside the repository
	if other := os.Getenv("SANDBAR_PUBLISHED_PAGE"); other != "" {
		found = []string{other}
	}
	if len(found) == 0 {
		t.Skip("the published page is not here: set SANDBAR_PUBLISHED_PAGE to its path to test its configuration")
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// block is the fenced block of the page with that title.
func block(t *testing.T, page, title string) string {
	t.Helper()
	found := regexp.MustCompile("(?s)```terraform title=\"" + regexp.QuoteMeta(title) + "\"[^\n]*\n(.*?)```").FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("the page has no block %s", title)
	}
	return found[1]
}

// quickServer has finished the rollout when it answers: the outputs of these
// configurations show it, so each step of it would change them.
func quickServer(t *testing.T) target {
	t.Helper()
	f := newFake(t)
	f.quick = true
	return fakeServer(t, f)
}

func TestThePublishedPageWorksAsWritten(t *testing.T) {
	text := page(t)
	s := quickServer(t)
	written := block(t, text, "main.tf")
	variables := config.Variables{
		"runner_id": config.StringVariable(s.id), "cluster_id": config.StringVariable(s.cluster),
		"zone": config.StringVariable(strings.ToUpper(s.zone)),
	}
	s.run(t,
		resource.TestStep{Config: written, ConfigVariables: variables},
		resource.TestStep{ConfigVariables: variables, RefreshState: true},
		resource.TestStep{Config: written, ConfigVariables: variables, ConfigPlanChecks: empty()},
		resource.TestStep{
			ResourceName: address, ConfigVariables: variables, Config: written,
			ImportState: true, ImportStateId: s.id, ImportStateVerify: true,
			ImportStateVerifyIgnore: []string{"last_heartbeat_time"},
		},
	)
	s.fake.expect(1, 1)
}

func TestThePagesAffinityFitsIntoItsOverrides(t *testing.T) {
	text := page(t)
	s := quickServer(t)
	written := strings.Replace(block(t, text, "main.tf"), "overrides = {",
		"overrides = {\n"+block(t, text, "Affinity attribute inside spec.overrides"), 1)
	variables := config.Variables{
		"runner_id": config.StringVariable(s.id), "cluster_id": config.StringVariable(s.cluster), "zone": config.StringVariable(s.zone),
	}
	s.run(t,
		resource.TestStep{Config: written, ConfigVariables: variables},
		resource.TestStep{Config: written, ConfigVariables: variables, ConfigPlanChecks: empty()},
	)
	s.fake.expect(1, 1)
}

func TestTheExampleWorks(t *testing.T) {
	s := quickServer(t)
	written, err := os.ReadFile("../../examples/managed-runner/main.tf")
	if err != nil {
		t.Fatal(err)
	}
	variables := config.Variables{
		"runner_id": config.StringVariable(s.id), "cluster_id": config.StringVariable(s.cluster), "zone": config.StringVariable(s.zone),
	}
	s.run(t,
		resource.TestStep{Config: string(written), ConfigVariables: variables},
		resource.TestStep{Config: string(written), ConfigVariables: variables, ConfigPlanChecks: empty()},
	)
	s.fake.expect(1, 1)
}
