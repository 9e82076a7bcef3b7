"""The agent contract, rule by rule (see `sao_gym.testing.check_agent`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sao_gym.protocols import Agent
from sao_gym.testing.rules import broken, random_states, require

_TRIED_TOKENS = 2000
_RARE = ("\u2603", "\U0001f40b", "\u16a0")
"""Symbols that a small tokenizer is unlikely to have."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is checked, and on what."""

    factory: Callable[[Any], Agent]
    tokenizer: Any
    texts: tuple[str, ...]

    def agent(self) -> Agent:
        return self.factory(self.tokenizer)


def sayable(tokenizer: Any, most: int = 8) -> list[str]:
    """Texts that are one token each and survive a round trip; then some of them in a row."""
    control = set(tokenizer.all_special_ids)

    def candidates() -> Any:
        for index in range(len(tokenizer)):
            text = tokenizer.decode([index])
            if index in control or not text.strip():
                continue
            if tokenizer(text, add_special_tokens=False)["input_ids"] == [index]:
                yield text

    texts = list(islice(candidates(), most))
    return texts + ["".join(texts[i : i + 3]) for i in range(max(0, len(texts) - 2))]


def limits_are_declared(subject: Subject) -> None:
    agent = subject.agent()
    most, stops = agent.max_new_tokens, agent.stop_ids
    require(isinstance(most, int) and most >= 1, f"max_new_tokens must be >= 1, not {most!r}")
    require(isinstance(stops, frozenset), f"stop_ids must be a frozenset, not {stops!r}")
    _check_ids(tuple(stops), subject, "stop_ids")
    _check_ids(agent.closing, subject, "closing")


def begin_gives_token_ids(subject: Subject) -> None:
    agent = subject.agent()
    for text in subject.texts:
        ids = agent.begin(text)
        require(len(ids) > 0, f"begin({text!r}) gives no token: nothing can be sampled after it")
        _check_ids(ids, subject, f"begin({text!r})")


def act_gives_text_for_any_tokens(subject: Subject) -> None:
    agent = subject.agent()
    for index in range(min(len(subject.tokenizer), _TRIED_TOKENS)):
        action: object = agent.act((index,))
        require(isinstance(action, str), f"act(({index},)) must be a str, not {action!r}")
    require(isinstance(agent.act(()), str), "act(()) must be a str: a policy may stop at once")


def spell_is_the_inverse_of_act(subject: Subject) -> None:
    agent = subject.agent()
    for text in subject.texts:
        bare = tuple(subject.tokenizer(text, add_special_tokens=False)["input_ids"])
        if len(bare) > agent.max_new_tokens:
            continue
        ids = agent.spell(text)
        _check_ids(ids, subject, f"spell({text!r})")
        require(
            0 < len(ids) <= agent.max_new_tokens,
            f"spell({text!r}) gives {len(ids)} tokens, max_new_tokens is {agent.max_new_tokens}",
        )
        require(
            not agent.stop_ids or ids[-1] in agent.stop_ids or len(ids) == agent.max_new_tokens,
            f"spell({text!r}) = {ids} ends neither with a stop token nor at max_new_tokens",
        )
        got = agent.act(ids)
        require(got == text, f"act(spell({text!r})) is {got!r}")


def act_drops_the_stop_token(subject: Subject) -> None:
    agent = subject.agent()
    for text in subject.texts:
        ids = tuple(subject.tokenizer(text, add_special_tokens=False)["input_ids"])
        if ids[-1] in agent.stop_ids:
            continue
        for stop in agent.stop_ids:
            stopped, bare = agent.act((*ids, stop)), agent.act(list(ids))
            require(
                stopped == bare,
                f"act of {ids} is {bare!r}, but {stopped!r} with the stop token {stop} after it",
            )


def agent_is_pure(subject: Subject) -> None:
    before = random_states()
    one, other = subject.agent(), subject.agent()
    expected = {text: _said(one, text) for text in subject.texts}
    for text in reversed(subject.texts):
        for agent in (other, one):
            got = _said(agent, text)
            require(
                got == expected[text],
                f"{text!r} gives {expected[text]}, and {got} in another order or instance",
            )
    for name, state in random_states().items():
        require(state == before.get(name, state), f"it moved the global generator of {name}")


def unknown_symbols_are_refused(subject: Subject) -> None:
    agent = subject.agent()
    for symbol in _RARE:
        if _lost(subject.tokenizer, symbol):
            try:
                ids = agent.begin(symbol)
            except Exception:  # noqa: BLE001  any refusal will do
                return
            broken(f"begin({symbol!r}) gives {ids}, which does not decode to it: raise instead")


def observe_gives_token_ids(subject: Subject) -> None:
    agent = subject.agent()
    for text in subject.texts:
        ids = agent.observe(text)
        require(len(ids) > 0, f"observe({text!r}) gives no token")
        _check_ids(ids, subject, f"observe({text!r})")


def observe_does_not_depend_on_history(subject: Subject) -> None:
    fresh, used = subject.agent(), subject.agent()
    for text in subject.texts:
        used.begin(text)
        used.act(used.spell(subject.texts[0]))
        used.observe(subject.texts[-1])
    for text in subject.texts:
        one, two = fresh.observe(text), used.observe(text)
        require(one == two, f"observe({text!r}) gives {one}, and {two} later in an episode")


ALWAYS = (
    limits_are_declared,
    begin_gives_token_ids,
    act_gives_text_for_any_tokens,
    spell_is_the_inverse_of_act,
    act_drops_the_stop_token,
    agent_is_pure,
    unknown_symbols_are_refused,
)
IF_SEVERAL_TURNS = (observe_gives_token_ids, observe_does_not_depend_on_history)


def _check_ids(ids: Sequence[int], subject: Subject, what: str) -> None:
    size = len(subject.tokenizer)
    kind: object = ids
    require(isinstance(kind, tuple), f"{what} must be a tuple, not {ids!r}")
    fine = all(isinstance(i, int) and 0 <= i < size for i in ids)
    require(fine, f"{what} must be token ids in 0..{size - 1}, not {ids!r}")


def _said(agent: Agent, text: str) -> tuple[object, ...]:
    ids = agent.begin(text)
    return ids, agent.act(ids)


def _lost(tokenizer: Any, symbol: str) -> bool:
    """Whether the tokenizer cannot give `symbol` back."""
    try:
        ids = tokenizer(symbol, add_special_tokens=False)["input_ids"]
    except Exception:  # noqa: BLE001  the tokenizers library raises just that
        return True
    return bool(tokenizer.decode(ids) != symbol)
