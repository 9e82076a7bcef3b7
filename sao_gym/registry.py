"""Plug-ins, found by name; nothing is imported before it is asked for, and then only that.

A name stands in an entry-point group of an installed distribution, ours or anybody's:

    [project.entry-points."sao_gym.envs"]          also .agents, .learners, .tasks
    maze = "my_package.maze:Maze"

or it is an import path, `my_package.maze:Maze`, which needs no installation. Scenario files come by
the same door. Their entry point names a package; the file `<name>.yaml` lies in it as package data:

    [project.entry-points."sao_gym.scenarios"]
    maze_drift = "my_package.scenarios"            the file my_package/scenarios/maze_drift.yaml

Two distributions that claim one name are an error, and so is one that claims a name twice. What a
plug-in raises while it is imported, an ImportError too, is shown as it is.
"""

from __future__ import annotations

import functools
import importlib
import importlib.resources
import inspect
import types
import typing
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.resources.abc import Traversable
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic_core import PydanticSerializationError

from sao_gym.errors import InputError, suggestion
from sao_gym.validation import parse_strictly

Kind: TypeAlias = Literal["envs", "agents", "learners", "scenarios", "tasks"]

_NOUNS = {
    "envs": "environment",
    "agents": "agent",
    "learners": "learner",
    "scenarios": "scenario",
    "tasks": "task set",
}


@functools.cache
def available(kind: Kind) -> Mapping[str, EntryPoint]:
    """Every installed name, sorted; nothing is imported.

    Raises InputError if a name is claimed twice.
    """
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=f"sao_gym.{kind}"), key=lambda e: (e.name, e.value)):
        if entry.name in found:
            raise InputError(
                f"two plug-ins claim the {_NOUNS[kind]} {entry.name!r}: "
                f"{_described(found[entry.name])} and {_described(entry)}; uninstall one of them"
            )
        found[entry.name] = entry
    return found


def load(kind: Kind, name: str) -> Any:
    """The plug-in itself: a class or function; for scenarios the file, as a `Traversable`.

    Raises InputError for a name that nobody offers and for an import path that leads nowhere.
    """
    if ":" in name:
        module, _, attribute = name.partition(":")
        if kind == "scenarios":
            return _file(_imported(kind, name, module), attribute)
        return _attribute(kind, name, _imported(kind, name, module), attribute)
    known = available(kind)
    if name not in known:
        raise InputError(f"unknown {_NOUNS[kind]} {name!r}; {suggestion(name, known)}")
    plugin = known[name].load()
    return _file(plugin, name) if kind == "scenarios" else plugin


@functools.cache
def params_model(plugin: Any) -> type[BaseModel]:
    """The model that checks a plug-in's `params:`.

    It is the plug-in's nested `Config`, if it has one; else it is made from the keyword-only
    parameters of the constructor, with their annotations and defaults. A parameter whose default
    JSON cannot hold (a function, say) is not for files and is left out.
    """
    if _has_config(plugin):
        config: type[BaseModel] = plugin.Config
        return config
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(plugin).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and _fits_json(parameter.default)
    }
    kinds = _annotations(plugin, parameters)
    fields: dict[str, Any] = {}
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty
        # The prefix keeps a parameter called `copy` or `_x` clear of pydantic's own names.
        fields[f"param_{name}"] = (
            kinds[name] | None if parameter.default is None else kinds[name],
            Field(alias=name) if required else Field(default=parameter.default, alias=name),
        )
    return create_model(
        f"{getattr(plugin, '__name__', 'Plugin')}Params",
        __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True, frozen=True),
        **fields,
    )


def bind(plugin: Any, *, params: Mapping[str, Any]) -> Any:
    """A factory: checks `params` once; its calls give `plugin(*args, config)` if there is a nested
    `Config`, else `plugin(*args, **params)`.

    `params` is JSON-like, as a scenario holds it. Raises pydantic's ValidationError.
    """
    checked = parse_strictly(params_model(plugin), dict(params))
    if _has_config(plugin):
        return lambda *args: plugin(*args, checked)
    fields = type(checked).model_fields
    named = {str(f.alias): getattr(checked, name) for name, f in fields.items()}
    return functools.partial(plugin, **named)


def construct(plugin: Any, *args: Any, params: Mapping[str, Any]) -> Any:
    """One instance: see `bind`."""
    return bind(plugin, params=params)(*args)


def _has_config(plugin: Any) -> bool:
    config = getattr(plugin, "Config", None)
    return isinstance(config, type) and issubclass(config, BaseModel)


def _fits_json(default: Any) -> bool:
    try:
        TypeAdapter(Any).dump_json(None if default is inspect.Parameter.empty else default)
    except PydanticSerializationError:
        return False
    return True


def _annotations(plugin: Any, parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Resolved annotations of these parameters; others may name what only a checker imports."""
    holder = types.SimpleNamespace(
        __annotations__={
            name: Any if parameter.annotation is parameter.empty else parameter.annotation
            for name, parameter in parameters.items()
        }
    )
    is_class = isinstance(plugin, type)
    function = inspect.unwrap(plugin.__init__ if is_class else plugin)
    scope = getattr(function, "__globals__", {})
    return typing.get_type_hints(holder, globalns=scope, include_extras=True)


def _imported(kind: Kind, name: str, module: str) -> types.ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Only the path's own absence is the user's; what the plug-in misses is the plug-in's.
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise InputError(
                f"{_NOUNS[kind]} {name!r}: there is no module {error.name!r}; "
                "an import path is package.module:Name"
            ) from None
        raise


def _attribute(kind: Kind, name: str, module: types.ModuleType, attribute: str) -> Any:
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            known = [other for other in vars(value) if not other.startswith("_")]
            raise InputError(
                f"{_NOUNS[kind]} {name!r}: {module.__name__} has no {attribute!r}; "
                f"{suggestion(part, known)}"
            )
        value = getattr(value, part)
    return value


def _file(package: types.ModuleType, name: str) -> Traversable:
    file = importlib.resources.files(package) / f"{name}.yaml"
    if not file.is_file():
        raise InputError(f"scenario {name!r}: {package.__name__} holds no file {name}.yaml")
    return file


def _described(entry: EntryPoint) -> str:
    owner = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unnamed distribution"
    return f"{entry.value} ({owner})"
