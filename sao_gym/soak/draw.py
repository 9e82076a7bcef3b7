"""Cases at random, the plainest choices first: that is what a case that fails is shrunk towards."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from sao_gym import rng
from sao_gym.faults import FaultKind, FaultRule
from sao_gym.latency import Constant, Empirical, Gamma, Latency, LogNormal
from sao_gym.soak.declared import Bound, Case, World

REAL_IN = 40
"""One case in so many has real parts, which take seconds."""

_FAULTS: tuple[FaultKind, ...] = get_args(FaultKind)
_CLOCKS = ("started", "completed", "consumed", "version", "tokens", "seconds")
_INFLIGHT = ("pin", "live", "abort", "reward_late")


def _latency(mean: float) -> st.SearchStrategy[Latency]:
    """All kinds, of a like mean; also none at all."""
    return st.one_of(
        st.sampled_from((mean, 0.0, 10 * mean)).map(lambda value: Constant(value=value)),
        st.sampled_from((1.0, 2.0, 0.0)).map(lambda sigma: LogNormal(mean=mean, sigma=sigma)),
        st.sampled_from((1.0, 0.5, 4.0)).map(lambda shape: Gamma(mean=mean, shape=shape)),
        st.just(Empirical(values=(mean / 2, mean, 3 * mean))),
    )


@st.composite
def _rules(draw: st.DrawFn) -> FaultRule:
    kind = draw(st.sampled_from(_FAULTS))
    rate = draw(st.sampled_from((0.1, 0.02, 0.3, 0.7, 0.0)))
    at = tuple(draw(st.lists(st.integers(0, 30), min_size=0 if rate else 1, max_size=4)))
    return FaultRule.model_validate({"kind": kind, "rate": rate, "at": at})


def _worlds(drifts: tuple[str, ...]) -> st.SearchStrategy[World]:
    return st.builds(
        World,
        drift=st.sampled_from(drifts),
        length=st.integers(1, 40),
        clock=st.sampled_from(_CLOCKS),
        observability=st.sampled_from(("hidden", "flag", "delta", "context")),
        inflight=st.sampled_from(_INFLIGHT),
    )


def _bounds(most: int) -> st.SearchStrategy[Bound]:
    """Rollouts always, so that every run ends; perhaps one more."""
    many = st.tuples(st.integers(0, most), st.integers(0, most)).map(max)
    other = st.one_of(
        st.just({}),
        st.just({}),
        st.fixed_dictionaries({"tasks": st.integers(0, most // 4)}),
        st.fixed_dictionaries({"updates": st.integers(0, most // 4)}),
        st.fixed_dictionaries({"completed": st.integers(0, most)}),
        st.fixed_dictionaries({"consumed": st.integers(0, most)}),
        st.fixed_dictionaries({"tokens": st.integers(0, 4 * most)}),
        st.fixed_dictionaries({"seconds": st.integers(0, most).map(float)}),
    )
    return st.builds(lambda n, more: Bound(rollouts=n, **more), many, other)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """One case."""
    seed = draw(st.integers(0, 999_999))
    # by the seed's hash: a rare value drawn by itself comes in some batches often, in most never
    real = rng.uniform(seed, "soak/real") < 1 / REAL_IN
    learner = draw(st.sampled_from(("sao", "grpo", "reinforce", "running_mean"))) if real else "sao"
    groups = [(1, 1), (4, 1), (2, 2), (4, 2), (6, 3), (4, 4), (3, 1)]
    if real:
        groups = [(4, 2), (4, 4)] if learner == "grpo" else [(4, 1), (2, 1)]
    batch_size, group_size = draw(st.sampled_from(groups))
    drifts = ("none", "abrupt", "gradual") + (() if real else ("incremental",))
    return Case(
        seed=seed,
        parts="real" if real else "scripted",
        learner=learner,
        slots=draw(st.integers(1, 16)),
        max_lag=draw(st.sampled_from((1, 0, 2, 3, 8))),
        batch_size=batch_size,
        group_size=group_size,
        world=draw(_worlds(drifts)),
        decode=draw(_latency(0.1)),
        environment=draw(_latency(1.0)),
        update=draw(_latency(1.0)),
        publish=draw(_latency(0.5)),
        turns=draw(st.integers(1, 4)),
        vary=draw(st.booleans()),
        fails=draw(st.sampled_from((0.0, 0.1, 0.3, 0.6))),
        tokens=draw(st.integers(1, 4)),
        context=draw(st.sampled_from((None, 8, 12))),
        reopens=draw(st.booleans()),
        evaluate_every=draw(st.sampled_from((None, 1, 3))),
        checkpoint_every=draw(st.sampled_from((1, 2, 5, None))),
        budget=draw(_bounds(60 if real else 120)),
        stop_above=draw(st.sampled_from((1.0, 1.0, 1.0, 0.5, 0.2))),
        failures_after=draw(st.sampled_from((50, 20, 1))),
        environment_timeout=draw(st.sampled_from((300.0, 5.0, 1.0))),
        retries=draw(st.sampled_from((3, 1, 0))),
        backoff=draw(st.sampled_from((1.0, 0.0, 0.1))),
        faults=tuple(draw(st.lists(_rules(), max_size=4))),
        resume_at=draw(_share()),
        interrupt_at=draw(_share()),
        recorded=draw(st.sampled_from((False, False, False, True))),
        torn=draw(_share()),
    )


def _share() -> st.SearchStrategy[float]:
    return st.integers(0, 1000).map(lambda thousandths: thousandths / 1000)
