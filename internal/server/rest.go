package server

import (
	"connectrpc.com/vanguard"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

// restCodec is the JSON of REST. It writes only what is present, so that
// absent and empty stay apart, and refuses fields that the contract does not
// have: a rule that is misspelt must not be a rule that is missing.
func restCodec(resolver vanguard.TypeResolver) vanguard.Codec {
	return &strictJSON{JSONCodec: &vanguard.JSONCodec{
		MarshalOptions:   protojson.MarshalOptions{Resolver: resolver},
		UnmarshalOptions: protojson.UnmarshalOptions{Resolver: resolver},
	}}
}

// strictJSON tells the caller what is wrong with a body, where the codec it
// embeds would have it be an error of the server.
type strictJSON struct{ *vanguard.JSONCodec }

// Unmarshal implements vanguard.Codec.
func (c *strictJSON) Unmarshal(data []byte, message proto.Message) error {
	return badBody(c.JSONCodec.Unmarshal(data, message))
}

// UnmarshalField implements vanguard.RESTCodec.
func (c *strictJSON) UnmarshalField(data []byte, message proto.Message, field protoreflect.FieldDescriptor) error {
	return badBody(c.JSONCodec.UnmarshalField(data, message, field))
}

func badBody(err error) error {
	if err == nil {
		return nil
	}
	return apierr.Connect(apierr.New(apierr.InvalidRequest, "the body is not the JSON that is expected here: %v", err))
}
