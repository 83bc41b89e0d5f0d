package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/policy"
)

// ruling is one spec held against one policy, and "field RULE" for each rule
// that refuses it.
type ruling struct {
	name    string
	policy  *sandboxv1.Policy
	spec    *sandboxv1.SandboxSpec
	refused []string
}

func check(t *testing.T, reason apierr.Reason, rulings []ruling) {
	t.Helper()
	for _, test := range rulings {
		t.Run(test.name, func(t *testing.T) {
			_, err := policy.Resolve(policy.Request{Spec: test.spec, Policy: test.policy})
			got, rules := refusalOf(t, err)
			if diff := cmp.Diff(test.refused, rules); diff != "" {
				t.Errorf("refused by (-want +got):\n%s", diff)
			}
			if test.refused != nil && got != reason {
				t.Errorf("reason %s, want %s", got, reason)
			}
		})
	}
}

func running(image string) *sandboxv1.SandboxSpec {
	return sandbox(func(s *sandboxv1.SandboxSpec) { s.Containers[0].Image = image })
}

func imaging(registries, images []string) *sandboxv1.Policy {
	return constrained(&sandboxv1.PolicyConstraints{Image: &sandboxv1.ImageConstraints{AllowedRegistries: registries, AllowedImages: images}})
}

const digest = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

func TestImages(t *testing.T) {
	registry := []string{"spec.containers[0].image ALLOWED_REGISTRIES"}
	image := []string{"spec.containers[0].image ALLOWED_IMAGES"}
	check(t, apierr.PolicyViolation, []ruling{
		{"any image under the empty policy", &sandboxv1.Policy{}, running("python:3.11"), nil},
		{"Docker Hub by its short name", imaging([]string{"docker.io"}, nil), running("python:3.11"), nil},
		{"Docker Hub by its long name", imaging([]string{"index.docker.io"}, nil), running("docker.io/library/python"), nil},
		{"a path of Docker Hub", imaging([]string{"docker.io/library"}, nil), running("python:3.11"), nil},
		{"outside that path", imaging([]string{"docker.io/library"}, nil), running("acme/python:3.11"), registry},
		{"a registry and a path", imaging([]string{"ghcr.io/acme"}, nil), running("ghcr.io/acme/tool:1"), nil},
		{"a slash at the end changes nothing", imaging([]string{"ghcr.io/acme/"}, nil), running("ghcr.io/acme/tool:1"), nil},
		{"a whole repository", imaging([]string{"ghcr.io/acme/tool"}, nil), running("ghcr.io/acme/tool@" + digest), nil},
		{"a name that only begins the same", imaging([]string{"ghcr.io/acme"}, nil), running("ghcr.io/acme-other/tool:1"), registry},
		{"a host that only begins the same", imaging([]string{"ghcr.io"}, nil), running("ghcr.io.example.com/acme/tool:1"), registry},
		{"the same host on another port", imaging([]string{"registry.example.com"}, nil), running("registry.example.com:5000/tool:1"), registry},
		{"a host in another case", imaging([]string{"Registry.example.com"}, nil), running("registry.example.com/tool:1"), nil},
		{"no short name for another registry", imaging([]string{"ghcr.io"}, nil), running("python:3.11"), registry},

		{"the image itself", imaging(nil, []string{"python:3.11"}), running("docker.io/library/python:3.11"), nil},
		{"another tag", imaging(nil, []string{"python:3.11"}), running("python:3.12"), image},
		{"any tag of a repository without one", imaging(nil, []string{"python"}), running("python:3.12"), nil},
		{"any digest of a repository without one", imaging(nil, []string{"python"}), running("python@" + digest), nil},
		{"a digest", imaging(nil, []string{"python@" + digest}), running("python@" + digest), nil},
		{"a tag is no promise about a digest", imaging(nil, []string{"python:3.11"}), running("python:3.11@" + digest), image},
		{"a tag beside the allowed digest", imaging(nil, []string{"python@" + digest}), running("python:3.11@" + digest), nil},
		{"both rules hold", imaging([]string{"ghcr.io"}, []string{"python:3.11"}), running("python:3.11"), registry},
		{"both rules are named", imaging([]string{"ghcr.io"}, []string{"busybox"}), running("python:3.11"), append(registry, image...)},
	})
	check(t, apierr.InvalidRequest, []ruling{
		{"no image", &sandboxv1.Policy{}, running(""), []string{"spec.containers[0].image REQUIRED"}},
		{"no reference", &sandboxv1.Policy{}, running("Python 3.11"), []string{"spec.containers[0].image INVALID_IMAGE"}},
		{"a bad digest", &sandboxv1.Policy{}, running("python@sha256:short"), []string{"spec.containers[0].image INVALID_IMAGE"}},
	})
}

