"""The environment contract, rule by rule (see `sao_gym.testing.check_environment`)."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Text
from gymnasium.utils.env_checker import check_env, data_equivalence

from sao_gym import rng
from sao_gym.errors import InputError
from sao_gym.protocols import ReferenceSolver, TextEnv
from sao_gym.testing.episodes import (
    Episode,
    Params,
    advance,
    begin,
    explore,
    finish,
    follow_reference,
    late,
    live,
    solver,
)
from sao_gym.testing.rules import broken, random_states, require


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is checked, and on what."""

    factory: Callable[[], TextEnv]
    concepts: tuple[Params, ...]
    seeds: tuple[int, ...]
    partial_credit: bool

    def cases(self) -> Iterator[tuple[int, Params]]:
        """Every seed, under the concepts in turn."""
        for seed in self.seeds:
            yield seed, self.concepts[seed % len(self.concepts)]


def passes_gymnasium_check_env(subject: Subject) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Made through a spec, or gymnasium's checker warns that it cannot check rendering.
        spec = EnvSpec(id="Checked-v0", entry_point=lambda **_: subject.factory())
        check_env(gym.make(spec, disable_env_checker=True).unwrapped)
    for warning in caught:
        broken("it warns: " + re.sub(r"\x1b\[[0-9;]*m", "", str(warning.message)))


def spaces_are_text(subject: Subject) -> None:
    env = subject.factory()
    for name in ("observation_space", "action_space"):
        space = getattr(env, name)
        require(isinstance(space, Text), f"{name} must be gymnasium.spaces.Text, not {space!r}")


def answers_are_well_formed(subject: Subject) -> None:
    for seed, concept in subject.cases():
        env = subject.factory()
        episode = begin(env, seed, concept)

        def look(env: TextEnv, turn: int, seed: int = seed, episode: Episode = episode) -> str:
            _check_answer(env, episode)
            return explore(seed)(env, turn)

        finish(env, episode, look)
        _check_answer(env, episode)


def same_seed_gives_the_same_episode(subject: Subject) -> None:
    used = subject.factory()
    for seed, concept in subject.cases():
        fresh = subject.factory()
        first = finish(fresh, begin(fresh, seed, concept), explore(seed))
        # Left in mid-episode, to see that nothing of it survives the next reset.
        begin(used, seed + 1, concept)
        second = finish(used, begin(used, seed, concept), explore(seed))
        for name in ("observations", "actions", "rewards", "terminated", "truncated", "infos"):
            one, two = getattr(first, name), getattr(second, name)
            require(
                data_equivalence(one, two, exact=True),
                f"seed {seed}: {name} differ between two instances: {one!r} and {two!r}",
            )


def seeds_give_different_tasks(subject: Subject) -> None:
    env = subject.factory()
    concept = subject.concepts[0]
    shown = {begin(env, seed, concept).observations[0] for seed in range(1000, 1200)}
    require(len(shown) > 1, "200 seeds give one and the same first observation")


def instances_share_no_generator(subject: Subject) -> None:
    concept = subject.concepts[0]

    def unseeded(disturb: bool) -> list[str]:
        """Prompts of one instance after its seeded reset, another one active in between or not."""
        env, other = subject.factory(), subject.factory()
        shown = [begin(env, 7, concept).observations[0]]
        for turn in range(20):
            if disturb:
                begin(other, turn, concept)
                begin(other, None, concept)
            shown.append(begin(env, None, concept).observations[0])
        return shown

    require(
        unseeded(disturb=False) == unseeded(disturb=True),
        "resetting one instance changes the tasks of another",
    )
    one, two = subject.factory(), subject.factory()
    require(one.action_space is not two.action_space, "two instances share an action space")


def global_random_state_is_untouched(subject: Subject) -> None:
    before = random_states()
    for seed, concept in subject.cases():
        env = subject.factory()
        finish(env, begin(env, seed, concept), explore(seed))
        after = random_states()
        for name, state in before.items():
            require(state == after[name], f"an episode moved the global generator of {name}")


