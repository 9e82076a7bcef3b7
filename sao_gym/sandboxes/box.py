"""A box as its owner sees it: requests to the supervisor inside, over one socket."""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from sao_gym.errors import MachineryError
from sao_gym.sandbox import WORK, BoxSpec, Held, Ran
from sao_gym.sandboxes import supervisor, supervisor_system, supervisor_trees
from sao_gym.tree import Entry, Tree

START_SECONDS = 60.0
_GRACE = 15.0  # how much later than it should an answer may come
_TREE_SECONDS = 120.0
T = TypeVar("T")
_ENTRY = struct.Struct(">cBIQ")
_LETTERS = {"file": b"f", "link": b"l", "dir": b"d"}

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    # a file that is edited twice within a second would be run from its old byte code
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Of every command, unless the image or the user says otherwise."""


class Link(Protocol):
    """The way to a supervisor."""

    def send(self, data: bytes, deadline: float) -> None:
        """Raises OSError."""
        ...

    def receive(self, size: int, deadline: float) -> bytes:
        """Exactly `size` bytes. Raises OSError, EOFError if the other end closed."""
        ...

    def wake(self) -> None:
        """Make who waits in `send` or `receive` leave; nothing more comes or goes."""
        ...

    def close(self) -> str:
        """End the box and remove all of it; what it last complained of, if anything.

        Nobody may be in `send` or `receive`: the number of a closed descriptor is given again.
        """
        ...


def source() -> str:
    """The program that runs inside: three modules of ours in a world that has no others of them."""
    modules = (supervisor_system, supervisor_trees)
    texts = [(module.__name__, _text(module)) for module in modules]
    return _PRELUDE.format(texts=texts, program=_text(supervisor))


def _text(module: ModuleType) -> str:
    return Path(str(module.__file__)).read_text(encoding="utf-8")


_PRELUDE = """import sys, types
for name, text in [("sao_gym", ""), ("sao_gym.sandboxes", ""), *{texts!r}]:
    sys.modules[name] = module = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
