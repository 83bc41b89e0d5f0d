package policy

import (
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
)

// Bounds of the platform, whatever the policy.
const (
	maxMountPath = 256
	maxSecrets   = 50
	// The length of any one list, so that checking it and saying what is wrong
	// with it stay small.
	maxListed = 1000
)

// reservedPaths belong to the platform: nothing may be mounted at or under
// them.
func reservedPaths() []string {
	return []string{"/proc", "/sys", "/dev", "/var/run/secrets", "/shared/credentials", "/etc"}
}

// checkSizes says whether every list of the spec is of a size that can be
// looked at.
func (r *resolver) checkSizes(spec *sandboxv1.SandboxSpec) bool {
	before := len(r.refused.violations)
	check := func(length int, path func() string) {
		if length > maxListed {
			r.refused.add(invalid, path(), "TOO_MANY", "%d entries are more than the platform's maximum of %d", length, maxListed)
		}
	}
	at := func(path string) func() string { return func() string { return path } }
	check(len(spec.GetContainers()), at("spec.containers"))
	check(len(spec.GetInitContainers()), at("spec.init_containers"))
	check(len(spec.GetVolumes()), at("spec.volumes"))
	check(len(spec.GetServices()), at("spec.services"))
	check(len(spec.GetAnnotations()), at("spec.annotations"))
	check(len(spec.GetNetwork().GetEgress()), at("spec.network.egress"))
	check(len(spec.GetNetwork().GetIngress()), at("spec.network.ingress"))
	if len(r.refused.violations) > before {
		return false
	}
	for i, rule := range spec.GetNetwork().GetEgress() {
		check(len(rule.GetPorts()), func() string { return element("spec.network.egress", i) + ".ports" })
		check(len(rule.GetCidr().GetExcept()), func() string { return element("spec.network.egress", i) + ".cidr.except" })
	}
	for i, rule := range spec.GetNetwork().GetIngress() {
		check(len(rule.GetPorts()), func() string { return element("spec.network.ingress", i) + ".ports" })
		check(len(rule.GetCidr().GetExcept()), func() string { return element("spec.network.ingress", i) + ".cidr.except" })
	}
	for _, group := range []struct {
		list       string
		containers []*sandboxv1.Container
	}{{"spec.containers", spec.GetContainers()}, {"spec.init_containers", spec.GetInitContainers()}} {
		for i, container := range group.containers {
			check(len(container.GetFiles()), func() string { return element(group.list, i) + ".files" })
			check(len(container.GetVolumeMounts()), func() string { return element(group.list, i) + ".volume_mounts" })
		}
	}
	return len(r.refused.violations) == before
}

// checkStructure holds the spec against the platform's own rules on its parts.
func (r *resolver) checkStructure(spec *sandboxv1.SandboxSpec) {
	if len(spec.GetContainers()) == 0 {
		r.refused.add(invalid, "spec.containers", "REQUIRED", "needs at least one container")
	}
	volumes := r.checkVolumes(spec.GetVolumes())
	names := map[string]struct{}{}
	secrets := 0
	for _, group := range []struct {
		list       string
		containers []*sandboxv1.Container
	}{{"spec.containers", spec.GetContainers()}, {"spec.init_containers", spec.GetInitContainers()}} {
		for i, container := range group.containers {
			at := location{group.list, i}
			r.checkName(at, container.GetName(), names)
			r.checkMounts(at, container, volumes)
			for _, store := range container.GetSecretStores() {
				secrets += len(store.GetSecrets())
			}
		}
	}
	if secrets > maxSecrets {
		r.refused.add(invalid, "spec.containers", "TOO_MANY_SECRETS", "%d secrets are more than the platform's maximum of %d for a sandbox", secrets, maxSecrets)
	}
	r.checkServices(spec.GetServices())
}

func (r *resolver) checkName(at location, name string, seen map[string]struct{}) {
	if len(validation.IsDNS1123Label(name)) > 0 {
		r.refused.add(invalid, at.String()+".name", "INVALID_NAME", "%q is not a container's name; write 1 to 63 of a-z, 0-9 and -, such as \"main\"", name)
		return
	}
	if has(seen, name) {
		r.refused.add(invalid, at.String()+".name", "DUPLICATE", "%q is the name of another container already", name)
	}
	seen[name] = struct{}{}
}

// primary is the index of the primary container: the one that is named, else
// the first.
func (r *resolver) primary(spec *sandboxv1.SandboxSpec) int {
	name := spec.GetPrimaryContainer()
	if name == "" {
		return 0
	}
	for i, container := range spec.GetContainers() {
		if container.GetName() == name {
			return i
		}
	}
	r.refused.add(invalid, "spec.primary_container", "UNKNOWN_CONTAINER", "%q is not the name of any of spec.containers", name)
	return 0
}

