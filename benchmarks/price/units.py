"""Units: what the recorded requests of one conversation cost, in tokens at the full price.

A vendor caches the beginning of a prompt, in this order: tools, system prompt, messages. OpenAI
charges a tenth for what an earlier request began with, from 1,024 tokens on, in steps of 128.
Anthropic writes and reads at the blocks that the request marks with `cache_control`: writing costs
1.25, reading 0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.price.prompts import Body, anthropic_blocks, openai_parts

#: Turns a text into tokens.
Encode = Callable[[str], Sequence[object]]
#: The prefixes that earlier requests wrote to the cache.
Written = set[tuple[object, ...]]

#: The shortest prefix that is cached, in tokens.
LEAST = 1024
#: The steps in which OpenAI's prefixes grow, in tokens.
STEP = 128
#: The share of the full price for what is read from the cache.
READ = 0.1
#: The share of the full price for what Anthropic writes to the cache.
WRITE = 1.25
#: The most marks in one request of Anthropic.
MARKS = 4
#: The blocks before a mark that Anthropic looks through.
LOOKBACK = 20
#: Letters in one token, where no tokenizer is installed.
LETTERS = 4


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of a conversation: its requests, all their tokens, and their price in full tokens.

    `stable` is the share of all tokens with which an earlier request began.
    """

    calls: int
    tokens: int
    units: float
    stable: float


def letters(text: str) -> list[str]:
    """Return an estimate of the tokens of a text: pieces of four letters."""
    return [text[at : at + LETTERS] for at in range(0, len(text), LETTERS)]


def best_encoding() -> tuple[Encode, str]:
    """Return OpenAI's o200k_base and its name; the estimate where `bpe-openai` is not installed."""
    try:
        import bpe_openai
    except ImportError:
        return letters, "tokens are estimated as 4 letters each"
    return bpe_openai.get_encoding("o200k_base").encode_ordinary, "tokens in o200k_base"


def openai_price(bodies: Iterable[Body], encode: Encode) -> Price:
    """Return the price of a conversation with OpenAI's chat completions."""
    prompts = [tokens_of(openai_parts(body), encode) for body in bodies]
    units = 0.0
    for at, prompt in enumerate(prompts):
        shared = shared_with(prompt, prompts[:at])
        cached = shared // STEP * STEP if shared >= LEAST else 0
        units += len(prompt) - (1 - READ) * cached
    return Price(len(prompts), sum(map(len, prompts)), units, stable_share(prompts))


def anthropic_price(bodies: Iterable[Body], encode: Encode) -> Price:
    """Return the price of a conversation with Anthropic's messages."""
    written: Written = set()
    prompts: list[list[object]] = []
    units = 0.0
    for body in bodies:
        blocks = [(encode(text), is_marked) for text, is_marked in anthropic_blocks(body)]
        ends = _ends(len(tokens) for tokens, _ in blocks)
        marks = [at for at, (_, is_marked) in enumerate(blocks) if is_marked]
        assert len(marks) <= MARKS, f"{len(marks)} marks in one request"
        prompt: list[object] = [token for tokens, _ in blocks for token in tokens]
        read = max((_read_at(mark, ends, prompt, written) for mark in marks), default=0)
        marked_ends = [ends[mark] for mark in marks if ends[mark] >= LEAST]
        last = max(marked_ends, default=0)
        units += READ * read + WRITE * max(last - read, 0) + len(prompt) - max(last, read)
        written.update(tuple(prompt[:end]) for end in marked_ends)
        prompts.append(prompt)
    return Price(len(prompts), sum(map(len, prompts)), units, stable_share(prompts))


def _ends(lengths: Iterable[int]) -> list[int]:
    ends: list[int] = []
    for length in lengths:
        ends.append(length + (ends[-1] if ends else 0))
    return ends


def _read_at(mark: int, ends: list[int], prompt: list[object], written: Written) -> int:
    """Return the tokens that are read at a mark: up to the last written block within LOOKBACK."""
    for at in range(mark, max(mark - LOOKBACK, -1), -1):
        if tuple(prompt[: ends[at]]) in written:
            return ends[at]
    return 0


def stable_share(prompts: Sequence[Sequence[object]]) -> float:
    """Return the share of the tokens, after the first request, that an earlier one began with."""
    later = sum(map(len, prompts[1:]))
    shared = sum(shared_with(prompt, prompts[:at]) for at, prompt in enumerate(prompts) if at)
    return shared / later if later else 0.0


def shared_with(prompt: Sequence[object], earlier: Iterable[Sequence[object]]) -> int:
    """Return the length of the longest beginning that the prompt shares with an earlier one."""
    return max((_shared(prompt, other) for other in earlier), default=0)


def _shared(one: Sequence[object], other: Sequence[object]) -> int:
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


def tokens_of(parts: Iterable[str], encode: Encode) -> list[object]:
    """Return the tokens of a prompt. Each part is encoded alone: changes move no others."""
    return [token for part in parts for token in encode(part)]
