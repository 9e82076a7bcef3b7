"""How many rollouts may start now, so that nothing is born stale."""

from __future__ import annotations


def free_slots(
    *, running: int, slots: int, admitted: int, version: int, batch_size: int, max_lag: int
) -> int:
    """Rollouts that may start now (>= 0).

    Bounded twice: by how many may act at once, and by how much data the learner can have consumed
    before the newest of it is more than `max_lag` versions behind (AReaL, arXiv 2505.24298,
    section 5.1). `admitted` counts every rollout started so far that was neither dropped nor
    failed; `version` is the published one. With `max_lag` 0 this is the synchronous learner.
    """
    return max(0, min(slots - running, (max_lag + version + 1) * batch_size - admitted))
