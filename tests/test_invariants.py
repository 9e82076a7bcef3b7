"""Each invariant, on a history written by hand: it passes whole, and each way to break it is seen.

Two slots, batches of two, groups of two, lag of at most one. Rollouts 0 and 1 make update 1; 2 and
4 make update 2 (3 failed, 4 is its task again); 5 is open when the run ends.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sao_gym.events import (
    CheckpointTaken,
    Clocks,
    EnvironmentStepped,
    Evaluated,
    PolicyPublished,
    RolloutDropped,
    RolloutFailed,
    RolloutFinished,
    RolloutStarted,
    RunEnded,
    TurnSampled,
    UpdateFinished,
)
from sao_gym.invariants import Violation, check
from sao_gym.types import (
    Completion,
    Concept,
    Failed,
    Task,
    Terminated,
    Timing,
    Trajectory,
    Turn,
    VersionSpan,
)

A, B = Concept(id="A", params={}), Concept(id="B", params={})


def started(rollout, task, version):
    return RolloutStarted(
        rollout=rollout, task=Task(index=task, seed=task), concept=A, version=version
    )


def stepped(rollout, turn, reward=0.0, over=False):
    return EnvironmentStepped(
        rollout=rollout,
        turn=turn,
        observation="o",
        reward=reward,
        terminated=over,
        truncated=False,
        seconds=1.0,
    )


def sampled(rollout, turn, *spans):
    count = sum(tokens for _, tokens in spans)
    return TurnSampled(
        completion=Completion(
            rollout=rollout,
            turn=turn,
            action_ids=(2,) * count,
            logprobs=(-0.5,) * count,
            versions=tuple(VersionSpan(*span) for span in spans),
            stopped=False,
        )
    )


def turn(reward, *spans):
    count = sum(tokens for _, tokens in spans)
    return Turn(
        observation_ids=(1,),
        action_ids=(2,) * count,
        logprobs=(-0.5,) * count,
        versions=tuple(VersionSpan(*span) for span in spans),
        reward=reward,
    )


def finished(rollout, task, *turns):
    return RolloutFinished(
        trajectory=Trajectory(
            rollout=rollout,
            task=Task(index=task, seed=task),
            concept_start=A,
            concept_scored=A,
            turns=turns,
            outcome=Terminated(),
            timing=Timing(started=0.0, finished=1.0),
        )
    )


def update(version, rollouts, mean, largest):
    return UpdateFinished(
        version=version, rollouts=rollouts, lag_mean=mean, lag_max=largest, metrics={}
    )


GOOD = {
    "start 0": started(0, 0, 0),
    "start 1": started(1, 0, 0),
    "reset 0": stepped(0, 0),
    "reset 1": stepped(1, 0),
    "sample 0": sampled(0, 1, (0, 1)),
    "sample 1": sampled(1, 1, (0, 1)),
    "step 0": stepped(0, 1, 1.0, over=True),
    "finish 0": finished(0, 0, turn(1.0, (0, 1))),
    "step 1": stepped(1, 1, 0.5),
    "again 1": sampled(1, 2, (0, 1)),
    "last 1": stepped(1, 2, 0.0, over=True),
    "finish 1": finished(1, 0, turn(0.5, (0, 1)), turn(0.0, (0, 1))),
    "start 2": started(2, 1, 0),
    "start 3": started(3, 1, 0),
    "update 1": update(1, (0, 1), 0.0, 0),
    "checkpoint": CheckpointTaken(update=1, scheduled=True, state=b""),
    "reset 2": stepped(2, 0),
    "publish 1": PolicyPublished(version=1),
    "sample 2": sampled(2, 1, (0, 1), (1, 2)),
    "fail 3": RolloutFailed(rollout=3, failure=Failed("worker", "gone")),
    "start 4": started(4, 1, 1),
    "evaluate": Evaluated(version=1, concept="A", score=1.0, instances=1, started=5),
    "step 2": stepped(2, 1, over=True),
    "finish 2": finished(2, 1, turn(0.0, (0, 1), (1, 2))),
    "reset 4": stepped(4, 0),
    "sample 4": sampled(4, 1, (1, 1)),
    "step 4": stepped(4, 1, 1.0, over=True),
    "finish 4": finished(4, 1, turn(1.0, (1, 1))),
    "start 5": started(5, 2, 1),
    "update 2": update(2, (2, 4), 0.25, 1),
    "publish 2": PolicyPublished(version=2),
    "drop 5": RolloutDropped(rollout=5, reason="run_ended", lag=0),
    "end": RunEnded(
        reason="updates",
        clocks=Clocks(started=6, completed=4, consumed=4, version=2, tokens=7, seconds=32.0),
    ),
}
BOUNDS = {"slots": 2, "max_lag": 1, "batch_size": 2, "group_size": 2}


def history(events):
    """A second between two events."""
    return [(float(at), event) for at, event in enumerate(events.values())]


def change(label, **fields):
    """`label` with other fields."""
    return lambda: GOOD | {label: replace(GOOD[label], **fields)}


def put(label, event):
    return lambda: GOOD | {label: event}


def leave_out(*labels):
    return lambda: {name: event for name, event in GOOD.items() if name not in labels}


def insert(before, event):
    """`event` in front of `before`."""

    def make():
        made = {}
        for name, kept in GOOD.items():
            if name == before:
                made["new"] = event
            made[name] = kept
        return made

    return make


def move(label, before):
    def make():
        made = {}
        for name, event in GOOD.items():
            if name == before:
                made[label] = GOOD[label]
            if name != label:
                made[name] = event
        return made

    return make


def after_end(event):
    return lambda: GOOD | {"new": event}


def test_the_good_history_is_good():
    check(history(GOOD), **BOUNDS)


BROKEN = [
    (leave_out("end"), "the last event is not RunEnded"),
    (after_end(GOOD["end"]), "RunEnded after the end"),
    (after_end(PolicyPublished(version=3)), "PolicyPublished after the end"),
    # numbers, slots, pacing
    (change("start 1", rollout=2), "rollout 2 started out of order"),
    (change("start 4", version=2), "rollout 4 began with version 2"),
    (move("start 2", "finish 0"), "3 rollouts act in 2 slots"),
    (insert("publish 1", started(4, 1, 0)), "3 rollouts act in 2 slots"),
    # fates
    (leave_out("drop 5"), r"rollouts \[5\] have no end"),
    (insert("end", RolloutDropped(rollout=5, reason="run_ended", lag=0)), "after it was dropped"),
    (insert("end", RolloutDropped(rollout=0, reason="stale", lag=2)), "after it was trained"),
    (insert("end", RolloutDropped(rollout=9, reason="stale", lag=2)), "before its start"),
    (insert("start 4", stepped(3, 0)), "rollout 3 was stepped after it was failed"),
    (insert("start 1", stepped(1, 0)), "rollout 1 was stepped before its start"),
    (insert("end", sampled(5, 1, (1, 1))), "rollout 5 was sampled after it was dropped"),
    (
        insert("update 1", RolloutFailed(rollout=0, failure=Failed("worker", "gone"))),
        "rollout 0 failed after it had finished",
    ),
    (change("update 1", rollouts=(1, 2)), "rollout 2 was trained before it had finished"),
    (change("update 2", rollouts=(2, 3)), "rollout 3 was trained after it was failed"),
    (change("update 2", rollouts=(2, 5)), "rollout 5 was trained before it had finished"),
    (change("update 2", rollouts=(0, 1)), "rollout 0 was trained after it was trained"),
    (insert("update 1", GOOD["finish 1"]), "rollout 1 finished twice"),
    # versions
    (change("update 1", version=2), "update 2 came after 0"),
    (change("publish 1", version=2), "version 2 was published after version 0"),
    (move("publish 1", "update 1"), "version 1 is published but not made"),
    (move("sample 2", "publish 1"), "rollout 2: version 1 sampled before its publish"),
    (put("sample 2", sampled(2, 1, (1, 2), (0, 1))), "rollout 2: the version sampled decreases"),
    (change("evaluate", version=2), "version 2 was evaluated, but 1 is published"),
    (change("checkpoint", update=0), "a checkpoint of update 0"),
    # turns
    (leave_out("reset 0"), "rollout 0: turn 1 was sampled out of order"),
    (change("step 0", turn=2), "rollout 0: the environment answered turn 2 out of order"),
    (leave_out("sample 0"), "rollout 0: the environment answered turn 1 out of order"),
    (put("again 1", sampled(1, 3, (0, 1))), "rollout 1: turn 3 was sampled out of order"),
    (insert("finish 0", sampled(0, 2, (0, 1))), "rollout 0: turn 2 was sampled out of order"),
    (insert("finish 0", stepped(0, 2)), "rollout 0: the environment answered turn 2"),
    (leave_out("last 1"), "rollout 1 ended in mid-turn"),
    (put("step 0", stepped(0, 1, 1.0)), "rollout 0 is called terminated"),
    # trajectories
    (put("finish 0", finished(0, 7, turn(1.0, (0, 1)))), "with another task"),
    (put("finish 0", finished(0, 0, turn(1.0, (0, 2)))), "rollout 0: .* other tokens"),
    (put("finish 2", finished(2, 1, turn(0.0, (0, 3)))), "rollout 2: .* other tokens"),
    (
        put("finish 0", finished(0, 0, replace(turn(1.0, (0, 1)), logprobs=(-0.25,)))),
        "rollout 0: .* other tokens",
    ),
    (put("finish 0", finished(0, 0, turn(0.9, (0, 1)))), "rollout 0: .* other rewards"),
    # batches and lags
    (change("update 1", rollouts=(0,)), "not 2 distinct ones"),
    (change("update 1", rollouts=(0, 0)), "not 2 distinct ones"),
    (change("update 2", lag_max=0), "lag_max is 0, but its tokens say 1"),
    (change("update 2", lag_mean=0.5), "lag_mean is 0.5, but its tokens say 0.25"),
    (
        put("drop 5", RolloutDropped(rollout=5, reason="run_ended", lag=1)),
        "rollout 5 was dropped at lag 1",
    ),
    (
        put("drop 5", RolloutDropped(rollout=5, reason="stale", lag=0)),
        "rollout 5 was dropped as stale at lag 0",
    ),
    # tasks
    (put("start 5", started(5, 1, 1)), "task 1 was issued 4 times to a group of 2 that lost 1"),
    (put("start 2", started(2, 0, 0)), "task 0 was issued 3 times to a group of 2 that lost 0"),
]


@pytest.mark.parametrize(("make", "what"), BROKEN)
def test_what_is_broken_is_found(make, what):
    with pytest.raises(Violation, match=what):
        check(history(make()), **BOUNDS)


def test_time_never_goes_back():
    broken = history(GOOD)
    broken[5] = (2.0, broken[5][1])
    with pytest.raises(Violation, match="event 5: time goes back from 4.0 to 2.0") as found:
        check(broken, **BOUNDS)
    assert found.value.at == 5


def test_an_empty_history_has_no_end():
    with pytest.raises(Violation, match="the last event is not RunEnded"):
        check([], **BOUNDS)


@pytest.mark.parametrize("clock", ["started", "completed", "consumed", "version", "tokens"])
def test_the_clocks_are_counted_again(clock):
    end = GOOD["end"]
    wrong = replace(end.clocks, **{clock: getattr(end.clocks, clock) + 1})
    with pytest.raises(Violation, match="event 32: the clocks show"):
        check(history(GOOD | {"end": replace(end, clocks=wrong)}), **BOUNDS)


@pytest.mark.parametrize(
    ("bounds", "what"),
    [
        ({"slots": 1}, "2 rollouts act in 1 slots"),
        ({"max_lag": 0}, "rollout 2 makes 3 in use; version 0 and max_lag 0 allow 2"),
        ({"batch_size": 3}, r"update 1 took rollouts \(0, 1\), not 3 distinct"),
        ({"group_size": 1}, "task 0 was issued 2 times to a group of 1"),
        ({"group_size": 4}, r"update 1 took \{0: 2\} of the tasks, not groups of 4"),
    ],
)
def test_the_bounds_bind(bounds, what):
    with pytest.raises(Violation, match=what):
        check(history(GOOD), **(BOUNDS | bounds))


def test_no_segment_is_longer_than_the_context():
    """Rollout 1 has two turns of 2 tokens, rollout 2 one of 4."""
    check(history(GOOD), **BOUNDS, context=4)
    with pytest.raises(Violation, match="rollout 1 holds a segment longer than the context"):
        check(history(GOOD), **BOUNDS, context=3)
    parted = {}
    for name, event in GOOD.items():
        if isinstance(event, RolloutFinished):
            turns = tuple(replace(turn, restart=True) for turn in event.trajectory.turns)
            event = replace(event, trajectory=replace(event.trajectory, turns=turns))
        parted[name] = event
    with pytest.raises(Violation, match="rollout 2 holds a segment longer than the context"):
        check(history(parted), **BOUNDS, context=3)


def test_a_lag_above_the_bound_is_found():
    """The same rollout trained one update later, and more room to start."""
    events = [
        started(0, 0, 0),
        stepped(0, 0),
        sampled(0, 1, (0, 1)),
        stepped(0, 1, over=True),
        finished(0, 0, turn(0.0, (0, 1))),
        started(1, 1, 0),
        stepped(1, 0),
        sampled(1, 1, (0, 1)),
        stepped(1, 1, over=True),
        finished(1, 1, turn(0.0, (0, 1))),
        update(1, (0,), 0.0, 0),
        PolicyPublished(version=1),
        update(2, (1,), 1.0, 1),
    ]
    listed = [(0.0, event) for event in events]
    with pytest.raises(Violation, match="event 5: rollout 1 makes 2 in use"):
        check(listed, slots=2, max_lag=0, batch_size=1)
    moved = [*events[:5], *events[10:12], *events[5:10], events[12]]
    with pytest.raises(Violation, match="event 12: lag 1 is above max_lag 0"):
        check([(0.0, event) for event in moved], slots=2, max_lag=0, batch_size=1)


def test_a_reward_given_late_is_another():
    rescored = replace(GOOD["finish 0"].trajectory, concept_scored=B)
    rescored = replace(rescored, turns=(replace(rescored.turns[0], reward=0.25),))
    events = GOOD | {"finish 0": RolloutFinished(trajectory=rescored)}
    check(history(events), reward_late=True, **BOUNDS)
    with pytest.raises(Violation, match="other rewards"):
        check(history(events), **BOUNDS)