func TestImagesOfInitContainersAreCheckedToo(t *testing.T) {
	spec := sandbox(func(s *sandboxv1.SandboxSpec) {
		s.InitContainers = []*sandboxv1.Container{{Name: "init", Image: "quay.io/acme/init:1"}}
	})
	check(t, apierr.PolicyViolation, []ruling{
		{"the init container's", imaging([]string{"docker.io"}, nil), spec, []string{"spec.init_containers[0].image ALLOWED_REGISTRIES"}},
	})
}

func TestTheImageIsNamedInFull(t *testing.T) {
	for given, want := range map[string]string{
		"python":                      "docker.io/library/python:latest",
		"acme/tool:1":                 "docker.io/acme/tool:1",
		"localhost:5000/tool":         "localhost:5000/tool:latest",
		"ghcr.io/acme/tool@" + digest: "ghcr.io/acme/tool@" + digest,
	} {
		resolved, err := policy.Resolve(policy.Request{Spec: running(given), Policy: &sandboxv1.Policy{}})
		if err != nil {
			t.Fatal(err)
		}
		if got := resolved.Containers[0].Image; got != want {
			t.Errorf("%s is %s, want %s", given, got, want)
		}
	}
}

func TestLifetime(t *testing.T) {
	living := func(seconds int32) *sandboxv1.SandboxSpec {
		return sandbox(func(s *sandboxv1.SandboxSpec) { s.MaxLifetimeSeconds = seconds })
	}
	standard := func(seconds int64) *sandboxv1.Policy {
		return constrained(&sandboxv1.PolicyConstraints{Lifecycle: &sandboxv1.LifecycleConstraints{DefaultLifetimeSeconds: &seconds}})
	}
	for _, test := range []struct {
		name     string
		policy   *sandboxv1.Policy
		spec     *sandboxv1.SandboxSpec
		platform int32
		want     int32
	}{
		{"the sandbox's own", standard(600), living(60), 0, 60},
		{"the policy's default", standard(600), living(0), 0, 600},
		{"the platform's where the policy says 0", standard(0), living(0), 0, 3600},
		{"the platform's where the policy says nothing", &sandboxv1.Policy{}, living(0), 0, 3600},
		{"the platform's as configured", &sandboxv1.Policy{}, living(0), 120, 120},
		{"more than the policy's default", standard(600), living(601), 0, 601},
		{"exactly 30 days", standard(600), living(2592000), 0, 2592000},
	} {
		t.Run(test.name, func(t *testing.T) {
			resolved, err := policy.Resolve(policy.Request{Spec: test.spec, Policy: test.policy, Defaults: policy.Defaults{LifetimeSeconds: test.platform}})
			if err != nil {
				t.Fatal(err)
			}
			if resolved.LifetimeSeconds != test.want {
				t.Errorf("%d, want %d", resolved.LifetimeSeconds, test.want)
			}
		})
	}
	check(t, apierr.InvalidRequest, []ruling{
		{"more than 30 days is refused, not clamped", &sandboxv1.Policy{}, living(2592001), []string{"spec.max_lifetime_seconds MAX_LIFETIME"}},
		{"less than nothing", &sandboxv1.Policy{}, living(-1), []string{"spec.max_lifetime_seconds NEGATIVE_LIFETIME"}},
	})
}

func secured(s *sandboxv1.SecurityContext) *sandboxv1.SandboxSpec {
	return sandbox(func(spec *sandboxv1.SandboxSpec) { spec.Containers[0].SecurityContext = s })
}

func securing(s *sandboxv1.SecurityConstraints) *sandboxv1.Policy {
	return constrained(&sandboxv1.PolicyConstraints{Security: s})
}

