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
        self._next = timeline.boundaries[0].position
        self._passed = 0

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
        boundaries = self._timeline.boundaries
        change = boundaries[self._passed]
        self._passed += 1
        last = self._passed == len(boundaries)
        self._next = math.inf if last else boundaries[self._passed].position
        return ConceptChanged(
            segment=change.segment,
            concept=change.concept,
            kind=change.kind,
            phase=change.phase,
            clocks=self._clocks.read(),
        )

    def _now(self) -> float:
        return self._clocks.value(self._timeline.clock)
