// Package spec turns the flags that describe a sandbox into its specification.
package spec

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
)

// mainContainer is the name that every client of the contract uses.
const mainContainer = "main"

// Flags describe a sandbox.
type Flags struct {
	// Env is NAME=value, or NAME alone to pass on the caller's value.
	Env      []string
	CPU      string
	Memory   string
	GPU      string
	Lifetime time.Duration
	Egress   []string
	Tags     []string
	Runners  []string
	WorkDir  string
}

// Add registers the flags.
func (f *Flags) Add(flags *pflag.FlagSet) {
	flags.StringArrayVarP(&f.Env, "env", "e", nil, "environment variable, NAME=value, or NAME to pass on yours; may be repeated")
	flags.StringVar(&f.CPU, "cpu", "", "CPUs, request and limit: 2, 500m (default: the policy's)")
	flags.StringVar(&f.Memory, "memory", "", "memory, request and limit: 512Mi, 2Gi (default: the policy's)")
	flags.StringVar(&f.GPU, "gpu", "", "GPUs: a count, or a count and a type, 1:H100")
	flags.DurationVar(&f.Lifetime, "lifetime", 0, "end the sandbox after this time: 90s, 2h (default: the policy's)")
	flags.StringArrayVar(&f.Egress, "egress", nil, "allow a destination: any, or CIDR[:port[-port]]; none forbids all (default: the policy's); may be repeated")
	flags.StringArrayVar(&f.Tags, "tag", nil, "tag to find the sandbox by; may be repeated")
	flags.StringArrayVar(&f.Runners, "runner", nil, "id of a runner to place it on; may be repeated")
	flags.StringVarP(&f.WorkDir, "workdir", "w", "", "working directory of the main process")
}

// Build makes the specification of a sandbox of one container. An empty command
// means the image's own. getenv looks up variables that are passed on.
func (f *Flags) Build(image string, command []string, getenv func(string) string) (*sandboxv1.SandboxSpec, error) {
	container := &sandboxv1.Container{Name: mainContainer, Image: image, WorkingDir: f.WorkDir}
	if len(command) > 0 {
		container.Command, container.Args = command[0], command[1:]
	}
	spec := &sandboxv1.SandboxSpec{
		Containers:       []*sandboxv1.Container{container},
		PrimaryContainer: mainContainer,
		Tags:             f.Tags,
	}
	var err error
	if container.EnvironmentVariables, err = Environment(f.Env, getenv); err != nil {
		return nil, err
	}
	if container.ResourceRequirements, err = f.resources(); err != nil {
		return nil, err
	}
	if spec.MaxLifetimeSeconds, err = f.lifetimeSeconds(); err != nil {
		return nil, err
	}
	if spec.Network, err = parseEgress(f.Egress); err != nil {
		return nil, err
	}
	if len(f.Runners) > 0 {
		spec.Mode, spec.RunnerIds = sandboxv1.SandboxMode_SANDBOX_MODE_CKS, f.Runners
	}
	return spec, nil
}

// Environment reads NAME=value and NAME.
func Environment(pairs []string, getenv func(string) string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	env := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		name, value, given := strings.Cut(pair, "=")
		if name == "" {
			return nil, invocation.Usagef("--env %q: it must be NAME=value or NAME", pair)
		}
		if !given {
			value = getenv(name)
		}
		env[name] = value
	}
	return env, nil
}

func (f *Flags) resources() (*sandboxv1.ResourceRequirements, error) {
	gpu, err := parseGPU(f.GPU)
	if err != nil {
		return nil, err
	}
	if f.CPU == "" && f.Memory == "" && gpu == nil {
		return nil, nil
	}
	amount := &sandboxv1.Resources{Cpu: f.CPU, Memory: f.Memory, Gpu: gpu}
	return &sandboxv1.ResourceRequirements{Requests: amount, Limits: proto.CloneOf(amount)}, nil
}

