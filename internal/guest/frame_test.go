package guest

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

func stdinRequest(data []byte) *guestv1.Request {
	return &guestv1.Request{Call: &guestv1.Request_Stdin{Stdin: data}}
}

func TestMessagesArriveAsTheyWereSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := rapid.SliceOf(rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 4096), stdinRequest)).Draw(t, "requests")
		var wire bytes.Buffer
		writer := NewWriter(&wire)
		for _, request := range sent {
			if err := writer.Write(request); err != nil {
				t.Fatal(err)
			}
		}
		reader := NewReader(&wire)
		for _, request := range sent {
			received := &guestv1.Request{}
			if err := reader.Read(received); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(request, received, protocmp.Transform()); diff != "" {
				t.Fatalf("request changed on the way (-sent +received):\n%s", diff)
			}
		}
		if err := reader.Read(&guestv1.Request{}); err != io.EOF {
			t.Fatalf("after the last message: %v, expected io.EOF", err)
		}
	})
}

// chunks are small and large, on either side of where they are gathered.
func chunks() *rapid.Generator[[]byte] {
	return rapid.Map(rapid.IntRange(0, 2*gatherBytes), func(size int) []byte {
		return bytes.Repeat([]byte{byte(size), 0, 0xff}, size)[:size]
	})
}

func TestLentRequestsEqualOwnedOnes(t *testing.T) {
	requests := rapid.OneOf(
		rapid.Map(chunks(), stdinRequest),
		rapid.Map(chunks(), func(data []byte) *guestv1.Request {
			return &guestv1.Request{Call: &guestv1.Request_FileData{FileData: data}}
		}),
		rapid.Map(rapid.Uint32(), func(columns uint32) *guestv1.Request {
			return &guestv1.Request{Call: &guestv1.Request_Resize{Resize: &guestv1.Resize{Columns: columns}}}
		}),
	)
	rapid.Check(t, func(t *rapid.T) {
		checkArrival(t, rapid.SliceOfN(requests, 0, 8).Draw(t, "requests"), &guestv1.Request{}, (*Reader).ReadRequest)
	})
}

func TestLentResponsesEqualOwnedOnes(t *testing.T) {
	responses := rapid.OneOf(
		rapid.Custom(func(t *rapid.T) *guestv1.Response {
			return &guestv1.Response{Answer: &guestv1.Response_Output{Output: &guestv1.Output{
				Stream:  rapid.Uint32().Draw(t, "stream"),
				Data:    chunks().Draw(t, "data"),
				Dropped: rapid.SampledFrom([]uint64{0, 0, 1}).Draw(t, "dropped"),
				Offset:  rapid.SampledFrom([]uint64{0, 0, 1 << 40}).Draw(t, "offset"),
			}}}
		}),
		rapid.Map(chunks(), func(data []byte) *guestv1.Response {
			return &guestv1.Response{Answer: &guestv1.Response_FileData{FileData: data}}
		}),
		rapid.Map(rapid.Int32(), exit),
	)
	rapid.Check(t, func(t *rapid.T) {
		checkArrival(t, rapid.SliceOfN(responses, 0, 8).Draw(t, "responses"), &guestv1.Response{}, (*Reader).ReadResponse)
	})
}

// checkArrival sends messages and receives them, with read and with Read.
func checkArrival[M proto.Message](t *rapid.T, sent []M, received M, read func(*Reader, M) error) {
	var wire bytes.Buffer
	writer := NewWriter(&wire)
	for _, message := range sent {
		if err := writer.Write(message); err != nil {
			t.Fatal(err)
		}
	}
	for name, read := range map[string]func(*Reader, M) error{
		"lent":  read,
		"owned": func(r *Reader, m M) error { return r.Read(m) },
	} {
		reader := NewReader(bytes.NewReader(wire.Bytes()))
		for _, message := range sent {
			if err := read(reader, received); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !proto.Equal(message, received) {
				t.Fatalf("%s: message changed on the way (-sent +received):\n%s", name, cmp.Diff(message, received, protocmp.Transform()))
			}
		}
		if err := read(reader, received); err != io.EOF {
			t.Fatalf("%s: after the last message: %v, expected io.EOF", name, err)
		}
	}
}