func TestSecurity(t *testing.T) {
	const at = "spec.containers[0].security_context."
	privileged := secured(&sandboxv1.SecurityContext{Privileged: proto.Bool(true)})
	adding := func(names ...string) *sandboxv1.SandboxSpec {
		return secured(&sandboxv1.SecurityContext{CapabilitiesAdd: names})
	}
	dropping := func(names ...string) *sandboxv1.SandboxSpec {
		return secured(&sandboxv1.SecurityContext{CapabilitiesDrop: names})
	}
	filtered := func(profile string) *sandboxv1.SandboxSpec {
		return secured(&sandboxv1.SecurityContext{SeccompProfile: profile})
	}
	check(t, apierr.PolicyViolation, []ruling{
		{"privileged is refused by default", &sandboxv1.Policy{}, privileged, []string{at + "privileged ALLOW_PRIVILEGED"}},
		{"privileged is refused where it is said", securing(&sandboxv1.SecurityConstraints{AllowPrivileged: proto.Bool(false)}), privileged, []string{at + "privileged ALLOW_PRIVILEGED"}},
		{"privileged is allowed where it is said", securing(&sandboxv1.SecurityConstraints{AllowPrivileged: proto.Bool(true)}), privileged, nil},
		{"privileged: false asks for nothing", &sandboxv1.Policy{}, secured(&sandboxv1.SecurityContext{Privileged: proto.Bool(false)}), nil},
		{"no capability is added by default", &sandboxv1.Policy{}, adding("NET_ADMIN"), []string{at + "capabilities_add[0] ALLOWED_CAPABILITIES"}},
		{"a capability that is listed", securing(&sandboxv1.SecurityConstraints{AllowedCapabilities: []string{"NET_ADMIN"}}), adding("NET_ADMIN"), nil},
		{"with its prefix, in any case", securing(&sandboxv1.SecurityConstraints{AllowedCapabilities: []string{"CAP_NET_ADMIN"}}), adding("net_admin"), nil},
		{
			"each that is not listed is named", securing(&sandboxv1.SecurityConstraints{AllowedCapabilities: []string{"NET_ADMIN"}}), adding("SYS_ADMIN", "NET_ADMIN", "ALL"),
			[]string{at + "capabilities_add[0] ALLOWED_CAPABILITIES", at + "capabilities_add[2] ALLOWED_CAPABILITIES"},
		},
		{"all of them", securing(&sandboxv1.SecurityConstraints{AllowedCapabilities: []string{"ALL"}}), adding("SYS_ADMIN", "ALL"), nil},
		{"dropping is always allowed", &sandboxv1.Policy{}, dropping("ALL", "NET_RAW"), nil},
		{"the default profile is always allowed", &sandboxv1.Policy{}, filtered("RuntimeDefault"), nil},
		{"no filter is refused by default", &sandboxv1.Policy{}, filtered("Unconfined"), []string{at + "seccomp_profile ALLOWED_SECCOMP_PROFILES"}},
		{"a profile that is listed", securing(&sandboxv1.SecurityConstraints{AllowedSeccompProfiles: []string{"Localhost/strict.json"}}), filtered("Localhost/strict.json"), nil},
		{"a profile that is not", securing(&sandboxv1.SecurityConstraints{AllowedSeccompProfiles: []string{"Localhost/strict.json"}}), filtered("Localhost/loose.json"), []string{at + "seccomp_profile ALLOWED_SECCOMP_PROFILES"}},
	})
	check(t, apierr.InvalidRequest, []ruling{
		{"a capability that does not exist", &sandboxv1.Policy{}, adding("EVERYTHING"), []string{at + "capabilities_add[0] INVALID_CAPABILITY"}},
		{"dropping one that does not exist", &sandboxv1.Policy{}, dropping("EVERYTHING"), []string{at + "capabilities_drop[0] INVALID_CAPABILITY"}},
		{"a profile that does not exist", &sandboxv1.Policy{}, filtered("none"), []string{at + "seccomp_profile INVALID_SECCOMP_PROFILE"}},
		{"a profile outside its directory", &sandboxv1.Policy{}, filtered("Localhost/../../etc/shadow"), []string{at + "seccomp_profile INVALID_SECCOMP_PROFILE"}},
	})
}