// checkVolumes returns the names that mounts may use.
func (r *resolver) checkVolumes(volumes []*sandboxv1.SandboxVolume) map[string]struct{} {
	names := map[string]struct{}{}
	for i, volume := range volumes {
		name := volume.GetName()
		if !isVolumeName(name) {
			r.refused.add(invalid, element("spec.volumes", i)+".name", "INVALID_NAME", "%q is not a volume's name; write 1 to 63 of A-Z, a-z, 0-9, _ and -", name)
		} else if has(names, name) {
			r.refused.add(invalid, element("spec.volumes", i)+".name", "DUPLICATE", "%q is the name of another volume already", name)
		}
		names[name] = struct{}{}
		if volume.GetScratch() == nil && volume.GetVolumeId() == "" {
			r.refused.add(invalid, element("spec.volumes", i), "SOURCE_REQUIRED", "has no source; give scratch or volume_id")
		}
	}
	return names
}

func isVolumeName(name string) bool {
	if name == "" || len(name) > 63 {
		return false
	}
	for _, c := range []byte(name) {
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// checkMounts checks one container's mounts and files against each other.
func (r *resolver) checkMounts(at location, container *sandboxv1.Container, volumes map[string]struct{}) {
	mounts, files := container.GetVolumeMounts(), container.GetFiles()
	if len(mounts) == 0 && len(files) == 0 {
		return
	}
	paths := make(map[string]struct{}, len(mounts)+len(files))
	for i, mount := range mounts {
		field := element(at.String()+".volume_mounts", i)
		if !has(volumes, mount.GetVolume()) {
			r.refused.add(invalid, field+".volume", "UNKNOWN_VOLUME", "%q is not the name of any of spec.volumes", mount.GetVolume())
		}
		target := mount.GetMountPath()
		if problem := mountPathProblem(target); problem != "" {
			r.refused.add(invalid, field+".mount_path", "INVALID_PATH", "%q %s", target, problem)
		} else if has(paths, target) {
			r.refused.add(invalid, field+".mount_path", "DUPLICATE", "%q is mounted twice", target)
		}
		paths[target] = struct{}{}
		if sub := mount.GetSubPath(); sub != "" && (path.IsAbs(sub) || path.Clean(sub) != sub || sub == ".." || strings.HasPrefix(sub, "../")) {
			r.refused.add(invalid, field+".sub_path", "INVALID_PATH", "%q must be a relative path inside the volume, without . and ..", sub)
		}
	}
	written := make(map[string]struct{}, len(files))
	for i, file := range files {
		field := element(at.String()+".files", i) + ".path"
		target := file.GetPath()
		switch {
		case !path.IsAbs(target) || path.Clean(target) != target || target == "/" || strings.ContainsRune(target, 0):
			r.refused.add(invalid, field, "INVALID_PATH", "%q must be the absolute path of a file, without . and ..", target)
		case has(written, target):
			r.refused.add(invalid, field, "DUPLICATE", "%q is written twice", target)
		case overlapsMount(target, mounts):
			r.refused.add(invalid, field, "OVERLAP", "%q overlaps a mounted volume; mount the volume elsewhere or leave the file out", target)
		}
		written[target] = struct{}{}
	}
}

func mountPathProblem(target string) string {
	switch {
	case !path.IsAbs(target) || path.Clean(target) != target || target == "/" || strings.ContainsRune(target, 0):
		return "must be an absolute path other than /, without . and .."
	case len(target) > maxMountPath:
		return "is longer than 256 characters"
	}
	for _, reserved := range reservedPaths() {
		if within(reserved, target) {
			return "is at or under " + reserved + ", which belongs to the platform"
		}
	}
	return ""
}

func overlapsMount(file string, mounts []*sandboxv1.VolumeMount) bool {
	for _, mount := range mounts {
		if within(mount.GetMountPath(), file) || within(file, mount.GetMountPath()) {
			return true
		}
	}
	return false
}

// within says whether target is directory or lies under it.
func within(directory, target string) bool {
	rest, ok := strings.CutPrefix(target, directory)
	return ok && (rest == "" || rest[0] == '/')
}

func (r *resolver) checkServices(services []*sandboxv1.Service) {
	type key struct {
		port     int32
		protocol sandboxv1.ServiceProtocol
	}
	seen := map[key]struct{}{}
	for i, service := range services {
		k := key{service.GetPort(), service.GetProtocol()}
		if k.protocol == sandboxv1.ServiceProtocol_SERVICE_PROTOCOL_UNSPECIFIED {
			k.protocol = sandboxv1.ServiceProtocol_SERVICE_PROTOCOL_TCP
		}
		if k.port < 1 || k.port > 65535 {
			r.refused.add(invalid, element("spec.services", i)+".port", "INVALID_PORT", "%d is not a port; write 1 to 65535", k.port)
			continue
		}
		if _, ok := seen[k]; ok {
			r.refused.add(invalid, element("spec.services", i)+".port", "DUPLICATE", "%d is the port of another service already", k.port)
		}
		seen[k] = struct{}{}
	}
}
