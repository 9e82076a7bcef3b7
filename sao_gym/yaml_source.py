"""YAML with positions: plain data, and for every key the place where it was written.

Anchors and `<<` merges work. Scalars follow YAML 1.2's core schema, so `1e-3` is a number and `yes`
and `on` are text; `1_000` is a number too. Keys are text. Refused, each with its line: a key
written twice (PyYAML would keep the last and say nothing), tags, an anchor that holds itself.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from sao_gym.errors import InputError

Path: TypeAlias = tuple[str | int, ...]
"""Where a value stands: keys and list indices from the top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Data and where it comes from. Changes give a new `Source`."""

    data: Any
    origins: Mapping[Path, str]
    """Path of a key or list item -> `FILE:LINE`, or the command-line option that set it."""

    def origin(self, path: Path) -> str:
        """The place of `path`, or of the nearest thing around it."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins[path]

    def error(self, path: Path, message: str) -> InputError:
        """`FILE:LINE: path.to.key: message`, ready to be raised.

        If something inside of `path` was set on the command line, that is named as well.
        """
        inside = [o for p, o in self.origins.items() if path and p[: len(path)] == path]
        options = dict.fromkeys(o for o in inside if o.startswith("--"))
        place = self.origin(path)
        options.pop(place, None)
        along = f" (with {', '.join(options)})" if options else ""
        where = f"{dotted(path)}: " if path else ""
        return InputError(f"{place}{along}: {where}{message}")

    def get(self, path: Path, default: Any = None) -> Any:
        """The value at `path`, or `default` if there is none."""
        value = self.data
        for key in path:
            if not has(value, key):
                return default
            value = value[key]
        return value

    def replaced(self, path: Path, value: Any, origin: str) -> Source:
        """With `value` at `path`; missing mappings on the way are made.

        Raises InputError if the way leads through a list that is too short or through a scalar.
        """
        data = copy.deepcopy(self.data)
        origins = {p: o for p, o in self.origins.items() if p[: len(path)] != path}
        inside = data
        for depth, key in enumerate(path[:-1]):
            step = path[: depth + 1]
            if isinstance(inside, dict) and inside.get(key) is None:
                inside[key] = {}
                origins[step] = origin
            inside = inside[_checked(inside, key, step, origin)]
        inside[_checked(inside, path[-1], path, origin)] = copy.deepcopy(value)
        return Source(data=data, origins=origins | {path: origin})

    def copied(self, path: Path, to: Path) -> Source:
        """With the value at `path` also at `to`, each key remembering where it was written."""
        moved = self.replaced(to, self.get(path), self.origin(path))
        carried = {
            to + p[len(path) :]: o for p, o in self.origins.items() if p[: len(path)] == path
        }
        return Source(data=moved.data, origins={**moved.origins, **carried})

    def overridden(self, option: str) -> Source:
        """With one `a.b.0.c=VALUE` of the command line; VALUE is read as YAML."""
        origin = f"--set {option}"
        keys, equals, text = option.partition("=")
        if not equals or not all(keys.split(".")):
            raise InputError(f"{origin}: not an assignment; write --set path.to.key=value")
        path: Path = ()
        for key in keys.split("."):
            in_list = isinstance(self.get(path), list) and key.isdecimal()
            path += (int(key) if in_list else key,)
        return self.replaced(path, parse(text, name=origin, numbered=False).data, origin)


def dotted(path: Path) -> str:
    """`("segments", 0, "length")` as `segments.0.length`, the form that `--set` takes."""
    return ".".join(map(str, path))


def parse(text: str, *, name: str, numbered: bool = True) -> Source:
    """Read one YAML document. Raises InputError that names `name` and, if `numbered`, the line."""
    reader = _Reader(name=name, numbered=numbered)
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark else 0
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise InputError(f"{reader.place(line)}: invalid YAML: {what}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position))
        message = f"invalid YAML: the character {chr(int(error.character))!r} is not allowed"
        raise InputError(f"{reader.place(line)}: {message}") from None
    reader.origins[()] = reader.place(0)
    data = None if node is None else reader.value(node, (), ())
    return Source(data=data, origins=reader.origins)


def dump(data: Any) -> str:
    """YAML that `parse` reads back as equal data, and YAML 1.1 readers do too."""
    text: str = yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=100,
    )
    return text


