"""Contract suites for plug-ins: three lines in a test, and the whole seam is checked.

    from sao_gym.testing import check_environment

    def test_maze():
        check_environment(Maze, concepts=[{"walls": "north"}, {"walls": "south"}])

Each suite runs named rules in order and gives the names of those that hold. The first that does not
raises `ContractError` (an `AssertionError`): the rule, what was seen and what is right.
Rules about an optional protocol run if the plug-in offers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sao_gym.protocols import Agent, LateReward, Learner, LearnerSetup, LiveConcept, TextEnv
from sao_gym.protocols import ReferenceSolver as _ReferenceSolver
from sao_gym.testing.rules import ContractError, run

__all__ = ["ContractError", "check_agent", "check_environment", "check_learner"]


def check_environment(
    factory: Callable[[], TextEnv],
    *,
    concepts: Sequence[Mapping[str, Any]] = ({},),
    episodes: int = 20,
    partial_credit: bool = False,
) -> tuple[str, ...]:
    """Check an environment against the seam that runs rely on.

    Args:
        factory: makes an instance; called many times.
        concepts: concept parameters to run under, in turn.
        episodes: seeds that each rule tries.
        partial_credit: wrong actions may score something, as long as it is below 1.

    Returns:
        The rules that hold.

    Raises:
        ContractError: a rule does not hold.
        ValueError: no concepts or no episodes.
    """
    from sao_gym.testing import environments as rules

    if not concepts or episodes < 1:
        raise ValueError("check_environment needs at least one concept and one episode")
    subject = rules.Subject(
        factory=factory,
        concepts=tuple(concepts),
        seeds=tuple(range(episodes)),
        partial_credit=partial_credit,
    )
    chosen = list(rules.ALWAYS)
    inner: object = factory().unwrapped
    for protocol, more in (
        (_ReferenceSolver, rules.IF_SOLVED),
        (LiveConcept, rules.IF_LIVE),
        (LateReward, rules.IF_LATE),
    ):
        if isinstance(inner, protocol):
            chosen += more
    return run("environment", chosen, subject)


def check_agent(
    factory: Callable[[Any], Agent],
    tokenizer: Any,
    *,
    texts: Sequence[str] | None = None,
    several_turns: bool = True,
) -> tuple[str, ...]:
    """Check an agent: pure, token in, token out.

    Args:
        factory: makes the agent from a tokenizer; called several times.
        tokenizer: a `transformers` tokenizer.
        texts: texts that observations and actions are made of. Default: single tokens of the
            tokenizer, and some of them in a row.
        several_turns: the agent goes on after its first action.

    Returns:
        The rules that hold.

    Raises:
        ContractError: a rule does not hold.
        ValueError: the tokenizer offers no text to try and none is given.
    """
    from sao_gym.testing import agents as rules

    subject = rules.Subject(
        factory=factory,
        tokenizer=tokenizer,
        texts=tuple(texts if texts is not None else rules.sayable(tokenizer)),
    )
    if not subject.texts:
        raise ValueError("check_agent needs texts: the tokenizer's tokens do not decode alone")
    chosen = [*rules.ALWAYS, *(rules.IF_SEVERAL_TURNS if several_turns else ())]
    return run("agent", chosen, subject)


def check_learner(
    factory: Callable[[LearnerSetup], Learner], *, updates: int = 3
) -> tuple[str, ...]:
    """Check a learner on a tiny model and made-up rollouts (torch is imported).

    Args:
        factory: makes the learner; called several times.
        updates: updates per rule. More than a warm-up has, to see the policy move.

    Returns:
        The rules that hold.

    Raises:
        ContractError: a rule does not hold.
    """
    from sao_gym.testing import learners as rules

    return run("learner", rules.ALWAYS, rules.Subject(factory=factory, updates=updates))
