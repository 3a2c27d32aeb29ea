"""Types that values are decoded to: what msgspec knows, and pydantic models where a program uses them.

A type that pydantic has a part in is left to pydantic as a whole, all others to msgspec. Pydantic is no dependency and
never imported here first: a program that has such a type has imported it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeVar, cast, get_args

import msgspec

from slipstream.errors import UsageError

T = TypeVar("T")

Decode = Callable[[bytes], Any]


def json_decoder(kind: type[T]) -> Callable[[bytes], T]:
    """The function that decodes JSON to a type; raises UsageError if there is none."""
    return cast("Callable[[bytes], T]", _decoder_of(_json_decoder, kind))


def msgpack_decoder(kind: type[T]) -> Callable[[bytes], T]:
    """The same for MessagePack."""
    return cast("Callable[[bytes], T]", _decoder_of(_msgpack_decoder, kind))


def convert(value: object, kind: type[T]) -> T:
    """A value of plain Python (dict, list, str, int, ...) as a type; raises ValueError if it is of another shape."""
    if is_pydantic(kind):
        return cast("T", _adapter(kind).validate_python(value))
    return msgspec.convert(value, kind, dec_hook=_decode_hook)


def _decoder_of(make: Callable[[Any], Decode], kind: Any) -> Decode:
    try:
        return make(kind)
    except Exception as error:  # annotations and pydantic raise errors of many classes
        raise UsageError(f"kind must be a type that can be decoded to, got {kind!r}: {error}") from error


@lru_cache(maxsize=256)
def _json_decoder(kind: Any) -> Decode:
    if is_pydantic(kind):
        return cast("Decode", _adapter(kind).validate_json)
    return msgspec.json.Decoder(kind, dec_hook=_decode_hook).decode


@lru_cache(maxsize=256)
def _msgpack_decoder(kind: Any) -> Decode:
    if is_pydantic(kind):
        validate, plain = _adapter(kind).validate_python, msgspec.msgpack.Decoder().decode
        return lambda data: validate(plain(data))
    return msgspec.msgpack.Decoder(kind, dec_hook=_decode_hook).decode


# Pydantic


def is_pydantic(kind: object) -> bool:
    """Whether a type is a model or dataclass of pydantic, or made of one, as `list[Model]` is."""
    return hasattr(kind, "__pydantic_validator__") or any(is_pydantic(part) for part in get_args(kind))


def _adapter(kind: object) -> Any:
    return import_module("pydantic").TypeAdapter(kind)


def encode_hook(value: Any) -> Any:
    """A value that msgspec cannot encode as plain Python: a pydantic model, with the names that it is read by."""
    if hasattr(type(value), "__pydantic_serializer__"):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"objects of type {type(value).__name__} are not supported")


def _decode_hook(kind: type[Any], value: object) -> object:
    """A field of a type that msgspec does not know, as plain Python, as that type."""
    if is_pydantic(kind):
        return _adapter(kind).validate_python(value)
    raise TypeError(f"objects of type {kind.__name__} are not supported")
