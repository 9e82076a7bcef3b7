"""The learner contract, rule by rule (see `sao_gym.testing.check_learner`)."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch

from sao_gym import policy, rng
from sao_gym.protocols import Learner, LearnerSetup
from sao_gym.testing.rules import random_states, require
from sao_gym.types import (
    Concept,
    Task,
    Terminated,
    Timing,
    Trajectory,
    Turn,
    Update,
    VersionSpan,
)

_INIT = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
_CONCEPT = Concept(id="A", params={})


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is checked: a factory of learners, and a tiny policy to give them."""

    factory: Callable[[LearnerSetup], Learner]
    updates: int
    policy: policy.Policy = field(
        default_factory=lambda: policy.initialise(_INIT, symbols="abcdef", seed=0)
    )

    def learner(self) -> Learner:
        model = deepcopy(self.policy.model)
        setup = LearnerSetup(
            model=model, seed=0, pad_id=self.policy.pad_id, demonstrate=self._demonstrate
        )
        return self.factory(setup)

    def waiting(self, learner: Learner, batches: int) -> list[Trajectory]:
        """Enough finished rollouts for so many batches, whole groups, good and bad ones mixed."""
        count = batches * learner.batch_size
        return [self._rollout(i, Task(index=i // learner.group_size, seed=i)) for i in range(count)]

    def train(self, learner: Learner, updates: int, skip: int = 0) -> list[Update]:
        """So many updates on batches that `learner` selects, the first `skip` batches left out."""
        waiting = self.waiting(learner, skip + updates)
        done = []
        for number in range(skip + updates):
            chosen = set(learner.select(waiting))
            batch = [t for t in waiting if t.rollout in chosen]
            require(batch, f"select() gives nothing of {len(waiting)} rollouts in whole groups")
            waiting = [t for t in waiting if t.rollout not in chosen]
            if number >= skip:
                done.append(learner.update(batch))
        return done

    def _demonstrate(self, concept: Concept, task: Task) -> Trajectory:
        return self._rollout(task.index, task, concept)

    def _rollout(self, rollout: int, task: Task, concept: Concept = _CONCEPT) -> Trajectory:
        """Random tokens with the log-probs that the untrained policy gives them."""
        draws = rng.generator(0, "contract", rollout)
        low, size = 2, len(self.policy.tokenizer)
        shape = [
            (draws.integers(low, size, 3).tolist(), draws.integers(low, size, n).tolist())
            for n in draws.integers(1, 4, size=int(draws.integers(1, 4))).tolist()
        ]
        ids = [i for observation, action in shape for i in observation + action]
        with torch.no_grad():
            logits = self.policy.model(torch.tensor([ids])).logits[0, :-1]
        logprobs = logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]].tolist()
        turns, at = [], 0
        for index, (observation, action) in enumerate(shape):
            start = at + len(observation)
            at = start + len(action)
            turns.append(
                Turn(
                    observation_ids=tuple(observation),
                    action_ids=tuple(action),
                    logprobs=tuple(logprobs[start - 1 : at - 1]),
                    versions=(VersionSpan(0, len(action)),),
                    # Alternating, so that every group holds good and bad ones.
                    reward=float(rollout % 2) if index == len(shape) - 1 else 0.0,
                )
            )
        return Trajectory(
            rollout=rollout,
            task=task,
            concept_start=concept,
            concept_scored=concept,
            turns=tuple(turns),
            outcome=Terminated(),
            timing=Timing(started=float(rollout), finished=rollout + 1.0),
        )


def sizes_are_declared(subject: Subject) -> None:
    learner = subject.learner()
    for name in ("group_size", "batch_size"):
        value: object = getattr(learner, name)
        require(isinstance(value, int) and value >= 1, f"{name} must be >= 1, not {value!r}")
    require(
        learner.batch_size % learner.group_size == 0,
        f"batch_size {learner.batch_size} is no multiple of group_size {learner.group_size}",
    )
    require(learner.relative_cost >= 0, f"relative_cost is {learner.relative_cost}")


def select_chooses_from_what_waits(subject: Subject) -> None:
    learner = subject.learner()
    waiting = subject.waiting(learner, 2)
    order = {trajectory.rollout: place for place, trajectory in enumerate(waiting)}
    for count in (0, learner.batch_size - 1, learner.batch_size, len(waiting)):
        chosen = list(learner.select(waiting[:count]))
        wanted = 0 if count < learner.batch_size else learner.batch_size
        require(
            len(chosen) == wanted,
            f"select() of {count} rollouts gives {len(chosen)}, batch_size is {learner.batch_size}",
        )
        places = [order.get(rollout, len(order)) for rollout in chosen]
        require(all(place < count for place in places), f"select() gives {chosen}, not all waiting")
        require(places == sorted(set(places)), f"select() gives {chosen}, not oldest first")


def select_is_pure(subject: Subject) -> None:
    learner = subject.learner()
    waiting = subject.waiting(learner, 2)
    given = list(waiting)
    chosen = list(learner.select(given))
    require(given == waiting, "select() changes the list it is given")
    require(list(learner.select(given)) == chosen, "select() answers otherwise when asked twice")
    subject.train(learner, 1)
    require(list(learner.select(given)) == chosen, "select() answers otherwise after an update")


def update_gives_weights_and_metrics(subject: Subject) -> None:
    shapes = {name: t.shape for name, t in subject.policy.model.state_dict().items()}
    names: set[str] | None = None
    for number, update in enumerate(subject.train(subject.learner(), subject.updates), start=1):
        if update.weights is not None:
            got = {name: t.shape for name, t in update.weights.items()}
            require(got == shapes, f"update {number}: weights are not those of the policy")
            for name, tensor in update.weights.items():
                require(not tensor.requires_grad, f"update {number}: {name} is not detached")
                require(tensor.isfinite().all(), f"update {number}: {name} is not finite")
        for name, value in update.metrics.items():
            number_like = isinstance(value, (int, float)) and not isinstance(value, bool)
            require(number_like, f"update {number}: metric {name!r} is {value!r}, not a float")
        if names is None:
            names = set(update.metrics)
        different = names ^ set(update.metrics)
        require(not different, f"update {number}: metrics {sorted(different)} come and go")


def returned_weights_stay(subject: Subject) -> None:
    learner = subject.learner()
    kept: list[tuple[Mapping[str, Any], dict[str, Any]]] = []
    waiting = subject.waiting(learner, subject.updates)
    for number in range(subject.updates):
        batch = waiting[number * learner.batch_size : (number + 1) * learner.batch_size]
        weights = learner.update(batch).weights
        for returned, copy in kept:
            require(_same(returned, copy), "an update changes the weights of an earlier one")
        if weights is not None:
            kept.append((weights, {name: t.clone() for name, t in weights.items()}))


def updates_are_deterministic(subject: Subject) -> None:
    one = subject.learner()
    torch.rand(1)  # somebody else draws from the global generator
    two = subject.learner()
    before = random_states()
    done = subject.train(one, subject.updates)
    for name, state in random_states().items():
        require(state == before[name], f"an update moves the global generator of {name}")
    torch.rand(1)
    again = subject.train(two, subject.updates)
    _compare(done, again, "two learners made alike and given the same batches")


def state_makes_an_identical_learner(subject: Subject) -> None:
    learner = subject.learner()
    subject.train(learner, subject.updates)
    state = learner.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    kept = deepcopy(state)
    straight = subject.train(learner, 2, skip=subject.updates)
    require(_same(state, kept), "an update changes a state_dict() that was taken before it")
    file.seek(0)
    resumed = subject.learner()
    resumed.load_state_dict(torch.load(file, weights_only=False))
    _compare(
        straight,
        subject.train(resumed, 2, skip=subject.updates),
        "the learner and its copy, loaded from state_dict(),",
    )


ALWAYS = (
    sizes_are_declared,
    select_chooses_from_what_waits,
    select_is_pure,
    update_gives_weights_and_metrics,
    returned_weights_stay,
    updates_are_deterministic,
    state_makes_an_identical_learner,
)


def _compare(one: Sequence[Update], two: Sequence[Update], who: str) -> None:
    for number, (first, second) in enumerate(zip(one, two, strict=True), start=1):
        require(
            _same(first.weights, second.weights), f"{who} differ in the weights of update {number}"
        )
        for name, value in first.metrics.items():
            other = second.metrics.get(name)
            require(
                _same(value, other),
                f"{who} differ in {name!r} of update {number}: {value!r} and {other!r}",
            )


def _same(one: Any, two: Any) -> bool:
    """Bit for bit, through containers; NaN equals NaN."""
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and torch.equal(
            one.nan_to_num(nan=1e30), two.nan_to_num(nan=1e30)
        )
    if isinstance(one, Mapping):
        return (
            isinstance(two, Mapping)
            and one.keys() == two.keys()
            and all(_same(one[key], two[key]) for key in one)
        )
    if isinstance(one, (list, tuple)):
        return type(one) is type(two) and len(one) == len(two) and all(map(_same, one, two))
    return bool(one == two or (one != one and two != two))
