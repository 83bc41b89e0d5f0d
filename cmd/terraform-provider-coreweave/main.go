// Command terraform-provider-coreweave is the Terraform provider
// coreweave/coreweave. Terraform starts it; docs/terraform.md says how to
// install it.
package main

import (
	"context"
	"flag"
	"log"

	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"

	sandbar "github.com/sandbar-project/sandbar/internal/provider"
)

func main() {
	debug := flag.Bool("debug", false, "serve until interrupted, for a debugger; prints TF_REATTACH_PROVIDERS")
	flag.Parse()
	err := providerserver.Serve(context.Background(),
		func() provider.Provider { return sandbar.New(sandbar.DefaultPace()) },
		providerserver.ServeOpts{Address: sandbar.Address, Debug: *debug, ProtocolVersion: 6})
	if err != nil {
		log.Fatal(err)
	}
}
