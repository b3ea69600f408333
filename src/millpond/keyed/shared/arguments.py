"""Arguments and results as bytes: MessagePack by msgspec, checked against the handler's own annotations.

The parameters of a handler (after the first, which is the job) become a Struct. So a call that does not fit is refused
where it is made, with Python's own words, and what arrives is checked and converted where it is run. Arguments travel
by name: a handler may gain parameters with defaults while older producers are at work.

Models of pydantic travel too, wherever they stand; nothing here imports it.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any

import msgspec

from millpond._events import logger


def _dumped(value: Any) -> Any:
    """Return a model of pydantic as plain data, for the encoder, which knows everything else that can travel."""
    if not _is_model(type(value)):
        raise TypeError(f"objects of type {type(value).__qualname__} cannot")
    return value.model_dump(**_DUMP)


def _loaded(kind: Any, value: Any) -> Any:
    """Return plain data as a model of pydantic, for the decoder."""
    return value if isinstance(value, kind) else kind.model_validate(value, strict=False, **_LOAD)


def _is_model(kind: Any) -> bool:
    is_model = isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_dump")
    if is_model and not _DUMP:
        by_name = "by_name" in inspect.signature(kind.model_validate).parameters  # since pydantic 2.11
        _LOAD.update({"by_name": True} if by_name else {})
        _DUMP.update({"round_trip": True, "by_alias": not by_name})
    return is_model


_DUMP: dict[str, Any] = {}
_LOAD: dict[str, Any] = {}
"""How models become plain data and come back: by the names of their fields where this pydantic can read those."""
encode = msgspec.msgpack.Encoder(enc_hook=_dumped).encode
_encode_sorted = msgspec.msgpack.Encoder(enc_hook=_dumped, order="deterministic").encode
decode = msgspec.msgpack.Decoder().decode


def decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return what reads values of a type."""
    return msgspec.msgpack.Decoder(kind, dec_hook=_loaded).decode


def convert(value: Any, kind: Any) -> Any:
    """Return what was read without its type as a value of it."""
    return msgspec.convert(value, kind, dec_hook=_loaded)


_POSITIONAL = ""
"""Where arguments stand that were given by position to a job whose handler the producer does not know."""
_ONLY_POSITIONS = b"\x81\xa0"
"""How such arguments begin when none was given by name: a map of one, whose key is empty."""
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class DoesNotFit(Exception):
    """Arguments that the handler here does not take; the text says why."""


class AnyShape:
    """The arguments of a job whose handler is not known here."""

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, always_the_same: bool = False) -> bytes:
        """Return the arguments as bytes; with `always_the_same` equal ones are the same bytes."""
        given = {**({_POSITIONAL: args} if args else {}), **dict(sorted(kwargs.items()))}
        return pack(given, always_the_same=always_the_same)

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments."""
        found = _decoded(payload)
        return tuple(found.pop(_POSITIONAL, ())), found


class OpenShape(AnyShape):
    """The parameters of a handler that takes whatever comes (`*args`, `**kwargs`), beside some that it names."""

    def __init__(self, name: str, function: Callable[..., Any], parameters: list[Parameter]) -> None:
        self._name = name
        self._signature = inspect.Signature(parameters)
        hints = _hints(function)
        self._kinds = {each.name: _checked(name, each.name, hints.get(each.name, Any)) for each in parameters}

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, always_the_same: bool = False) -> bytes:
        """Return the arguments as bytes; raise TypeError when the handler would not take them."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"job {self._name!r} takes {self._signature}: {error}") from None
        return super().encode(args, kwargs, always_the_same=always_the_same)

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, converted to what the handler's annotations say; raise `DoesNotFit`."""
        args, kwargs = super().decode(payload)
        try:
            bound = self._signature.bind(*args, **kwargs)
            for each in self._signature.parameters.values():
                if each.name in bound.arguments:
                    bound.arguments[each.name] = self._converted(each, bound.arguments[each.name])
        except (TypeError, msgspec.ValidationError) as error:
            raise DoesNotFit(str(error)) from None
        return bound.args, bound.kwargs

    def _converted(self, parameter: Parameter, value: Any) -> Any:
        kind = self._kinds[parameter.name]
        if parameter.kind is Parameter.VAR_POSITIONAL:
            return tuple(convert(each, kind) for each in value)
        if parameter.kind is Parameter.VAR_KEYWORD:
            return {key: convert(each, kind) for key, each in value.items()}
        return convert(value, kind)


