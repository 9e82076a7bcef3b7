"""What both executors do about an engine and its weights: never trust, always compare."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sao_gym import boundary
from sao_gym.boundary import Step
from sao_gym.errors import RunError
from sao_gym.events import EnvironmentStepped, FaultHandled, RolloutFailed
from sao_gym.faults import FaultKind, Faults, Patience, Sabotaged
from sao_gym.protocols import Engine, EnvironmentCall
from sao_gym.types import Failed, Request, Weights


class Attempts(NamedTuple):
    """How often something fails before it works, as the declared faults have it."""

    begin: float | None
    """When the first attempt that works begins; None if there is none."""
    told: list[tuple[float, FaultHandled]]
    """What is to be told, and when."""
    broken: tuple[float, str]
    """If there is none: when the run breaks, and the line that says why."""


def attempts(
    faults: Faults, patience: Patience, fault: FaultKind, key: int, *, begin: float, lost: float
) -> Attempts:
    """The first attempt begins at `begin`; one that fails takes `lost` seconds, a pause follows."""
    told: list[tuple[float, FaultHandled]] = []
    for attempt in range(patience.retries + 1):
        if faults.struck(fault, key, attempt) is None:
            return Attempts(begin, told, (math.inf, ""))
        begin += lost
        pause = patience.pause(attempt)
        event = FaultHandled(
            fault=fault,
            key=key,
            attempt=attempt,
            outcome="retried",
            detail=f"again after {pause:g} s",
        )
        told.append((begin, event))
        begin += pause
    at, _ = told.pop()
    return Attempts(
        None, told, (at, f"{fault}: {key} failed {patience.retries + 1} times in a row")
    )


def load_verified(
    engine: Engine, weights: Weights, version: int, patience: Patience
) -> Iterator[FaultHandled]:
    """After a publish: compare version and checksum on both sides, load again what differs.

    Raises RunError if the engine does not take the weights.
    """
    for attempt in range(patience.retries + 1):
        if engine.version == version and engine.holds(weights):
            return
        if engine.version > version:
            raise RunError(f"the engine holds version {engine.version} but {version} is published")
        yield FaultHandled(
            fault="engine_stale",
            key=version,
            attempt=attempt,
            outcome="reloaded",
            detail=f"the engine did not hold version {version} after its publish",
        )
        engine.load(weights, version)
    if engine.version != version or not engine.holds(weights):
        raise RunError(f"the engine does not take version {version}; its weights stay different")


def restart(
    engine: Engine,
    weights: Weights,
    version: int,
    requests: Sequence[Request],
    *,
    tick: int,
    attempt: int,
    patience: Patience,
    cause: str = "a declared fault",
) -> Iterator[FaultHandled]:
    """Bring an engine that died up again, with the published weights and what it was asked for.

    Requests begin again at their first token; what was sampled of them is lost.
    """
    engine.restart()
    yield from load_verified(engine, weights, version, patience)
    for request in requests:
        engine.submit(request)
    yield FaultHandled(
        fault="engine_dies",
        key=tick,
        attempt=attempt,
        outcome="restarted",
        detail=f"{len(requests)} requests submitted again; {cause}",
    )


def make_call(call: EnvironmentCall, fault: FaultKind | None = None) -> Step | Failed:
    """Make it now; with a fault of `raises` or `garbage` the environment fails in that way."""
    env: Any = call.env
    if fault in ("environment_raises", "environment_garbage"):
        env = Sabotaged(env, fault)
    if call.turn == 0:
        assert call.concept is not None
        return boundary.reset(env, call.task, call.concept)
    return boundary.step(env, call.action, call.concept)


def timed_out(limit: float) -> Failed:
    return Failed("timeout", f"no answer of the environment within {limit:g} s")


WORKER_LOST = Failed("worker", "the worker that held the environment is gone")


def answered(
    rollout: int, turn: int, answer: Step | Failed, seconds: float
) -> EnvironmentStepped | RolloutFailed:
    """What the loop is told of an answer that took `seconds`."""
    if isinstance(answer, Failed):
        return RolloutFailed(rollout=rollout, failure=answer)
    return EnvironmentStepped(
        rollout=rollout,
        turn=turn,
        observation=answer.observation,
        reward=answer.reward,
        terminated=answer.terminated,
        truncated=answer.truncated,
        seconds=seconds,
        record=answer.record,
    )
