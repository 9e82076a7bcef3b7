"""The contract suites catch what they promise to: for each rule a plug-in that breaks just it."""

from __future__ import annotations

import random

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete, Text

from sao_gym import registry
from sao_gym.agents.tools import Tools
from sao_gym.errors import InputError
from sao_gym.learners.grpo import Grpo
from sao_gym.testing import ContractError, check_agent, check_environment, check_learner
from sao_gym.tokenizer import character_tokenizer
from sao_gym.types import Update

DIGITS = "0123456789"
CONCEPTS = [{}, {"shift": 3}]


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


def test_the_good_environment_keeps_every_rule():
    rules = check_environment(Good, concepts=CONCEPTS)
    assert len(rules) == len(set(rules)) == 14


# --- environments, each breaking one rule ------------------------------------------------------


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


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (DiscreteActions, "spaces are text: action_space"),
        (WarnsCheckEnv, "check env: it warns: .*default seed"),
        (SharesInfo, "check env: .*share an object"),
        (OutsideItsSpace, "check env"),
        (FourValues, "check env"),
        (OutsideItsSpaceLater, r"well formed: observation '\?'"),
        (IntegerFlags, "check env"),
        (IntegerFlagsLater, "well formed: terminated must be a bool, not [01]"),
        (NotANumber, "well formed: reward must be a finite number, not nan"),
        (RetryAfterTheEnd, "well formed: .*after the end"),
        (RetryIsNoBool, "well formed: .*must be a bool"),
        (NeverEnds, "well formed: an episode has not ended"),
        (DependsOnTheInstance, "same episode: seed 0: observations differ"),
        (KeepsItsPast, "same episode: seed"),
        (IgnoresTheSeed, "seeds give different tasks"),
        (OneGeneratorForAll, "share no generator: resetting one"),
        (OneInstanceForAll, "share no generator"),
        (OneActionSpaceForAll, "share no generator: two instances share an action space"),
        (SeedsPythonsGenerator, "untouched: .*generator of random$"),
        (DrawsFromNumpysGenerator, r"untouched: .*generator of numpy\.random$"),
        (DrawsFromTorchsGenerator, "untouched: .*generator of torch$"),
        (NamesOnlyWhatWasDeclared, "read back: .*must name all parameters"),
        (IgnoresTheConcept, "read back: reset: .*'shift' was declared 3, read back 0"),
        (ForgetsTheConceptInStep, "read back: .*must be a dict, not None"),
        (HandsOutItsConcept, "read back: step reads back"),
        (ChangesWhatItWasGiven, "read back: reset changed the concept"),
        (AcceptsAnything, "is refused: reset accepts"),
        (WrongReference, "reference scores one: seed"),
        (TruncatesTheReference, "reference scores one: .*is truncated"),
        (PaysForNothing, "wrong actions score zero: .*score 0.25"),
        (ReferenceIsNotValid, "hold the reference: .*is not among"),
        (ValidActionsRepeat, "hold the reference: .*repeats itself"),
        (ValidActionsOutsideTheSpace, "hold the reference: '10' is not in"),
        (AskingChangesTheAnswer, "hold the reference: .*asking twice"),
        (OnlyTheRightIsValid, "wrong actions score zero: .*nothing but the right"),
        (LiveConceptIsIgnored, "inside an episode: step after set_concept"),
        (LiveConceptOnlySaysSo, "inside an episode: .*the reference solution scores 0"),
        (LiveConceptTakesAnything, "inside an episode: set_concept accepts"),
        (ScoreIsAnotherReward, "late score agrees with reward: .*score.. says"),
        (ScoreIgnoresTheConcept, "late score agrees with reward"),
        (ScoreIsNoNumber, r"late score agrees with reward: score\(.*\) is nan"),
        (ScoreWearsOff, "late score agrees with reward: .*says 1.0, then 0.0"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_broken_environment_is_caught(broken, message):
    with pytest.raises(ContractError, match=message):
        check_environment(broken, concepts=CONCEPTS)


def test_numpy_flags_and_rewards_are_fine():
    check_environment(NumpyValues, concepts=CONCEPTS)


def test_partial_credit_is_allowed_where_it_is_declared():
    rules = check_environment(PaysForNothing, concepts=CONCEPTS, partial_credit=True)
    assert "wrong actions score zero" in rules


def test_what_an_environment_raises_is_named():
    class Raises(Good):
        def score(self, params):
            raise KeyError("shift")

    with pytest.raises(ContractError, match=r"late score .*: raised KeyError: 'shift'") as caught:
        check_environment(Raises, concepts=CONCEPTS)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("arguments", [{"concepts": []}, {"episodes": 0}])
def test_checking_nothing_is_refused(arguments):
    with pytest.raises(ValueError, match="at least one"):
        check_environment(Good, **arguments)


# --- agents ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return character_tokenizer("abcABC:>!")


class NoLimit(Tools):
    def __init__(self, tokenizer):
        super().__init__(tokenizer)
        self.max_new_tokens = 0


class StopsAreAList(Tools):
    def __init__(self, tokenizer):
        super().__init__(tokenizer)
        self.stop_ids = [1]


class StopOutsideTheVocabulary(Tools):
    def __init__(self, tokenizer):
        super().__init__(tokenizer)
        self.stop_ids = frozenset({1, 10**6})


class BeginGivesAList(Tools):
    def begin(self, observation):
        return list(super().begin(observation))


class BeginGivesNothing(Tools):
    def begin(self, observation):
        super().begin(observation)
        return ()


class ActGivesIds(Tools):
    def act(self, action_ids):
        return tuple(action_ids)


class ActFailsOnControlTokens(Tools):
    def act(self, action_ids):
        return None if 0 in action_ids else super().act(action_ids)


class ActFailsOnNothing(Tools):
    def act(self, action_ids):
        return super().act(action_ids) if action_ids else None


class ActKeepsTheStop(Tools):
    def __init__(self, tokenizer):
        super().__init__(tokenizer, max_new_tokens=1)
        self.tokenizer = tokenizer

    def act(self, action_ids):
        return self.tokenizer.decode(list(action_ids))


class ActStripsAll(Tools):
    """Letters too, not only the stop token."""

    def act(self, action_ids):
        return super().act(action_ids).strip("C")


class SpellIsOpen(Tools):
    def spell(self, action):
        return super().spell(action)[:-1]


class SpellIsTooLong(Tools):
    def spell(self, action):
        return super().spell(action) + (1,) * 64


class CountsItsCalls(Tools):
    calls = 0

    def begin(self, observation):
        self.calls += 1
        return super().begin(observation) + (2,) * (self.calls > 20)


class DrawsAtRandom(Tools):
    def act(self, action_ids):
        np.random.rand()  # noqa: NPY002  the fault that is planted
        return super().act(action_ids)


class DropsUnknownSymbols(Tools):
    def begin(self, observation):
        try:
            return super().begin(observation)
        except InputError:
            return (2,)


class ObserveGivesAList(Tools):
    def observe(self, observation):
        return list(super().observe(observation))


class ObserveGivesNothing(Tools):
    def observe(self, observation):
        return ()


class ObserveRepeatsTheAction(Tools):
    """Tokenises the last action again, as part of the history."""

    last = ""

    def act(self, action_ids):
        self.last = super().act(action_ids)
        return self.last

    def observe(self, observation):
        return super().observe(self.last + observation)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (NoLimit, "limits are declared: max_new_tokens"),
        (StopsAreAList, "limits are declared: stop_ids must be a frozenset"),
        (StopOutsideTheVocabulary, "limits are declared: stop_ids must be token ids"),
        (BeginGivesAList, "begin gives token ids: .*must be a tuple"),
        (BeginGivesNothing, "begin gives token ids: .*gives no token"),
        (ActGivesIds, "act gives text for any tokens"),
        (ActFailsOnControlTokens, r"act gives text for any tokens: act\(\(0,\)\) must be a str"),
        (ActFailsOnNothing, r"act gives text for any tokens: act\(\(\)\) must be a str"),
        (ActKeepsTheStop, "act drops the stop token"),
        (ActStripsAll, "spell is the inverse of act"),
        (SpellIsOpen, "spell is the inverse of act: .*ends neither"),
        (SpellIsTooLong, "spell is the inverse of act: .*max_new_tokens is 64"),
        (CountsItsCalls, "agent is pure: .*in another order"),
        (DrawsAtRandom, r"agent is pure: .*generator of numpy\.random"),
        (DropsUnknownSymbols, "unknown symbols are refused"),
        (ObserveGivesAList, "observe gives token ids: .*must be a tuple"),
        (ObserveGivesNothing, "observe gives token ids: .*gives no token"),
        (ObserveRepeatsTheAction, "observe does not depend on history"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_broken_agent_is_caught(broken, message, tokenizer):
    with pytest.raises(ContractError, match=message):
        check_agent(broken, tokenizer)


def test_an_agent_of_one_turn_need_not_observe(tokenizer):
    rules = check_agent(ObserveGivesAList, tokenizer, several_turns=False)
    assert not any("observe" in rule for rule in rules)


def test_without_texts_there_is_nothing_to_check(tokenizer):
    with pytest.raises(ValueError, match="needs texts"):
        check_agent(Tools, tokenizer, texts=[])


# --- learners ----------------------------------------------------------------------------------


class Learner(Grpo):
    """A real learner, small; each subclass breaks one promise."""

    def __init__(self, setup):
        super().__init__(setup, self.Config(group_size=2, batch_size=4))


class NoGroups(Learner):
    def __init__(self, setup):
        super().__init__(setup)
        self.group_size = 0


class GroupsDoNotFit(Learner):
    def __init__(self, setup):
        super().__init__(setup)
        self.group_size = 3


class CostsLessThanNothing(Learner):
    def __init__(self, setup):
        super().__init__(setup)
        self.relative_cost = -1.0


class SelectsAnAbsentOne(Learner):
    def select(self, waiting):
        chosen = super().select(waiting)
        return chosen and [*chosen[:-1], 10**6]


class StopsSelecting(Learner):
    def __init__(self, setup):
        super().__init__(setup)
        self.updates = 0

    def update(self, batch):
        self.updates += 1
        return super().update(batch)

    def select(self, waiting):
        return [] if self.updates > 1 else super().select(waiting)


class SelectDependsOnUpdates(StopsSelecting):
    """Once it has been trained it passes over the oldest rollout."""

    def select(self, waiting):
        return Learner.select(self, waiting[self.group_size * (self.updates == 1) :])


class SelectsTooMany(Learner):
    def select(self, waiting):
        return [t.rollout for t in waiting] if len(waiting) >= self.batch_size else []


class SelectsNewestFirst(Learner):
    def select(self, waiting):
        return super().select(waiting)[::-1]


class SelectsTwice(Learner):
    def select(self, waiting):
        chosen = super().select(waiting)
        return chosen[:1] + chosen[:-1]


class SelectsTooEarly(Learner):
    def select(self, waiting):
        return super().select(waiting) or [t.rollout for t in waiting]


class SelectConsumes(Learner):
    def select(self, waiting):
        chosen = super().select(waiting)
        if isinstance(waiting, list) and len(waiting) > self.batch_size:
            waiting.pop()
        return chosen


class SelectRemembers(Learner):
    """Gives each rollout once, as if it owned the queue."""

    def __init__(self, setup):
        super().__init__(setup)
        self.given = set()

    def select(self, waiting):
        chosen = super().select([t for t in waiting if t.rollout not in self.given])
        if len(waiting) == 2 * self.batch_size:
            self.given |= set(chosen)
        return chosen


class RenamesWeights(Learner):
    def update(self, batch):
        done = super().update(batch)
        weights = {f"model.{name}": t for name, t in done.weights.items()}
        return Update(weights=weights, metrics=done.metrics)


class LeaksTheGraph(Learner):
    def update(self, batch):
        done = super().update(batch)
        weights = {name: t.clone().requires_grad_() for name, t in done.weights.items()}
        return Update(weights=weights, metrics=done.metrics)


class HandsOutTensors(Learner):
    def update(self, batch):
        done = super().update(batch)
        return Update(weights=done.weights, metrics={**done.metrics, "loss": torch.tensor(1.0)})


class MetricsComeAndGo(Learner):
    calls = 0

    def update(self, batch):
        done = super().update(batch)
        self.calls += 1
        extra = {"warm_up": 1.0} if self.calls == 1 else {}
        return Update(weights=done.weights, metrics={**done.metrics, **extra})


class ReturnsItsOwnWeights(Learner):
    def __init__(self, setup):
        super().__init__(setup)
        self.model = setup.model

    def update(self, batch):
        done = super().update(batch)
        return Update(weights=self.model.state_dict(), metrics=done.metrics)


class DrawsGlobally(Learner):
    def update(self, batch):
        torch.rand(1)
        return super().update(batch)


class StartsAtRandom(Learner):
    def __init__(self, setup):
        with torch.no_grad():
            for parameter in setup.model.parameters():
                parameter += 0.01 * torch.rand_like(parameter)
        super().__init__(setup)


class DependsOnTheLearnersNumber(Learner):
    made = 0

    def __init__(self, setup):
        super().__init__(setup)
        type(self).made += 1
        self.number = self.made

    def update(self, batch):
        done = super().update(batch)
        weights = {name: t + 1e-3 * self.number for name, t in done.weights.items()}
        return Update(weights=weights, metrics=done.metrics)


class ReportsItsNumber(DependsOnTheLearnersNumber):
    def update(self, batch):
        done = Learner.update(self, batch)
        return Update(weights=done.weights, metrics={**done.metrics, "number": self.number})


class ForgetsTheOptimizer(Learner):
    def load_state_dict(self, state):
        fresh = self.state_dict()
        super().load_state_dict(state)
        kept = {k: v for k, v in state["policy"].items() if "optim" not in k}
        super().load_state_dict({"policy": {**fresh["policy"], **kept}})


class HandsOutLiveState(Learner):
    """The optimizer's own tensors, which the next update moves."""

    def __init__(self, setup):
        super().__init__(setup)
        self.model = setup.model

    def state_dict(self):
        return {**super().state_dict(), "live": self.model.state_dict()}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (NoGroups, "sizes are declared: group_size"),
        (GroupsDoNotFit, "sizes are declared: batch_size 4 is no multiple"),
        (CostsLessThanNothing, "sizes are declared: relative_cost"),
        (SelectsAnAbsentOne, "select chooses .*not all waiting"),
        (StopsSelecting, "update gives weights .*gives nothing of"),
        (SelectDependsOnUpdates, "select is pure: .*after an update"),
        (SelectsTooMany, "select chooses from what waits"),
        (SelectsNewestFirst, "select chooses .*not oldest first"),
        (SelectsTwice, "select chooses .*not oldest first"),
        (SelectsTooEarly, "select chooses from what waits: select.. of 3"),
        (SelectConsumes, "select is pure: select.. changes the list"),
        (SelectRemembers, "select is pure: .*asked twice"),
        (RenamesWeights, "update gives weights .*not those of the policy"),
        (LeaksTheGraph, "update gives weights .*is not detached"),
        (HandsOutTensors, "update gives weights .*'loss' is tensor"),
        (MetricsComeAndGo, "update gives weights .*'warm_up'"),
        (ReturnsItsOwnWeights, "returned weights stay"),
        (DrawsGlobally, "updates are deterministic: .*generator of torch"),
        (StartsAtRandom, "updates are deterministic: two learners"),
        (DependsOnTheLearnersNumber, "updates are deterministic: .*in the weights of update 1"),
        (ReportsItsNumber, "updates are deterministic: .*differ in 'number' of update 1"),
        (ForgetsTheOptimizer, "state makes an identical learner: .*loaded from state_dict"),
        (HandsOutLiveState, "state makes an identical learner: an update changes a state_dict"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_broken_learner_is_caught(broken, message):
    with pytest.raises(ContractError, match=message):
        check_learner(broken)


@pytest.mark.parametrize("name", sorted(registry.available("learners")))
def test_every_registered_learner_keeps_the_contract(name):
    plugin = registry.load("learners", name)
    config = registry.params_model(plugin)
    wanted = {"batch_size": 4, "group_size": 2, "critic_warmup": 1}
    params = {key: value for key, value in wanted.items() if key in config.model_fields}
    check_learner(lambda setup: registry.construct(plugin, setup, params=params))


@pytest.mark.parametrize("name", sorted(registry.available("envs")))
def test_every_registered_environment_keeps_the_contract(name):
    plugin = registry.load("envs", name)
    check_environment(lambda: registry.construct(plugin, params={}))


@pytest.mark.parametrize("name", sorted(registry.available("agents")))
def test_every_registered_agent_keeps_the_contract(name, tokenizer):
    plugin = registry.load("agents", name)
    check_agent(
        lambda t: registry.construct(plugin, t, params={}),
        tokenizer,
        several_turns=name != "answer",
    )
