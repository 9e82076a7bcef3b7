"""Maths tasks whose distribution evolves: what an operator symbol means, and how to answer, drift.

    reset          7@5=         `@` means, say, addition modulo 10
    step("3")      !            wrong: it is told, and another try is allowed
    step("2")      >            right: reward `retry_reward`, terminated (1 on the first try)

The meanings an operator can take are few and shared by all symbols, so a policy that can compute
them adapts to a drift by re-binding a symbol, not by learning a table anew. Numbers are written in
`base`. A malformed answer is a wrong one. After the last try the episode is terminated with
reward 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import digits
from typing import Any

import gymnasium as gym
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from sao_gym.concepts import copied, filled, whole, whole_range
from sao_gym.errors import InputError, suggestion

MEANINGS: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "max": max,
    "min": min,
    "first": lambda a, b: a,
    "second": lambda a, b: b,
    "distance": lambda a, b: abs(a - b),
}
"""What an operator can mean."""

LARGEST = 999
"""Largest operand, modulus and offset."""

_OWNER = "operators"
_ANSWERS = ("plain", "reversed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """A concept, checked and ready for use."""

    meaning_of: Mapping[str, str]
    """Of every symbol, the ones not asked included."""
    asked: Sequence[str]
    low: int
    high: int
    modulus: int | None
    base: int
    reversed: bool
    offset: int

    def answer(self, meaning: str, a: int, b: int) -> str:
        value = MEANINGS[meaning](a, b) + self.offset
        if self.modulus is not None:
            value %= self.modulus
        written = _written(abs(value), self.base)
        if self.reversed:
            written = written[::-1]
        return "-" + written if value < 0 else written


class Operators(gym.Env[str, str]):
    """Maths tasks with drifting operators (see the module).

    Concept parameters, all optional:

    * `operators`: {symbol: meaning}. Only the symbols named are asked, so new ones can appear with
      time. Default: the i-th symbol has the i-th meaning (repeating if there are more symbols),
      which is also what a symbol left out means in a question that was asked before.
    * `operands`: `[low, high]`, both operands uniform. Default `[0, 5]`.
    * `modulus`: answers are taken modulo it (1..999); null for none. Default 10.
    * `base`: numbers are written in it, 2..10. Default 10.
    * `answer`: `plain` or `reversed` (the digits of the answer). Default `plain`.
    * `answer_offset`: added to the result before the modulus, -999..999. Default 0.

    The operands' and the symbol's quantiles depend on the seed alone. `set_concept` changes what is
    right from the next try on; the question stays. `score` judges the answers in their order.
    """

    def __init__(
        self,
        *,
        symbols: str = "@#&%",
        meanings: Sequence[str] = ("add", "sub", "max", "min"),
        tries: int = 2,
        retry_reward: float = 0.5,
    ) -> None:
        """Set up the world.

        Args:
            symbols: operator symbols, each one character, no digit and none of `=!>-`.
            meanings: names from `MEANINGS` that the symbols may take, in any concept.
            tries: answers allowed, at least 1.
            retry_reward: reward of a right answer after a wrong one, in [0, 1].

        Raises:
            InputError: a value is out of its range.
        """
        for name in meanings:
            _known_meaning(name, MEANINGS)
        if not symbols or len(set(symbols)) < len(symbols) or set(symbols) & set(digits + "=!>-"):
            raise InputError(
                f"{_OWNER}: symbols must be distinct and none of 0-9 = ! > -, not {symbols!r}"
            )
        if not meanings:
            raise InputError(f"{_OWNER}: meanings must name at least one")
        if not 0 <= retry_reward <= 1:
            raise InputError(f"{_OWNER}: retry_reward must be in 0..1, not {retry_reward!r}")
        self._symbols = symbols
        self._meanings = tuple(dict.fromkeys(meanings))
        self._tries = whole(tries, "tries", owner=_OWNER, low=1, high=1000)
        self._retry_reward = float(retry_reward)
        self._defaults: dict[str, Any] = {
            "operators": {
                symbol: self._meanings[i % len(self._meanings)] for i, symbol in enumerate(symbols)
            },
            "operands": [0, 5],
            "modulus": 10,
            "base": 10,
            "answer": "plain",
            "answer_offset": 0,
        }
        operand = len(_written(LARGEST, 2))
        self.observation_space = Text(2 * operand + 2, charset=digits + symbols + "=!>")
        # The largest answer in the smallest base, and its sign.
        self.action_space = Text(len(_written(LARGEST**2 + LARGEST, 2)) + 1, charset=digits + "-")
        self._declared: dict[str, Any] | None = None
        self._ended = True
        self._adopt({})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Ask a question under `options["concept"]`.

        Raises:
            InputError: the concept has an unknown or an invalid parameter.
        """
        super().reset(seed=seed)
        self._adopt(options.get("concept") or {} if options else {})
        rules = self._rules
        which, *operands = self.np_random.random(3).tolist()
        symbol = rules.asked[int(which * len(rules.asked))]
        a, b = (rules.low + int(u * (rules.high - rules.low + 1)) for u in operands)
        self._question = symbol, a, b
        self._given: list[str] = []
        self._ended = False
        prompt = f"{_written(a, rules.base)}{symbol}{_written(b, rules.base)}="
        return prompt, self._info(retry=False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer.

        Raises:
            ResetNeeded: the episode is over.
        """
        right = action == self.reference_action()
        self._given.append(action)
        self._ended = right or len(self._given) == self._tries
        reward = self._reward(len(self._given)) if right else 0.0
        observation = ">" if right else "!"
        return observation, reward, self._ended, False, self._info(retry=not self._ended)

    def reference_action(self) -> str:
        """The right answer."""
        self._open()
        symbol, a, b = self._question
        return self._rules.answer(self._rules.meaning_of[symbol], a, b)

    def valid_actions(self) -> tuple[str, ...]:
        """The answers under every meaning that this world has, without repetition.

        They are what a symbol could also mean, so a demonstrator who tries another of them after
        an error shows how to find a new meaning. There are always at least two.
        """
        self._open()
        _, a, b = self._question
        answers = dict.fromkeys(self._rules.answer(name, a, b) for name in self._meanings)
        answers[self.reference_action()] = None
        if len(answers) == 1:
            (only,) = answers
            answers[digits[(int(only[-1]) + 1) % self._rules.base]] = None
        return tuple(answers)

    def set_concept(self, params: Mapping[str, Any]) -> None:
        """From the next try on, judge under `params` (and defaults for what they leave out).

        Raises:
            InputError: an unknown or an invalid parameter; nothing has changed then.
        """
        self._adopt(params)

    def score(self, params: Mapping[str, Any]) -> float:
        """The reward of the first answer that is right under `params`; 0 if none is.

        Raises:
            InputError: an unknown or an invalid parameter.
        """
        rules = self._check(filled(params, self._defaults, owner=_OWNER))
        symbol, a, b = self._question
        right = rules.answer(rules.meaning_of[symbol], a, b)
        return self._reward(self._given.index(right) + 1) if right in self._given else 0.0

    def _reward(self, attempt: int) -> float:
        return 1.0 if attempt == 1 else self._retry_reward

    def _open(self) -> None:
        if self._ended:
            raise ResetNeeded("the episode is over: call reset() first")

    def _info(self, retry: bool) -> dict[str, Any]:
        return {"concept": copied(self._concept), "retry": retry}

    def _adopt(self, params: Mapping[str, Any]) -> None:
        if params == self._declared:
            return
        concept = filled(params, self._defaults, owner=_OWNER)
        self._rules = self._check(concept)
        self._concept = concept
        self._declared = copied(params)

    def _check(self, concept: Mapping[str, Any]) -> _Rules:
        operators = concept["operators"]
        if not isinstance(operators, Mapping) or not operators:
            raise InputError(f"{_OWNER}: operators must be {{symbol: meaning}}, not {operators!r}")
        for symbol, meaning in operators.items():
            if symbol not in tuple(self._symbols):  # a text would hold "" and "@#" too
                raise InputError(
                    f"{_OWNER}: operators: unknown symbol {symbol!r}; known: {self._symbols}"
                )
            _known_meaning(meaning, self._meanings)
        low, high = whole_range(concept["operands"], "operands", owner=_OWNER, low=0, high=LARGEST)
        if concept["answer"] not in _ANSWERS:
            raise InputError(
                f"{_OWNER}: answer must be one of {', '.join(_ANSWERS)}, not {concept['answer']!r}"
            )
        modulus = concept["modulus"]
        if modulus is not None:
            modulus = whole(modulus, "modulus", owner=_OWNER, low=1, high=LARGEST)
        return _Rules(
            meaning_of={**self._defaults["operators"], **operators},
            asked=[symbol for symbol in self._symbols if symbol in operators],
            low=low,
            high=high,
            modulus=modulus,
            base=whole(concept["base"], "base", owner=_OWNER, low=2, high=10),
            reversed=concept["answer"] == "reversed",
            offset=whole(
                concept["answer_offset"], "answer_offset", owner=_OWNER, low=-LARGEST, high=LARGEST
            ),
        )


def _known_meaning(name: Any, known: Iterable[str]) -> None:
    if name not in known:
        raise InputError(
            f"{_OWNER}: operators: unknown meaning {name!r}: {suggestion(str(name), known)}"
        )


def _written(value: int, base: int) -> str:
    """A number of at least 0 in `base`, which is at most 10."""
    if base == 10:
        return str(value)
    written = digits[value % base]
    while value := value // base:
        written = digits[value % base] + written
    return written
