"""State as bytes: everything comes back as it was, and nothing but data is ever loaded."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sao_gym.events import EnvironmentStepped, RolloutStarted
from sao_gym.plain import dumps, loads
from sao_gym.types import Concept, Task, Terminated, Timing, Trajectory, Turn, VersionSpan

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers()), inner),
        st.builds(VersionSpan, inner, inner),
        st.builds(lambda p: Concept(id="~A", params={"x": p}), inner),
    ),
    max_leaves=20,
)


@given(values)
def test_whatever_is_plain_comes_back_with_its_types(value):
    again = loads(dumps(value))
    assert again == value
    assert repr(again) == repr(value)  # 1 is not True, -0.0 is not 0.0, a tuple is not a list


def test_records_come_back_with_what_they_derive():
    concept = Concept(id="A", params={"mapping": "ABC"})
    turn = Turn(
        observation_ids=(1,),
        action_ids=(2, 3),
        logprobs=(-0.1, float("-inf")),
        versions=(VersionSpan(4, 2),),
        reward=1.0,
    )
    trajectory = Trajectory(
        rollout=7,
        task=Task(index=7, seed=9),
        concept_start=concept,
        concept_scored=concept,
        turns=(turn, turn),
        outcome=Terminated(),
        timing=Timing(started=0.1, finished=0.2),
    )
    started = RolloutStarted(rollout=7, task=trajectory.task, concept=concept, version=0)
    assert loads(dumps([trajectory, started])) == [trajectory, started]
    assert loads(dumps(trajectory)).action_tokens == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_come_back_bit_for_bit(dtype, shape):
    tensor = (torch.arange(6.0).sub(2.5).reshape(2, 3)).to(dtype)
    tensor = tensor.expand(2, 3) if shape == (2, 3) else torch.zeros(shape, dtype=dtype)
    again = loads(dumps({"w": tensor.t() if tensor.dim() == 2 else tensor}))["w"]
    expected = tensor.t() if tensor.dim() == 2 else tensor
    assert again.dtype == dtype
    assert again.shape == expected.shape
    assert torch.equal(again, expected)


def test_not_a_number_and_signed_zero_stay():
    again = loads(dumps([float("nan"), -0.0]))
    assert str(again) == "[nan, -0.0]"


@pytest.mark.parametrize("value", [object(), {1, object()}, lambda: 0, [torch.nn.Linear(1, 1)]])
def test_what_is_not_plain_is_refused_when_it_is_saved(value):
    with pytest.raises(TypeError, match="not plain data"):
        dumps(value)


class Evil:
    def __reduce__(self):
        return os.system, ("echo evil",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Evil()),
        pickle.dumps(EnvironmentStepped),
        pickle.dumps(("~Trajectory", 1)),
        pickle.dumps(("~Unheard", 1)),
        b"",
        b"nonsense",
        dumps([1, 2, 3])[:-2],
    ],
)
def test_what_is_not_ours_is_not_loaded(data):
    with pytest.raises(ValueError, match="not plain data|zip"):
        loads(data)
