"""Latencies: the declared mean is the real one, quantiles are right, and 0 is safe."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy import integrate, stats

from sao_gym.latency import Constant, Empirical, Gamma, Latency, LogNormal

means = st.floats(0.01, 100.0)
sigmas = st.floats(0.0, 1.5)
shapes = st.floats(0.2, 20.0)
uniforms = st.floats(0.0, 1.0, exclude_max=True)
latencies = st.one_of(
    st.builds(Constant, value=st.floats(0, 100)),
    st.builds(LogNormal, mean=means, sigma=sigmas),
    st.builds(Gamma, mean=means, shape=shapes),
    st.builds(Empirical, values=st.lists(st.floats(0, 100), min_size=1, max_size=9)),
)


def integrated_mean(latency) -> float:
    """The mean of the draws, by quadrature over a normal variable that resolves both tails."""
    mean, _ = integrate.quad(
        lambda z: latency.draw(stats.norm.cdf(z)) * stats.norm.pdf(z), -8, 8, limit=400
    )
    return mean


@pytest.mark.parametrize("sigma", [0.0, 0.3, 1.0, 1.5])
def test_lognormal_has_the_declared_mean(sigma):
    latency = LogNormal(mean=2.5, sigma=sigma)
    assert integrated_mean(latency) == pytest.approx(2.5, rel=1e-4)


@pytest.mark.parametrize("shape", [0.5, 1.0, 4.0])
def test_gamma_has_the_declared_mean(shape):
    latency = Gamma(mean=3.0, shape=shape)
    assert integrated_mean(latency) == pytest.approx(3.0, rel=1e-4)


@given(mean=means, sigma=st.floats(0.01, 1.5), u=st.floats(1e-9, 1 - 1e-9))
def test_lognormal_quantiles_are_scipys(mean, sigma, u):
    reference = stats.lognorm(s=sigma, scale=mean * math.exp(-(sigma**2) / 2))
    assert LogNormal(mean=mean, sigma=sigma).draw(u) == pytest.approx(reference.ppf(u), rel=1e-6)


@given(mean=means, shape=shapes, u=st.floats(1e-6, 1 - 1e-9))
def test_gamma_quantiles_are_scipys(mean, shape, u):
    reference = stats.gamma(a=shape, scale=mean / shape)
    assert Gamma(mean=mean, shape=shape).draw(u) == pytest.approx(reference.ppf(u), rel=1e-6)


def test_an_exponential_by_hand():
    assert Gamma(mean=2.0, shape=1.0).draw(0.5) == pytest.approx(2.0 * math.log(2.0))


def test_a_lognormal_median_by_hand():
    assert LogNormal(mean=1.0, sigma=1.0).draw(0.5) == pytest.approx(math.exp(-0.5))


def test_constant_ignores_the_draw():
    latency = Constant(value=0.05)
    assert [latency.draw(u) for u in (0.0, 0.5, 0.999)] == [0.05] * 3
    assert latency.mean == 0.05


def test_empirical_gives_each_value_its_share_in_rising_order():
    latency = Empirical(values=(3.0, 1.0, 2.0, 10.0))
    assert [latency.draw(u) for u in (0.0, 0.24, 0.25, 0.5, 0.75, 0.999)] == [1, 1, 2, 3, 10, 10]
    assert latency.mean == 4.0


@given(latency=latencies)
def test_draws_are_finite_and_not_negative_at_both_ends(latency):
    for u in (0.0, 2.0**-53, 1.0 - 2.0**-53):
        assert 0.0 <= latency.draw(u) < math.inf


@given(latency=latencies, u=uniforms, v=uniforms)
def test_draws_rise_with_u(latency, u, v):
    low, high = latency.draw(min(u, v)), latency.draw(max(u, v))
    assert low <= high * (1 + 1e-12)


@given(latency=latencies)
def test_the_kind_tells_them_apart(latency):
    adapter = TypeAdapter(Latency)
    assert adapter.validate_json(adapter.dump_json(latency)) == latency


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "constant", "value": -1},
        {"kind": "lognormal", "mean": 0, "sigma": 1},
        {"kind": "lognormal", "mean": 1, "sigma": -1},
        {"kind": "lognormal", "mean": math.inf, "sigma": 1},
        {"kind": "gamma", "mean": 1, "shape": 0},
        {"kind": "gamma", "mean": 1, "sigma": 1},
        {"kind": "empirical", "values": []},
        {"kind": "empirical", "values": [1, math.nan]},
        {"kind": "uniform"},
        {"value": 1},
    ],
)
def test_what_makes_no_sense_is_refused(data):
    with pytest.raises(ValidationError):
        TypeAdapter(Latency).validate_python(data)
