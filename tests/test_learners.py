"""What every learner promises: selection, determinism, exact resume, and that it learns."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from learning import demonstrate, policy, trajectory
from pydantic import ValidationError

from sao_gym.protocols import LearnerSetup

CLASSES = {
    "sao": "Sao",
    "grpo": "Grpo",
    "grpo_dis": "GrpoDis",
    "running_mean": "RunningMean",
    "reinforce": "Reinforce",
    "frozen": "Frozen",
    "oracle": "Oracle",
}
GROUPED = {"grpo", "grpo_dis"}
FAST = {
    "sao": {"critic_warmup": 2, "learning_rate": 5e-3},
    "grpo": {"group_size": 4, "learning_rate": 5e-3},
    "grpo_dis": {"group_size": 4, "learning_rate": 5e-3},
    "running_mean": {"learning_rate": 5e-3},
    "reinforce": {"learning_rate": 5e-3},
    "frozen": {},
    "oracle": {"learning_rate": 5e-3},
}


def build(name, model=None, **params):
    learner = getattr(import_module(f"sao_gym.learners.{name}"), CLASSES[name])
    setup = LearnerSetup(
        model=policy() if model is None else model, seed=0, pad_id=0, demonstrate=demonstrate
    )
    return learner(setup, learner.Config(**(FAST[name] | params)))


@torch.no_grad()
def sample(model, draws, count, group_size, first=0):
    """Two-turn bandit: prompt p in 1..3, right action p + 2 in both turns, reward 1 for two."""
    prompts = torch.randint(1, 4, (count // group_size,), generator=draws)
    prompts = prompts.repeat_interleave(group_size)
    history, actions, logprobs = prompts[:, None], [], []
    for index in range(2):
        if index:
            history = torch.cat([history, torch.tensor([[0, 5]]).expand(count, 2)], dim=1)
        distribution = torch.log_softmax(model(history).logits[:, -1].float(), dim=-1)
        action = torch.multinomial(distribution.exp(), 1, generator=draws)
        actions.append(action[:, 0])
        logprobs.append(distribution.gather(1, action)[:, 0])
        history = torch.cat([history, action], dim=1)
    actions, logprobs = torch.stack(actions, 1), torch.stack(logprobs, 1)
    hits = (actions == prompts[:, None] + 2).float().mean(dim=1)
    return [
        trajectory(
            first + row,
            int(prompts[row]),
            actions[row].tolist(),
            logprobs[row].tolist(),
            [0.0, float(hits[row])],
            task=(first + row) // group_size,
        )
        for row in range(count)
    ]


def batch(name, seed=0, count=32):
    return sample(policy(), torch.Generator().manual_seed(seed), count, 4 if name in GROUPED else 1)


def mean_reward(model):
    rolls = sample(model, torch.Generator().manual_seed(999), 512, 1)
    return sum(one.reward for one in rolls) / len(rolls)


def train(learner, updates, reward=None):
    """Sample with the learner's own weights, update, repeat; returns the final mean reward."""
    model, draws = policy(), torch.Generator().manual_seed(1)
    for step in range(updates):
        rolls = sample(model, draws, 32, learner.group_size, first=step * 32)
        if reward is not None:
            rolls = [reward(one, draws) for one in rolls]
        update = learner.update(rolls)
        if update.weights is not None:
            model.load_state_dict(update.weights)
    return mean_reward(model)


def coin(one, draws):
    """The same rollout with a reward that owes nothing to its actions."""
    value = float(torch.rand(1, generator=draws) < 0.3)
    prompt, actions = one.turns[0].observation_ids[0], [t.action_ids[0] for t in one.turns]
    logprobs = [t.logprobs[0] for t in one.turns]
    return trajectory(one.rollout, prompt, actions, logprobs, [0.0, value], task=one.task.index)


def same(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"frozen"}))
def test_learns_from_reward(name):
    start = mean_reward(policy())
    assert start < 0.3
    assert train(build(name), 40) > 0.75


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"frozen", "oracle"}))
def test_does_not_learn_from_noise(name):
    assert train(build(name), 40, reward=coin) < 0.45


