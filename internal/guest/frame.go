package guest

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

const (
	// MaxMessageBytes bounds one message, without its length prefix. Both ends
	// refuse a longer one before they allocate for it.
	MaxMessageBytes = 1 << 20
	// MaxChunkBytes bounds the bytes of a stream (stdin, output, file contents)
	// that one message carries.
	MaxChunkBytes = 64 << 10

	lengthBytes = 4
	// A buffer that grew beyond this for one message is not kept for the next.
	keptBufferBytes = MaxChunkBytes + 4<<10
)

// ErrFraming is what a peer that does not speak the protocol causes: a length
// of zero or beyond MaxMessageBytes, or bytes that are no message. Nothing
// after it on the connection can be trusted.
var ErrFraming = errors.New("malformed frame")

// Field numbers, as in guest.proto.
const (
	requestStdin     protowire.Number = 20
	requestFileData  protowire.Number = 23
	responseOutput   protowire.Number = 4
	responseFileData protowire.Number = 6
	outputStream     protowire.Number = 1
	outputData       protowire.Number = 2
)

// chunkOf returns the bytes of a stream that m carries, and the encoding of
// all that comes before them, appended to head: together they are m's
// encoding. Messages that are anything else, or more, have no such bytes.
func chunkOf(head []byte, m any) (newHead, data []byte) {
	switch m := m.(type) {
	case *guestv1.Request:
		switch call := m.GetCall().(type) {
		case *guestv1.Request_Stdin:
			return appendHead(head, requestStdin, call.Stdin), call.Stdin
		case *guestv1.Request_FileData:
			return appendHead(head, requestFileData, call.FileData), call.FileData
		}
	case *guestv1.Response:
		switch answer := m.GetAnswer().(type) {
		case *guestv1.Response_FileData:
			return appendHead(head, responseFileData, answer.FileData), answer.FileData
		case *guestv1.Response_Output:
			output := answer.Output
			if output.GetTime() != nil || output.GetDropped() != 0 || output.GetOffset() != 0 {
				return head, nil
			}
			return appendOutputHead(head, output), output.GetData()
		}
	}
	return head, nil
}

func appendHead(head []byte, number protowire.Number, data []byte) []byte {
	head = protowire.AppendTag(head, number, protowire.BytesType)
	return protowire.AppendVarint(head, uint64(len(data)))
}

func appendOutputHead(head []byte, output *guestv1.Output) []byte {
	var inner [24]byte
	fields := protowire.AppendTag(inner[:0], outputStream, protowire.VarintType)
	fields = protowire.AppendVarint(fields, uint64(output.GetStream()))
	fields = appendHead(fields, outputData, output.GetData())
	head = protowire.AppendTag(head, responseOutput, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(len(fields)+len(output.GetData())))
	return append(head, fields...)
}

// parseField recognises a message that is one field of bytes and nothing else;
// the number is 0 for any other.
func parseField(frame []byte) (protowire.Number, []byte) {
	number, kind, n := protowire.ConsumeTag(frame)
	if n < 0 || kind != protowire.BytesType {
		return 0, nil
	}
	data, m := protowire.ConsumeBytes(frame[n:])
	if m != len(frame)-n {
		return 0, nil
	}
	return number, data
}

// parseOutput recognises the encoding of an Output that appendOutputHead made:
// a stream and then data.
func parseOutput(fields []byte) (*guestv1.Output, bool) {
	number, kind, n := protowire.ConsumeTag(fields)
	if n < 0 || number != outputStream || kind != protowire.VarintType {
		return nil, false
	}
	stream, m := protowire.ConsumeVarint(fields[n:])
	if m < 0 || stream > 1<<32-1 {
		return nil, false
	}
	number, data := parseField(fields[n+m:])
	if number != outputData {
		return nil, false
	}
	return &guestv1.Output{Stream: uint32(stream), Data: data}, true
}
