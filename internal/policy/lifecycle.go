package policy

// MaxLifetimeSeconds is the platform's own maximum, 30 days; no policy sets
// another.
const MaxLifetimeSeconds = 2_592_000

// lifetime is the spec's, or the policy's default, or the platform's. Zero
// means the default, never no bound.
func (r *resolver) lifetime(seconds int32, defaults Defaults) int32 {
	const field = "spec.max_lifetime_seconds"
	switch {
	case seconds < 0:
		r.refused.add(invalid, field, "NEGATIVE_LIFETIME", "%d must not be negative; 0 means the default", seconds)
	case seconds > MaxLifetimeSeconds:
		r.refused.add(invalid, field, "MAX_LIFETIME",
			"%d is more than the platform's maximum of %d (30 days); ask for at most that", seconds, MaxLifetimeSeconds)
	case seconds == 0 && r.policy.lifetimeSeconds > 0:
		return r.policy.lifetimeSeconds
	case seconds == 0:
		return defaults.LifetimeSeconds
	}
	return seconds
}
