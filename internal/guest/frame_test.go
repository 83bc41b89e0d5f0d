package guest

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
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

func TestLentRequestsEqualOwnedOnes(t *testing.T) {
	chunk := rapid.SliceOfN(rapid.Byte(), 0, 100)
	requests := rapid.OneOf(
		rapid.Map(chunk, stdinRequest),
		rapid.Map(chunk, func(data []byte) *guestv1.Request {
			return &guestv1.Request{Call: &guestv1.Request_FileData{FileData: data}}
		}),
		rapid.Map(rapid.Uint32(), func(columns uint32) *guestv1.Request {
			return &guestv1.Request{Call: &guestv1.Request_Resize{Resize: &guestv1.Resize{Columns: columns}}}
		}),
	)
	rapid.Check(t, func(t *rapid.T) {
		var wire bytes.Buffer
		writer := NewWriter(&wire)
		sent := rapid.SliceOf(requests).Draw(t, "requests")
		for _, request := range sent {
			if err := writer.Write(request); err != nil {
				t.Fatal(err)
			}
		}
		reader := NewReader(&wire)
		received := &guestv1.Request{}
		for _, request := range sent {
			if err := reader.ReadRequest(received); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(request, received, protocmp.Transform()); diff != "" {
				t.Fatalf("request changed on the way (-sent +received):\n%s", diff)
			}
		}
	})
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
		source := bytes.NewReader(wire)
		reader := NewReader(source)
		for {
			before := source.Len()
			request := &guestv1.Request{}
			err := reader.Read(request)
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrFraming) {
					t.Fatalf("error that names no cause: %v", err)
				}
				return
			}
			if source.Len() >= before {
				t.Fatal("a message took no bytes")
			}
		}
	})
}
