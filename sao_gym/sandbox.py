"""The seam to sandboxes: where commands run that nobody trusts.

    Sandbox --start(spec)--> Box --run, put, get--> ... --close--> nothing is left

There are three kinds: `docker` (a container), `bubblewrap` (namespaces, no daemon) and `process`
(no isolation: for trusted tests only). They do the same for a well-behaved command; the suite
`check sandbox` holds each to what it promises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sao_gym.tree import Entry, Tree

WORK = "/box"
"""The folder of a box that commands may write to, and where they start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxLimits:
    """What a box may use."""

    memory: int = 512 << 20
    """Bytes; a command that needs more is killed."""
    cpus: float = 1.0
    processes: int = 128
    disk: int = 256 << 20
    """Bytes that may be written, in `WORK` and `/tmp` together. In docker and bubblewrap they lie
    in memory and count there too."""
    output: int = 1 << 20
    """Bytes of output that are kept of one command; the rest is dropped, with a marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSpec:
    """Which box to start."""

    image: str = "base"
    """A container image; `base` is what every sandbox has: Python 3, pytest, git, a shell."""
    empty: tuple[str, ...] = ()
    """Folders besides `WORK` that begin empty and may be written, whatever the image has there."""
    whole: bool = False
    """For images made by others to run as root: commands do, without capabilities, and may write
    all of the image. Docker alone has this."""
    limits: BoxLimits = field(default_factory=BoxLimits)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of every command. Those of the host are never passed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command ended."""

    code: int
    """Exit code; 128 + n for signal n; 124 if it was stopped by the time limit."""
    output: bytes
    """Standard output and standard error in the order they were written, cut to `limits.output`."""
    timed_out: bool = False
    cut: bool = False
    """Whether output was dropped."""
    seconds: float = 0.0


class Held(Protocol):
    """The two ends of a command that goes on in a box. `deadline`: of `time.monotonic()`.

    Both raise MachineryError: `timeout` if the deadline has passed, `box` if the command has ended.
    The box is gone then.
    """

    def send(self, data: bytes, deadline: float) -> None:
        """To its standard input."""
        ...

    def receive(self, size: int, deadline: float) -> bytes:
        """Exactly `size` bytes of its standard output."""
        ...


class Box(Protocol):
    """One sandbox in use, by one owner at a time."""

    def run(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        stdin: bytes = b"",
        cwd: str = WORK,
        environment: Mapping[str, str] | None = None,
    ) -> Ran:
        """Run a command; after `seconds` its whole process tree is killed.

        What a command leaves running in the background is killed when it ends.
        Raises MachineryError if the box itself is gone or broken.
        """
        ...

    def hold(
        self,
        command: Sequence[str],
        *,
        cwd: str = WORK,
        environment: Mapping[str, str] | None = None,
    ) -> Held:
        """Start a command that goes on. The box serves nothing else from then on.

        The command ends with the box, and the box with the command. What it writes to its standard
        error is not read before that; it should be little.
        """
        ...

    def put(self, tree: Tree, at: str = WORK) -> None:
        """Write a tree below the folder `at` (made if missing), over what is there."""
        ...

    def get(self, at: str = WORK, *, limit: int = 64 << 20) -> dict[str, Entry]:
        """The tree below a folder, without `.git` folders.

        Raises MachineryError(`too_large`) above `limit` bytes.
        """
        ...

    def close(self) -> None:
        """Kill what runs and remove everything. Closing twice is harmless."""
        ...


class Sandbox(Protocol):
    """Starts boxes."""

    name: str
    isolation: str
    """One line for the user: what it keeps a command from, and what it does not."""

    def start(self, spec: BoxSpec) -> Box:
        """Start a box with an empty `WORK`.

        Raises MachineryError: `image` (it cannot be had) or `engine` (overloaded or gone; tried
        again with pauses before that).
        """
        ...

    def close(self) -> None:
        """Close every box that was started here."""
        ...
