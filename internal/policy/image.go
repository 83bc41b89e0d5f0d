package policy

import (
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// imageRules are policy.constraints.image, in canonical spelling.
type imageRules struct {
	// registries are prefixes; empty: any.
	registries []string
	// references are whole references, and repositories are those named without
	// a tag or digest; both empty: any.
	references, repositories map[string]struct{}
}

// image checks the image of one container and returns its canonical reference.
func (r *resolver) image(at location, reference string) string {
	if reference == "" {
		r.refused.add(invalid, at.String()+".image", "REQUIRED", "is required")
		return ""
	}
	repository, version, problem := canonicalImage(reference)
	if problem != "" {
		r.refused.add(invalid, at.String()+".image", "INVALID_IMAGE", "%q %s", reference, problem)
		return ""
	}
	canonical := repository + version
	rules := r.policy.image
	if len(rules.registries) > 0 && !hasRegistry(rules.registries, repository) {
		r.refused.add(outsidePolicy, at.String()+".image", "ALLOWED_REGISTRIES",
			"%q (%s) is not under any registry that the policy allows: %s (policy.constraints.image.allowed_registries)",
			reference, canonical, list(rules.registries))
	}
	if len(rules.references)+len(rules.repositories) > 0 {
		if !has(rules.references, canonical) && !has(rules.repositories, repository) {
			r.refused.add(outsidePolicy, at.String()+".image", "ALLOWED_IMAGES",
				"%q (%s) is not among the images that the policy allows (policy.constraints.image.allowed_images)", reference, canonical)
		}
	}
	return canonical
}

// canonicalImage splits a reference as users write it into its repository with
// registry ("docker.io/library/python") and its version (":3.11",
// "@sha256:…"). A tag beside a digest is dropped: the digest alone decides
// what is run.
func canonicalImage(reference string) (repository, version, problem string) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return "", "", `is not an image reference; write one such as "python:3.11" or "ghcr.io/acme/tool@sha256:…"`
	}
	repository = canonicalRegistry(ref.Context().Name())
	if _, ok := ref.(name.Digest); ok {
		return repository, "@" + ref.Identifier(), ""
	}
	return repository, ":" + ref.Identifier(), ""
}

// canonicalRegistry gives Docker Hub the name that people know, and the
// registry's host in lower case.
func canonicalRegistry(path string) string {
	host, rest, _ := strings.Cut(path, "/")
	host = strings.ToLower(host)
	if host == name.DefaultRegistry {
		host = "docker.io"
	}
	if rest == "" {
		return host
	}
	return host + "/" + rest
}

// hasRegistry says whether the repository is one of the prefixes or lies under
// one. A prefix ends at a slash, so that "ghcr.io/acme" does not admit
// "ghcr.io/acme-other".
func hasRegistry(prefixes []string, repository string) bool {
	for _, prefix := range prefixes {
		if rest, ok := strings.CutPrefix(repository, prefix); ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}

// compileImage reads the rules; what cannot be read was refused by Validate.
func compileImage(registries, images []string) imageRules {
	rules := imageRules{references: map[string]struct{}{}, repositories: map[string]struct{}{}}
	for _, registry := range registries {
		rules.registries = append(rules.registries, canonicalRegistry(strings.TrimSuffix(registry, "/")))
	}
	for _, image := range images {
		repository, version, _ := canonicalImage(image)
		if namesVersion(image) {
			rules.references[repository+version] = struct{}{}
		} else {
			rules.repositories[repository] = struct{}{}
		}
	}
	return rules
}

// namesVersion says whether a reference has a tag or a digest of its own.
func namesVersion(reference string) bool {
	last := reference[strings.LastIndexByte(reference, '/')+1:]
	return strings.ContainsAny(last, ":@")
}

// registryProblem says what is wrong with an entry of allowed_registries.
func registryProblem(prefix string) string {
	switch {
	case prefix == "" || prefix == "/":
		return "must not be empty"
	case strings.Contains(prefix, "://"):
		return `must not have a scheme; write "ghcr.io/acme"`
	case strings.ContainsAny(prefix, "*@ \t\n"):
		return `is a prefix, not a pattern; write "ghcr.io/acme"`
	}
	host, rest, _ := strings.Cut(strings.TrimSuffix(prefix, "/"), "/")
	if _, err := name.NewRegistry(host, name.StrictValidation); err != nil {
		return `does not begin with a registry's host; write "ghcr.io/acme"`
	}
	if rest != "" {
		if _, err := name.NewRepository(host+"/"+rest, name.StrictValidation); err != nil && host != "docker.io" {
			return `is not a registry and a path; write "ghcr.io/acme"`
		}
	}
	return ""
}
