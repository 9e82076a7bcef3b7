"""The timeline as a run passes through it: which concept holds, which change points are due."""

from __future__ import annotations

import math

from sao_gym.clocks import RunClocks
from sao_gym.events import ConceptChanged
from sao_gym.notice import notice
from sao_gym.timeline import Timeline
from sao_gym.types import Concept, Task


class Drift:
    """Reads a `Timeline` with the run's clocks and announces each change point once."""

    def __init__(self, timeline: Timeline, clocks: RunClocks, *, seed: int) -> None:
        self._timeline, self._clocks, self._seed = timeline, clocks, seed
        self.inflight = timeline.inflight
        self._passed = 0
        self._next = timeline.boundaries[0].position

    def concept(self, task: Task) -> Concept:
        """The concept of a rollout of `task` that starts now."""
        return self._timeline.concept_at(self._now(), task.index, self._seed)

    def notice(self, concept: Concept) -> str:
        """What the agent is told before the first observation."""
        return notice(self._timeline, self._now(), concept)

    def evaluated(self) -> tuple[Concept, ...]:
        """The concepts worth evaluating now."""
        return tuple(self._timeline.evaluation_concepts(self._now()))

    def due(self) -> ConceptChanged | None:
        """The next change, if the clocks have reached it; each is given once."""
        if self._next > self._now():
            return None
        change = self._timeline.boundaries[self._passed]
        self._pass(self._passed + 1)
        return ConceptChanged(
            segment=change.segment,
            concept=change.concept,
            kind=change.kind,
            phase=change.phase,
            clocks=self._clocks.read(),
        )

    def state_dict(self) -> dict[str, int]:
        return {"passed": self._passed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._pass(state["passed"])

    def _pass(self, count: int) -> None:
        """Count the first `count` change points as announced."""
        boundaries = self._timeline.boundaries
        self._passed = count
        self._next = math.inf if count == len(boundaries) else boundaries[count].position

    def _now(self) -> float:
        return self._clocks.value(self._timeline.clock)