def concept_is_applied_and_read_back(subject: Subject) -> None:
    env = subject.factory()
    full: set[str] | None = None
    for index, concept in enumerate(subject.concepts):
        given = deepcopy(dict(concept))
        _, info = env.reset(seed=index, options={"concept": given})
        require(given == concept, f"reset changed the concept it was given to {given}")
        _compare(concept, info, "reset")
        applied = deepcopy(info["concept"])
        if full is None:
            full = set(applied)
        require(
            full == set(applied),
            f'info["concept"] names {sorted(applied)} under one concept and {sorted(full)} under '
            "another; it must name all parameters, defaults too",
        )
        info["concept"].clear()
        episode = Episode(observations=[""])
        advance(env, episode, explore(index)(env, 0))
        _compare(concept, episode.infos[-1], "step")
        require(
            episode.infos[-1]["concept"] == applied,
            f"step reads back {episode.infos[-1]['concept']}, reset {applied}; changing a returned "
            "info must change nothing",
        )


def unknown_concept_parameter_is_refused(subject: Subject) -> None:
    env = subject.factory()
    try:
        env.reset(seed=0, options={"concept": {"no_such_parameter": 0}})
    except Exception:  # noqa: BLE001  any refusal will do
        return
    broken("reset accepts the concept parameter 'no_such_parameter', which can have no effect")


def reference_scores_one(subject: Subject) -> None:
    for seed, concept in subject.cases():
        env = subject.factory()
        episode = finish(env, begin(env, seed, concept), follow_reference)
        require(
            abs(episode.total - 1) < 1e-9,
            f"seed {seed}, concept {dict(concept)}: {episode.actions} scores {episode.total}, "
            "the reference solution must score 1",
        )
        require(episode.terminated, f"seed {seed}: the reference solution is truncated")


def wrong_actions_score_zero(subject: Subject) -> None:
    for seed, concept in subject.cases():
        env = subject.factory()

        def avoid(env: TextEnv, turn: int, seed: int = seed) -> str:
            right = solver(env).reference_action()
            wrong = [action for action in solver(env).valid_actions() if action != right]
            require(wrong, f"seed {seed}: valid_actions() holds nothing but the right {right!r}")
            return wrong[int(rng.uniform(seed, "wrong", turn) * len(wrong))]

        total = finish(env, begin(env, seed, concept), avoid).total
        fine = total < 1 if subject.partial_credit else total == 0
        require(fine, f"seed {seed}: wrong actions all along score {total}")


def valid_actions_hold_the_reference(subject: Subject) -> None:
    for seed, concept in subject.cases():
        env = subject.factory()
        episode = begin(env, seed, concept)

        def look(env: TextEnv, turn: int, seed: int = seed) -> str:
            knows = solver(env)
            right, valid = knows.reference_action(), tuple(knows.valid_actions())
            require(right in valid, f"seed {seed}: {right!r} is not among {valid}")
            require(len(set(valid)) == len(valid), f"seed {seed}: {valid} repeats itself")
            again = (knows.reference_action(), tuple(knows.valid_actions()))
            require(again == (right, valid), f"seed {seed}: asking twice gives two answers")
            for action in valid:
                require(action in env.action_space, f"{action!r} is not in {env.action_space}")
            return explore(seed)(env, turn)

        finish(env, episode, look)


def concept_can_change_inside_an_episode(subject: Subject) -> None:
    for index, concept in enumerate(subject.concepts):
        after = subject.concepts[(index + 1) % len(subject.concepts)]
        for seed in subject.seeds:
            env = subject.factory()
            episode = begin(env, seed, concept)
            _refuses_unknown(env)
            try:
                live(env).set_concept(deepcopy(dict(after)))
            except InputError:
                continue  # it says that the open task cannot be carried over
            if not isinstance(env.unwrapped, ReferenceSolver):
                continue
            finish(env, episode, follow_reference)
            _compare(after, episode.infos[-1], "step after set_concept")
            require(
                abs(episode.total - 1) < 1e-9,
                f"seed {seed}: after set_concept({dict(after)}) the reference solution scores "
                f"{episode.total}",
            )


