"""The timeline as a run passes through it: which concept holds, which change points are due."""

from __future__ import annotations

from collections.abc import Iterator

from sao_gym.events import Clocks, ConceptChanged
from sao_gym.notice import notice
from sao_gym.timeline import Timeline
from sao_gym.types import Concept, Task


class Drift:
    """Reads a `Timeline` with the run's clocks and announces each change point once."""

    def __init__(self, timeline: Timeline, *, seed: int) -> None:
        self._timeline, self._seed = timeline, seed
        self.inflight = timeline.inflight
        self._passed = 0

    def concept(self, clocks: Clocks, task: Task) -> Concept:
        """The concept of a rollout of `task` that starts now."""
        return self._timeline.concept_at(self._read(clocks), task.index, self._seed)

    def notice(self, clocks: Clocks, concept: Concept) -> str:
        """What the agent is told before the first observation."""
        return notice(self._timeline, self._read(clocks), concept)

    def evaluated(self, clocks: Clocks) -> tuple[Concept, ...]:
        """The concepts worth evaluating now."""
        return tuple(self._timeline.evaluation_concepts(self._read(clocks)))

    def due(self, clocks: Clocks) -> Iterator[ConceptChanged]:
        """Changes that the clocks have reached since the last call, in order."""
        boundaries = self._timeline.boundaries
        while self._passed < len(boundaries):
            change = boundaries[self._passed]
            if change.position > self._read(clocks):
                return
            self._passed += 1
            yield ConceptChanged(
                segment=change.segment,
                concept=change.concept,
                kind=change.kind,
                phase=change.phase,
                clocks=clocks,
            )

    def _read(self, clocks: Clocks) -> float:
        return float(getattr(clocks, self._timeline.clock))
