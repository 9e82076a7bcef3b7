"""One call to an environment on a thread of its own, with the faults that are declared for it."""

from __future__ import annotations

import threading
import time

from sao_gym.boundary import Step
from sao_gym.executors.supervision import WORKER_LOST, make_call
from sao_gym.faults import FaultRule
from sao_gym.protocols import EnvironmentCall
from sao_gym.types import Failed

SHORTEST = 0.01
"""Seconds that anything takes at least when a fault makes it `factor` times as long."""


def suffer(
    call: EnvironmentCall, rule: FaultRule | None, closing: threading.Event
) -> Step | Failed:
    """Make the call as the fault `rule` has it; hangs and delays end when `closing` is set.

    Raises SystemExit to end the thread that it runs on (the fault `worker_lost`).
    """
    match None if rule is None else rule.kind:
        case "worker_lost":
            raise SystemExit("a declared fault")
        case "environment_hangs":
            closing.wait()
            return WORKER_LOST  # nobody hears this; the call has timed out
    began = time.monotonic()
    answer = make_call(call, None if rule is None else rule.kind)
    if rule is not None and rule.kind == "environment_slow":
        seconds = time.monotonic() - began
        closing.wait(max(seconds, SHORTEST) * rule.times - seconds)
    return answer
