"""A single-turn environment from one function.

    @task(charset="0123456789+=", actions="0123456789", concept={"shift": 0})
    def addition(rng, concept, *, largest=4):
        a, b = rng.integers(largest + 1, size=2)
        return f"{a}+{b}=", str((a + b + concept["shift"]) % 10)

`addition` is now a `gymnasium.Env` class. The function draws a task from `rng` (seeded by
`reset(seed=)`, equal for every concept) and returns its prompt and its right answer. Its
keyword-only arguments are the constructor's, `concept` holds the defaults of the parameters that
may drift. With `judge=` the second value is whatever the judge needs, and the reward is
`judge(action, truth)`; such a task has no reference solution.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from sao_gym import rng as keyed
from sao_gym.concepts import copied, filled
from sao_gym.errors import InputError, suggestion

Draw: TypeAlias = Callable[..., tuple[str, Any]]
"""`(rng, concept, **params) -> (prompt, answer or truth)`."""
Judge: TypeAlias = Callable[[str, Any], float]
"""`(action, truth) -> reward`."""


def task(
    *,
    charset: str,
    actions: str | None = None,
    concept: Mapping[str, Any] | None = None,
    judge: Judge | None = None,
    max_length: int = 256,
) -> Callable[[Draw], type[JudgedTask]]:
    """Make an environment class of a function (see the module).

    Args:
        charset: the symbols of prompts.
        actions: the symbols of answers. Default: `charset`.
        concept: the concept parameters and their defaults.
        judge: scores an action. Default: 1 for exactly the answer, else 0.
        max_length: of prompts and of actions, in symbols.
    """
    base = AnsweredTask if judge is None else JudgedTask

    def decorate(draw: Draw) -> type[JudgedTask]:
        members = {
            "__doc__": draw.__doc__,
            "__module__": draw.__module__,
            "__qualname__": draw.__qualname__,
            "__signature__": _constructor(draw),
            "_draw": staticmethod(draw),
            "_judge": staticmethod(judge or _exact),
            "_defaults": dict(concept or {}),
            "_charset": charset,
            "_actions": actions or charset,
            "_max_length": max_length,
        }
        return type(draw.__name__, (base,), members)

    return decorate


class JudgedTask(gym.Env[str, str]):
    """One prompt, one action, one reward. Made by `task`."""

    _draw: ClassVar[Draw]
    _judge: ClassVar[Judge]
    _defaults: ClassVar[dict[str, Any]]
    _charset: ClassVar[str]
    _actions: ClassVar[str]
    _max_length: ClassVar[int]

    def __init__(self, **params: Any) -> None:
        """Set up the world.

        Args:
            params: keyword-only arguments of the decorated function.

        Raises:
            InputError: it has no such argument.
        """
        known = inspect.signature(type(self)).parameters
        for name in params:
            if name not in known:
                raise InputError(f"{self._name}: no parameter {name!r}: {suggestion(name, known)}")
        self._params = params
        self.observation_space = Text(self._max_length, min_length=0, charset=self._charset)
        self.action_space = Text(self._max_length, min_length=0, charset=self._actions)
        self._action: str | None = None
        self._open = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Draw a task under `options["concept"]`.

        Raises:
            InputError: the concept has an unknown parameter.
        """
        super().reset(seed=seed)
        declared = options.get("concept") or {} if options else {}
        self._concept = filled(declared, self._defaults, owner=self._name)
        # A seed of its own for the task, so that it can be drawn again under another concept.
        self._seed = int(self.np_random.integers(2**63))
        self._prompt, self._truth = self._drawn(self._concept)
        self._action = None
        self._open = True
        return self._prompt, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer; the episode ends.

        Raises:
            ResetNeeded: the episode is over.
        """
        self._present()
        self._open = False
        self._action = action
        reward = float(type(self)._judge(action, self._truth))
        return "", reward, True, False, self._info()

    def set_concept(self, params: Mapping[str, Any]) -> None:
        """Judge the coming answer under `params` (and defaults for what they leave out).

        Raises:
            InputError: an unknown parameter, or one that changes the prompt already given.
        """
        concept = filled(params, self._defaults, owner=self._name)
        if self._open:
            self._truth = self._retold(concept)
        self._concept = concept

    def score(self, params: Mapping[str, Any]) -> float:
        """The reward of the given answer, had it been judged under `params`; 0 if none was given.

        Raises:
            InputError: an unknown parameter, or one that changes the prompt already given.
        """
        truth = self._retold(filled(params, self._defaults, owner=self._name))
        return 0.0 if self._action is None else float(type(self)._judge(self._action, truth))

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _present(self) -> Any:
        if not self._open:
            raise ResetNeeded("no question is open: call reset() first")
        return self._truth

    def _drawn(self, concept: Mapping[str, Any]) -> tuple[str, Any]:
        generator: np.random.Generator = keyed.generator(self._seed, "task")
        return type(self)._draw(generator, copied(concept), **self._params)

    def _retold(self, concept: Mapping[str, Any]) -> Any:
        prompt, truth = self._drawn(concept)
        if prompt != self._prompt:
            raise InputError(
                f"{self._name}: under {concept} the prompt would have been {prompt!r}, not "
                f"{self._prompt!r}: an open or finished question can only be judged anew"
            )
        return truth

    def _info(self) -> dict[str, Any]:
        return {"concept": copied(self._concept), "retry": False}


class AnsweredTask(JudgedTask):
    """A `JudgedTask` whose right answer is known. Made by `task`."""

    def reference_action(self) -> str:
        """The right answer."""
        answer: str = self._present()
        return answer

    def valid_actions(self) -> tuple[str, ...]:
        """The right answer, and every answer that differs from it in its last symbol."""
        answer = self.reference_action()
        return tuple(dict.fromkeys([answer, *(answer[:-1] + end for end in self._actions)]))


def _exact(action: str, answer: Any) -> float:
    return float(action == answer)


def _constructor(draw: Draw) -> inspect.Signature:
    """The keyword-only arguments of `draw`, as the signature of the class made of it."""
    given = inspect.signature(draw, eval_str=True).parameters.values()
    return inspect.Signature([p for p in given if p.kind is inspect.Parameter.KEYWORD_ONLY])