class Shape:
    """The parameters of a handler, without the first."""

    def __init__(self, name: str, function: Callable[..., Any], parameters: list[Parameter]) -> None:
        hints = _hints(function)
        fields: list[Any] = []
        for each in parameters:
            kind = _checked(name, each.name, hints.get(each.name, Any))
            is_required = each.default is Parameter.empty
            fields.append((each.name, kind) if is_required else (each.name, kind, _default(each.default)))
        self._name = name
        self._signature = inspect.Signature(parameters)
        by_position = [each for each in parameters if each.kind in _BY_POSITION]
        self._count = len(by_position)
        self._is_plain = self._count == len(parameters)
        self._struct = msgspec.defstruct(
            name.replace(".", "_"), fields, kw_only=not self._is_plain, omit_defaults=True, forbid_unknown_fields=True
        )
        self._decode = decoder(self._struct)
        self._names = tuple(each.name for each in parameters)
        self._decode_positions = _position_decoder(name, fields) if self._is_plain else None

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, always_the_same: bool = False) -> bytes:
        """Return the arguments as bytes; raise TypeError when the handler would not take them."""
        try:
            made = self._struct(*args, **kwargs) if self._is_plain else self._bound(args, kwargs)
        except TypeError as error:
            words = str(error).replace("Extra positional arguments provided", f"too many arguments, {len(args)}")
            raise TypeError(f"job {self._name!r} takes {self._signature}: {words[:1].lower()}{words[1:]}") from None
        return pack(made, always_the_same=always_the_same)

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._struct(**self._signature.bind(*args, **kwargs).arguments)

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, converted to what the handler's annotations say; raise `DoesNotFit`."""
        try:
            if self._decode_positions is not None and payload.startswith(_ONLY_POSITIONS):
                found = self._decode_positions(payload).arguments
            else:
                found = self._decode(payload)
        except msgspec.DecodeError as error:
            found = self._by_position(payload, error)
        values = msgspec.structs.astuple(found)
        if self._is_plain:
            return values, {}
        count = self._count
        return values[:count], dict(zip(self._names[count:], values[count:], strict=True))

    def _by_position(self, payload: bytes, error: Exception) -> Any:
        """Fit arguments that came by position, from a producer who does not know the names."""
        found = _decoded(payload)
        if _POSITIONAL not in found:
            raise DoesNotFit(str(error)) from None
        args = found.pop(_POSITIONAL)
        try:
            return convert(self._signature.bind(*args, **found).arguments, self._struct)
        except (TypeError, msgspec.ValidationError) as reason:
            raise DoesNotFit(str(reason)) from None


def _position_decoder(name: str, fields: list[Any]) -> Callable[[bytes], Any]:
    """Return what reads arguments that were all given by position: much quicker than binding them."""
    listed = msgspec.defstruct(f"{name.replace('.', '_')}_", fields, array_like=True, forbid_unknown_fields=True)
    rename = {"arguments": _POSITIONAL}
    whole = msgspec.defstruct("Positions", [("arguments", listed)], rename=rename, forbid_unknown_fields=True)
    return decoder(whole)


def shape_of(name: str, function: Callable[..., Any]) -> Shape | AnyShape:
    """Return the shape of a handler's arguments; raise TypeError when it cannot be a handler."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in _BY_POSITION:
        raise TypeError(f"job {name!r}: a handler takes the job as its first parameter: def {name}(job, ...)")
    kind = _hints(function).get(parameters[0].name)
    plain = typing.get_origin(kind) or kind
    if isinstance(plain, type) and plain.__module__ == "builtins" and plain is not object:
        raise TypeError(
            f"job {name!r}: a handler takes the job as its first parameter, and {parameters[0].name!r} is annotated as "
            f"{inspect.formatannotation(kind)}: def {name}(job, {parameters[0].name}, ...)"
        )
    rest = parameters[1:]
    if any(each.kind in _REST for each in rest):
        return OpenShape(name, function, rest)
    return Shape(name, function, rest)


def result_type(function: Callable[..., Any]) -> Any:
    """Return what a handler says it returns, as far as that can travel."""
    kind = _hints(function).get("return", Any)
    if (stranger := _stranger(kind, [object])) is None:  # a result of `object` is as good as one of Any
        return kind
    name = getattr(function, "__qualname__", type(function).__qualname__)
    logger.warning("what %s returns, %r, is given back as plain data (%s)", name, kind, stranger)
    return Any


def _default(value: Any) -> Any:
    """Return a default that a Struct takes: a mutable one is made anew for each."""
    is_plain = value is None or isinstance(value, (bool, int, float, str, bytes, tuple, frozenset))
    return value if is_plain else msgspec.field(default_factory=lambda: value)


def _decoded(payload: bytes) -> dict[str, Any]:
    try:
        found = decode(payload)
    except msgspec.DecodeError as error:
        raise DoesNotFit(f"they cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise DoesNotFit(f"they are no arguments, but {type(found).__name__}")
    return found


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # a name that only a type checker can see
        return {}


def _checked(name: str, parameter: str, kind: Any) -> Any:
    """Return a type, if values of it can travel."""
    stranger = _stranger(kind)
    if stranger is not None:
        raise TypeError(
            f"job {name!r}: parameter {parameter!r} has a type that cannot travel, {kind!r} ({stranger}); use plain "
            "types, dataclasses, msgspec Structs or pydantic models, or annotate it as Any"
        )
    return kind


def _stranger(kind: Any, fine: Sequence[Any] = ()) -> str | None:
    """Return why values of a type cannot travel, or None: it and all that it contains is known to the decoder.

    What is `fine` may stand in it, too: it is read as plain data.
    """
    try:
        decoder(kind)
        waiting, seen = [msgspec.inspect.type_info(kind)], set()
    except (TypeError, NotImplementedError, RecursionError, ValueError) as error:
        return str(error)
    while waiting:
        each = waiting.pop()
        if id(each) in seen or not isinstance(each, msgspec.Struct):
            continue
        seen.add(id(each))
        if isinstance(each, msgspec.inspect.CustomType | msgspec.inspect.RawType):
            kind = getattr(each, "cls", None)
            if kind not in fine and not _is_model(kind):
                return f"{getattr(each, 'cls', each)!r} is unknown"
            continue
        for value in msgspec.structs.astuple(each):
            waiting.extend(value if isinstance(value, tuple) else [value])
    return None


def pack(value: Any, *, always_the_same: bool = False) -> bytes:
    """Return a value as bytes; raise TypeError when it cannot travel."""
    try:
        return _encode_sorted(value) if always_the_same else encode(value)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise TypeError(
            f"this cannot travel: {error}; send plain types, dataclasses, msgspec Structs or pydantic models"
        ) from None
