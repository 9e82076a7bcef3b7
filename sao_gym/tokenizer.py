"""Character tokenizers for small models; text to ids and back, refusing what would be lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from sao_gym.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD = "<pad>"
EOS = "<eos>"


def character_tokenizer(symbols: str) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per symbol: pad 0, eos 1, then `symbols` in code-point order.

    The ids depend on the set of symbols alone. There is no unknown token: the tokenizer raises on
    an unknown symbol, and `encode` says which one it was.

    Raises:
        InputError: no symbols.
    """
    if not symbols:
        raise InputError("a character tokenizer needs at least one symbol")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([PAD, EOS, *sorted(set(symbols))])}
    # An unknown token outside the vocabulary is what makes the tokenizer raise.
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: Any, text: str, *, control: bool = False) -> tuple[int, ...]:
    """The ids of `text`, nothing added.

    Args:
        tokenizer: a `transformers` tokenizer.
        text: what to encode.
        control: read control tokens such as `<eos>` in `text` as such. Off for text that comes
            from an environment, which could otherwise forge the end of a turn.

    Raises:
        InputError: decoding the ids does not give `text` back (up to Unicode composition); the
            symbols that got lost are named.
    """
    ids = _ids(tokenizer, text, control)
    if ids is None or not _same(decode(tokenizer, ids), text):
        raise InputError(_complaint(tokenizer, text, control))
    return ids


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of `ids`, control tokens included: one inside an action makes it malformed."""
    text: str = tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return text


def check_symbols(tokenizer: Any, texts: Iterable[str]) -> None:
    """Check that `tokenizer` can say every text, e.g. the `charset` of each space.

    Raises:
        InputError: it cannot; all the missing symbols are named, and what to do.
    """
    texts = list(texts)
    missing = [symbol for symbol in dict.fromkeys("".join(texts)) if not _says(tokenizer, symbol)]
    if missing:
        raise InputError(_missing(missing))
    for text in texts:
        encode(tokenizer, text)


def _ids(tokenizer: Any, text: str, control: bool) -> tuple[int, ...] | None:
    try:
        encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=not control)
    except Exception:  # noqa: BLE001  the tokenizers library raises just that for unknown symbols
        return None
    return tuple(encoded["input_ids"])


def _same(one: str, other: str) -> bool:
    return one == other or normalize("NFC", one) == normalize("NFC", other)


def _says(tokenizer: Any, text: str) -> bool:
    ids = _ids(tokenizer, text, False)
    return ids is not None and _same(decode(tokenizer, ids), text)


def _complaint(tokenizer: Any, text: str, control: bool) -> str:
    missing = [symbol for symbol in dict.fromkeys(text) if not _says(tokenizer, symbol)]
    if missing:
        return _missing(missing)
    ids = _ids(tokenizer, text, control)
    back = "nothing" if ids is None else repr(decode(tokenizer, ids)[:60])
    return f"the tokenizer changes the text {text[:60]!r}: it comes back as {back}; use another one"


def _missing(symbols: Sequence[str]) -> str:
    named = " ".join(map(repr, symbols))
    return (
        f"the tokenizer has no token for {named}: add to `model.symbols` (or write "
        "`symbols: auto`), or use a model whose tokenizer has them"
    )