func TestRuntimeClass(t *testing.T) {
	pinning := func(class string) *sandboxv1.SandboxSpec {
		return sandbox(func(s *sandboxv1.SandboxSpec) { s.RuntimeClass = class })
	}
	pinned := []string{"spec.runtime_class ALLOWED_RUNTIME_CLASSES"}
	standard := securing(&sandboxv1.SecurityConstraints{DefaultCpuRuntimeClass: "gvisor", DefaultGpuRuntimeClass: "nvidia"})
	mapped := securing(&sandboxv1.SecurityConstraints{RuntimeClassMappings: []*sandboxv1.RuntimeClassMapping{
		{RuntimeClass: sandboxv1.RuntimeClass_RUNTIME_CLASS_CPU_DEFAULT, Target: &sandboxv1.RuntimeClassMapping_KubernetesRuntimeClassName{KubernetesRuntimeClassName: "kata"}},
		{RuntimeClass: sandboxv1.RuntimeClass_RUNTIME_CLASS_GPU_DEFAULT, Target: &sandboxv1.RuntimeClassMapping_NodeDefault{NodeDefault: true}},
	}})
	check(t, apierr.PolicyViolation, []ruling{
		{"no class may be pinned by default", &sandboxv1.Policy{}, pinning("runc"), pinned},
		{"not even the policy's own", standard, pinning("gvisor"), pinned},
		{"one that is listed", securing(&sandboxv1.SecurityConstraints{AllowedRuntimeClasses: []string{"runc"}}), pinning("runc"), nil},
		{"one that is not", securing(&sandboxv1.SecurityConstraints{AllowedRuntimeClasses: []string{"runc"}}), pinning("gvisor"), pinned},
		{"none where classes are mapped", mapped, pinning("kata"), pinned},
	})
	for _, test := range []struct {
		name   string
		policy *sandboxv1.Policy
		spec   *sandboxv1.SandboxSpec
		want   string
	}{
		{"the runner's own where the policy says nothing", &sandboxv1.Policy{}, sandbox(), ""},
		{"the policy's for sandboxes without a GPU", standard, sandbox(), "gvisor"},
		{"the policy's for sandboxes with one", standard, sandbox(asking(gpus(1), nil)), "nvidia"},
		{"the pin, as it is written", securing(&sandboxv1.SecurityConstraints{AllowedRuntimeClasses: []string{"runc"}}), pinning("runc"), "runc"},
		{"the class that is mapped", mapped, sandbox(), "kata"},
		{"the node's default, where that is mapped", mapped, sandbox(asking(gpus(1), nil)), "<node-default>"},
	} {
		t.Run(test.name, func(t *testing.T) {
			resolved, err := policy.Resolve(policy.Request{Spec: test.spec, Policy: test.policy})
			if err != nil {
				t.Fatal(err)
			}
			if resolved.RuntimeClass != test.want {
				t.Errorf("%q, want %q", resolved.RuntimeClass, test.want)
			}
		})
	}
}

func TestInstanceTypes(t *testing.T) {
	wanting := func(name string) *sandboxv1.SandboxSpec {
		return sandbox(func(s *sandboxv1.SandboxSpec) { s.InstanceType = name })
	}
	some := constrained(&sandboxv1.PolicyConstraints{Instance: &sandboxv1.InstanceConstraints{AllowedInstanceTypes: []string{"cd-gp-i64-erapids"}}})
	check(t, apierr.PolicyViolation, []ruling{
		{"any where none is listed", &sandboxv1.Policy{}, wanting("gd-8xh100ib-i128"), nil},
		{"one that is listed", some, wanting("cd-gp-i64-erapids"), nil},
		{"one that is not", some, wanting("gd-8xh100ib-i128"), []string{"spec.instance_type ALLOWED_INSTANCE_TYPES"}},
		{"none asked for", some, sandbox(), nil},
	})
}

