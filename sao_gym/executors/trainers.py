"""Where a learner's updates are computed: in this process, or in one beside it.

An update is asked for at one instant of virtual time and its result is needed at a later one, so
the simulation may go on meanwhile. Both trainers run the same code on the same bytes: which one is
used cannot be told from a run's log.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from sao_gym.errors import RunError
from sao_gym.protocols import Learner
from sao_gym.types import Trajectory, Update, Weights


class InlineTrainer:
    """`Trainer` that computes an update when it is asked for."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._update: Update | None = None

    def start(self, batch: Sequence[Trajectory]) -> None:
        self._update = self._learner.update(batch)

    def finish(self) -> Update:
        assert self._update is not None, "finish without start"
        update, self._update = self._update, None
        return update

    def close(self) -> None:
        """Nothing to close."""


class ProcessTrainer:
    """`Trainer` in a child process. The child ends when this side closes, or dies.

    It is started at once, so that it imports what it needs while this process prepares the rest;
    `build` then tells it which learner to make.
    """

    def __init__(self, prepare: Callable[[], None]) -> None:
        """`prepare`: an importable function that the child runs first (imports, threads)."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._child = context.Process(
            target=_serve, args=(theirs, prepare), name="learner", daemon=True
        )
        self._child.start()
        theirs.close()

    def build(self, make: Callable[..., Learner], *args: Any) -> None:
        """Build the learner as `make(*args)`; an importable function and picklable arguments."""
        self._send((make, args))
        self._receive()

    def start(self, batch: Sequence[Trajectory]) -> None:
        self._send(tuple(batch))

    def finish(self) -> Update:
        weights, metrics = self._receive()
        return Update(weights=None if weights is None else _tensors(weights), metrics=metrics)

    def close(self) -> None:
        self._pipe.close()
        self._child.join(timeout=5)
        if self._child.is_alive():
            self._child.kill()
            self._child.join()

    def _send(self, message: Any) -> None:
        try:
            self._pipe.send(message)
        except OSError as error:
            raise RunError(f"the learner process is gone ({self._exit()})") from error

    def _receive(self) -> Any:
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
    import signal

    # Ctrl-C reaches the whole process group; how a run ends is the parent's decision
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare()
    try:
        make, args = pipe.recv()
        learner: Learner = make(*args)
        pipe.send((True, None))
        while True:
            update = learner.update(pipe.recv())
            weights = None if update.weights is None else arrays(update.weights)
            pipe.send((True, (weights, dict(update.metrics))))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        line = f"{type(error).__name__}: {error}"
        pipe.send((False, (line, traceback.format_exc())))


def arrays(weights: Weights) -> dict[str, Any]:
    """Tensors as numpy arrays: plain bytes in a pipe, no shared memory to leak."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in weights.items()}


def _tensors(weights: dict[str, Any]) -> Weights:
    import torch

    return {name: torch.from_numpy(array) for name, array in weights.items()}
