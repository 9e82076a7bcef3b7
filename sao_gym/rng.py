"""Counter-based randomness: a draw is a pure function of (seed, purpose, entity, index).

No generator is ever advanced, so a draw never depends on what else was drawn before it, on which
thread asked, or on whether evaluation is on. BLAKE2b is the pseudo-random function: one keyed draw
costs under a microsecond, ten times less than seeding a numpy generator.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

_UNIT = 2.0**-53


def _digest(seed: int, purpose: str, key: tuple[int | str, ...], size: int) -> bytes:
    text = f"{seed}/{purpose}/{'/'.join(map(str, key))}"
    return blake2b(text.encode(), digest_size=size).digest()


def uniform(seed: int, purpose: str, *key: int | str) -> float:
    """One draw from [0, 1), with 53 random bits."""
    return (int.from_bytes(_digest(seed, purpose, key, 8), "little") >> 11) * _UNIT


def integer(seed: int, purpose: str, *key: int | str, bits: int = 31) -> int:
    """One draw from [0, 2**bits): a seed for somebody else's generator."""
    return int.from_bytes(_digest(seed, purpose, key, 8), "little") >> (64 - bits)


def generator(seed: int, purpose: str, *key: int | str) -> np.random.Generator:
    """A numpy generator of its own, for many draws about one entity (about 10 us to make)."""
    return np.random.Generator(
        np.random.Philox(key=int.from_bytes(_digest(seed, purpose, key, 16), "little"))
    )
