package sqlstore

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// jsonOptions keep the contract's names and only what is present.
var jsonOptions = protojson.MarshalOptions{UseProtoNames: true}

func encodeJSON(message proto.Message) (string, error) {
	text, err := jsonOptions.Marshal(message)
	if err != nil {
		return "", fmt.Errorf("encode %s: %w", message.ProtoReflect().Descriptor().Name(), err)
	}
	return string(text), nil
}

// encodeOptionalJSON keeps the difference between absent and empty.
func encodeOptionalJSON[M proto.Message](message M, present bool) (*string, error) {
	if !present {
		return nil, nil
	}
	text, err := encodeJSON(message)
	return &text, err
}

func decodeJSON[M proto.Message](text string, into M) (M, error) {
	if err := protojson.Unmarshal([]byte(text), into); err != nil {
		return into, fmt.Errorf("decode %s: %w", into.ProtoReflect().Descriptor().Name(), err)
	}
	return into, nil
}

func decodeOptionalJSON[M proto.Message](text *string, into M) (M, error) {
	if text == nil {
		var absent M
		return absent, nil
	}
	return decodeJSON(*text, into)
}

func encodeTime(t time.Time) int64 { return t.UnixNano() }

func decodeTime(nanos int64) time.Time { return time.Unix(0, nanos).UTC() }

// encodeOptionalTime turns the zero time into NULL.
func encodeOptionalTime(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	nanos := encodeTime(t)
	return &nanos
}

func decodeOptionalTime(nanos *int64) time.Time {
	if nanos == nil {
		return time.Time{}
	}
	return decodeTime(*nanos)
}
