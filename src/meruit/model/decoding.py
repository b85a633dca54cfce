"""Read JSON into structs, safely from several threads.

msgspec learns the fields of a struct when it first reads one, and ends the process with a segmentation fault where
another thread reads the same struct meanwhile. So a decoder is made by one thread at a time, and is used when it is
whole. All that reads into structs goes through this module.
"""

import os
from threading import RLock
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_one_at_a_time = RLock()
# A child has no thread that would let go of it, nor one that would finish a decoder. Windows has no forks.
getattr(os, "register_at_fork", dict)(
    before=_one_at_a_time.acquire,
    after_in_parent=_one_at_a_time.release,
    after_in_child=_one_at_a_time.release,
)
# Any, here and below: whatever the type of the decoder says.
_known: dict[Any, msgspec.json.Decoder[Any]] = {}


@overload
def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """A decoder of JSON into this type; the same one for all callers."""
    found = _known.get(kind)
    if found is None:
        with _one_at_a_time:
            found = _known[kind] = msgspec.json.Decoder(kind)
    return found


@overload
def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """The same for MessagePack, made again for each caller."""
    with _one_at_a_time:
        return msgspec.msgpack.Decoder(kind)


@overload
def decode_json(data: bytes | str | msgspec.Raw, kind: type[T], *, strict: bool = True) -> T: ...
@overload
def decode_json(data: bytes | str | msgspec.Raw, kind: Any, *, strict: bool = True) -> Any: ...
def decode_json(data: bytes | str | msgspec.Raw, kind: Any, *, strict: bool = True) -> Any:
    """Read JSON into this type; raises `msgspec.DecodeError`."""
    decoder = _known.get(kind) or json_decoder(kind)
    return decoder.decode(data) if strict else msgspec.json.decode(data, type=kind, strict=False)


@overload
def convert_to(value: Any, kind: type[T], *, strict: bool = True) -> T: ...
@overload
def convert_to(value: Any, kind: Any, *, strict: bool = True) -> Any: ...
def convert_to(value: Any, kind: Any, *, strict: bool = True) -> Any:
    """Make this type of plain values; raises `msgspec.ValidationError`."""
    if kind not in _known:
        json_decoder(kind)
    return msgspec.convert(value, kind, strict=strict)
