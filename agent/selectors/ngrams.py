"""NgramEmbedder: vectors from letters alone, offline, without a key and the same on every machine."""

from __future__ import annotations

import math
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence

from sayso.agent.selectors.scripts import needs_no_space

#: Lengths of the runs of letters that are counted.
_SIZES = (2, 3, 4)
_NOT_OF_WORDS = re.compile(r"[\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class NgramEmbedder:
    """An `Embedder` that counts runs of two to four letters, hashed into `dimensions` places.

    It finds texts that share words, parts of words and misspellings, in any script. It knows no meanings: "remove"
    is not near "delete", nor a French question near an English description. For that, use `HttpEmbedder`.
    """

    def __init__(self, dimensions: int = 1024) -> None:
        self.dimensions = dimensions

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector of length 1 per text; all zeros for a text without letters."""
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * self.dimensions
        for gram, count in Counter(_grams(text)).items():
            code = zlib.crc32(gram.encode(errors="surrogatepass"))
            # One bit of the hash is the sign: what collides by chance cancels out as often as it adds up.
            weight = _weight(gram) * (1 + math.log(count))
            vector[(code >> 1) % self.dimensions] += weight if code & 1 else -weight
        length = math.hypot(*vector)
        return [number / length for number in vector] if length else vector


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case; snake_case and camelCase are several words."""
    return _NOT_OF_WORDS.sub(" ", _CAMEL.sub(" ", unicodedata.normalize("NFKC", text))).casefold().split()


def _weight(gram: str) -> int:
    """Longer runs say more; in scripts without spaces two letters are a word already."""
    return _SIZES[-1] if any(map(needs_no_space, gram)) else len(gram) - 1


def _grams(text: str) -> Iterator[str]:
    for word in words_of(text):
        padded = f" {word} "
        for size in _SIZES:
            yield from (padded[at : at + size] for at in range(len(padded) - size + 1))