def test_frozen_never_moves_and_equals_learning_rate_zero():
    start = policy().state_dict()
    still = policy()
    for name in ("sao", "grpo", "grpo_dis", "running_mean", "reinforce", "oracle"):
        model = policy()
        learner = build(name, model, learning_rate=0.0, **({"kl": 0.1} if name == "sao" else {}))
        updates = [learner.update(batch(name, seed)) for seed in range(4)]
        assert all(update.weights is None for update in updates)
        assert same(start, model.state_dict())
    frozen = build("frozen", still)
    assert frozen.update(batch("frozen")).weights is None
    assert same(start, still.state_dict())


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"frozen"}))
def test_update_gives_weights_that_training_does_not_touch(name):
    learner = build(name, **({"critic_warmup": 1} if name == "sao" else {}))
    first = None
    while first is None:
        first = learner.update(batch(name, 1)).weights
    kept = copy.deepcopy(first)
    assert not any(tensor.requires_grad for tensor in first.values())
    second = learner.update(batch(name, 2)).weights
    assert same(kept, first)
    assert not same(first, second)
    policy().load_state_dict(first)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_same_batches_same_weights_same_metrics(name):
    one, two = build(name), build(name)
    for seed in range(4):
        left, right = one.update(batch(name, seed)), two.update(batch(name, seed))
        assert repr(left.metrics) == repr(right.metrics)
        assert (left.weights is None) == (right.weights is None)
        if left.weights is not None:
            assert same(left.weights, right.weights)


RESUMED = [
    *((name, {}) for name in sorted(CLASSES)),
    ("sao", {"kl": 0.1, "critic_lag": 3, "critic_lr_warmup": 9, "policy_every": 2}),
    ("sao", {"head_init": "normal", "advantages_from": "post_fit", "whiten": True}),
    ("running_mean", {"scope": "prompt", "window": 5}),
]


@pytest.mark.parametrize(("name", "params"), RESUMED)
def test_resume_continues_to_the_bit(name, params, tmp_path):
    whole = build(name, **params)
    for seed in range(3):
        whole.update(batch(name, seed, count=16))
    torch.save(whole.state_dict(), tmp_path / "learner.pt")
    saved = whole.state_dict()
    expected = [whole.update(batch(name, seed, count=16)) for seed in range(3, 7)]
    for state in (torch.load(tmp_path / "learner.pt", weights_only=True), saved):
        resumed = build(name, policy(seed=7), **params)
        resumed.load_state_dict(state)
        for seed, reference in zip(range(3, 7), expected, strict=True):
            update = resumed.update(batch(name, seed, count=16))
            assert repr(update.metrics) == repr(reference.metrics)
            assert (update.weights is None) == (reference.weights is None)
            if update.weights is not None:
                assert same(update.weights, reference.weights)


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"frozen"}))
@pytest.mark.parametrize("size", [1, 5, 12])
def test_micro_batches_change_nothing_but_rounding(name, size):
    """By plain gradient descent: AdamW would blow up the rounding of tiny gradients."""
    params = {"kl": 0.3} if name not in {"oracle"} else {}
    if name == "sao":
        params |= {"critic_warmup": 0, "head_init": "normal"}
    learners = build(name, **params), build(name, micro_batch_size=size, **params)
    for learner in learners:
        parts = [learner.policy, *([learner.critic] if name == "sao" else [])]
        for part in parts:
            part._optimizer = torch.optim.SGD(part.model.parameters(), lr=1.0)
    for seed in range(2):
        whole, cut = (learner.update(batch(name, seed, count=12)) for learner in learners)
        assert cut.metrics == pytest.approx(whole.metrics, rel=1e-4, abs=1e-5)
        torch.testing.assert_close(cut.weights, whole.weights, rtol=1e-4, atol=1e-6)
    if name == "sao":
        torch.testing.assert_close(*(dict(one.critic.model.state_dict()) for one in learners))


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_metrics_keep_their_keys_and_are_floats(name):
    """On good data, with every token rejected, and with nothing to tell rollouts apart."""
    learner = build(name)
    good = batch(name)
    far = [
        trajectory(t.rollout, 1, [2, 3], [-300.0, -300.0], [0.0, t.reward], task=t.task.index)
        for t in good
    ]
    alike = [coin(t, torch.Generator().manual_seed(0)) for t in good]
    keys = None
    for rolls in (good, good, good, far, alike, good):
        metrics = learner.update(rolls).metrics
        keys = keys or list(metrics)
        assert list(metrics) == keys
        assert all(type(value) is float for value in metrics.values())
        assert not any(math.isinf(value) for value in metrics.values())


@pytest.mark.parametrize("name", ["sao", "grpo_dis", "running_mean", "reinforce"])
def test_a_batch_that_is_rejected_whole_is_no_step(name):
    learner = build(name)
    for seed in range(4):
        learner.update(batch(name, seed))
    before = copy.deepcopy(learner.policy.state_dict())
    far = [
        trajectory(t.rollout, 1, [2, 3], [-300.0, -300.0], [0.0, t.reward], task=t.task.index)
        for t in batch(name, 5)
    ]
    update = learner.update(far)
    assert update.weights is None
    assert update.metrics["masked_fraction"] == 1.0
    assert update.metrics["policy_loss"] == 0.0
    assert same(before["model"], learner.policy.model.state_dict())
    state = learner.policy.state_dict()["optimizer"]["state"]
    for index, slots in before["optimizer"]["state"].items():
        assert same(slots, state[index])