exec(compile({program!r}, "supervisor", "exec"), {{"__name__": "__main__"}})
"""


class SupervisedBox:
    """`sao_gym.sandbox.Box` over any link."""

    def __init__(
        self,
        link: Link,
        spec: BoxSpec,
        *,
        where: Callable[[str], str] = lambda path: path,
        closed: Callable[[SupervisedBox], None] = lambda _: None,
    ) -> None:
        """`where`: the real path of one in the box. Raises MachineryError(`box`)."""
        self._link, self._spec, self._where, self._closed = link, spec, where, closed
        self._asking, self._closing = threading.Lock(), threading.Lock()
        self._over = self._held = False
        self._answer(time.monotonic() + START_SECONDS)

    def run(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        stdin: bytes = b"",
        cwd: str = WORK,
        environment: Mapping[str, str] | None = None,
    ) -> Ran:
        request = {
            "command": list(command),
            "seconds": seconds,
            "cwd": self._where(cwd),
            "environment": {**self._spec.environment, **(environment or {})},
            "output": self._spec.limits.output,
        }
        ended, output = self._ask("run", request, stdin, seconds + _GRACE)
        return Ran(output=output, **ended)

    def hold(
        self,
        command: Sequence[str],
        *,
        cwd: str = WORK,
        environment: Mapping[str, str] | None = None,
    ) -> Held:
        request = {
            "command": list(command),
            "cwd": self._where(cwd),
            "environment": {**self._spec.environment, **(environment or {})},
        }
        self._ask("hold", request, b"", START_SECONDS)
        self._held = True
        return _Held(self)

    def put(self, tree: Tree, at: str = WORK) -> None:
        ended, _ = self._ask("put", {"at": self._where(at)}, packed(tree), _TREE_SECONDS)
        if ended["code"]:
            kind = "disk" if ended["code"] == supervisor_trees.DISK_FULL else "box"
            raise MachineryError(kind, f"cannot write below {at}: {ended['detail']}")

    def get(self, at: str = WORK, *, limit: int = 64 << 20) -> dict[str, Entry]:
        request = {"at": self._where(at), "limit": limit}
        ended, data = self._ask("get", request, b"", _TREE_SECONDS, limit=limit + (1 << 20))
        if ended["code"] == supervisor_trees.TOO_LARGE:
            raise MachineryError("too_large", f"{at} holds more than {limit} bytes")
        if ended["code"] == supervisor_trees.MISSING:
            raise MachineryError("missing", f"no folder {at}")
        if ended["code"]:
            raise MachineryError("box", f"cannot read {at}: {ended['detail']}")
        return unpacked(data)

    def close(self) -> None:
        with self._closing:
            if self._over:
                return
            self._over = True
        self._link.wake()
        with self._asking:
            self._link.close()
        self._closed(self)

    def _ask(
        self, op: str, request: dict[str, Any], payload: bytes, seconds: float, limit: int = 0
    ) -> tuple[dict[str, Any], bytes]:
        header = json.dumps({"op": op, **request}).encode()
        deadline = time.monotonic() + seconds
        with self._asking:
            if self._over:
                raise MachineryError("box", "the sandbox is closed")
            if self._held:
                raise MachineryError("box", "a command holds the sandbox")
            try:
                self._link.send(struct.pack(">II", len(header), len(payload)), deadline)
                self._link.send(header + payload, deadline)
            except (OSError, EOFError) as error:
                raise self._broken(error) from None
            return self._answer(deadline, limit)

    def _answer(self, deadline: float, limit: int = 0) -> tuple[dict[str, Any], bytes]:
        limit = max(limit, self._spec.limits.output + 200)
        parts = bytearray()
        try:
            while True:
                kind, size = struct.unpack(">cI", self._link.receive(5, deadline))
                if size > (1 << 26) or len(parts) + size > limit + (1 << 20):
                    raise EOFError("it says more than it was asked for")
                data = self._link.receive(size, deadline)
                if kind == b"o":
                    parts += data
                    continue
                ended = json.loads(data)
                break
        except (OSError, EOFError, ValueError) as error:
            raise self._broken(error) from None
        if "error" in ended:
            raise MachineryError("box", f"the sandbox cannot do that: {ended['error']}")
        return ended, bytes(parts)

    def _broken(self, error: Exception) -> MachineryError:
        """The channel is out of step or gone: so is the box."""
        with self._closing:
            over, self._over = self._over, True
        if over:
            return MachineryError("box", "the sandbox was closed")
        said = self._link.close().strip()
        self._closed(self)
        late = "it did not answer in time" if isinstance(error, TimeoutError) else str(error)
        reason = said.splitlines()[-1] if said else late
        return MachineryError("box", f"the sandbox is gone: {reason}")


class _Held:
    """`sao_gym.sandbox.Held` over the link of a box."""

    def __init__(self, box: SupervisedBox) -> None:
        self._box = box

    def send(self, data: bytes, deadline: float) -> None:
        self._passed(lambda link: link.send(data, deadline))

    def receive(self, size: int, deadline: float) -> bytes:
        return self._passed(lambda link: link.receive(size, deadline))

    def _passed(self, use: Callable[[Link], T]) -> T:
        box = self._box
        with box._asking:
            if box._over:
                raise MachineryError("box", "the sandbox is closed")
            try:
                return use(box._link)
            except TimeoutError as error:
                raise MachineryError("timeout", str(box._broken(error))) from None
            except (OSError, EOFError) as error:
                raise box._broken(error) from None


class Boxes:
    """The boxes a sandbox has started and not closed."""

    def __init__(self) -> None:
        self._open: set[SupervisedBox] = set()
        self._lock = threading.Lock()

    def add(self, box: SupervisedBox) -> SupervisedBox:
        with self._lock:
            self._open.add(box)
        return box

    def forget(self, box: SupervisedBox) -> None:
        with self._lock:
            self._open.discard(box)

    def close(self) -> None:
        with self._lock:
            rest = list(self._open)
        for box in rest:
            with contextlib.suppress(MachineryError):
                box.close()


def packed(tree: Tree) -> bytes:
    """A tree as the supervisor reads it. Raises ValueError for a path that leaves the folder."""
    out = bytearray()
    for path, entry in sorted(tree.items()):
        name = _checked(path)
        size = len(entry.data)
        out += _ENTRY.pack(_LETTERS[entry.kind], entry.executable, len(name), size)
        out += name + entry.data
    return bytes(out)


def unpacked(data: bytes) -> dict[str, Entry]:
    """The tree that a supervisor sent. Raises MachineryError if it is not whole."""
    tree: dict[str, Entry] = {}
    start = 0
    try:
        while True:
            kind, executable, path_size, size = _ENTRY.unpack_from(data, start)
            start += _ENTRY.size
            if kind == b"e":
                return dict(sorted(tree.items()))
            path = data[start : start + path_size]
            content = data[start + path_size : start + path_size + size]
            start += path_size + size
            name = path.decode("utf-8", "surrogateescape")
            _checked(name)
            match kind:
                case b"f":
                    tree[name] = Entry("file", content, bool(executable))
                case b"l":
                    tree[name] = Entry("link", content)
                case _:
                    tree[name] = Entry("dir")
    except (struct.error, ValueError) as error:
        raise MachineryError("box", f"a broken tree came back: {error}") from None


def _checked(path: str) -> bytes:
    name = path.encode("utf-8", "surrogateescape")
    if any(part in (b"", b".", b"..") for part in name.split(b"/")) or b"\0" in name:
        raise ValueError(f"{path!r} is not a path below the root")
    return name
