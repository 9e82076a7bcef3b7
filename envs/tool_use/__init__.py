"""Chains of tool calls with retries; which tool serves which kind of question is hidden and drifts.

A task is a chain of L questions. Each shows its *kind* (`a`, `b`, ...) and is served by one *tool*
(`A`, `B`, ...). A right call reveals the next question, a wrong one is told and may be repeated:

    reset          a5:          first kind, length of the chain
    step("C")      !a           wrong tool: the same question again
    step("A")      >d           right tool: the next kind
    ...
    step("B")      >            the chain is complete: reward 1, terminated

With `argument: true` a question carries a key digit and a call an argument, which must be
`(key + offset) mod 10`: `a75:` (kind a, key 7, length 5) is answered by `A7`. With
`final_answer: true` the last call reveals a number, `>=4`, and `(number + offset) mod 10` must be
said: `4`, or `=4` with arguments, so that all actions have the same length and an agent needs no
stop symbol.

At most L + `extra_calls` calls (one more for the final answer); running out of them ends the
episode with reward 0. That is the task's own rule, hence `terminated`. A malformed action is a
wrong call.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import gymnasium as gym
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from sao_gym.concepts import copied, filled, whole, whole_range
from sao_gym.errors import InputError

LONGEST = 16
"""Longest chain. A fixed number of draws per task keeps the draws common to all concepts."""

_OWNER = "tool_use"
_SWITCHES = {"argument_offset": "argument", "answer_offset": "final_answer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """A concept, checked and ready for use."""

    tool_of: Mapping[str, str]
    lengths: Sequence[int]
    quantiles: Sequence[float]
    """`quantiles[i]`: probability of a length up to `lengths[i]`; the last is left out."""
    argument_offset: int
    answer_offset: int

    def length(self, draw: float) -> int:
        return self.lengths[bisect_right(self.quantiles, draw)]


class ToolUse(gym.Env[str, str]):
    """Chains of tool calls (see the module).

    Concept parameters, all optional:

    * `mapping`: a string whose position i holds the tool of kind i. Default: `ABC...`, tools
      repeating if there are more kinds. A transposition of two letters breaks two kinds.
    * `lengths`: `[low, high]` (uniform) or `{length: weight}`, lengths in 1..16. Default `[1, 8]`.
    * `argument_offset` (only with `argument`) and `answer_offset` (only with `final_answer`), in
      0..9. Default 0.

    A task (its kinds, keys and the quantile of its length) depends on the seed alone: the same seed
    asks the same questions under every mapping. `set_concept` changes what is right from the next
    call on; the chain itself stays. `score` judges each call for the question that it answered.
    """

    def __init__(
        self,
        *,
        kinds: int = 6,
        tools: int = 6,
        extra_calls: int = 3,
        argument: bool = False,
        final_answer: bool = False,
    ) -> None:
        """Set up the world.

        Args:
            kinds: kinds of questions, 1..26.
            tools: tools, 2..26.
            extra_calls: calls beyond those that the chain needs, at least 0.
            argument: a call carries a digit.
            final_answer: the chain ends with a number to be said.

        Raises:
            InputError: a count is out of its range.
        """
        kinds = whole(kinds, "kinds", owner=_OWNER, low=1, high=26)
        tools = whole(tools, "tools", owner=_OWNER, low=2, high=26)
        self._extra_calls = whole(extra_calls, "extra_calls", owner=_OWNER, low=0, high=1000)
        self._kinds = ascii_lowercase[:kinds]
        self._tools = ascii_uppercase[:tools]
        self._argument = argument
        self._final_answer = final_answer
        self._defaults: dict[str, Any] = {
            "mapping": "".join(self._tools[i % tools] for i in range(kinds)),
            "lengths": [1, 8],
        }
        if argument:
            self._defaults["argument_offset"] = 0
        if final_answer:
            self._defaults["answer_offset"] = 0
        said = self._tools
        if argument or final_answer:
            said += digits
        if argument and final_answer:
            said += "="
        shown = self._kinds + digits + ":>!" + ("=" if final_answer else "")
        self.action_space = Text(2 if argument else 1, charset=said)
        self.observation_space = Text(5 if argument else 4, charset=shown)
        self._declared: dict[str, Any] | None = None
        self._ended = True
        self._adopt({})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start a chain under `options["concept"]`.

        Raises:
            InputError: the concept has an unknown or an invalid parameter.
        """
        super().reset(seed=seed)
        self._adopt(options.get("concept") or {} if options else {})
        draws = self.np_random.random(2 + 2 * LONGEST).tolist()
        length = self._rules.length(draws[0])
        kinds, keys = self._kinds, draws[2 + LONGEST :]
        asked = [kinds[int(u * len(kinds))] for u in draws[2 : 2 + length]]
        if self._argument:
            asked = [kind + digits[int(u * 10)] for kind, u in zip(asked, keys, strict=False)]
        first = f"{asked[0]}{length}:"
        if self._final_answer:
            asked.append("=" + digits[int(draws[1] * 10)])
        self._asked = asked
        self._position = 0
        self._calls_left = len(asked) + self._extra_calls
        self._calls: list[tuple[int, str]] = []
        self._ended = False
        return first, self._info(retry=False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Call a tool (or say the final answer).

        Raises:
            ResetNeeded: the episode is over.
        """
        if self._ended:
            raise ResetNeeded("the episode is over: call reset() first")
        self._calls.append((self._position, action))
        self._calls_left -= 1
        right = action == self._right(self._asked[self._position], self._rules)
        if right:
            self._position += 1
            if self._position == len(self._asked):
                self._ended = True
                return ">", 1.0, True, False, self._info(retry=False)
        self._ended = self._calls_left == 0
        observation = (">" if right else "!") + self._asked[self._position]
        return observation, 0.0, self._ended, False, self._info(not right and not self._ended)

    def reference_action(self) -> str:
        """The right call for the present question."""
        return self._right(self._present(), self._rules)

    def valid_actions(self) -> tuple[str, ...]:
        """Calls that differ from the right one in one part at most: its tool or its digit.

        So a demonstrator who tries something else after an error does not look for a tool and for
        an argument at once, which would take it tools x 10 calls.
        """
        question = self._present()
        right = self._right(question, self._rules)
        if question[0] == "=":
            return tuple(right[:-1] + digit for digit in digits)
        if not self._argument:
            return tuple(self._tools)
        other_tool = [tool + right[1] for tool in self._tools]
        return tuple(other_tool + [right[0] + digit for digit in digits if digit != right[1]])

    def set_concept(self, params: Mapping[str, Any]) -> None:
        """From the next call on, judge under `params` (and defaults for what they leave out).

        Raises:
            InputError: an unknown or an invalid parameter; nothing has changed then.
        """
        self._adopt(params)

    def score(self, params: Mapping[str, Any]) -> float:
        """1 if every question got at least one call that is right under `params`, else 0.

        Raises:
            InputError: an unknown or an invalid parameter.
        """
        rules = self._check(filled(params, self._known(params), owner=_OWNER))
        served = {at for at, call in self._calls if call == self._right(self._asked[at], rules)}
        return float(len(served) == len(self._asked))

    def _right(self, question: str, rules: _Rules) -> str:
        symbol = question[0]
        if symbol == "=":
            said = digits[(int(question[1]) + rules.answer_offset) % 10]
            return "=" + said if self._argument else said
        tool = rules.tool_of[symbol]
        if self._argument:
            return tool + digits[(int(question[1]) + rules.argument_offset) % 10]
        return tool

    def _present(self) -> str:
        if self._ended:
            raise ResetNeeded("no question is open: call reset() first")
        return self._asked[self._position]

    def _info(self, retry: bool) -> dict[str, Any]:
        return {"concept": copied(self._concept), "retry": retry}

    def _adopt(self, params: Mapping[str, Any]) -> None:
        if params == self._declared:
            return
        concept = filled(params, self._known(params), owner=_OWNER)
        self._rules = self._check(concept)
        self._concept = concept
        self._declared = copied(params)

    def _known(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters of this world; naming the switch of one that is off."""
        for name, switch in _SWITCHES.items():
            if name in params and name not in self._defaults:
                raise InputError(
                    f"{_OWNER}: concept parameter {name!r} has no effect without `{switch}: true`"
                )
        return self._defaults

    def _check(self, concept: Mapping[str, Any]) -> _Rules:
        mapping = concept["mapping"]
        if not isinstance(mapping, str) or len(mapping) != len(self._kinds):
            raise InputError(
                f"{_OWNER}: mapping must name one tool for each of the {len(self._kinds)} kinds, "
                f"e.g. {self._defaults['mapping']!r}, not {mapping!r}"
            )
        if unknown := sorted(set(mapping) - set(self._tools)):
            raise InputError(
                f"{_OWNER}: mapping {mapping!r} names {', '.join(unknown)}; "
                f"the tools are {self._tools[0]}..{self._tools[-1]}"
            )
        weights = _length_weights(concept["lengths"])
        lengths = [length for length in sorted(weights) if weights[length] > 0]
        total = sum(weights.values())
        offsets = {
            name: whole(concept.get(name, 0), name, owner=_OWNER, low=0, high=9)
            for name in _SWITCHES
        }
        return _Rules(
            tool_of=dict(zip(self._kinds, mapping, strict=True)),
            lengths=lengths,
            quantiles=list(accumulate(weights[n] / total for n in lengths))[:-1],
            **offsets,
        )


def _length_weights(lengths: Any) -> dict[int, float]:
    """Chain length -> weight, from `[low, high]` or `{length: weight}` (JSON's text keys too)."""
    if not isinstance(lengths, Mapping):
        low, high = whole_range(lengths, "lengths", owner=_OWNER, low=1, high=LONGEST)
        return dict.fromkeys(range(low, high + 1), 1.0)
    weights: dict[int, float] = {}
    for key, weight in lengths.items():
        number = int(key) if isinstance(key, str) and key.isdecimal() else key
        length = whole(number, "a length", owner=_OWNER, low=1, high=LONGEST)
        if not isinstance(weight, (int, float)) or not 0 <= weight < float("inf"):
            raise InputError(f"{_OWNER}: lengths: weight of {length} must be >= 0, not {weight!r}")
        weights[length] = weights.get(length, 0.0) + float(weight)
    if not sum(weights.values()) > 0:
        raise InputError(f"{_OWNER}: lengths: at least one weight must be above 0")
    return weights