def late_score_agrees_with_reward(subject: Subject) -> None:
    for seed, concept in subject.cases():
        policies = [explore(seed), explore(seed + 1)]
        if isinstance(subject.factory().unwrapped, ReferenceSolver):
            policies.insert(0, follow_reference)
        for policy in policies:
            env = subject.factory()
            episode = finish(env, begin(env, seed, concept), policy)
            scores = [late(env).score(concept) for _ in range(2)]
            require(
                all(abs(value - episode.total) < 1e-9 for value in scores),
                f"seed {seed}: rewards add up to {episode.total}, score() of the same concept "
                f"says {scores[0]}, then {scores[1]}",
            )
            for other in subject.concepts:
                expected = _replayed(subject.factory(), episode, seed, other)
                try:
                    value = late(env).score(other)
                except InputError:
                    continue  # it says that the task would have been another one
                require(math.isfinite(value), f"score({dict(other)}) is {value!r}")
                require(
                    expected is None or abs(value - expected) < 1e-9,
                    f"seed {seed}: {episode.actions} under {dict(other)} earn {expected}, "
                    f"score() says {value}",
                )


ALWAYS = (
    spaces_are_text,
    passes_gymnasium_check_env,
    answers_are_well_formed,
    same_seed_gives_the_same_episode,
    seeds_give_different_tasks,
    instances_share_no_generator,
    global_random_state_is_untouched,
    concept_is_applied_and_read_back,
    unknown_concept_parameter_is_refused,
)
IF_SOLVED = (valid_actions_hold_the_reference, reference_scores_one, wrong_actions_score_zero)
IF_LIVE = (concept_can_change_inside_an_episode,)
IF_LATE = (late_score_agrees_with_reward,)


def _check_answer(env: TextEnv, episode: Episode) -> None:
    """The last thing that the environment answered."""
    observation, info = episode.observations[-1], episode.infos[-1]
    require(
        observation in env.observation_space,
        f"observation {observation!r} is not in {env.observation_space}",
    )
    for name in ("terminated", "truncated"):
        value: object = getattr(episode, name)
        require(isinstance(value, (bool, np.bool_)), f"{name} must be a bool, not {value!r}")
    reward: object = episode.rewards[-1] if episode.rewards else 0.0
    require(
        isinstance(reward, (int, float, np.integer, np.floating)) and math.isfinite(reward),
        f"reward must be a finite number, not {reward!r}",
    )
    retry = info.get("retry", False)
    require(isinstance(retry, bool), f'info["retry"] must be a bool, not {retry!r}')
    require(not (retry and episode.ended), 'info["retry"] is True after the end')


def _replayed(env: TextEnv, episode: Episode, seed: int, concept: Params) -> float | None:
    """What the same actions earn under `concept`; None if they would have been answered otherwise.

    Only then is it clear, whatever the environment, what `score` must say.
    """
    again = begin(env, seed, concept)
    for action in episode.actions:
        if again.ended or again.observations != episode.observations[: len(again.observations)]:
            return None
        advance(env, again, action)
    return again.total if again.ended else None


def _compare(declared: Params, info: dict[str, Any], where: str) -> None:
    applied: Any = info.get("concept")
    require(isinstance(applied, dict), f'{where}: info["concept"] must be a dict, not {applied!r}')
    for name, value in declared.items():
        got = repr(applied[name]) if name in applied else "nothing"
        require(
            name in applied and applied[name] == value,
            f"{where}: concept parameter {name!r} was declared {value!r}, read back {got}",
        )


def _refuses_unknown(env: TextEnv) -> None:
    try:
        live(env).set_concept({"no_such_parameter": 0})
    except Exception:  # noqa: BLE001  any refusal will do
        return
    broken("set_concept accepts the parameter 'no_such_parameter', which can have no effect")