func TestMessagesThatArriveInPiecesAreWhole(t *testing.T) {
	sent := []*guestv1.Request{stdinRequest(make([]byte, 3)), stdinRequest(make([]byte, 2*gatherBytes)), stdinRequest(nil)}
	var wire bytes.Buffer
	writer := NewWriter(&wire)
	for _, request := range sent {
		if err := writer.Write(request); err != nil {
			t.Fatal(err)
		}
	}
	reader := NewReader(iotest.OneByteReader(&wire))
	for _, request := range sent {
		received := &guestv1.Request{}
		if err := reader.ReadRequest(received); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(request, received, protocmp.Transform(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("request changed on the way (-sent +received):\n%s", diff)
		}
	}
}

func TestALargeMessageLeavesNoLargeBuffer(t *testing.T) {
	var wire bytes.Buffer
	writer := NewWriter(&wire)
	for _, size := range []int{MaxMessageBytes - 5, 1, 1} {
		if err := writer.Write(stdinRequest(make([]byte, size))); err != nil {
			t.Fatal(err)
		}
	}
	reader := NewReader(iotest.HalfReader(&wire))
	for range 3 {
		if err := reader.Read(&guestv1.Request{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := reader.Read(&guestv1.Request{}); err != io.EOF {
		t.Fatal(err)
	}
	if len(reader.buf) > keptBufferBytes || cap(writer.buf) > keptBufferBytes {
		t.Errorf("buffers of %d and %d bytes are kept", len(reader.buf), cap(writer.buf))
	}
}

func TestMessagesOfWrongSizeAreNotSent(t *testing.T) {
	for name, request := range map[string]*guestv1.Request{
		"empty":     {},
		"too large": stdinRequest(make([]byte, MaxMessageBytes)),
	} {
		t.Run(name, func(t *testing.T) {
			var wire bytes.Buffer
			if err := NewWriter(&wire).Write(request); !errors.Is(err, ErrFraming) {
				t.Errorf("got %v, expected ErrFraming", err)
			}
			if wire.Len() != 0 {
				t.Errorf("%d bytes were sent", wire.Len())
			}
		})
	}
}

func TestTheLargestMessagePasses(t *testing.T) {
	request := stdinRequest(make([]byte, MaxMessageBytes-5))
	var wire bytes.Buffer
	if err := NewWriter(&wire).Write(request); err != nil {
		t.Fatal(err)
	}
	if err := NewReader(&wire).Read(&guestv1.Request{}); err != nil {
		t.Fatal(err)
	}
}

func TestMalformedFramesAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		wire []byte
		want error
	}{
		"nothing":             {nil, io.EOF},
		"half a length":       {[]byte{0, 0}, io.ErrUnexpectedEOF},
		"length of zero":      {[]byte{0, 0, 0, 0}, ErrFraming},
		"length beyond limit": {[]byte{0, 16, 0, 1}, ErrFraming},
		"no bytes follow":     {[]byte{0, 0, 0, 2}, io.ErrUnexpectedEOF},
		"too few follow":      {[]byte{0, 0, 0, 2, 8}, io.ErrUnexpectedEOF},
		"not a message":       {[]byte{0, 0, 0, 2, 0xff, 0xff}, ErrFraming},
	} {
		t.Run(name, func(t *testing.T) {
			if err := NewReader(bytes.NewReader(test.wire)).Read(&guestv1.Request{}); !errors.Is(err, test.want) {
				t.Errorf("got %v, expected %v", err, test.want)
			}
		})
	}
}

func FuzzReadRequest(f *testing.F) {
	var wire bytes.Buffer
	if err := NewWriter(&wire).Write(stdinRequest([]byte("hello"))); err != nil {
		f.Fatal(err)
	}
	f.Add(wire.Bytes())
	f.Add([]byte{0, 0, 0, 3, 0xa2, 0x01, 0x00})
	f.Fuzz(func(t *testing.T, wire []byte) {
		owning, lending := NewReader(bytes.NewReader(wire)), NewReader(bytes.NewReader(wire))
		for {
			owned, lent := &guestv1.Request{}, &guestv1.Request{}
			err1, err2 := owning.Read(owned), lending.ReadRequest(lent)
			if (err1 == nil) != (err2 == nil) {
				t.Fatalf("owned: %v, lent: %v", err1, err2)
			}
			if err1 != nil {
				return
			}
			if diff := cmp.Diff(owned, lent, protocmp.Transform()); diff != "" {
				t.Fatalf("(-owned +lent):\n%s", diff)
			}
		}
	})
}

func FuzzReader(f *testing.F) {
	var wire bytes.Buffer
	if err := NewWriter(&wire).Write(stdinRequest([]byte("hello"))); err != nil {
		f.Fatal(err)
	}
	f.Add(wire.Bytes())
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, wire []byte) {
		reader := NewReader(bytes.NewReader(wire))
		// The shortest message is a length and one byte.
		for range len(wire)/(lengthBytes+1) + 1 {
			request := &guestv1.Request{}
			err := reader.Read(request)
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrFraming) {
					t.Fatalf("error that names no cause: %v", err)
				}
				return
			}
		}
		t.Fatal("more messages than the bytes can hold")
	})
}
