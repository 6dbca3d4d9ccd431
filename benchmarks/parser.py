"""The confirm parser's mistakes in the published corpus, by language, alone and with all languages enabled.

python -m benchmarks.parser
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sayso.pending.consent.parser import ConfirmParser, RegexConfirmParser
from sayso.pending.consent.phrases import SHIPPED_LANGUAGES
from sayso.pending.consent.refusing import is_no_with_more

#: The corpus: one file for each language, and one with tricks in all of them.
CORPUS = Path(__file__).parents[1] / "tests" / "pending" / "consent" / "corpus"
LABELS = ("confirm", "cancel", "neither")
_ESCAPE = re.compile(r"\\(?:u([0-9a-f]{4})|U([0-9a-f]{8})|x([0-9a-f]{2})|(n))")


@dataclass(frozen=True, slots=True)
class Line:
    """A message and its meaning to a reader of its language."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Tally:
    """The messages where a parser and the readers differ."""

    lines: int
    false_confirms: list[str]
    false_cancels: list[str]
    missed_confirms: list[str]
    missed_cancels: list[str]
    confirms: int
    cancels: int

    @property
    def confirm_miss(self) -> float:
        """Return the share of missed yeses."""
        return len(self.missed_confirms) / max(self.confirms, 1)

    @property
    def cancel_miss(self) -> float:
        """Return the share of missed noes."""
        return len(self.missed_cancels) / max(self.cancels, 1)


def read_corpus(name: str) -> list[Line]:
    """Return the lines of one file. A third column is a note."""
    rows = (CORPUS / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    return [_line(row) for row in rows if not row.startswith("# ")]


def read_held_out(language: str) -> list[Line]:
    """Return the lines of one language, or of "all", for which no phrase was written."""
    return _read_list("held_out", language)


def read_open(language: str) -> list[Line]:
    """Return the lines of one language that another author wrote without the phrases, and that were read afterwards."""
    return _read_list("open", language)


def read_blind(language: str) -> list[Line]:
    """Return the lines of one language that another author wrote without the phrases, and that led to no phrase."""
    return _read_list("blind", language)


def read_reasons(language: str) -> list[Line]:
    """Return messages of one language that begin like a no: "cancel" are noes with more words, "neither" are none."""
    return _read_list("reasons", language)


def tally(parser: ConfirmParser, lines: Sequence[Line]) -> Tally:
    """Count the parser's mistakes."""
    confirms, cancels = _labelled(lines, "confirm"), _labelled(lines, "cancel")
    heard_yes = {line.text for line in lines if parser.is_confirm(line.text)}
    heard_no = {line.text for line in lines if parser.is_cancel(line.text)}
    return Tally(
        lines=len(lines),
        false_confirms=sorted(heard_yes - confirms),
        false_cancels=sorted(heard_no - cancels),
        missed_confirms=sorted(confirms - heard_yes),
        missed_cancels=sorted(cancels - heard_no),
        confirms=len(confirms),
        cancels=len(cancels),
    )


def tally_noes_with_more(parser: ConfirmParser, lines: Sequence[Line], language: str) -> Tally:
    """Count the mistakes of a parser in messages that begin like a no, as answers to a question in this language."""
    noes = _labelled(lines, "cancel")
    heard = {line.text for line in lines if is_no_with_more(parser, line.text, language)}
    return Tally(
        lines=len(lines),
        false_confirms=sorted(line.text for line in lines if parser.is_confirm(line.text)),
        false_cancels=sorted(heard - noes),
        missed_confirms=[],
        missed_cancels=sorted(noes - heard),
        confirms=0,
        cancels=len(noes),
    )


def report(name: str, parser: ConfirmParser, lines: Sequence[Line]) -> str:
    """Return one row of the table."""
    return _row(name, tally(parser, lines))


def _row(name: str, found: Tally) -> str:
    wrong = f"{len(found.false_confirms):>6}{len(found.false_cancels):>8}"
    return f"{name:<14}{found.lines:>6}{wrong}{found.confirm_miss:>11.1%}{found.cancel_miss:>11.1%}"


def main() -> None:
    """Print the table."""
    everything = RegexConfirmParser(SHIPPED_LANGUAGES)
    print(f"{'':<14}{'':>6}{'false':>14}{'missed':>22}")
    print(f"{'language':<14}{'lines':>6}{'yes':>6}{'no':>8}{'yes':>11}{'no':>11}")
    for title, parsers in (
        ("alone", {name: RegexConfirmParser([name]) for name in SHIPPED_LANGUAGES}),
        ("all at once", dict.fromkeys([*SHIPPED_LANGUAGES, "tricks"], everything)),
    ):
        print(f"-- {title}")
        for name, parser in parsers.items():
            print(report(name, parser, read_corpus(name)))
    print("-- held out, alone")
    for name in SHIPPED_LANGUAGES:
        print(report(name, RegexConfirmParser([name]), read_held_out(name)))
    print("-- written blind, seen afterwards, alone")
    for name in SHIPPED_LANGUAGES:
        print(report(name, RegexConfirmParser([name]), read_open(name)))
    print("-- written blind, and no phrase added since, alone")
    for name in SHIPPED_LANGUAGES:
        print(report(name, RegexConfirmParser([name]), read_blind(name)))
    print("-- noes with more words, all at once")
    for name in SHIPPED_LANGUAGES:
        print(_row(name, tally_noes_with_more(everything, read_reasons(name), name)))


def _read_list(name: str, language: str) -> list[Line]:
    rows = (CORPUS / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    return [_line(row.partition("\t")[2]) for row in rows if row.startswith(f"{language}\t")]


def _line(row: str) -> Line:
    label, text, *_ = row.split("\t")
    if label not in LABELS:
        raise ValueError(f"unknown label {label!r} in {row!r}; known: {', '.join(LABELS)}")
    return Line(label, _ESCAPE.sub(_unescaped, text))


def _unescaped(escape: re.Match[str]) -> str:
    return "\n" if escape[4] else chr(int(escape[1] or escape[2] or escape[3], 16))


def _labelled(lines: Iterable[Line], label: str) -> set[str]:
    return {line.text for line in lines if line.label == label}


if __name__ == "__main__":
    main()
