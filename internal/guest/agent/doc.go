// Package agent is the guest's end of the guest protocol: PID 1 of a sandbox.
//
// It starts the main process when it is told to, collects every process that
// ends, runs further processes, reads and writes files without any tool of
// the image, keeps the latest output of the main process, and ends everything
// at the deadline even when nobody outside is left to do so.
//
// Invariants:
//   - Nothing of the workload runs before Start, and nothing of it is left
//     when a Stop is answered.
//   - One place starts and collects processes (reaper), under one lock, so a
//     number is never signalled after it was collected.
//   - Memory is bounded: a slow reader of an exec slows the process, a missing
//     reader of the main process costs old output, never more memory.
//
// It must import nothing of Sandbar but package guest and its messages: its
// size is paid for in every sandbox.
package agent
