"""The one place where an environment's exceptions become `Failed` outcomes.

Everything else lets them crash: what an environment does wrong is data about a rollout, what the
library does wrong is a bug.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sao_gym.errors import MachineryError
from sao_gym.protocols import LateReward, LiveConcept, TextEnv
from sao_gym.types import Concept, Failed, Task


@dataclass(frozen=True, slots=True)
class Step:
    """What an environment answered to `reset` or `step`."""

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    retry: bool = False
    """`info["retry"]`: the action was wrong and another may be tried."""
    record: Mapping[str, Any] | None = None
    """`info["record"]`: what the environment leaves in the log, as JSON-like data."""


class _Broken(Exception):
    """The environment broke its contract."""


def reset(env: TextEnv, task: Task, concept: Concept) -> Step | Failed:
    """Reset `env` to `task` under `concept`, and check that the concept was applied."""
    try:
        answer = env.reset(seed=task.seed, options={"concept": dict(concept.params)})
        observation, info = _unpacked(answer, "reset", "(observation, info)", 2)
        _check_observation(observation)
        _check_concept(info, concept)
    except _Broken as error:
        return Failed("contract", str(error))
    except MachineryError as error:
        return Failed(error.kind, _line(error))
    except Exception as error:
        return Failed("environment", f"reset: {_line(error)}")
    return Step(observation)


def step(env: TextEnv, action: str, concept: Concept | None = None) -> Step | Failed:
    """Step `env`, after moving it to `concept` if one is given (in-flight policy `live`)."""
    try:
        if concept is not None:
            _live(env).set_concept(concept.params)
        answer = env.step(action)
        observation, reward, terminated, truncated, info = _unpacked(
            answer, "step", "(observation, reward, terminated, truncated, info)", 5
        )
        _check_observation(observation)
        value = _number(reward)
        if concept is not None:
            _check_concept(info, concept)
        _check_record(info.get("record"))
    except _Broken as error:
        return Failed("contract", str(error))
    except MachineryError as error:
        return Failed(error.kind, _line(error))
    except Exception as error:
        return Failed("environment", f"step: {_line(error)}")
    retry = bool(info.get("retry", False))
    record = info.get("record")
    return Step(observation, value, bool(terminated), bool(truncated), retry, record)


def close(env: TextEnv) -> None:
    """Close `env`; that it cannot be closed says nothing about any rollout."""
    with contextlib.suppress(Exception):
        env.close()


def score(env: TextEnv, concept: Concept) -> float | Failed:
    """The finished episode's reward under `concept` (in-flight policy `reward_late`)."""
    try:
        value = float(_late(env).score(concept.params))
    except Exception as error:
        return Failed("environment", f"score: {_line(error)}")
    if not math.isfinite(value):
        return Failed("contract", f"score returned {value!r}; a reward is a finite number")
    return value


def _live(env: TextEnv) -> LiveConcept:
    inner: Any = env.unwrapped
    assert isinstance(inner, LiveConcept)
    return inner


def _late(env: TextEnv) -> LateReward:
    inner: Any = env.unwrapped
    assert isinstance(inner, LateReward)
    return inner


def _unpacked(answer: Any, what: str, form: str, size: int) -> Any:
    if not isinstance(answer, tuple) or len(answer) != size:
        raise _Broken(f"{what} must return {form}")
    return answer


def _number(reward: Any) -> float:
    try:
        value = float(reward)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise _Broken(f"step returned reward {reward!r}; a reward is a finite number")
    return value


def _check_observation(observation: object) -> None:
    if not isinstance(observation, str):
        raise _Broken(f"observation is {type(observation).__name__}, not str")
    if not observation.isascii():
        try:
            observation.encode()
        except UnicodeEncodeError as error:
            raise _Broken(f"observation is not valid Unicode: {error.reason}") from None


def _check_record(record: object) -> None:
    """An environment's record must be JSON, now and not when the log is written."""
    if record is None:
        return
    if not isinstance(record, dict):
        raise _Broken(f'info["record"] is {type(record).__name__}, not a dict')
    try:
        json.dumps(record, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _Broken(f'info["record"] is no JSON: {error}') from None


def _check_concept(info: dict[str, Any], concept: Concept) -> None:
    applied = info.get("concept")
    if not isinstance(applied, dict):
        raise _Broken('info["concept"] is missing; return the concept parameters that apply')
    for name, value in concept.params.items():
        if name not in applied or applied[name] != value:
            got = repr(applied[name]) if name in applied else "nothing"
            raise _Broken(f"concept parameter {name!r} was declared {value!r}, applied {got}")


def _line(error: Exception) -> str:
    text = str(error).encode("utf-8", "replace").decode().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
