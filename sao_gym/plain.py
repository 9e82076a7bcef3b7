"""The state of a run as plain data, and plain data as bytes. No code is ever stored or loaded.

    records, tensors --pack--> numbers, strings, lists, dicts --dumps--> bytes
                     <-unpack-                               <-loads--

Plain data is what `pickle` writes without naming a class or function; `loads` refuses everything
else, so a file from a stranger cannot run code. Floats keep every bit. A record is written as its
class's name and its fields; which classes may be named is a closed list.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

from sao_gym import events, types

_SCALARS = frozenset({int, float, bool, str, bytes, type(None)})
_RECORDS: dict[str, type] = {
    cls.__name__: cls
    for module in (types, events)
    for cls in vars(module).values()
    if isinstance(cls, type)
    and cls.__module__ == module.__name__
    and (is_dataclass(cls) or hasattr(cls, "_fields"))
}
_FIELDS: dict[type, tuple[str, ...]] = {
    cls: tuple(f.name for f in fields(cls) if f.init)
    if is_dataclass(cls)
    else tuple(getattr(cls, "_fields", ()))
    for cls in _RECORDS.values()
}
_GETTERS = {
    cls: attrgetter(*names)
    if len(names) > 1
    else (lambda v, n=names: tuple(getattr(v, x) for x in n))
    for cls, names in _FIELDS.items()
}


def dumps(value: Any) -> bytes:
    """`value` as bytes.

    Raises:
        TypeError: it holds something that is neither plain, nor a record, nor a CPU tensor.
    """
    return pickle.dumps(_Packer().pack(value), protocol=5)


def fields_of(value: Any) -> Any:
    """A record as dicts and lists for people and JSON, numbers as they are."""
    kind = type(value)
    if kind in _FIELDS:
        named = zip(_FIELDS[kind], _GETTERS[kind](value), strict=True)
        return {"is": kind.__name__, **{name: fields_of(item) for name, item in named}}
    if isinstance(value, Mapping):
        return {str(key): fields_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [fields_of(item) for item in value]
    return value


def loads(data: bytes) -> Any:
    """What `dumps` was given, tensors and records included.

    Raises:
        ValueError: these are not the bytes of plain data.
    """
    try:
        plain = _Plain(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError) as error:
        raise ValueError(f"not plain data: {error}") from None
    return _unpack(plain)


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


class _Packer:
    """A record that occurs many times is packed once."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Any, Any]] = {}

    def pack(self, value: Any) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value
        if kind is tuple:
            return self._tuple(value)
        if kind is list:
            return value if _only_scalars(value) else [self.pack(item) for item in value]
        if kind in _FIELDS:
            return self._record(value, kind)
        if kind is dict or kind is OrderedDict or isinstance(value, Mapping):
            return {self._key(key): self.pack(item) for key, item in value.items()}
        if kind in (set, frozenset):
            return ("~set", *sorted(self.pack(item) for item in value))
        if hasattr(value, "untyped_storage"):
            return _tensor(value)
        raise TypeError(f"{value!r:.80} ({kind.__name__}) is not plain data; state holds none such")

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if _only_scalars(value) and not (value and str(value[0])[:1] == "~"):
            return value
        return ("~tuple", *(self.pack(item) for item in value))

    def _record(self, value: Any, kind: type) -> tuple[Any, ...]:
        seen = self._seen.get(id(value))
        if seen is not None:
            packed: tuple[Any, ...] = seen[1]
            return packed
        packed = (f"~{kind.__name__}", *map(self.pack, _GETTERS[kind](value)))
        self._seen[id(value)] = value, packed  # `value` is kept, so that its id stays its own
        return packed

    def _key(self, key: Any) -> Any:
        if type(key) in _SCALARS:
            return key
        if type(key) is tuple and _only_scalars(key):
            return key
        raise TypeError(f"{key!r:.80} cannot be a key in a state; use strings or numbers")


def _only_scalars(values: Any) -> bool:
    return set(map(type, values)) <= _SCALARS


def _tensor(value: Any) -> tuple[Any, ...]:
    import torch

    held = value.detach().cpu().contiguous()
    raw = held.reshape(-1).view(torch.uint8).numpy().tobytes()
    return ("~tensor", str(held.dtype).removeprefix("torch."), tuple(held.shape), raw)


def _unpack(value: Any) -> Any:
    kind = type(value)
    if kind is tuple:
        return _untuple(value)
    if kind is list:
        return value if _only_scalars(value) else [_unpack(item) for item in value]
    if kind is dict:
        return {key: _unpack(item) for key, item in value.items()}
    return value


def _untuple(value: tuple[Any, ...]) -> Any:
    mark = value[0] if value else None
    if type(mark) is not str or not mark.startswith("~"):
        return value
    rest = value[1:]
    match mark:
        case "~tuple":
            return tuple(map(_unpack, rest))
        case "~set":
            return frozenset(map(_unpack, rest))
        case "~tensor":
            return _untensor(*rest)
    cls = _RECORDS.get(mark[1:])
    if cls is None:
        raise ValueError(f"not plain data of this release: unknown record {mark[1:]!r}")
    return cls(**dict(zip(_FIELDS[cls], map(_unpack, rest), strict=True)))


def _untensor(dtype: str, shape: tuple[int, ...], raw: bytes) -> Any:
    import torch

    if not raw:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(bytearray(raw), dtype=getattr(torch, dtype)).reshape(shape)