def exactly(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"frozen"}))
@pytest.mark.parametrize("trained", [0, 3])
def test_gradients_that_are_not_finite_are_skipped_without_a_trace(name, trained):
    """Beside a learner that never met them: on the next batch both make the same update."""
    met, spared = build(name), build(name)
    for seed in range(trained):
        for learner in (met, spared):
            learner.update(batch(name, seed))
    parts = [met.policy, *([met.critic] if name == "sao" else [])]
    hooks = [
        next(part.model.parameters()).register_hook(lambda gradient: gradient * math.nan)
        for part in parts
    ]
    update = met.update(batch(name, 3))
    for hook in hooks:
        hook.remove()
    # SAO fits its critic twice, and does not move the policy on a critic that learned nothing.
    assert update.metrics["skipped_steps"] == (2.0 if name == "sao" else 1.0)
    assert update.metrics["policy_moved"] == 0.0
    assert update.weights is None
    exactly(met.policy.state_dict(), spared.policy.state_dict())
    left, right = (learner.update(batch(name, 4)) for learner in (met, spared))
    assert left.metrics["skipped_steps"] == 0.0
    if name != "running_mean":  # its baseline has rightly seen one batch more
        assert repr(left.metrics) == repr(right.metrics)
        exactly(met.state_dict(), spared.state_dict())


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"frozen", "oracle"}))
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_reward_that_is_not_finite_leaves_no_trace(name, bad):
    """The oracle does not read rewards; of a grouped learner, one group spoils the whole step."""
    met, spared = build(name), build(name)
    for seed in range(3):
        for learner in (met, spared):
            expected = learner.update(batch(name, seed)).metrics
    first, *others = batch(name, 3)
    opening, last = first.turns
    spoiled = replace(first, turns=(opening, replace(last, reward=bad)))
    update = met.update([spoiled, *others])
    assert list(update.metrics) == list(expected)
    assert update.metrics["skipped_steps"] > 0
    assert update.weights is None
    exactly(met.policy.state_dict(), spared.policy.state_dict())
    if name != "running_mean":
        exactly(met.state_dict(), spared.state_dict())
    assert met.update(batch(name, 4)).weights is not None


def waiting(tasks):
    return [trajectory(100 + n, 1, [2], [0.0], [0.0], task=task) for n, task in enumerate(tasks)]


@pytest.mark.parametrize("name", sorted(set(CLASSES) - GROUPED))
def test_single_rollout_learners_take_the_oldest_batch(name):
    learner = build(name, batch_size=3)
    assert learner.group_size == 1
    assert learner.batch_size == 3
    assert list(learner.select(waiting([5, 6]))) == []
    assert list(learner.select(waiting([5, 6, 7, 8]))) == [100, 101, 102]


@pytest.mark.parametrize("name", sorted(GROUPED))
def test_grouped_learners_take_whole_groups_that_were_complete_first(name):
    learner = build(name, group_size=2, batch_size=4)
    assert list(learner.select(waiting([1, 2, 3, 4]))) == []
    assert list(learner.select(waiting([1, 2, 1, 3]))) == []
    # Task 2 completes first, then 3, then 1: 1 waits although its first rollout is the oldest.
    assert list(learner.select(waiting([1, 2, 3, 2, 3, 1]))) == [101, 102, 103, 104]
    # A task that comes again makes a second group.
    assert list(learner.select(waiting([1, 1, 1]))) == []
    assert list(learner.select(waiting([1, 1, 1, 1]))) == [100, 101, 102, 103]


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_unknown_or_impossible_settings_are_errors(name):
    for wrong in ({"learning_rat": 1.0}, {"batch_size": 0}):
        with pytest.raises(ValidationError):
            build(name, **wrong)


@pytest.mark.parametrize("name", sorted(GROUPED))
def test_groups_must_fill_the_batch(name):
    with pytest.raises(ValidationError, match="not a multiple of group_size 8"):
        build(name, group_size=8, batch_size=20)
    with pytest.raises(ValidationError, match="group of one has no baseline"):
        build(name, group_size=1)


def test_kl_holds_the_policy_near_its_start():
    """A strong anchor and a strong reward: the anchored policy moves less, and reports it."""
    free, held = build("reinforce"), build("reinforce", kl=10.0)
    train(free, 10)
    train(held, 10)
    start = policy().state_dict()

    def distance(learner):
        end = learner.policy.model.state_dict()
        return sum(float((end[name] - start[name]).norm()) for name in start)

    assert distance(held) < 0.7 * distance(free)
    rolls = batch("reinforce", 3)
    assert math.isnan(free.update(rolls).metrics["kl_reference"])
    assert held.update(rolls).metrics["kl_reference"] > 0
    fresh = build("reinforce", kl=0.5)
    assert fresh.update(rolls).metrics["kl_reference"] == pytest.approx(0.0, abs=1e-6)
    assert fresh.relative_cost > free.relative_cost
