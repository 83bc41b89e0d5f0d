// Package oci is the engine for the machine it runs on. It drives an OCI
// runtime (runsc, crun or runc) directly: there is no daemon between a runner
// and its sandboxes, and none has to be set up.
//
// The file system is the record. Whatever is made for a sandbox lies in the
// sandbox's own directory, or can be found from the sandbox's id alone: its
// cgroups, its network interface and its firewall chain are named after it.
// The directory is made first and removed last, so a process that is killed at
// any instant leaves nothing that the next one does not find. A process that
// works on a sandbox holds a lock on its directory; the kernel drops the lock
// with the process, so a half-made sandbox is one whose lock is free.
//
// Several processes may run one engine (the same name and data directory) at
// once, as they do while one revision of a runner takes over from another. No
// lock is held across sandboxes: what they share (addresses, images) is claimed
// with operations that the kernel makes atomic.
//
// The package must not import the gateway, the API or the control plane.
package oci
