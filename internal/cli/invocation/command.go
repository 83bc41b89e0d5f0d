package invocation

import "github.com/spf13/cobra"

// WithCommand is the RunE of command lines like `exec SANDBOX [FLAG…] [--]
// COMMAND [ARG…]`. Flags stand before and after the subject, which is the first
// argument; the first word that is no flag, or --, begins COMMAND, and what
// follows is COMMAND's own. It needs at least one argument, and a flag set that
// is not interspersed.
func WithCommand(run func(command *cobra.Command, subject string, words []string) error) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, args []string) error {
		flags := command.Flags()
		if flags.ArgsLenAtDash() == 0 {
			// `exec -- SANDBOX COMMAND`: no flag comes after that.
			return run(command, args[0], args[1:])
		}
		if err := flags.Parse(args[1:]); err != nil {
			return command.FlagErrorFunc()(command, err)
		}
		if help, err := flags.GetBool("help"); err == nil && help {
			return command.Help()
		}
		return run(command, args[0], flags.Args())
	}
}
