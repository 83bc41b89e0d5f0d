package provider_test

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// planned checks what a step's plan does with the runner.
func planned(action plancheck.ResourceActionType) resource.ConfigPlanChecks {
	return resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction(address, action)}}
}

const gpuFree = `policy = { constraints = { resources = { max_gpu_count = 0 } } }`

func TestRenamingSettingsToTheirNewNamesWritesNothing(t *testing.T) {
	s := fakeServer(t, newFake(t))
	network := func(deny, name, except string) string {
		return fmt.Sprintf(`policy = { constraints = { network = {
		  %s = true
		  allowed_egress = [{ %s = "*.example.com", %s = ["a.example.com"] }]
		} } }`, deny, name, except)
	}
	older := network("deny_dns", "dns_name", "dns_name_except")
	newer := network("deny_https_hostname_rules", "https_hostname", "https_hostname_except")
	s.run(t,
		resource.TestStep{Config: s.runner(older)},
		resource.TestStep{Config: s.runner(older), ConfigPlanChecks: empty()},
		resource.TestStep{Config: s.runner(newer)},
		resource.TestStep{Config: s.runner(newer), ConfigPlanChecks: empty()},
	)
	s.fake.expect(1, 1)
}

func TestAnotherZoneReplacesTheRunner(t *testing.T) {
	s := fakeServer(t, newFake(t))
	s.run(t,
		resource.TestStep{Config: s.runner(minimal)},
		resource.TestStep{
			ResourceName: address, ImportState: true, ImportStateId: s.id, ImportStateVerify: true,
			// It changes with every look.
			ImportStateVerifyIgnore: []string{"last_heartbeat_time", "install_status", "connection_status", "active_revision"},
		},
		resource.TestStep{
			Config:           s.runnerIn(`"us-west-01a"`, minimal),
			ConfigPlanChecks: planned(plancheck.ResourceActionReplace),
		},
	)
	s.fake.expect(2, 2)
	if s.fake.polls != 4 {
		t.Errorf("%d looks at deleted runners, want 4", s.fake.polls)
	}
}

func TestTheGroupIsDefaultWhenNoneIsGiven(t *testing.T) {
	s := anyServer(t)
	s.run(t,
		resource.TestStep{Config: s.runner(minimal), Check: attribute("runner_group_id", "default")},
		resource.TestStep{Config: s.runner(minimal + "\nrunner_group_id = \"blue\""), Check: attribute("runner_group_id", "blue")},
		resource.TestStep{Config: s.runner(minimal + "\nrunner_group_id = null"), Check: attribute("runner_group_id", "default")},
		resource.TestStep{Config: s.runner(minimal + "\nrunner_group_id = \"\""), ExpectError: regexp.MustCompile(`runner_group_id`)},
		resource.TestStep{Config: s.runner(minimal + "\nrunner_group_id = \"default\""), ConfigPlanChecks: empty()},
	)
	s.fake.expect(1, 1, "identity.runner_group_id", "identity.runner_group_id")
}

// later is a value that is known only after apply.
func later(value string) string {
	return fmt.Sprintf("resource \"terraform_data\" \"later\" {\n  input = %s\n}\n", value)
}

func TestAZoneInUpperCaseThatIsKnownOnlyAtApplyCreatesNothing(t *testing.T) {
	s := fakeServer(t, newFake(t))
	s.run(t, resource.TestStep{
		Config:      later(`"US-EAST-04A"`) + s.runnerIn("terraform_data.later.output", minimal),
		ExpectError: regexp.MustCompile(`Invalid zone`),
	})
	s.fake.expect(0, 0)
}

func TestLowerMakesAZoneThatIsKnownOnlyAtApplyRight(t *testing.T) {
	s := fakeServer(t, newFake(t))
	config := later(`"US-EAST-04A"`) + s.runnerIn("lower(terraform_data.later.output)", minimal)
	s.run(t,
		resource.TestStep{Config: config, Check: attribute("zone", "us-east-04a")},
		resource.TestStep{Config: config, ConfigPlanChecks: empty()},
	)
	s.fake.expect(1, 1)
}

func TestDriftIsCorrectedAndAMissingRunnerIsCreatedAgain(t *testing.T) {
	s := fakeServer(t, newFake(t))
	s.run(t,
		resource.TestStep{Config: s.runner(gpuFree)},
		resource.TestStep{
			PreConfig: s.fake.change(s.id, func(m *sandboxv1.ManagedRunner) {
				m.Policy.Constraints.Resources.MaxGpuCount = nil
				m.Etag = "etag-of-somebody-else"
			}),
			Config: s.runner(gpuFree), ConfigPlanChecks: planned(plancheck.ResourceActionUpdate),
		},
		resource.TestStep{
			PreConfig: s.fake.forget(s.id),
			Config:    s.runner(gpuFree), ConfigPlanChecks: planned(plancheck.ResourceActionCreate),
		},
	)
	s.fake.expect(2, 1, "policy")
}

