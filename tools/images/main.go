// Command images makes small OCI images out of Debian packages and serves them
// from a registry, so that demos and tests need no internet beyond Debian's
// package mirror.
//
//	images build DIRECTORY            make the images as OCI layouts
//	images serve DIRECTORY ADDRESS    serve them until interrupted
//
// Packages are fetched with apt-get, which checks their signatures; nothing is
// installed and no package script runs.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "build":
		return build(ctx, args[1])
	case len(args) == 3 && args[0] == "serve":
		return serve(ctx, args[1], args[2])
	}
	return fmt.Errorf("usage: images build DIRECTORY | images serve DIRECTORY ADDRESS")
}