func TestAnnotations(t *testing.T) {
	noting := func(keys ...string) *sandboxv1.SandboxSpec {
		return sandbox(func(s *sandboxv1.SandboxSpec) {
			s.Annotations = map[string]string{}
			for _, key := range keys {
				s.Annotations[key] = "sandbox"
			}
		})
	}
	rules := constrained(&sandboxv1.PolicyConstraints{Metadata: &sandboxv1.MetadataConstraints{
		DeniedAnnotationPrefixes: []string{"kubernetes.io/", "admin."}, MaxAnnotationCount: proto.Int64(3),
	}})
	base, err := structpb.NewStruct(map[string]any{"metadata": map[string]any{"annotations": map[string]any{"team": "policy", "cost": "policy"}}})
	if err != nil {
		t.Fatal(err)
	}
	pinned := proto.CloneOf(rules)
	pinned.Base = base
	check(t, apierr.PolicyViolation, []ruling{
		{"any under the empty policy", &sandboxv1.Policy{}, noting("kubernetes.io/x", "a", "b", "c", "d"), nil},
		{"as many as are allowed", rules, noting("a", "b", "c"), nil},
		{"more than are allowed", rules, noting("a", "b", "c", "d"), []string{"spec.annotations MAX_ANNOTATION_COUNT"}},
		{
			"each that is denied is named", rules, noting("kubernetes.io/x", "ok", "admin.y"),
			[]string{`spec.annotations["admin.y"] DENIED_ANNOTATION_PREFIX`, `spec.annotations["kubernetes.io/x"] DENIED_ANNOTATION_PREFIX`},
		},
		{"those of the base count, each key once", pinned, noting("team", "a"), nil},
		{"those of the base count", pinned, noting("a", "b"), []string{"spec.annotations MAX_ANNOTATION_COUNT"}},
	})
	check(t, apierr.InvalidRequest, []ruling{
		{"a key of nothing", &sandboxv1.Policy{}, noting(""), []string{"spec.annotations EMPTY_KEY"}},
	})

	resolved, err := policy.Resolve(policy.Request{Spec: noting("team", "a"), Policy: pinned})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"team": "policy", "cost": "policy", "a": "sandbox"}
	if diff := cmp.Diff(want, resolved.Annotations()); diff != "" {
		t.Errorf("the policy's base wins (-want +got):\n%s", diff)
	}
}

func scratch(size string, medium sandboxv1.StorageMedium) func(*sandboxv1.SandboxSpec) {
	return func(s *sandboxv1.SandboxSpec) {
		s.Volumes = append(s.Volumes, &sandboxv1.SandboxVolume{
			Name:   fmt.Sprintf("v%d", len(s.Volumes)),
			Source: &sandboxv1.SandboxVolume_Scratch{Scratch: &sandboxv1.ScratchVolume{Size: size, Medium: medium}},
		})
	}
}

const (
	anyMedium = sandboxv1.StorageMedium_STORAGE_MEDIUM_UNSPECIFIED
	onDisk    = sandboxv1.StorageMedium_STORAGE_MEDIUM_DISK
	inMemory  = sandboxv1.StorageMedium_STORAGE_MEDIUM_MEMORY
)

