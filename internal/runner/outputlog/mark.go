package outputlog

import "bytes"

// Mark is a place in the output, and what formatting from there on depends
// on. The zero Mark is the beginning.
type Mark struct {
	// Offset is how many bytes were appended before.
	Offset uint64
	// Lines is how many lines began before; also one that has not ended.
	Lines uint64
	// MidLine: the byte before is not a newline.
	MidLine bool
}

// after is the place behind data that begins at m.
func (m Mark) after(data []byte) Mark {
	if len(data) == 0 {
		return m
	}
	if !m.MidLine {
		m.Lines++
	}
	last := len(data) - 1
	m.Lines += uint64(bytes.Count(data[:last], []byte{'\n'}))
	m.MidLine = data[last] != '\n'
	m.Offset += uint64(len(data))
	return m
}
