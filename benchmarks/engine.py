"""Tokens per second of the local engine beside other ways to sample on one CPU thread.

    python benchmarks/engine.py [--vllm-python PATH] [--repetitions N] [--json]

A tiny random Llama (hidden 128, 4 layers, 4 heads, vocabulary 64: about a million parameters) is
saved once; every contender loads that directory in a process of its own, with one thread, and
warms up. Then the contenders take turns on an otherwise idle machine, repetition by repetition, in
an order that rotates, so that a slow phase of the machine hits all of them. Each samples 64 tokens
for each of 64 requests (prompts of 8 to 16 tokens) at temperature 1 and returns the log-prob of
every token. Every token's log-prob is compared with the model's own float32 log-softmax: a
contender that samples from another distribution is an error, not a fast contender.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import IO, Any, cast

import numpy as np

HERE = Path(__file__).resolve().parent
REQUESTS, NEW_TOKENS, VOCABULARY, WARM_UPS = 64, 64, 64, 2
EACH_REQUESTS = 8
"""Requests of `generate_each`: its speed does not depend on how many wait."""
LOGPROB_TOLERANCE = 1e-3
QUIET = 0.97
"""CPU seconds per second that a contender with a core of its own has at least."""
LABELS = {
    "sao_gym": "sao-gym local engine",
    "vllm": "vLLM, CPU back end",
    "generate_batch": "generate, one batch",
    "generate_each": "generate, one by one",
}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


class Worker:
    """One contender's process."""

    def __init__(self, name: str, python: str, model: Path, requests: Path, log: Path) -> None:
        self.name, self._log = name, log
        command = [python, str(HERE / "contenders.py"), name, str(model), str(requests)]
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | ENVIRONMENT,
                cwd=model.parent,
            )
        self._read()

    def ask(self, line: str) -> Any:
        """One command, one JSON answer."""
        print(line, file=cast(IO[str], self._process.stdin), flush=True)
        return self._read()

    def _read(self) -> Any:
        line = cast(IO[str], self._process.stdout).readline()
        if not line:
            tail = "\n".join(self._log.read_text().splitlines()[-20:])
            raise SystemExit(f"{self.name}: the worker died\n{tail}")
        return json.loads(line)

    def close(self) -> None:
        """Let it end by closing its input; end it if it does not."""
        cast(IO[str], self._process.stdin).close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def save_model(directory: Path) -> Any:
    """Write the tiny random model; returns it, for the check of the log-probs."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
    model.save_pretrained(directory)
    return model


def make_prompts() -> list[list[int]]:
    """Random prompts of 8 to 16 tokens."""
    draw = np.random.default_rng(0)
    return [draw.integers(0, VOCABULARY, draw.integers(8, 17)).tolist() for _ in range(REQUESTS)]


def logprob_error(model: Any, prompts: list[list[int]], answers: list[dict[str, Any]]) -> float:
    """Largest |reported log-prob - the model's own|, over every sampled token."""
    import torch

    worst = 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = answer["ids"]
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
        worst = max(worst, float((own - torch.tensor(answer["logprobs"])).abs().max()))
    return worst


def measure(pythons: dict[str, str], repetitions: int, folder: Path) -> dict[str, Any]:
    """Start every contender, let them take turns, check what they sampled."""
    model = save_model(folder / "model")
    prompts = make_prompts()
    by_name = {n: prompts[:EACH_REQUESTS] if n == "generate_each" else prompts for n in pythons}
    requests = folder / "requests.json"
    requests.write_text(
        json.dumps({"prompts": by_name, "new_tokens": NEW_TOKENS, "warm_ups": WARM_UPS})
    )
    workers: list[Worker] = []
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
    errors: dict[str, float] = {}
    try:
        for name, python in pythons.items():
            progress(f"starting {name}")
            workers.append(Worker(name, python, folder / "model", requests, folder / f"{name}.log"))
        for repetition in range(repetitions):
            turn = repetition % len(workers)
            for worker in workers[turn:] + workers[:turn]:
                progress(f"repetition {repetition + 1}/{repetitions}: {worker.name}")
                record = worker.ask(str(repetition))
                expected = len(by_name[worker.name]) * NEW_TOKENS
                if record["tokens"] != expected:
                    raise SystemExit(f"{worker.name}: {record['tokens']} tokens, not {expected}")
                runs[worker.name].append(record)
        for worker in workers:
            answers = worker.ask("sequences")
            errors[worker.name] = logprob_error(model, by_name[worker.name], answers)
    finally:
        for worker in workers:
            worker.close()
        progress("")
    return {name: summary(runs[name], errors[name]) for name in pythons}


def summary(runs: list[dict[str, float]], error: float) -> dict[str, Any]:
    """Medians of one contender."""
    speeds = [run["tokens"] / run["seconds"] for run in runs]
    return {
        "tokens_per_second": median(speeds),
        "slowest": min(speeds),
        "fastest": max(speeds),
        "cpu_per_wall": median(run["cpu_seconds"] / run["seconds"] for run in runs),
        "logprob_error": error,
        "repetitions": len(runs),
    }


def progress(text: str) -> None:
    """One line on a terminal, rewritten in place."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def show(results: dict[str, Any]) -> None:
    """The table."""
    from rich.console import Console
    from rich.table import Table

    ours = results["sao_gym"]["tokens_per_second"]
    repetitions = results["sao_gym"]["repetitions"]
    table = Table(
        title=f"{REQUESTS} requests x {NEW_TOKENS} tokens, one thread, median of {repetitions}",
        caption="range: slowest and fastest; cpu: CPU seconds per second; "
        "error: largest difference of a log-prob from the model's own",
    )
    for column in ("", "tokens/s", "range", "ours is", "cpu", "error"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, row in results.items():
        table.add_row(
            LABELS[name],
            f"{row['tokens_per_second']:,.0f}",
            f"{row['slowest']:,.0f}-{row['fastest']:,.0f}",
            f"{ours / row['tokens_per_second']:.2f} x",
            f"{row['cpu_per_wall']:.2f}",
            f"{row['logprob_error']:.0e}",
        )
    Console().print(table)


def main() -> None:
    """Parse, measure, show."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--vllm-python", help="interpreter of an environment that has vLLM")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    pythons = dict.fromkeys(LABELS, sys.executable)
    if options.vllm_python:
        pythons["vllm"] = options.vllm_python
    else:
        del pythons["vllm"]
    with tempfile.TemporaryDirectory(prefix="sao-gym-benchmark-") as folder:
        results = measure(pythons, options.repetitions, Path(folder))
    if min(row["cpu_per_wall"] for row in results.values()) < QUIET:
        print("the machine was busy: contenders waited for a core; rerun", file=sys.stderr)
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        show(results)
    wrong = [name for name, row in results.items() if row["logprob_error"] > LOGPROB_TOLERANCE]
    if wrong:
        raise SystemExit(f"log-probs differ from the model's own: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