func TestVolumes(t *testing.T) {
	storing := func(size string, media ...sandboxv1.StorageMedium) *sandboxv1.Policy {
		return constrained(&sandboxv1.PolicyConstraints{Volumes: &sandboxv1.VolumeConstraints{MaxSize: size, AllowedMedia: media}})
	}
	ceiling := limiting(&sandboxv1.ResourceConstraints{MemoryCeiling: "2Gi"})
	const at = "spec.volumes[0].scratch."
	check(t, apierr.PolicyViolation, []ruling{
		{"any under the empty policy", &sandboxv1.Policy{}, sandbox(scratch("", anyMedium), scratch("1Ti", onDisk), scratch("64Gi", inMemory)), nil},
		{"exactly the maximum", storing("1Gi"), sandbox(scratch("1024Mi", onDisk)), nil},
		{"more than the maximum", storing("1Gi"), sandbox(scratch("1025Mi", onDisk)), []string{at + "size MAX_SIZE"}},
		{"a percentage that comes to more", storing("1Gi"), sandbox(asking(amount("1", "4Gi"), nil), scratch("26%", inMemory)), []string{at + "size MAX_SIZE"}},
		{"a medium that is listed", storing("", onDisk), sandbox(scratch("", anyMedium)), nil},
		{"a medium that is not", storing("", onDisk), sandbox(scratch("1Gi", inMemory)), []string{at + "medium ALLOWED_MEDIA"}},
	})
	check(t, apierr.ResourceCeilingExceeded, []ruling{
		{"a volume in memory under the ceiling", ceiling, sandbox(asking(amount("1", "1Gi"), nil), scratch("100%", inMemory)), nil},
		{"a volume in memory over the ceiling", ceiling, sandbox(asking(amount("1", "1Gi"), nil), scratch("1025Mi", inMemory)), []string{"spec.containers MEMORY_CEILING"}},
		{"a volume on disk is no memory", ceiling, sandbox(asking(amount("1", "1Gi"), nil), scratch("64Gi", onDisk)), nil},
	})
	check(t, apierr.InvalidRequest, []ruling{
		{"in memory without a size", &sandboxv1.Policy{}, sandbox(scratch("", inMemory)), []string{at + "size INVALID_SIZE"}},
		{"a percentage on disk", &sandboxv1.Policy{}, sandbox(scratch("50%", onDisk)), []string{at + "size INVALID_SIZE"}},
		{"0 %", &sandboxv1.Policy{}, sandbox(scratch("0%", inMemory)), []string{at + "size INVALID_SIZE"}},
		{"101 %", &sandboxv1.Policy{}, sandbox(scratch("101%", inMemory)), []string{at + "size INVALID_SIZE"}},
		{"a part of a percentage", &sandboxv1.Policy{}, sandbox(scratch("2.5%", inMemory)), []string{at + "size INVALID_SIZE"}},
		{"no quantity", &sandboxv1.Policy{}, sandbox(scratch("big", onDisk)), []string{at + "size INVALID_SIZE"}},
		{"no medium", &sandboxv1.Policy{}, sandbox(scratch("", 7)), []string{at + "medium INVALID_MEDIUM"}},
	})

	resolved, err := policy.Resolve(policy.Request{
		Spec:   sandbox(asking(amount("1", "1Gi"), nil), scratch("", anyMedium), scratch("25%", inMemory)),
		Policy: storing("10Gi"),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []policy.Volume{{Name: "v0", Medium: onDisk, SizeBytes: 10 << 30}, {Name: "v1", Medium: inMemory, SizeBytes: 256 << 20}}
	if diff := cmp.Diff(want, resolved.Volumes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTheSpecsOwnParts(t *testing.T) {
	change := func(changes ...func(*sandboxv1.SandboxSpec)) *sandboxv1.SandboxSpec { return sandbox(changes...) }
	mount := func(volume, path string) func(*sandboxv1.SandboxSpec) {
		return func(s *sandboxv1.SandboxSpec) {
			s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, &sandboxv1.VolumeMount{Volume: volume, MountPath: path})
		}
	}
	file := func(path string) func(*sandboxv1.SandboxSpec) {
		return func(s *sandboxv1.SandboxSpec) {
			s.Containers[0].Files = append(s.Containers[0].Files, &sandboxv1.FileMount{Path: path})
		}
	}
	service := func(port int32, protocol sandboxv1.ServiceProtocol) func(*sandboxv1.SandboxSpec) {
		return func(s *sandboxv1.SandboxSpec) {
			s.Services = append(s.Services, &sandboxv1.Service{Port: port, Protocol: protocol})
		}
	}
	volume := scratch("", onDisk)
	free := &sandboxv1.Policy{}
	const at = "spec.containers[0]."
	check(t, apierr.InvalidRequest, []ruling{
		{"no container", free, &sandboxv1.SandboxSpec{}, []string{"spec.containers REQUIRED"}},
		{"a container without a name", free, change(func(s *sandboxv1.SandboxSpec) { s.Containers[0].Name, s.PrimaryContainer = "", "" }), []string{at + "name INVALID_NAME"}},
		{"two containers of one name", free, change(func(s *sandboxv1.SandboxSpec) { s.Containers = append(s.Containers, s.Containers[0]) }), []string{"spec.containers[1].name DUPLICATE"}},
		{"an unknown primary container", free, change(func(s *sandboxv1.SandboxSpec) { s.PrimaryContainer = "other" }), []string{"spec.primary_container UNKNOWN_CONTAINER"}},
		{"a mounted volume", free, change(volume, mount("v0", "/data")), nil},
		{"a mount of no volume", free, change(mount("v0", "/data")), []string{at + "volume_mounts[0].volume UNKNOWN_VOLUME"}},
		{"a volume without a source", free, change(func(s *sandboxv1.SandboxSpec) { s.Volumes = []*sandboxv1.SandboxVolume{{Name: "v0"}} }), []string{"spec.volumes[0] SOURCE_REQUIRED"}},
		{"a volume's name with a slash", free, change(volume, func(s *sandboxv1.SandboxSpec) { s.Volumes[0].Name = "a/b" }), []string{"spec.volumes[0].name INVALID_NAME"}},
		{"two volumes of one name", free, change(volume, volume, func(s *sandboxv1.SandboxSpec) { s.Volumes[1].Name = "v0" }), []string{"spec.volumes[1].name DUPLICATE"}},
		{"a registered volume", free, change(func(s *sandboxv1.SandboxSpec) {
			s.Volumes = []*sandboxv1.SandboxVolume{{Name: "v0", Source: &sandboxv1.SandboxVolume_VolumeId{VolumeId: "vol-1"}}}
		}, mount("v0", "/data")), nil},
		{"a mount on /", free, change(volume, mount("v0", "/")), []string{at + "volume_mounts[0].mount_path INVALID_PATH"}},
		{"a relative mount", free, change(volume, mount("v0", "data")), []string{at + "volume_mounts[0].mount_path INVALID_PATH"}},
		{"a mount that climbs", free, change(volume, mount("v0", "/data/../proc")), []string{at + "volume_mounts[0].mount_path INVALID_PATH"}},
		{"a mount on what belongs to the platform", free, change(volume, mount("v0", "/proc/sys")), []string{at + "volume_mounts[0].mount_path INVALID_PATH"}},
		{"a mount beside what belongs to the platform", free, change(volume, mount("v0", "/process")), nil},
		{"a long mount", free, change(volume, mount("v0", "/"+strings.Repeat("a", 256))), []string{at + "volume_mounts[0].mount_path INVALID_PATH"}},
		{"two mounts on one path", free, change(volume, mount("v0", "/data"), mount("v0", "/data")), []string{at + "volume_mounts[1].mount_path DUPLICATE"}},
		{"a file", free, change(file("/workspace/a.txt")), nil},
		{"a file under a mount", free, change(volume, mount("v0", "/data"), file("/data/a.txt")), []string{at + "files[0].path OVERLAP"}},
		{"a file without a path", free, change(file("a.txt")), []string{at + "files[0].path INVALID_PATH"}},
		{"one file twice", free, change(file("/a"), file("/a")), []string{at + "files[1].path DUPLICATE"}},
		{"services", free, change(service(80, 0), service(80, sandboxv1.ServiceProtocol_SERVICE_PROTOCOL_UDP)), nil},
		{"one port twice", free, change(service(80, 0), service(80, sandboxv1.ServiceProtocol_SERVICE_PROTOCOL_TCP)), []string{"spec.services[1].port DUPLICATE"}},
		{"no port", free, change(service(0, 0)), []string{"spec.services[0].port INVALID_PORT"}},
		{"too many secrets", free, change(func(s *sandboxv1.SandboxSpec) {
			s.Containers[0].SecretStores = []*sandboxv1.SecretStoreReference{{Secrets: make([]*sandboxv1.SecretMapping, 51)}}
		}), []string{"spec.containers TOO_MANY_SECRETS"}},
		{"a list that is too long to look at", free, change(func(s *sandboxv1.SandboxSpec) {
			s.Network = &sandboxv1.NetworkOptions{Egress: make([]*sandboxv1.EgressRule, 1001)}
		}), []string{"spec.network.egress TOO_MANY"}},
	})
}

func TestABadDefaultOfThePlatformIsNotTheCallersFault(t *testing.T) {
	_, err := policy.Resolve(policy.Request{Spec: sandbox(), Policy: &sandboxv1.Policy{}, Defaults: policy.Defaults{CPU: "one"}})
	if apierr.ReasonOf(err) != apierr.Internal {
		t.Errorf("%v", err)
	}
}

func TestAPolicyThatIsNotSoundAdmitsNothing(t *testing.T) {
	_, err := policy.Resolve(policy.Request{Spec: sandbox(), Policy: limiting(&sandboxv1.ResourceConstraints{MaxCpu: "many"})})
	_, rules := refusalOf(t, err)
	if want := []string{"policy.constraints.resources.max_cpu INVALID_QUANTITY"}; !cmp.Equal(rules, want) {
		t.Errorf("%v: %v", rules, err)
	}
}
