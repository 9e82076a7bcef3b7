"""Runs of scripted parts on the wall clock, and what every one of them promises."""

from __future__ import annotations

from scripted import fates, of, timeline

from sao_gym.doubles import (
    ScriptedAgent,
    ScriptedEngine,
    ScriptedEnvironment,
    ScriptedEvaluator,
    ScriptedLearner,
)
from sao_gym.events import (
    EnvironmentStepped,
    PolicyPublished,
    RolloutFailed,
    RolloutStarted,
    TurnSampled,
    UpdateFinished,
)
from sao_gym.executors.live import LiveExecutor
from sao_gym.executors.trainers import InlineTrainer
from sao_gym.faults import FaultRule, Faults, Patience
from sao_gym.limits import Limits
from sao_gym.loop import run

QUICK = {"environment": 20.0, "watchdog": 20.0, "retries": 3, "backoff": 0.01}


def start(
    *,
    engine=None,
    learner=None,
    trainer=None,
    evaluator=None,
    make_environment=ScriptedEnvironment,
    workers=4,
    faults=(),
    patience=None,
    evaluate_every=None,
    checkpoint_every=None,
    resume=None,
    **limits,
):
    """`faults`: rules as a scenario has them; `patience`: what differs from `QUICK`."""
    learner = learner or ScriptedLearner(batch_size=4)
    executor = LiveExecutor(
        engine=engine or ScriptedEngine(),
        trainer=trainer or InlineTrainer(learner),
        evaluator=evaluator or ScriptedEvaluator(),
        workers=workers,
        weights={},
        faults=Faults([FaultRule.model_validate(rule) for rule in faults], seed=3),
        patience=Patience(**{**QUICK, **(patience or {})}),
    )
    events = run(
        seed=0,
        timeline=timeline(),
        make_environment=make_environment,
        agent=ScriptedAgent(),
        learner=learner,
        executor=executor,
        limits=Limits(**{"slots": 8, "max_lag": 4, "rollouts": 60} | limits),
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        resume=resume,
    )
    return executor, events


def play(**parts):
    """A whole run, closed."""
    executor, events = start(**parts)
    try:
        return list(events)
    finally:
        executor.close()


def keeps_promises(history, rollouts):
    """Every rollout begins once and ends once, turn by turn; versions come one by one."""
    assert [t for t, _ in history] == sorted(t for t, _ in history)
    assert [e.rollout for e in of(history, RolloutStarted)] == list(range(rollouts))
    assert sorted(rollout for rollout, _ in fates(history)) == list(range(rollouts))
    updates = [e.version for e in of(history, UpdateFinished)]
    assert updates == list(range(1, len(updates) + 1))
    versions = [e.version for e in of(history, PolicyPublished)]
    assert versions == updates[: len(versions)]
    assert len(updates) - len(versions) <= 1
    published = 0
    answers, actions, failed = {}, {}, set()
    for _, event in history:
        match event:
            case PolicyPublished(version=version):
                published = version
            case RolloutFailed(rollout=rollout):
                failed.add(rollout)
            case EnvironmentStepped(rollout=rollout, turn=turn):
                assert rollout not in failed, "a late answer is not heard"
                answers.setdefault(rollout, []).append(turn)
            case TurnSampled(completion=done):
                assert done.rollout not in failed
                assert max(span.version for span in done.versions) <= published
                actions.setdefault(done.rollout, []).append(done.turn)
    for turns in answers.values():
        assert turns == list(range(len(turns)))
    for turns in actions.values():
        assert turns == list(range(1, len(turns) + 1))