func TestAStaleEtagIsReportedAndNeverRetried(t *testing.T) {
	s := fakeServer(t, newFake(t))
	attempts := 0
	s.run(t,
		resource.TestStep{Config: s.runner(minimal)},
		resource.TestStep{
			PreConfig: func() {
				s.fake.before = func(f *fake) {
					attempts++
					f.runners[s.id].Etag = "etag-of-somebody-else"
				}
			},
			Config: s.runner(gpuFree), ExpectError: regexp.MustCompile(`(?s)Failed Precondition.*CWSANDBOX_ETAG_MISMATCH`),
		},
	)
	s.fake.expect(1, 1)
	if attempts != 1 {
		t.Errorf("%d attempts, want 1", attempts)
	}
}

func TestARunnerThatGoesAwayDuringAnUpdateIsNotCreatedAgain(t *testing.T) {
	s := fakeServer(t, newFake(t))
	s.run(t,
		resource.TestStep{Config: s.runner(minimal)},
		resource.TestStep{
			PreConfig: func() { s.fake.before = func(f *fake) { delete(f.runners, s.id) } },
			Config:    s.runner(gpuFree), ExpectError: regexp.MustCompile(`Not Found`),
		},
	)
	s.fake.expect(1, 0)
}

func TestAPolicyThatIsKnownOnlyAtApply(t *testing.T) {
	s := fakeServer(t, newFake(t))
	config := func(name string) string {
		// The output is unknown in every plan that replaces the value.
		return fmt.Sprintf("resource \"terraform_data\" \"later\" {\n  input = %q\n  triggers_replace = %q\n}\n", "Same", name) +
			s.runner(`policy = { display_name = terraform_data.later.output, constraints = { resources = { max_gpu_count = 0 } } }`)
	}
	whole := func(count int) string {
		return fmt.Sprintf("resource \"terraform_data\" \"later\" {\n  input = { display_name = \"Same\", constraints = { resources = { max_gpu_count = %d } } }\n}\n", count) +
			s.runner(`policy = terraform_data.later.output`)
	}
	s.run(t,
		resource.TestStep{Config: config("one"), Check: attribute("policy.display_name", "Same")},
		resource.TestStep{Config: config("two"), Check: attribute("policy.display_name", "Same")},
		resource.TestStep{Config: whole(1), Check: attribute("policy.constraints.resources.max_gpu_count", "1")},
		resource.TestStep{Config: whole(1), ConfigPlanChecks: empty()},
	)
	s.fake.expect(1, 1, "policy")
}

func TestAWrongTokenIsOneClearError(t *testing.T) {
	s := fakeServer(t, newFake(t))
	s.token = "wrong"
	s.run(t, resource.TestStep{Config: s.runner(minimal), ExpectError: regexp.MustCompile(`(?s)Unauthenticated.*CWSANDBOX_UNAUTHENTICATED`)})
	s.token = ""
	s.run(t, resource.TestStep{Config: s.runner(minimal), ExpectError: regexp.MustCompile(`(?s)Missing API token.*COREWEAVE_API_TOKEN`)})
	s.fake.expect(0, 0)
}

func TestAServerThatIsDownIsOneClearError(t *testing.T) {
	s := fakeServer(t, newFake(t))
	s.fake.failures = 1 << 30
	s.run(t, resource.TestStep{Config: s.runner(minimal), ExpectError: regexp.MustCompile(`(?s)Unavailable.*COREWEAVE_API_ENDPOINT`)})
	s.fake.expect(0, 0)
}

func TestWhatOnlyTheServerRefusesIsReportedByAttribute(t *testing.T) {
	s := fakeServer(t, newFake(t))
	s.fake.refuse = []apierr.Violation{
		{Field: "spec.maintenance_policy.windows[0].cron", Reason: "INVALID_CRON", Description: `"0 25 * * *" has an hour that is not 0 to 23`},
		{Field: "policy.constraints.resources.default_memory", Reason: "CONTRADICTION", Description: `"4Gi" must not be more than max_memory, which is "2Gi"`},
	}
	config := s.runner(`spec = { maintenance_policy = { windows = [{ cron = "0 25 * * *", duration_seconds = 3600 }] } }
	policy = { constraints = { resources = { default_memory = "4Gi", max_memory = "2Gi" } } }`)
	for _, summary := range []string{
		`Error: Invalid spec\.maintenance_policy\.windows\[0\]\.cron\s[^E]*on \S+ line \d+`,
		`Error: Invalid policy\.constraints\.resources\.default_memory\s[^E]*on \S+ line \d+`,
	} {
		s.run(t, resource.TestStep{Config: config, ExpectError: regexp.MustCompile(summary)})
	}
	s.fake.expect(0, 0)
}

