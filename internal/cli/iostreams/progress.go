package iostreams

import (
	"fmt"
	"time"
)

// Progress is one line on a terminal that says what is waited for. On anything
// else it writes nothing, so that logs and pipes stay clean.
type Progress struct {
	streams *IO
	now     func() time.Time
	start   time.Time
	shown   bool
}

// quiet is how long a wait lasts before it is worth a line.
const quiet = 300 * time.Millisecond

// Progress starts a line; nothing is shown yet.
func (s *IO) Progress(now func() time.Time) *Progress {
	return &Progress{streams: s, now: now, start: now()}
}

// Show replaces the line, once the wait has become worth one.
func (p *Progress) Show(what string) {
	waited := p.now().Sub(p.start)
	if !p.streams.ErrIsTerminal() || waited < quiet {
		return
	}
	p.shown = true
	fmt.Fprintf(p.streams.Err, "\r\x1b[K%s … %ds", what, int(waited.Seconds()))
}

// Done takes the line away.
func (p *Progress) Done() {
	if p.shown {
		fmt.Fprint(p.streams.Err, "\r\x1b[K")
		p.shown = false
	}
}
