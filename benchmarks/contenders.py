"""The contenders of `engine.py`: a worker process that answers "sample these requests".

    python contenders.py CONTENDER MODEL_DIR REQUESTS.json

Each is started in a process of its own, by whichever interpreter has its library, so this file
imports nothing of ours at the top. Protocol: when warm the worker prints `{"ready": ...}`; then for
each line on its standard input (a repetition number) it samples everything once and prints
`{"seconds", "cpu_seconds", "tokens"}`. The line `sequences` makes it print what it sampled last,
for the check of the log-probs. Anything a library prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Sampled(NamedTuple):
    """One request's answer."""

    ids: list[int]
    logprobs: list[float]


Prompts = list[list[int]]
Sampler = Callable[[Prompts, int], list[Sampled]]
"""(prompts, repetition) -> answers, one a prompt, in order."""


def _model(directory: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def sao_gym(directory: str, new_tokens: int) -> Sampler:
    """`sao_gym.engines.local.LocalEngine`: everything joins at tick 0, one token a tick."""
    from sao_gym.engines.local import LocalEngine
    from sao_gym.types import Request

    engine = LocalEngine(_model(directory), seed=0)

    def sample(prompts: Prompts, repetition: int) -> list[Sampled]:
        # a rollout id is used once: its number keys the draws
        first = repetition * len(prompts)
        for index, prompt in enumerate(prompts):
            rollout = first + index
            engine.submit(
                Request(rollout=rollout, turn=1, context_ids=prompt, max_new_tokens=new_tokens)
            )
        done = {}
        while engine.active:
            for completion in engine.step():
                done[completion.rollout] = completion
                engine.release(completion.rollout)
        return [
            Sampled(list(done[first + i].action_ids), list(done[first + i].logprobs))
            for i in range(len(prompts))
        ]

    return sample


def vllm(directory: str, new_tokens: int) -> Sampler:
    """`vllm.LLM`, in process, its own continuous batching."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=directory,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=64,
        enable_prefix_caching=False,
        enforce_eager=os.environ.get("BENCHMARK_VLLM_EAGER") == "1",
        disable_log_stats=True,
        seed=0,
    )
    params = SamplingParams(
        temperature=1.0, max_tokens=new_tokens, ignore_eos=True, logprobs=0, detokenize=False
    )

    def sample(prompts: Prompts, repetition: int) -> list[Sampled]:
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        answers = []
        for result in llm.generate(inputs, params, use_tqdm=False):
            output = result.outputs[0]
            ids = list(output.token_ids)
            table = output.logprobs or []
            chosen = [step[token].logprob for step, token in zip(table, ids, strict=True)]
            answers.append(Sampled(ids, chosen))
        return answers

    return sample


def generate_each(directory: str, new_tokens: int) -> Sampler:
    """`transformers`' `model.generate`, called once per request."""
    model = _model(directory)

    def sample(prompts: Prompts, repetition: int) -> list[Sampled]:
        return [_generate(model, [prompt], new_tokens)[0] for prompt in prompts]

    return sample


def generate_batch(directory: str, new_tokens: int) -> Sampler:
    """`transformers`' `model.generate`, called once on a left-padded batch of all requests."""
    model = _model(directory)

    def sample(prompts: Prompts, repetition: int) -> list[Sampled]:
        return _generate(model, prompts, new_tokens)

    return sample


def _generate(model: Any, prompts: Prompts, new_tokens: int) -> list[Sampled]:
    import torch

    width = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
        sampled = out.sequences[:, width:]
        logprobs = torch.stack(out.logits, 1).log_softmax(-1).gather(2, sampled[..., None])
    rows = zip(sampled.tolist(), logprobs[..., 0].tolist(), strict=True)
    return [Sampled(*row) for row in rows]


CONTENDERS: dict[str, Callable[[str, int], Sampler]] = {
    "sao_gym": sao_gym,
    "vllm": vllm,
    "generate_batch": generate_batch,
    "generate_each": generate_each,
}


def main(name: str, directory: str, requests: str) -> None:
    """Serve repetitions until standard input closes."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with open(requests) as file:
        wanted = json.load(file)
    prompts, new_tokens = wanted["prompts"][name], wanted["new_tokens"]
    sample = CONTENDERS[name](directory, new_tokens)
    for repetition in range(wanted["warm_ups"]):
        last = sample(prompts, repetition)
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        if line.strip() == "sequences":
            print(json.dumps([answer._asdict() for answer in last]), file=replies)
            continue
        wall, cpu = time.perf_counter(), time.process_time()
        last = sample(prompts, wanted["warm_ups"] + int(line))
        record = {
            "seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - cpu,
            "tokens": sum(len(answer.ids) for answer in last),
        }
        print(json.dumps(record), file=replies)


if __name__ == "__main__":
    main(*sys.argv[1:])
