"""The policy: a `transformers` causal LM and its tokenizer, from a config or from a directory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sao_gym import rng
from sao_gym.errors import InputError, suggestion
from sao_gym.types import Weights

AT = ("model", "path")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A model in float32 evaluation mode, and the tokenizer whose ids it speaks."""

    model: Any
    tokenizer: Any

    @property
    def context_length(self) -> int:
        """Tokens the model can attend over."""
        return int(getattr(self.model.config, "max_position_embeddings", 0) or 1 << 30)

    @property
    def pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return int(self.tokenizer.eos_token_id or 0) if pad is None else int(pad)


def initialise(init: Mapping[str, Any], *, symbols: str, seed: int) -> Policy:
    """A randomly initialised model from `transformers` config fields and a character tokenizer.

    `init["model_type"]` names the architecture (`llama`, `qwen3`, ...); the other keys are fields
    of its config class. Raises InputError on a field that the config class does not have.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from sao_gym.tokenizer import character_tokenizer

    tokenizer = character_tokenizer(symbols)
    fields = dict(init)
    model_type = fields.pop("model_type", "llama")
    try:
        known = AutoConfig.for_model(model_type)
    except ValueError:
        raise InputError(
            f"transformers knows no {model_type!r}", at=("model", "init", "model_type")
        ) from None
    for name in fields:
        if not hasattr(known, name):
            hint = suggestion(name, [n for n in vars(known) if not n.startswith("_")])
            message = f"not a field of {type(known).__name__}; {hint}"
            raise InputError(message, at=("model", "init", name))
    config = AutoConfig.for_model(
        model_type,
        **fields,
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.integer(seed, "initialise"))
        untyped: Any = AutoModelForCausalLM
        model = untyped.from_config(config, attn_implementation="sdpa")
    return Policy(model=model.float().eval(), tokenizer=tokenizer)


def load_directory(path: Path) -> Policy:
    """A model and tokenizer saved by `save_pretrained`. Raises InputError if one is missing."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not path.is_dir():
        raise InputError(f"{path} is not a directory; give a saved transformers model", at=AT)
    if not (path / "config.json").is_file():
        raise InputError(f"{path} holds no config.json; save the model there first", at=AT)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        model: Any = AutoModelForCausalLM.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} cannot be loaded: {reason}", at=AT) from error
    return Policy(model=model.float().eval(), tokenizer=tokenizer)


def weights_hash(weights: Weights) -> str:
    """SHA-256 over names, shapes and bytes of all parameters, in name order."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
