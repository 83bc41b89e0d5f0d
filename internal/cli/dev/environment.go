package dev

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/cli/client"
)

// environment is the file DIR/env: what other programs need to know, as a shell
// reads it. It holds tokens and is readable by its owner alone.
type environment struct {
	path   string
	values map[string]string
}

// The variables, in the order in which they are written.
var variables = []string{
	client.EndpointVariable,
	client.TokenVariable,
	client.SandboxEndpointVariable,
	client.SandboxTokenVariable,
	"TF_VAR_cluster_id",
	"TF_VAR_zone",
	"TF_VAR_runner_id",
}

func readEnvironment(directory string) (environment, error) {
	env := environment{path: filepath.Join(directory, "env"), values: map[string]string{}}
	file, err := os.Open(env.path)
	if errors.Is(err, fs.ErrNotExist) {
		return env, nil
	}
	if err != nil {
		return environment{}, fmt.Errorf("read the tokens of an earlier start: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		name, value, ok := strings.Cut(strings.TrimPrefix(lines.Text(), "export "), "=")
		if ok {
			env.values[name] = strings.Trim(value, "'")
		}
	}
	return env, lines.Err()
}

// write replaces the file as a whole.
func (e environment) write() error {
	var text strings.Builder
	for _, name := range variables {
		// No value has a quote in it: they are addresses, ids and tokens.
		fmt.Fprintf(&text, "export %s='%s'\n", name, e.values[name])
	}
	file, err := os.CreateTemp(filepath.Dir(e.path), ".env-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", e.path, err)
	}
	_, err = file.WriteString(text.String())
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), e.path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", e.path, errors.Join(err, os.Remove(file.Name())))
	}
	return nil
}

// provision makes what is missing of the organization, the tokens and the
// cluster, and writes the environment file.
func (s *system) provision(ctx context.Context) (environment, error) {
	organization, err := s.server.EnsureOrganization(ctx, organizationName)
	if err != nil {
		return environment{}, fmt.Errorf("make the organization: %w", err)
	}
	cluster, err := s.server.EnsureLocalCluster(ctx, organization.OrganizationID, clusterName, strings.ToLower(s.options.Zone))
	if err != nil {
		return environment{}, fmt.Errorf("register this host as a cluster: %w", err)
	}
	env, err := readEnvironment(s.options.DataDir)
	if err != nil {
		return environment{}, err
	}
	for _, wanted := range []struct {
		variable, user string
		role           auth.Role
	}{
		{client.TokenVariable, adminUser, auth.RoleAdmin},
		{client.SandboxTokenVariable, sandboxUser, auth.RoleUser},
	} {
		env.values[wanted.variable], err = s.ensureToken(ctx, env.values[wanted.variable], auth.NewToken{
			OrganizationID: organization.OrganizationID, UserID: wanted.user, DisplayName: "sandbar dev", Role: wanted.role,
		})
		if err != nil {
			return environment{}, err
		}
	}
	env.values[client.EndpointVariable] = s.server.URL()
	env.values[client.SandboxEndpointVariable] = s.server.URL()
	env.values["TF_VAR_cluster_id"] = cluster.ClusterID
	env.values["TF_VAR_zone"] = cluster.Zone
	env.values["TF_VAR_runner_id"] = s.options.Runner
	return env, env.write()
}

// ensureToken answers with the secret of an earlier start if it is still good
// for the same, and else with that of a new token.
func (s *system) ensureToken(ctx context.Context, known string, wanted auth.NewToken) (string, error) {
	if known != "" {
		principal, err := s.server.Tokens().Authenticate(ctx, auth.Secret(known))
		if err == nil && principal.OrganizationID == wanted.OrganizationID && principal.Role == wanted.Role {
			return known, nil
		}
	}
	_, secret, err := s.server.Tokens().Create(ctx, wanted)
	if err != nil {
		return "", fmt.Errorf("issue a token for %s: %w", wanted.UserID, err)
	}
	return secret.Reveal(), nil
}

// found is what runs on this machine.
type found struct {
	sandboxes []string
	runners   []string
}

// inventory asks the server what there is.
func inventory(ctx context.Context, env environment) (found, error) {
	server, err := client.New(client.Options{Getenv: func(name string) string { return env.values[name] }}, client.Management)
	if err != nil {
		return found{}, err
	}
	defer server.Close()
	var all found
	sandboxes := &sandboxv1.ListSandboxesRequest{}
	for {
		page, err := server.Sandboxes.ListSandboxes(ctx, sandboxes)
		if err != nil {
			return found{}, err
		}
		for _, sandbox := range page.GetSandboxes() {
			all.sandboxes = append(all.sandboxes, sandbox.GetSandboxId())
		}
		if sandboxes.PageToken = page.GetNextPageToken(); sandboxes.GetPageToken() == "" {
			break
		}
	}
	runners, err := server.Runners.ListManagedRunners(ctx, &sandboxv1.ListManagedRunnersRequest{})
	if err != nil {
		return found{}, err
	}
	for _, runner := range runners.GetManagedRunners() {
		all.runners = append(all.runners, runner.GetIdentity().GetRunnerId())
	}
	return all, nil
}