func parseGPU(text string) (*sandboxv1.Gpu, error) {
	if text == "" {
		return nil, nil
	}
	countText, kind, typed := strings.Cut(text, ":")
	count, err := strconv.ParseInt(countText, 10, 64)
	if err != nil || count < 0 || (typed && kind == "") {
		return nil, invocation.Usagef("--gpu %q: it must be a count, or a count and a type, like 1:H100", text)
	}
	gpu := &sandboxv1.Gpu{Count: count}
	if typed {
		gpu.Selector = &sandboxv1.Gpu_Type{Type: kind}
	}
	return gpu, nil
}

func (f *Flags) lifetimeSeconds() (int32, error) {
	if f.Lifetime == 0 {
		return 0, nil
	}
	seconds := f.Lifetime / time.Second
	if f.Lifetime < time.Second || f.Lifetime%time.Second != 0 || seconds > math.MaxInt32 {
		return 0, invocation.Usagef("--lifetime %s: it must be a number of whole seconds, at least one", f.Lifetime)
	}
	return int32(seconds), nil
}

func parseEgress(rules []string) (*sandboxv1.NetworkOptions, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	network := &sandboxv1.NetworkOptions{}
	for _, text := range rules {
		if text == "none" {
			if len(rules) > 1 {
				return nil, invocation.Usagef("--egress none stands alone: it forbids what the others allow")
			}
			network.DenyEgress = proto.Bool(true)
			return network, nil
		}
		rule, err := parseEgressRule(text)
		if err != nil {
			return nil, invocation.Usagef("--egress %q: %w", text, err)
		}
		network.Egress = append(network.Egress, rule)
	}
	return network, nil
}

// parseEgressRule reads any[:ports], CIDR[:ports] and, for IPv6 with ports,
// [CIDR]:ports.
func parseEgressRule(text string) (*sandboxv1.EgressRule, error) {
	destination, ports := splitPorts(text)
	rule := &sandboxv1.EgressRule{}
	if destination == "any" {
		rule.Destination = &sandboxv1.EgressRule_Any{Any: true}
	} else {
		prefix, err := parsePrefix(destination)
		if err != nil {
			return nil, err
		}
		rule.Destination = &sandboxv1.EgressRule_Cidr{Cidr: &sandboxv1.CidrBlock{Cidr: prefix.String()}}
	}
	if ports != "" {
		portRange, err := parsePorts(ports)
		if err != nil {
			return nil, err
		}
		rule.Ports = []*sandboxv1.PortRange{portRange}
	}
	return rule, nil
}

func splitPorts(text string) (destination, ports string) {
	if inner, rest, ok := strings.Cut(strings.TrimPrefix(text, "["), "]"); ok && strings.HasPrefix(text, "[") {
		return inner, strings.TrimPrefix(rest, ":")
	}
	// Two colons or more without brackets are an IPv6 network without ports.
	if strings.Count(text, ":") != 1 {
		return text, ""
	}
	destination, ports, _ = strings.Cut(text, ":")
	return destination, ports
}

func parsePrefix(text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("it must be any, none, an address or a network like 192.0.2.0/24, with :port or :first-last after it if only those are meant")
	}
	if prefix != prefix.Masked() {
		return netip.Prefix{}, fmt.Errorf("%s has bits set beyond its mask: did you mean %s?", prefix, prefix.Masked())
	}
	return prefix, nil
}

func parsePorts(text string) (*sandboxv1.PortRange, error) {
	firstText, lastText, isRange := strings.Cut(text, "-")
	first, err := strconv.ParseUint(firstText, 10, 16)
	last := first
	if err == nil && isRange {
		last, err = strconv.ParseUint(lastText, 10, 16)
	}
	if err != nil || first == 0 || last < first {
		return nil, fmt.Errorf("%q is no port: it must be 1 to 65535, or a range of them like 8000-8010", text)
	}
	out := &sandboxv1.PortRange{Protocol: "TCP", Port: int32(first)}
	if isRange {
		out.EndPort = int32(last)
	}
	return out, nil
}
