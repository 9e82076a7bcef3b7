"""The contract suites catch what they promise to: for each rule a plug-in that breaks just it."""

from __future__ import annotations

import string

import broken_agents as bad_agent
import broken_environments as bad_env
import broken_learners as bad_learner
import pytest

from sao_gym import registry
from sao_gym.agents.tools import Tools
from sao_gym.testing import ContractError, check_agent, check_environment, check_learner
from sao_gym.tokenizer import character_tokenizer

CONCEPTS = [{}, {"shift": 3}]


def test_the_good_environment_keeps_every_rule():
    rules = check_environment(bad_env.Good, concepts=CONCEPTS)
    assert len(rules) == len(set(rules)) == 14


# --- environments, each breaking one rule ------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (bad_env.DiscreteActions, "spaces are text: action_space"),
        (bad_env.WarnsCheckEnv, "check env: it warns: .*default seed"),
        (bad_env.SharesInfo, "check env: .*share an object"),
        (bad_env.OutsideItsSpace, "check env"),
        (bad_env.FourValues, "check env"),
        (bad_env.OutsideItsSpaceLater, r"well formed: observation '\?'"),
        (bad_env.IntegerFlags, "check env"),
        (bad_env.IntegerFlagsLater, "well formed: terminated must be a bool, not [01]"),
        (bad_env.NotANumber, "well formed: reward must be a finite number, not nan"),
        (bad_env.RetryAfterTheEnd, "well formed: .*after the end"),
        (bad_env.RetryIsNoBool, "well formed: .*must be a bool"),
        (bad_env.NeverEnds, "well formed: an episode has not ended"),
        (bad_env.DependsOnTheInstance, "same episode: seed 0: observations differ"),
        (bad_env.KeepsItsPast, "same episode: seed"),
        (bad_env.IgnoresTheSeed, "seeds give different tasks"),
        (bad_env.OneGeneratorForAll, "share no generator: resetting one"),
        (bad_env.OneInstanceForAll, "share no generator"),
        (
            bad_env.OneActionSpaceForAll,
            "share no generator: two instances share an action space",
        ),
        (bad_env.SeedsPythonsGenerator, "untouched: .*generator of random$"),
        (bad_env.DrawsFromNumpysGenerator, r"untouched: .*generator of numpy\.random$"),
        (bad_env.DrawsFromTorchsGenerator, "untouched: .*generator of torch$"),
        (bad_env.NamesOnlyWhatWasDeclared, "read back: .*must name all parameters"),
        (
            bad_env.IgnoresTheConcept,
            "read back: reset: .*'shift' was declared 3, read back 0",
        ),
        (bad_env.ForgetsTheConceptInStep, "read back: .*must be a dict, not None"),
        (bad_env.HandsOutItsConcept, "read back: step reads back"),
        (bad_env.ChangesWhatItWasGiven, "read back: reset changed the concept"),
        (bad_env.AcceptsAnything, "is refused: reset accepts"),
        (bad_env.WrongReference, "reference scores one: seed"),
        (bad_env.TruncatesTheReference, "reference scores one: .*is truncated"),
        (bad_env.PaysForNothing, "wrong actions score zero: .*score 0.25"),
        (bad_env.ReferenceIsNotValid, "hold the reference: .*is not among"),
        (bad_env.ValidActionsRepeat, "hold the reference: .*repeats itself"),
        (bad_env.ValidActionsOutsideTheSpace, "hold the reference: '10' is not in"),
        (bad_env.AskingChangesTheAnswer, "hold the reference: .*asking twice"),
        (
            bad_env.OnlyTheRightIsValid,
            "wrong actions score zero: .*nothing but the right",
        ),
        (bad_env.LiveConceptIsIgnored, "inside an episode: step after set_concept"),
        (
            bad_env.LiveConceptOnlySaysSo,
            "inside an episode: .*the reference solution scores 0",
        ),
        (bad_env.LiveConceptTakesAnything, "inside an episode: set_concept accepts"),
        (bad_env.ScoreIsAnotherReward, "late score agrees with reward: .*score.. says"),
        (bad_env.ScoreIgnoresTheConcept, "late score agrees with reward"),
        (bad_env.ScoreIsNoNumber, r"late score agrees with reward: score\(.*\) is nan"),
        (bad_env.ScoreWearsOff, "late score agrees with reward: .*says 1.0, then 0.0"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_broken_environment_is_caught(broken, message):
    with pytest.raises(ContractError, match=message):
        check_environment(broken, concepts=CONCEPTS)


def test_numpy_flags_and_rewards_are_fine():
    check_environment(bad_env.NumpyValues, concepts=CONCEPTS)


def test_partial_credit_is_allowed_where_it_is_declared():
    rules = check_environment(bad_env.PaysForNothing, concepts=CONCEPTS, partial_credit=True)
    assert "wrong actions score zero" in rules


def test_what_an_environment_raises_is_named():
    class Raises(bad_env.Good):
        def score(self, params):
            raise KeyError("shift")

    with pytest.raises(ContractError, match=r"late score .*: raised KeyError: 'shift'") as caught:
        check_environment(Raises, concepts=CONCEPTS)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("arguments", [{"concepts": []}, {"episodes": 0}])
def test_checking_nothing_is_refused(arguments):
    with pytest.raises(ValueError, match="at least one"):
        check_environment(bad_env.Good, **arguments)


# --- agents ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return character_tokenizer("abcABC:>!")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (bad_agent.NoLimit, "limits are declared: max_new_tokens"),
        (bad_agent.StopsAreAList, "limits are declared: stop_ids must be a frozenset"),
        (bad_agent.StopOutsideTheVocabulary, "limits are declared: stop_ids must be token ids"),
        (bad_agent.BeginGivesAList, "begin gives token ids: .*must be a tuple"),
        (bad_agent.BeginGivesNothing, "begin gives token ids: .*gives no token"),
        (bad_agent.ActGivesIds, "act gives text for any tokens"),
        (
            bad_agent.ActFailsOnControlTokens,
            r"act gives text for any tokens: act\(\(0,\)\) must be a str",
        ),
        (
            bad_agent.ActFailsOnNothing,
            r"act gives text for any tokens: act\(\(\)\) must be a str",
        ),
        (bad_agent.ActKeepsTheStop, "act drops the stop token"),
        (bad_agent.ActStripsAll, "spell is the inverse of act"),
        (bad_agent.SpellIsOpen, "spell is the inverse of act: .*ends neither"),
        (bad_agent.SpellIsTooLong, "spell is the inverse of act: .*max_new_tokens is 64"),
        (bad_agent.CountsItsCalls, "agent is pure: .*in another order"),
        (bad_agent.DrawsAtRandom, r"agent is pure: .*generator of numpy\.random"),
        (bad_agent.DropsUnknownSymbols, "unknown symbols are refused"),
        (bad_agent.ObserveGivesAList, "observe gives token ids: .*must be a tuple"),
        (bad_agent.ObserveGivesNothing, "observe gives token ids: .*gives no token"),
        (bad_agent.ObserveRepeatsTheAction, "observe does not depend on history"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_broken_agent_is_caught(broken, message, tokenizer):
    with pytest.raises(ContractError, match=message):
        check_agent(broken, tokenizer)


def test_an_agent_of_one_turn_need_not_observe(tokenizer):
    rules = check_agent(bad_agent.ObserveGivesAList, tokenizer, several_turns=False)
    assert not any("observe" in rule for rule in rules)


def test_without_texts_there_is_nothing_to_check(tokenizer):
    with pytest.raises(ValueError, match="needs texts"):
        check_agent(Tools, tokenizer, texts=[])


# --- learners ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (bad_learner.NoGroups, "sizes are declared: group_size"),
        (bad_learner.GroupsDoNotFit, "sizes are declared: batch_size 4 is no multiple"),
        (bad_learner.CostsLessThanNothing, "sizes are declared: relative_cost"),
        (bad_learner.SelectsAnAbsentOne, "select chooses .*not all waiting"),
        (bad_learner.StopsSelecting, "update gives weights .*gives nothing of"),
        (bad_learner.SelectDependsOnUpdates, "select is pure: .*after an update"),
        (bad_learner.SelectsTooMany, "select chooses from what waits"),
        (bad_learner.SelectsNewestFirst, "select chooses .*not oldest first"),
        (bad_learner.SelectsTwice, "select chooses .*not oldest first"),
        (bad_learner.SelectsTooEarly, "select chooses from what waits: select.. of 3"),
        (bad_learner.SelectConsumes, "select is pure: select.. changes the list"),
        (bad_learner.SelectRemembers, "select is pure: .*asked twice"),
        (bad_learner.RenamesWeights, "update gives weights .*not those of the policy"),
        (bad_learner.LeaksTheGraph, "update gives weights .*is not detached"),
        (bad_learner.HandsOutTensors, "update gives weights .*'loss' is tensor"),
        (bad_learner.MetricsComeAndGo, "update gives weights .*'warm_up'"),
        (bad_learner.ReturnsItsOwnWeights, "returned weights stay"),
        (bad_learner.DrawsGlobally, "updates are deterministic: .*generator of torch"),
        (bad_learner.StartsAtRandom, "updates are deterministic: two learners"),
        (
            bad_learner.DependsOnTheLearnersNumber,
            "updates are deterministic: .*in the weights of update 1",
        ),
        (
            bad_learner.ReportsItsNumber,
            "updates are deterministic: .*differ in 'number' of update 1",
        ),
        (
            bad_learner.ForgetsTheOptimizer,
            "state makes an identical learner: .*loaded from state_dict",
        ),
        (
            bad_learner.HandsOutLiveState,
            "state makes an identical learner: an update changes a state_dict",
        ),
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
        character_tokenizer(string.printable) if name == "shell" else tokenizer,
        several_turns=name != "answer",
    )
