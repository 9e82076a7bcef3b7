"""From a pydantic model and a `Source` to a checked value, or to one line that names the place.

Data is checked as JSON in pydantic's strict mode: a list may fill a tuple and a string an enum, but
`"6"` is no number and `true` no count. Keys that a model does not know are always errors, also
where a plug-in's model would ignore them.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from sao_gym.errors import InputError, suggestion
from sao_gym.yaml_source import Path, Source, has

M = TypeVar("M", bound=BaseModel)


class Section(BaseModel):
    """One small part of a scenario file: frozen, and it refuses keys that it does not know."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def misplaced(path: Path, message: str) -> PydanticCustomError:
    """For a validator: an error about what stands at `path` inside the model."""
    return PydanticCustomError("misplaced", "{message}", {"message": message, "at": path})


def parse_strictly(model: type[M], data: Any) -> M:
    """`data` (JSON-like) as a `model`. Raises pydantic's ValidationError."""
    return model.model_validate_json(json.dumps(data), strict=True, extra="forbid")


def check(model: type[M], source: Source, path: Path = ()) -> M:
    """The value at `path` as a `model`.

    Raises InputError: `FILE:LINE: path.to.key: what is wrong; what to do`. Of several errors the
    first unknown key is reported, else the first in the file.
    """
    data = source.get(path, {})
    try:
        return parse_strictly(model, data)
    except ValidationError as error:
        raise _explained(error, model, source, path) from None


def _explained(
    error: ValidationError, model: type[BaseModel], source: Source, base: Path
) -> InputError:
    places = list(source.origins)
    data = source.get(base, {})
    found: dict[Path, list[str]] = {}
    order: dict[Path, tuple[bool, int]] = {}
    for item in error.errors(include_url=False):
        path = _path(data, item)
        found.setdefault(base + path, []).append(_message(item, model, data, path))
        known = base + path
        while known not in source.origins:
            known = known[:-1]
        rank = (item["type"] != "extra_forbidden", places.index(known))
        order[base + path] = min(order.get(base + path, rank), rank)
    first = min(found, key=lambda path: order[path])
    return source.error(first, _joined(found[first]))


def _joined(messages: list[str]) -> str:
    """One message; the alternatives of a union become `must be a or b, not x`."""
    distinct = list(dict.fromkeys(messages))
    parts = [re.fullmatch(r"must be (.*?)(, not .*)?", message) for message in distinct]
    if len(distinct) > 1 and all(parts):
        heads = " or ".join(part[1] for part in parts if part)
        return f"must be {heads}{(parts[-1] and parts[-1][2]) or ''}"
    return distinct[0]


def _path(data: Any, item: ErrorDetails) -> Path:
    """The error's place in the data: pydantic's `loc` without the names of union members."""
    path: Path = ()
    loc = item["loc"]
    for depth, key in enumerate(loc):
        last = depth == len(loc) - 1
        if has(data, key):
            data = data[key]
        elif not (last and item["type"] == "missing"):
            continue
        path += (key,)
    if item["type"] == "misplaced":
        path += tuple(item["ctx"]["at"])
    elif item["type"] == "union_tag_invalid":
        path += (item["ctx"]["discriminator"].strip("'"),)
    return path


_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "none_required": "null",
}


def _message(item: ErrorDetails, model: type[BaseModel], data: Any, path: Path) -> str:
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    shown = _shown(value)
    match kind:
        case "extra_forbidden":
            known = _known_keys(model, data, path[:-1])
            return f"unknown key; {suggestion(str(path[-1]), known)}"
        case "missing":
            return "required key is missing; add it"
        case "misplaced":
            return str(context["message"])
        case "literal_error" | "enum":
            allowed = _quoted(context["expected"])
            hint = suggestion(str(value), allowed)
            closing = f"; {hint}" if hint.startswith("did") and len(allowed) > 1 else ""
            return f"must be {context['expected']}{shown}{closing}"
        case "union_tag_invalid":
            hint = suggestion(context["tag"], _quoted(context["expected_tags"]))
            return f"unknown {path[-1]} {context['tag']!r}; {hint}"
        case "union_tag_not_found":
            return f"required key {context['discriminator']} is missing; add it"
        case "string_type" if isinstance(value, int | float):
            return f"must be text{shown}; put it in quotes"
        case _ if kind in _TYPES:
            return f"must be {_TYPES[kind]}{shown}"
        case "too_short" | "string_too_short":
            return "must not be empty" if context["min_length"] == 1 else item["msg"]
    text = re.sub("^Input should", "must", item["msg"].removeprefix("Value error, "))
    return f"{text}{shown}" if text.startswith("must") else text


def _shown(value: Any) -> str:
    if isinstance(value, dict | list) and value:
        return ""
    return f", not {value!r}" if isinstance(value, str) else f", not {json.dumps(value)}"


def _quoted(text: str) -> list[str]:
    return re.findall(r"'([^']*)'", text)


def _known_keys(model: type[BaseModel], data: Any, path: Path) -> set[str]:
    """The keys that the mapping at `path` may have."""
    kinds: list[Any] = [model]
    for key in path:
        kinds = [inner for kind in kinds for inner in _inside(kind, data, key)]
        data = data[key]
    return {
        name for kind in kinds for candidate in _models(kind, data) for name in _keys(candidate)
    }


def _inside(kind: Any, data: Any, key: str | int) -> Iterator[Any]:
    """The types that the value under `key` may have, where the mapping or list is a `kind`."""
    for member in _members(kind):
        if isinstance(member, type) and issubclass(member, BaseModel):
            yield from (field for name, field in _keys(member).items() if name == key)
        elif typing.get_origin(member) is not Literal:
            yield from typing.get_args(member)[-1 if isinstance(data, dict) else None :]


def _models(kind: Any, data: Any) -> list[type[BaseModel]]:
    """The models in `kind` that `data` most looks like."""
    keys = set(data) if isinstance(data, dict) else set()
    models = [m for m in _members(kind) if isinstance(m, type) and issubclass(m, BaseModel)]
    scored = [(_tagged(m, data), len(keys & set(_keys(m)))) for m in models]
    return [m for m, score in zip(models, scored, strict=True) if score == max(scored)]


def _tagged(model: type[BaseModel], data: Any) -> bool:
    return isinstance(data, Mapping) and all(
        data[name] in typing.get_args(kind)
        for name, kind in _keys(model).items()
        if typing.get_origin(kind) is Literal and isinstance(data.get(name), str)
    )


def _members(kind: Any) -> Iterator[Any]:
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        yield from _members(typing.get_args(kind)[0])
    elif origin is typing.Union or origin is types.UnionType:
        for member in typing.get_args(kind):
            yield from _members(member)
    else:
        yield kind


def _keys(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}
