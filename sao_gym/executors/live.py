"""Real time: the wall clock, an engine thread, a learner thread, a pool of environment threads.

    loop <--- queue of events <---+--- engine thread: ticks while requests are active
      |                           +--- environment pool: reset, step
      |                           +--- learner thread: one update at a time
      +--- commands ------------->+--- evaluation thread

The loop and the scenario are those of the simulation; only the order of events is the world's.
What a thread raises reaches the loop's thread through the queue and is raised there.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from sao_gym import boundary
from sao_gym.boundary import Step
from sao_gym.errors import RunError, SaoGymError
from sao_gym.events import (
    EnvironmentStepped,
    Event,
    PolicyPublished,
    RolloutFailed,
    TurnSampled,
    UpdateFinished,
)
from sao_gym.protocols import Engine, Evaluator, TextEnv, Trainer
from sao_gym.types import Concept, Failed, Request, Task, Trajectory, Update, Weights

_Command: TypeAlias = Callable[[], None]
_POLL_SECONDS = 0.2
_CLOSE_SECONDS = 5.0


class LiveExecutor:
    """`Executor` on the wall clock."""

    def __init__(
        self,
        *,
        engine: Engine,
        trainer: Trainer,
        evaluator: Evaluator | None,
        workers: int,
        weights: Weights,
    ) -> None:
        """`workers`: environments that act at the same time; `weights`: those of version 0."""
        self._engine, self._trainer, self._evaluator = engine, trainer, evaluator
        self._published = weights
        self._unpublished: dict[int, Update] = {}
        self._events: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._open: set[int] = set()
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._environments = ThreadPoolExecutor(workers, thread_name_prefix="environment")
        self._learner = ThreadPoolExecutor(1, thread_name_prefix="learner")
        self._evaluation = ThreadPoolExecutor(1, thread_name_prefix="evaluation")
        self._ticker = threading.Thread(target=self._tick_forever, name="engine", daemon=True)
        self._ticker.start()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    @property
    def interrupted(self) -> bool:
        return self._stop.is_set()

    def weights(self) -> Weights:
        return self._published

    def interrupt(self) -> None:
        self._stop.set()

    def next(self) -> Event | None:
        while not self._stop.is_set():
            try:
                # a bounded wait, so that `interrupt` is seen even if no event ever comes
                item = self._events.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if isinstance(item, SaoGymError):
                raise item
            if isinstance(item, BaseException):
                raise RunError(f"a worker thread failed: {type(item).__name__}: {item}") from item
            if not self._released(item):
                return item
        return None

    def close(self) -> None:
        self._stop.set()
        self._commands.put(None)
        self._ticker.join(_CLOSE_SECONDS)
        for pool in (self._environments, self._learner, self._evaluation):
            pool.shutdown(wait=False, cancel_futures=True)
        self._trainer.close()

    # -- what the loop asks for ----------------------------------------------------------------

    def emit(self, event: Event) -> None:
        self._events.put(event)

    def reset(self, rollout: int, env: TextEnv, task: Task, concept: Concept) -> None:
        self._open.add(rollout)
        self._act(rollout, 0, lambda: boundary.reset(env, task, concept))

    def step(
        self, rollout: int, turn: int, env: TextEnv, action: str, concept: Concept | None = None
    ) -> None:
        self._act(rollout, turn, lambda: boundary.step(env, action, concept))

    def sample(self, request: Request) -> None:
        self._commands.put(lambda: self._engine.submit(request))

    def release(self, rollout: int) -> None:
        self._open.discard(rollout)
        self._commands.put(lambda: self._engine.release(rollout))

    def train(
        self, version: int, batch: Sequence[Trajectory], lag_mean: float, lag_max: int
    ) -> None:
        def work() -> None:
            self._trainer.start(batch)
            update = self._trainer.finish()
            self._unpublished[version] = update
            self._events.put(
                UpdateFinished(
                    version=version,
                    rollouts=tuple(trajectory.rollout for trajectory in batch),
                    lag_mean=lag_mean,
                    lag_max=lag_max,
                    metrics=update.metrics,
                )
            )

        self._submit(self._learner, work)

    def publish(self, version: int) -> None:
        # the engine runs in this process: the transfer is the load itself
        self._events.put(PolicyPublished(version=version))

    def load(self, version: int) -> None:
        weights = self._unpublished.pop(version).weights
        if weights is not None:
            self._published = weights
        self._commands.put(lambda: self._engine.load(weights, version))

    def evaluate(self, version: int, concepts: Sequence[Concept], started: int) -> None:
        evaluator, weights = self._evaluator, self._published
        assert evaluator is not None

        def work() -> None:
            for result in evaluator.evaluate(weights, concepts):
                self._events.put(result.event(version, started))

        self._submit(self._evaluation, work)

    # -- threads -------------------------------------------------------------------------------

    def _released(self, event: Event) -> bool:
        match event:
            case EnvironmentStepped(rollout=rollout) | RolloutFailed(rollout=rollout):
                return rollout not in self._open
            case TurnSampled(completion=done):
                return done.rollout not in self._open
            case _:
                return False

    def _act(self, rollout: int, turn: int, work: Callable[[], Step | Failed]) -> None:
        def timed() -> None:
            began = time.monotonic()
            answer = work()
            if isinstance(answer, Failed):
                self._events.put(RolloutFailed(rollout=rollout, failure=answer))
                return
            self._events.put(
                EnvironmentStepped(
                    rollout=rollout,
                    turn=turn,
                    observation=answer.observation,
                    reward=answer.reward,
                    terminated=answer.terminated,
                    truncated=answer.truncated,
                    seconds=time.monotonic() - began,
                )
            )

        self._submit(self._environments, timed)

    def _submit(self, pool: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        def report(done: Future[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                self._events.put(error)

        pool.submit(work).add_done_callback(report)

    def _tick_forever(self) -> None:
        """The engine thread: the only one that touches the engine."""
        try:
            while not self._stop.is_set():
                if not self._run_commands():
                    return
                for completion in self._engine.step():
                    self._events.put(TurnSampled(completion=completion))
        except BaseException as error:
            self._events.put(error)

    def _run_commands(self) -> bool:
        """Run what waits; sleep while the engine is idle. False when closed."""
        while True:
            try:
                command = self._commands.get(block=not self._engine.active)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