def has(value: Any, key: str | int) -> bool:
    """Whether a mapping has this key, or a list this index."""
    if isinstance(value, dict):
        return key in value
    return isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value)


def _checked(value: Any, key: str | int, path: Path, origin: str) -> Any:
    if isinstance(value, dict) or has(value, key):
        return key
    above = dotted(path[:-1])
    if isinstance(value, list):
        known = f"its items are 0 to {len(value) - 1}" if value else "it is empty"
        raise InputError(f"{origin}: {dotted(path)}: {above} is a list; {known}")
    raise InputError(f"{origin}: {dotted(path)}: {above} is {value!r}, which holds no keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Turns composed nodes into data and fills `origins` on the way."""

    name: str
    numbered: bool
    origins: dict[Path, str] = field(default_factory=dict)

    def place(self, line: int) -> str:
        return f"{self.name}:{line + 1}" if self.numbered else self.name

    def fail(self, node: yaml.Node, message: str) -> InputError:
        return InputError(f"{self.place(node.start_mark.line)}: {message}")

    def value(self, node: yaml.Node, path: Path, above: tuple[yaml.Node, ...]) -> Any:
        if node in above:
            raise self.fail(node, "invalid YAML: an anchor holds itself")
        above += (node,)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            mapping = {}
            for key, (key_node, value_node) in self.pairs(node, path, above).items():
                self.origins[(*path, key)] = self.place(key_node.start_mark.line)
                mapping[key] = self.value(value_node, (*path, key), above)
            return mapping
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            items = []
            for index, item in enumerate(node.value):
                self.origins[(*path, index)] = self.place(item.start_mark.line)
                items.append(self.value(item, (*path, index), above))
            return items
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return _SCALARS[node.tag](node.value)
        raise self.fail(node, f"invalid YAML: the tag {node.tag!r} is not supported; remove it")

    def pairs(
        self, node: yaml.MappingNode, path: Path, above: tuple[yaml.Node, ...]
    ) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Key -> its nodes; what is merged in by `<<` yields to what is written out."""
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.fail(key_node, "invalid YAML: a key is text, not a list or mapping")
            key = key_node.value
            if key_node.tag == _TAG + "merge":
                for base in self.bases(value_node, above):
                    merged = self.pairs(base, path, (*above, base)) | merged
            elif key in own:
                first = own[key][0].start_mark.line + 1
                raise self.fail(
                    key_node,
                    f"{dotted((*path, key))}: key written twice, first in line {first}; keep one",
                )
            else:
                own[key] = (key_node, value_node)
        return merged | own

    def bases(self, node: yaml.Node, above: tuple[yaml.Node, ...]) -> Iterator[yaml.MappingNode]:
        for base in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(base, yaml.MappingNode):
                raise self.fail(base, "invalid YAML: << merges a mapping or a list of mappings")
            if base in above:
                raise self.fail(base, "invalid YAML: an anchor holds itself")
            yield base


_TAG = "tag:yaml.org,2002:"


def _integer(text: str) -> int:
    return int(text, 0) if re.match(r"0[xo]", text) else int(text)


def _number(text: str) -> float:
    return float(re.sub(r"\.(inf|nan)$", r"\1", text.lower()))


_SCALARS: dict[str, Callable[[str], Any]] = {
    _TAG + "null": lambda text: None,
    _TAG + "bool": lambda text: text.lower() == "true",
    _TAG + "int": _integer,
    _TAG + "float": _number,
    _TAG + "str": str,
}

_RESOLVERS = (
    ("merge", r"<<", "<"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9][0-9_]*(?<!_)|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute


class _Dumper(yaml.SafeDumper):
    """Quotes text that either YAML 1.1 or 1.2 would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # PyYAML escapes the line breaks that Unicode adds in double quotes only.
        style = '"' if re.search("[\x85\u2028\u2029]", data) else None
        return self.represent_scalar(_TAG + "str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


for _tag, _pattern, _first in _RESOLVERS:
    _whole = re.compile(rf"(?:{_pattern})\Z", re.ASCII)
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _tag, _whole, list(_first))
