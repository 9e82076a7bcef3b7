"""Where a learner's updates are computed: in this process, or in one beside it.

An update is asked for at one instant of virtual time and its result is needed at a later one, so
the simulation may go on meanwhile. Both trainers run the same code on the same bytes: which one is
used cannot be told from a run's log.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from sao_gym.errors import RunError
from sao_gym.plain import dumps, loads
from sao_gym.protocols import Learner
from sao_gym.types import Trajectory, Update, Weights


class InlineTrainer:
    """`Trainer` that computes an update when it is asked for."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._update: Update | RunError | None = None

    def start(self, batch: Sequence[Trajectory], *, poison: bool = False) -> None:
        try:
            self._update = make_update(self._learner, batch, poison)
        except Exception as error:
            self._update = RunError(f"the learner failed: {type(error).__name__}: {error}")
            self._update.__cause__ = error

    def finish(self) -> Update:
        assert self._update is not None, "finish without start"
        update, self._update = self._update, None
        if isinstance(update, RunError):
            raise update
        return update

    def state(self) -> bytes:
        assert self._update is None, "an update is under way"
        return dumps(self._learner.state_dict())

    def restore(self, state: bytes) -> None:
        self._learner.load_state_dict(loads(state))

    def close(self) -> None:
        """Nothing to close."""


class ProcessTrainer:
    """`Trainer` in a child process. The child ends when this side closes, or dies.

    It is started at once, so that it imports what it needs while this process prepares the rest;
    `build` then tells it which learner to make. Nothing waits for the child before an answer is
    needed: messages lie in a queue until it reads them, and what `build` and `restore` failed with
    is raised by the next answer.
    """

    def __init__(self, prepare: Callable[[], None]) -> None:
        """`prepare`: an importable function that the child runs first (imports, threads)."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._child = context.Process(
            target=_serve, args=(theirs, prepare), name="learner", daemon=True
        )
        self._child.start()
        self._unread = 0
        """Answers to come that carry nothing."""
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._post, name="to the learner", daemon=True).start()
        theirs.close()

    def build(self, make: Callable[..., Learner], *args: Any) -> None:
        """Build the learner as `make(*args)`; an importable function and picklable arguments."""
        self._outbox.put((make, args))
        self._unread += 1

    def start(self, batch: Sequence[Trajectory], *, poison: bool = False) -> None:
        self._outbox.put(("update", (tuple(batch), poison)))

    def finish(self) -> Update:
        weights, metrics = self._receive()
        return Update(weights=None if weights is None else _tensors(weights), metrics=metrics)

    def state(self) -> bytes:
        self._outbox.put(("state", None))
        state: bytes = self._receive()
        return state

    def restore(self, state: bytes) -> None:
        self._outbox.put(("restore", state))
        self._unread += 1

    def close(self) -> None:
        self._outbox.put(None)
        self._child.kill()  # it holds nothing that is not here too
        self._child.join()
        self._pipe.close()

    def _post(self) -> None:
        """A thread of its own: a pipe takes little before somebody reads it."""
        while (message := self._outbox.get()) is not None:
            with contextlib.suppress(OSError):  # whoever waits for the answer is told
                self._pipe.send(message)

    def _receive(self) -> Any:
        while self._unread:
            self._unread -= 1
            self._read()
        return self._read()

    def _read(self) -> Any:
        try:
            ok, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise RunError(f"the learner process ended in mid-update ({self._exit()})") from error
        if ok:
            return answer
        line, details = answer
        raise RunError(f"the learner failed: {line}") from RuntimeError(details)

    def _exit(self) -> str:
        self._child.join(timeout=1)
        return f"exit code {self._child.exitcode}"


def _serve(pipe: Connection, prepare: Callable[[], None]) -> None:
    """The child: build a learner, then answer every batch with an update, until the pipe closes."""
    # Ctrl-C reaches the whole process group; how a run ends is the parent's decision
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent()
    prepare()
    try:
        make, args = pipe.recv()
        learner: Learner = make(*args)
        pipe.send((True, None))
        while True:
            pipe.send((True, _answer(learner, *pipe.recv())))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        line = f"{type(error).__name__}: {error}"
        pipe.send((False, (line, traceback.format_exc())))


def _answer(learner: Learner, what: str, given: Any) -> Any:
    match what:
        case "update":
            update = make_update(learner, *given)
            weights = None if update.weights is None else arrays(update.weights)
            return weights, dict(update.metrics)
        case "state":
            return dumps(learner.state_dict())
        case _:
            return learner.load_state_dict(loads(given))


def make_update(learner: Learner, batch: Sequence[Trajectory], poison: bool) -> Update:
    """One update; poisoned, the gradient of one parameter of each of its models is NaN."""
    hooks = []
    if poison:
        for module in _modules(learner):
            parameter = next(p for p in module.parameters() if p.requires_grad)
            hooks.append(parameter.register_hook(lambda gradient: gradient * math.nan))
    try:
        return learner.update(batch)
    finally:
        for hook in hooks:
            hook.remove()


def _modules(holder: Any, depth: int = 2) -> Iterator[Any]:
    """Trained modules among the attributes of a learner and of its parts."""
    from torch import nn

    for value in vars(holder).values():
        if isinstance(value, nn.Module):
            if any(p.requires_grad for p in value.parameters()):
                yield value
        elif depth and hasattr(value, "__dict__") and not callable(value):
            yield from _modules(value, depth - 1)


def die_with_parent() -> None:
    """Have Linux kill this process when the one that started it dies, even by kill -9."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def arrays(weights: Weights) -> dict[str, Any]:
    """Tensors as numpy arrays: plain bytes in a pipe, no shared memory to leak."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in weights.items()}


def _tensors(weights: dict[str, Any]) -> Weights:
    import torch

    return {name: torch.from_numpy(array) for name, array in weights.items()}
