"""A tiny policy, and rollouts written by hand, for the tests of learners."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sao_gym.types import Concept, Task, Terminated, Timing, Trajectory, Turn, VersionSpan

VOCABULARY = 6
RIGHT = Concept(id="right", params={"shift": 2})


def policy(seed=0):
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
        )
    )


def trajectory(rollout, prompt, actions, logprobs, rewards, *, task=None, outcome=None):
    turns = [
        Turn(
            observation_ids=(prompt,) if index == 0 else (0, 5),
            action_ids=(action,),
            logprobs=(logprob,),
            versions=(VersionSpan(0, 1),),
            reward=reward,
        )
        for index, (action, logprob, reward) in enumerate(
            zip(actions, logprobs, rewards, strict=True)
        )
    ]
    task = rollout if task is None else task
    return Trajectory(
        rollout=rollout,
        task=Task(index=task, seed=prompt),
        concept_start=RIGHT,
        concept_scored=RIGHT,
        turns=tuple(turns),
        outcome=outcome or Terminated(),
        timing=Timing(started=float(rollout), finished=float(rollout) + 1),
    )


def demonstrate(concept, task):
    right = task.seed + concept.params["shift"]
    return trajectory(0, task.seed, [right, right], [0.0, 0.0], [0.0, 1.0])
