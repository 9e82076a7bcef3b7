"""Agents that break one rule each, for `test_contract.py`."""

from __future__ import annotations

import numpy as np

from sao_gym.agents.tools import Tools
from sao_gym.errors import InputError


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
