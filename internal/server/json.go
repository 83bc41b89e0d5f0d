package server

import (
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// withStrictJSON has connect's handlers refuse JSON with fields or enum values
// that the contract does not have, as REST does: a rule of a policy that is
// misspelt must not be a rule that is missing. Binary messages are as they
// were: protobuf's own rules keep fields of newer clients.
func withStrictJSON() connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCodec(strictCodec{"json"}),
		connect.WithCodec(strictCodec{"json; charset=utf-8"}),
	)
}

// strictCodec is connect's JSON codec but for unknown fields.
type strictCodec struct{ name string }

var _ connect.Codec = strictCodec{}

// Name implements connect.Codec.
func (c strictCodec) Name() string { return c.name }

// Marshal implements connect.Codec.
func (c strictCodec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalAppend lets connect use its own buffers.
func (c strictCodec) MarshalAppend(dst []byte, message any) ([]byte, error) {
	known, err := protobuf(message)
	if err != nil {
		return nil, err
	}
	return protojson.MarshalOptions{}.MarshalAppend(dst, known)
}

// Unmarshal implements connect.Codec.
func (c strictCodec) Unmarshal(data []byte, message any) error {
	known, err := protobuf(message)
	if err != nil {
		return err
	}
	if len(data) == 0 {
		return errors.New("the body is empty; a request without fields is {}")
	}
	if err := unmarshalJSON(data, known); err != nil {
		return fmt.Errorf("the body is not the JSON that is expected here: %w", err)
	}
	return nil
}

func protobuf(message any) (proto.Message, error) {
	known, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a protobuf message", message)
	}
	return known, nil
}
