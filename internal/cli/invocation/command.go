package invocation

// Command is what the user wants to run: args without the -- that may stand
// before it.
func Command(args []string) []string {
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}
