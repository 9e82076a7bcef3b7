"""Environments that break one rule each, for `test_contract.py`."""

from __future__ import annotations

import random

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Discrete, Text

DIGITS = "0123456789"


class Good(gym.Env):
    """Say digit + shift modulo 10; two tries."""

    def __init__(self):
        self.observation_space = Text(2, charset=DIGITS + "!.")
        self.action_space = Text(1, charset=DIGITS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.adopt((options or {}).get("concept", {}))
        self.digit = self.draw()
        self.said = []
        return self.show(), self.info(False)

    def draw(self):
        return int(self.np_random.integers(10))

    def show(self):
        return str(self.digit)

    def adopt(self, params):
        if set(params) - {"shift"}:
            raise ValueError(f"unknown: {params}")
        self.concept = {"shift": 0, **params}

    def right(self, shift):
        return str((self.digit + shift) % 10)

    def step(self, action):
        right = action == self.reference_action()
        self.said.append(action)
        over = right or len(self.said) == 2
        return ("." if right else "!"), float(right), over, False, self.info(not over)

    def info(self, retry):
        return {"concept": dict(self.concept), "retry": retry}

    def reference_action(self):
        return self.right(self.concept["shift"])

    def valid_actions(self):
        return list(DIGITS)

    def set_concept(self, params):
        self.adopt(params)

    def score(self, params):
        if set(params) - {"shift"}:
            raise ValueError(f"unknown: {params}")
        return float(self.right(params.get("shift", 0)) in self.said)


class DiscreteActions(Good):
    def __init__(self):
        super().__init__()
        self.action_space = Discrete(10)


class WarnsCheckEnv(Good):
    """Gymnasium's checker warns about a default seed: every episode would be the same."""

    def reset(self, *, seed=5, options=None):
        return super().reset(seed=seed, options=options)


class SharesInfo(Good):
    def info(self, retry):
        self.shared = getattr(self, "shared", {})
        self.shared |= {"concept": dict(self.concept), "retry": retry}
        return self.shared


class OutsideItsSpace(Good):
    def step(self, action):
        _, *rest = super().step(action)
        return "???", *rest


class OutsideItsSpaceLater(Good):
    """Right at first, so that gymnasium's one step sees nothing."""

    def step(self, action):
        observation, *rest = super().step(action)
        return (observation if len(self.said) == 1 else "?"), *rest


class IntegerFlags(Good):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, int(terminated), 0, info


class IntegerFlagsLater(Good):
    """Right at first, so that gymnasium's one step sees nothing."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        flag = terminated if len(self.said) == 1 else int(terminated)
        return observation, reward, flag, truncated, info


class NumpyValues(Good):
    """Fine: gymnasium allows them."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, np.float32(reward), np.bool_(terminated), truncated, info


class FourValues(Good):
    def step(self, action):
        return super().step(action)[:4]


class NotANumber(Good):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, (reward if len(self.said) == 1 else float("nan")), *rest


class RetryAfterTheEnd(Good):
    def step(self, action):
        *rest, info = super().step(action)
        return *rest, {**info, "retry": True}


class RetryIsNoBool(Good):
    def info(self, retry):
        return {**super().info(retry), "retry": int(retry)}


class NeverEnds(Good):
    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, False, info


class DependsOnTheInstance(Good):
    count = 0

    def __init__(self):
        super().__init__()
        type(self).count += 1
        self.number = self.count

    def step(self, action):
        observation, *rest = super().step(action)
        return (observation if self.number % 2 else observation * 2), *rest


class KeepsItsPast(Good):
    """A new episode has one try left if the last was not finished."""

    def reset(self, *, seed=None, options=None):
        unfinished = getattr(self, "said", None) == []
        answer = super().reset(seed=seed, options=options)
        if unfinished and self.digit % 2:
            self.said.append("")
        return answer


class IgnoresTheSeed(Good):
    def draw(self):
        return 4


class OneGeneratorForAll(Good):
    """Each instance reseeds the one generator that they all draw from."""

    generator = None

    @property
    def _np_random(self):
        return type(self).generator

    @_np_random.setter
    def _np_random(self, value):
        type(self).generator = value


class OneInstanceForAll(Good):
    instance = None

    def __new__(cls):
        cls.instance = cls.instance or super().__new__(cls)
        return cls.instance


class OneActionSpaceForAll(Good):
    space = Text(1, charset=DIGITS)

    def __init__(self):
        super().__init__()
        self.action_space = self.space


class SeedsPythonsGenerator(Good):
    def reset(self, *, seed=None, options=None):
        random.seed(seed)  # noqa: TID251  the fault that is planted
        return super().reset(seed=seed, options=options)


class DrawsFromNumpysGenerator(Good):
    def step(self, action):
        np.random.rand()  # noqa: NPY002  the fault that is planted
        return super().step(action)


class DrawsFromTorchsGenerator(Good):
    def step(self, action):
        torch.rand(1)
        return super().step(action)


class NamesOnlyWhatWasDeclared(Good):
    def info(self, retry):
        shift = self.concept["shift"]
        return {"concept": {"shift": shift} if shift else {}, "retry": retry}


class IgnoresTheConcept(Good):
    def adopt(self, params):
        super().adopt(dict.fromkeys(params, 0))


class ForgetsTheConceptInStep(Good):
    def step(self, action):
        *rest, info = super().step(action)
        return *rest, {"retry": info["retry"]}


class HandsOutItsConcept(Good):
    """Its own dict, so that a reader can change the world. Step copies, else gymnasium sees it."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"concept": self.concept, "retry": False}

    def reference_action(self):
        return self.right(self.concept.get("shift", 0))


class ChangesWhatItWasGiven(Good):
    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=seed, options=options)
        if options and options.get("concept"):
            options["concept"].clear()
        return answer


class AcceptsAnything(Good):
    def adopt(self, params):
        self.concept = {"shift": 0, **params}


class WrongReference(Good):
    def reference_action(self):
        return self.right(self.concept["shift"] + self.digit // 9)

    def step(self, action):
        right = action == self.right(self.concept["shift"])
        self.said.append(action)
        over = right or len(self.said) == 2
        return ("." if right else "!"), float(right), over, False, self.info(not over)


class TruncatesTheReference(Good):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated and not reward, terminated and reward > 0, info


class PaysForNothing(Good):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward or 0.125, *rest

    def score(self, params):
        right = self.right(params.get("shift", 0))
        return sum(1.0 if said == right else 0.125 for said in self.said)


class ReferenceIsNotValid(Good):
    def valid_actions(self):
        return [digit for digit in DIGITS if digit != self.reference_action()]


class ValidActionsRepeat(Good):
    def valid_actions(self):
        return [*DIGITS, "0"]


class ValidActionsOutsideTheSpace(Good):
    def valid_actions(self):
        return [*DIGITS, "10"]


class AskingChangesTheAnswer(Good):
    def reset(self, *, seed=None, options=None):
        self.asked = 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.asked = 0
        return super().step(action)

    def valid_actions(self):
        self.asked += 1
        return list(DIGITS) if self.asked == 1 else list(reversed(DIGITS))


class OnlyTheRightIsValid(Good):
    def valid_actions(self):
        return [self.reference_action()]


class LiveConceptIsIgnored(Good):
    def set_concept(self, params):
        if set(params) - {"shift"}:
            raise ValueError(f"unknown: {params}")


class LiveConceptOnlySaysSo(Good):
    """Reads the new concept back, but judges by the old one."""

    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=seed, options=options)
        self.judged_by = self.concept["shift"]
        return answer

    def step(self, action):
        right = action == self.right(self.judged_by)
        self.said.append(action)
        over = right or len(self.said) == 2
        return ("." if right else "!"), float(right), over, False, self.info(not over)


class LiveConceptTakesAnything(Good):
    def set_concept(self, params):
        self.concept = {"shift": 0, **params}


class ScoreIsAnotherReward(Good):
    def score(self, params):
        return float(self.right(params.get("shift", 0)) == self.said[0])


class ScoreIgnoresTheConcept(Good):
    def score(self, params):
        return float(self.reference_action() in self.said)


class ScoreIsNoNumber(Good):
    """Of the concept that the episode ran under it is one."""

    def score(self, params):
        same = {"shift": 0, **params} == self.concept
        return super().score(params) if same else float("nan")


class ScoreWearsOff(Good):
    def score(self, params):
        value = super().score(params)
        self.said.clear()
        return value
