// Command sandbar is the server, the runner and the command line in one.
package main

import (
	"os"

	"github.com/sandbar-project/sandbar/internal/cli"
)

func main() { os.Exit(cli.Main()) }