func TestATakenClusterIsReportedWithAWayOut(t *testing.T) {
	s := fakeServer(t, newFake(t))
	s.fake.runners["other"] = &sandboxv1.ManagedRunner{Identity: &sandboxv1.RunnerIdentity{RunnerId: "other", ClusterId: s.cluster}}
	s.run(t, resource.TestStep{Config: s.runner(minimal), ExpectError: regexp.MustCompile(`(?s)Already Exists.*runner other`)})
	s.fake.expect(0, 0)
}

func TestABusyServerIsAskedAgainWithTheSameRequestID(t *testing.T) {
	s := fakeServer(t, newFake(t))
	s.fake.failures = 3
	s.run(t, resource.TestStep{Config: s.runner(minimal)})
	s.fake.expect(1, 1)
}

func TestAServerWithPoliciesOnlyIsRefused(t *testing.T) {
	s := fakeServer(t, newFake(t))
	s.run(t,
		resource.TestStep{Config: s.runner(minimal)},
		resource.TestStep{
			PreConfig: func() { s.fake.shown = func(m *sandboxv1.ManagedRunner) { m.Spec = nil } },
			Config:    s.runner(minimal), ExpectError: regexp.MustCompile(`v1 managed`),
		},
		resource.TestStep{PreConfig: func() { s.fake.shown = nil }, Config: s.runner(minimal)},
	)
}

func TestADeletionThatDoesNotEndIsReportedAndTheStateKept(t *testing.T) {
	s := fakeServer(t, newFake(t))
	at := pace()
	at.DeletionLimit = 100 * time.Millisecond
	s.runAt(t, at,
		resource.TestStep{Config: s.runner(minimal)},
		resource.TestStep{
			PreConfig: func() { s.fake.deleting[s.id] = 1 << 30 },
			Config:    s.runner(minimal), Destroy: true,
			ExpectError: regexp.MustCompile(`(?s)Managed Runner Deletion Incomplete.*RUNNER_INSTALL_STATUS_READY`),
		},
		resource.TestStep{PreConfig: func() { delete(s.fake.deleting, s.id) }, Config: s.runner(minimal), ConfigPlanChecks: empty()},
	)
}

func TestTheSpecIsKeptWhenItIsNotConfiguredAndResetWhenItIsEmpty(t *testing.T) {
	s := anyServer(t)
	rapid := `spec = { release_channel = "RELEASE_CHANNEL_RAPID" }` + "\n" + minimal
	s.run(t,
		resource.TestStep{Config: s.runner(rapid)},
		resource.TestStep{Config: s.runner(minimal), ConfigPlanChecks: empty(), Check: attribute("spec.release_channel", "RELEASE_CHANNEL_RAPID")},
		resource.TestStep{Config: s.runner("spec = {}\n" + minimal), Check: attribute("spec.release_channel", "RELEASE_CHANNEL_STABLE")},
	)
	s.fake.expect(1, 1, "spec.release_channel")
}

func TestAffinityIsAbsentEmptyOrReplacedAsAWhole(t *testing.T) {
	s := anyServer(t)
	affinity := func(value string) string {
		return s.runner(`spec = { overrides = { labels = { team = "a" }, affinity = ` + value + ` } }` + "\n" + minimal)
	}
	s.run(t,
		resource.TestStep{Config: affinity(`null`), Check: resource.TestCheckNoResourceAttr(address, "spec.overrides.affinity")},
		resource.TestStep{Config: affinity(`jsonencode({})`), Check: attribute("spec.overrides.affinity", "{}")},
		resource.TestStep{Config: affinity(`"{ }"`), ConfigPlanChecks: empty()},
		resource.TestStep{Config: affinity(`jsonencode({ podAntiAffinity = {} })`), Check: attribute("spec.overrides.affinity", `{"podAntiAffinity":{}}`)},
		resource.TestStep{Config: affinity(`null`), Check: resource.TestCheckNoResourceAttr(address, "spec.overrides.affinity")},
	)
	s.fake.expect(1, 1, "spec.overrides", "spec.overrides", "spec.overrides")
}

func TestAnotherSpellingOfAQuantityIsNoChange(t *testing.T) {
	s := anyServer(t)
	memory := func(value string) string {
		return s.runner(`policy = { constraints = { resources = { max_memory = "` + value + `" } } }`)
	}
	s.run(t,
		resource.TestStep{Config: memory("2Gi")},
		resource.TestStep{Config: memory("2048Mi"), ConfigPlanChecks: empty()},
		resource.TestStep{Config: memory("2049Mi")},
	)
	s.fake.expect(1, 1, "policy")
}
