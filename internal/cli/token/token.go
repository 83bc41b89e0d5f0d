// Package token is `sandbar token`: the API tokens of an organization.
package token

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/output"
)

// New makes the command and all below it.
func New(call *invocation.Invocation) *cobra.Command {
	command := invocation.Group(&cobra.Command{
		Use:     "token",
		Aliases: []string{"tokens"},
		Short:   "Issue API tokens and revoke them",
	})
	command.AddCommand(newCreate(call), newList(call), newRevoke(call))
	return command
}

const rolePrefix = "ROLE_SANDBOX_"

var roles = map[string]adminv1.Role{
	"user":  adminv1.Role_ROLE_SANDBOX_USER,
	"admin": adminv1.Role_ROLE_SANDBOX_ADMIN,
}

type createOptions struct {
	Name    string
	Role    string
	User    string
	Expires time.Duration
}

func newCreate(call *invocation.Invocation) *cobra.Command {
	options := &createOptions{}
	command := &cobra.Command{
		Use:   "create",
		Short: "Issue a token and print its secret, once",
		Long: `Issue a token. Its secret is printed alone on standard output, and only now: the
server keeps a hash. With -o json or yaml the token is printed with it.`,
		Example: `  sandbar token create --role user --name ci > ci.token
  sandbar token create --role admin --name terraform --expires 720h`,
		Args: invocation.Args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return runCreate(command.Context(), call, *options)
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.Name, "name", "", "what the token is for")
	flags.StringVar(&options.Role, "role", "user", "user (sandboxes) or admin (also runners, clusters and tokens)")
	flags.StringVar(&options.User, "user", "", "who acts with it (default: you)")
	flags.DurationVar(&options.Expires, "expires", 0, "how long it is valid: 720h (default: until it is revoked)")
	// The flag exists: it was added above.
	_ = command.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"user", "admin"}, cobra.ShellCompDirectiveNoFileComp))
	return command
}

func runCreate(ctx context.Context, call *invocation.Invocation, options createOptions) error {
	role, known := roles[options.Role]
	if !known {
		return invocation.Usagef("--role %q: it must be user or admin", options.Role)
	}
	if options.Expires < 0 {
		return invocation.Usagef("--expires %s: it must not be negative", options.Expires)
	}
	wanted := &adminv1.Token{DisplayName: options.Name, Role: role, UserId: options.User}
	if options.Expires > 0 {
		wanted.ExpireTime = timestamppb.New(call.Now().Add(options.Expires))
	}
	server, err := call.Client(client.Management)
	if err != nil {
		return err
	}
	defer server.Close()
	response, err := server.Tokens.CreateToken(ctx, &adminv1.CreateTokenRequest{Token: wanted})
	if err != nil {
		return err
	}
	return output.PrintSecret(call.IO.Out, call.IO.Err, call.Format, response, response.GetSecret(),
		"token "+response.GetToken().GetTokenId()+" was issued; this is the only time its secret is shown")
}

func newList(call *invocation.Invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List tokens, without their secrets",
		Example: `  sandbar token list`,
		Args:    invocation.Args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			return runList(command.Context(), call)
		},
	}
}

func runList(ctx context.Context, call *invocation.Invocation) error {
	server, err := call.Client(client.Management)
	if err != nil {
		return err
	}
	defer server.Close()
	response, err := server.Tokens.ListTokens(ctx, &adminv1.ListTokensRequest{})
	if err != nil {
		return err
	}
	return call.Print(response, func() output.Table { return table(response.GetTokens(), call.Now()) })
}

func newRevoke(call *invocation.Invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "revoke TOKEN…",
		Short:   "End tokens at once, by id",
		Example: `  sandbar token revoke 4f8c2d1e`,
		Args:    invocation.Args(cobra.MinimumNArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			return runRevoke(command.Context(), call, args)
		},
	}
}

func runRevoke(ctx context.Context, call *invocation.Invocation, ids []string) error {
	server, err := call.Client(client.Management)
	if err != nil {
		return err
	}
	defer server.Close()
	return call.Each(ids, func(id string) (string, error) {
		_, err := server.Tokens.RevokeToken(ctx, &adminv1.RevokeTokenRequest{TokenId: id})
		return "is revoked", err
	})
}

func table(tokens []*adminv1.Token, now time.Time) output.Table {
	t := output.Table{Headings: []string{"TOKEN", "NAME", "ROLE", "USER", "STATE", "AGE"}}
	for _, token := range tokens {
		t.Rows = append(t.Rows, []string{
			token.GetTokenId(),
			output.OrUnset(token.GetDisplayName()),
			output.Word(token.GetRole(), rolePrefix),
			output.OrUnset(token.GetUserId()),
			state(token, now),
			output.Age(token.GetCreateTime(), now),
		})
	}
	return t
}

func state(token *adminv1.Token, now time.Time) string {
	switch {
	case token.GetRevokeTime() != nil:
		return "REVOKED"
	case token.GetExpireTime() == nil:
		return "VALID"
	case !now.Before(token.GetExpireTime().AsTime()):
		return "EXPIRED"
	}
	return "VALID for " + output.Age(timestamppb.New(now), token.GetExpireTime().AsTime())
}
