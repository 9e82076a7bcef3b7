"""From a scenario to the parts of a run: the one place that knows all of them.

    scenario -> environment, agent, policy (warm-started) -> engine, evaluator
                                  |
                                  +-> learner, here or in a process beside this one

Plug-ins come in by name through the registry. Heavy imports happen inside functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from sao_gym import registry, warmstart
from sao_gym.demonstration import demonstrate
from sao_gym.errors import RunError
from sao_gym.events import Event
from sao_gym.executors.trainers import InlineTrainer, ProcessTrainer, arrays
from sao_gym.faults import Faults, Patience
from sao_gym.guards import Guards
from sao_gym.limits import Limits
from sao_gym.protocols import (
    Evaluator,
    Executor,
    Learner,
    LearnerSetup,
    SelfTesting,
    Trainer,
)
from sao_gym.scenario import Scenario
from sao_gym.timeline import Timeline
from sao_gym.types import Weights
from sao_gym.world import World, make_world

Report = Callable[[str, float], None]
"""Told what is being prepared, and how much of it is done (0 to 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that is ready to begin."""

    world: World
    learner: Learner
    executor: Executor
    limits: Limits
    scenario: Scenario

    def events(self, resume: bytes | None = None) -> Iterator[tuple[float, Event]]:
        """Run it, from the beginning or on from a checkpoint's state: see `sao_gym.loop.run`."""
        from sao_gym.loop import run

        return run(
            seed=self.scenario.seed,
            timeline=self.world.timeline,
            make_environment=self.world.make_environment,
            agent=self.world.agent,
            learner=self.learner,
            executor=self.executor,
            limits=self.limits,
            evaluate_every=self.scenario.evaluation.every,
            checkpoint_every=self.scenario.checkpoint.every,
            guards=Guards(self.scenario.guards),
            resume=resume,
        )


def prepare_process() -> None:
    """Set torch up for small models on few cores, and import what learning needs."""
    import torch
    import transformers  # noqa: F401  (slow: done while the parent prepares the rest)
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: F401

    # two threads under contention cost up to ten times one; denormals cost as much
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


@contextmanager
def _process_settings() -> Iterator[None]:
    """`prepare_process`, taken back at the end: they hold for the whole process."""
    import torch

    threads = torch.get_num_threads()
    flushed = float(torch.tensor(1e-40) * 1.0) == 0.0
    prepare_process()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)


def warm_start(world: World, scenario: Scenario, report: Report) -> None:
    """Load the warm-started weights into the world's policy: from the cache, or by training."""
    from sao_gym.policy import weights_hash

    settings = scenario.warm_start
    if settings is None:
        return
    demonstrations = warmstart.Demonstrations(
        world.make_environment,
        world.agent,
        world.timeline.concepts[0],
        seed=scenario.seed,
        noise=settings.noise,
        noise_after_error=settings.noise_after_error,
    )
    model = world.policy.model
    key = warmstart.content_key(
        weights_hash(model.state_dict()), settings.model_dump(), demonstrations
    )
    weights = warmstart.cached(key)
    if weights is None:
        imitation = registry.load("learners", "imitation")
        learner = registry.construct(
            imitation,
            _setup(world, scenario),
            params={"learning_rate": settings.learning_rate, "batch_size": settings.batch_size},
        )
        steps, size = settings.steps, settings.batch_size
        for step, trained in warmstart.imitate(
            learner, demonstrations, steps=steps, batch_size=size
        ):
            report("warm start", step / steps)
            weights = trained if trained is not None else weights
        if weights is None:
            raise RunError(
                "the warm start moved nothing: its gradients were not finite or its "
                "learning_rate is 0; lower or raise warm_start.learning_rate"
            )
        warmstart.keep(key, weights)
    model.load_state_dict(weights)


def _setup(world: World, scenario: Scenario) -> LearnerSetup:
    import copy

    return LearnerSetup(
        model=copy.deepcopy(world.policy.model),
        seed=scenario.seed,
        pad_id=world.policy.pad_id,
        demonstrate=partial(demonstrate, world.make_environment(), world.agent),
    )


def make_learner(world: World, scenario: Scenario) -> Learner:
    """The scenario's learner over a copy of the world's policy."""
    plugin = registry.load("learners", scenario.learner.name)
    learner: Learner = registry.construct(
        plugin, _setup(world, scenario), params=scenario.learner.params
    )
    return learner


def learner_beside(scenario: Scenario, weights: dict[str, Any]) -> Learner:
    """The same learner, built from scratch in another process."""
    import torch

    world = make_world(scenario)
    world.policy.model.load_state_dict({n: torch.from_numpy(a) for n, a in weights.items()})
    return make_learner(world, scenario)


def learner_process() -> ProcessTrainer:
    """A process for the learner. It imports what it needs while this one does the same."""
    return ProcessTrainer(prepare_process)


