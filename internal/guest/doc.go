// Package guest is the protocol between a runner and the guest, the agent that
// is PID 1 of every sandbox: the framing that both ends share, and the
// runner's end, Client. The guest's end is package agent.
//
// One connection carries one call. The runner sends a Request and whatever the
// call takes after it, the guest answers with Responses, and closing the
// connection cancels the call together with what it started. No end keeps a
// stream in memory: a reader that pauses pauses the writer, down to the
// process inside the sandbox.
//
// It must not import engines, the runner or the API.
package guest
