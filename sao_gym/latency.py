"""How long things take in virtual time: declared distributions, drawn by inverse CDF.

The caller brings the uniform number, keyed by (purpose, rollout, turn), never by call order; so
two arms wait equally long for the same thing. All times are seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from sao_gym.validation import Section

_STANDARD_NORMAL = NormalDist()

_SMALLEST = 2.0**-54
"""Stands for u = 0, where the normal quantile is infinite: half a step of a 53-bit uniform."""


class Constant(Section):
    """Always the same."""

    kind: Literal["constant"] = "constant"
    value: float = Field(ge=0)
    """Seconds."""

    @property
    def mean(self) -> float:
        return self.value

    def draw(self, u: float) -> float:
        """`value` seconds, whatever u in [0, 1) is."""
        return self.value


class LogNormal(Section):
    """Long-tailed: the logarithm is normal."""

    kind: Literal["lognormal"] = "lognormal"
    mean: float = Field(gt=0)
    """Seconds: the mean of the distribution itself, not of the logarithm."""
    sigma: float = Field(ge=0)
    """Standard deviation of the natural logarithm; 0 is a constant, 1 a heavy tail."""

    def draw(self, u: float) -> float:
        """The u-quantile in seconds, u in [0, 1): exp(log mean - sigma^2 / 2 + sigma z(u))."""
        z = _STANDARD_NORMAL.inv_cdf(max(u, _SMALLEST))
        return self.mean * math.exp(self.sigma * (z - self.sigma / 2))


class Gamma(Section):
    """A sum of exponential stages; `shape` 1 is the exponential distribution."""

    kind: Literal["gamma"] = "gamma"
    mean: float = Field(gt=0)
    """Seconds."""
    shape: float = Field(gt=0)
    """Number of stages; the coefficient of variation is shape^(-1/2)."""

    def draw(self, u: float) -> float:
        """The u-quantile in seconds, u in [0, 1)."""
        from scipy.special import gammaincinv  # half a second to import; few scenarios need it

        return float(gammaincinv(self.shape, u)) * self.mean / self.shape


class Empirical(Section):
    """Durations as they were measured, each equally likely."""

    kind: Literal["empirical"] = "empirical"
    values: tuple[Annotated[float, Field(ge=0)], ...] = Field(min_length=1)
    """Seconds, in any order."""

    def model_post_init(self, context: object, /) -> None:
        """Keep them sorted: a quantile function rises."""
        object.__setattr__(self, "values", tuple(sorted(self.values)))

    @property
    def mean(self) -> float:
        return fmean(self.values)

    def draw(self, u: float) -> float:
        """The u-quantile in seconds, u in [0, 1)."""
        return self.values[int(u * len(self.values))]


Latency: TypeAlias = Annotated[
    Constant | LogNormal | Gamma | Empirical, Field(discriminator="kind")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeModel:
    """How long things take, in virtual seconds."""

    decode: Latency
    """One tick of the engine: one token for every active sequence."""
    environment: Latency
    """One `reset` or `step`."""
    update: Latency
    """One policy forward-backward pass over a batch."""
    publish: Latency
    """From the end of an update until the engine samples from its result."""