@contextmanager
def assemble(
    scenario: Scenario,
    *,
    live: bool = False,
    beside: bool | ProcessTrainer = False,
    warm: bool = True,
    report: Report = lambda *_: None,
) -> Iterator[Run]:
    """Prepare a run; close what it holds at the end of the block.

    Args:
        scenario: what to run.
        live: on the wall clock instead of in virtual time.
        beside: compute updates in a process of their own (perhaps one that `learner_process` has
            started already). The log of a virtual run is the same.
        warm: warm-start the policy; not needed for a run that goes on from a checkpoint.
        report: told what is being prepared.
    """
    process = (learner_process() if beside else None) if isinstance(beside, bool) else beside
    executor: Executor | None = None
    report("loading the model", 0.0)
    settings = ExitStack()
    try:
        settings.enter_context(_process_settings())
        world = make_world(scenario)
        if warm:
            warm_start(world, scenario, report)
        report("building the learner", 0.0)
        learner = make_learner(world, scenario)
        trainer: Trainer
        if process is None:
            trainer = InlineTrainer(learner)
        else:
            process.build(learner_beside, scenario, arrays(world.policy.model.state_dict()))
            trainer = process
        executor = _make_executor(world, scenario, learner, trainer, live=live)
        yield Run(
            world=world,
            learner=learner,
            executor=executor,
            limits=_limits(scenario, world),
            scenario=scenario,
        )
    finally:
        if executor is not None:
            executor.close()
        elif process is not None:
            process.close()
        settings.close()


def _make_executor(
    world: World, scenario: Scenario, learner: Learner, trainer: Trainer, *, live: bool
) -> Executor:
    from sao_gym.engines.local import LocalEngine
    from sao_gym.executors.live import LiveExecutor
    from sao_gym.executors.virtual import VirtualExecutor
    from sao_gym.latency import TimeModel
    from sao_gym.selftest import on_policy_rollouts

    model, seed = world.policy.model, scenario.seed
    weights: Weights = {n: t.clone() for n, t in model.state_dict().items()}
    engine = LocalEngine(model, seed=seed, kv=scenario.cluster.kv)
    if isinstance(learner, SelfTesting):
        prompts = [world.agent.begin(obs) for obs in _first_observations(world, 8)]
        longest, concept = world.agent.max_new_tokens, world.timeline.concepts[0]
        rollouts = on_policy_rollouts(engine, prompts, concept, max_new_tokens=longest)
        learner.self_test(rollouts)
    evaluator = _make_evaluator(world, scenario)
    faults, patience = make_faults(scenario), _patience(scenario)
    if live:
        return LiveExecutor(
            engine=engine,
            trainer=trainer,
            evaluator=evaluator,
            workers=min(32, scenario.cluster.slots),
            weights=weights,
            faults=faults,
            patience=patience,
        )
    time = scenario.time
    return VirtualExecutor(
        engine=engine,
        trainer=trainer,
        evaluator=evaluator,
        time=TimeModel(
            decode=time.decode,
            environment=time.environment,
            update=time.update,
            publish=time.publish,
        ),
        seed=seed,
        update_cost=learner.relative_cost,
        weights=weights,
        faults=faults,
        patience=patience,
    )


def make_faults(scenario: Scenario) -> Faults:
    """The faults that the scenario declares, under its seed."""
    return Faults(scenario.faults, seed=scenario.seed)


def _patience(scenario: Scenario) -> Patience:
    given = scenario.failures
    return Patience(
        environment=given.environment_timeout,
        watchdog=given.watchdog,
        retries=given.retries,
        backoff=given.backoff,
    )


def _make_evaluator(world: World, scenario: Scenario) -> Evaluator | None:
    from sao_gym.engines.local import LocalEngine
    from sao_gym.evaluation import EpisodeEvaluator

    if scenario.evaluation.every is None:
        return None
    return EpisodeEvaluator(
        make_environment=world.make_environment,
        agent=world.agent,
        engine=LocalEngine(world.policy.model, seed=scenario.seed, purpose="evaluate"),
        instances=scenario.evaluation.instances,
        seed=scenario.seed,
        context=world.policy.context_length,
    )


def _first_observations(world: World, count: int) -> list[str]:
    env = world.make_environment()
    params = dict(world.timeline.concepts[0].params)
    return [env.reset(seed=seed, options={"concept": params})[0] for seed in range(count)]


def _limits(scenario: Scenario, world: World) -> Limits:
    cluster = scenario.cluster
    return Limits(
        slots=cluster.slots,
        max_lag=cluster.max_lag,
        context=world.policy.context_length,
        stop_above=scenario.failures.stop_above,
        failures_after=scenario.failures.after,
        **budget(scenario),
    )


def budget(scenario: Scenario) -> dict[str, Any]:
    """What ends the run: the declared budgets, or where the timeline ends on its clock."""
    declared = {name: limit for name, limit in scenario.budget if limit is not None}
    timeline = Timeline(scenario.timeline)
    if declared or timeline.length is None:
        return declared
    if timeline.clock == "seconds":
        return {"seconds": timeline.length}
    name = {"started": "rollouts", "version": "updates"}.get(timeline.clock, timeline.clock)
    return {name: math.ceil(timeline.length)}
