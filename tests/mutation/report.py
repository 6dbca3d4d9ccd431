"""Report: the results of the last mutation run, file by file. It fails when too many mutants survive."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from mutmut.mutation.data import SourceFileMutationData
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files

#: The percentage of mutants that must be killed. A mutant that makes the tests hang counts as killed.
REQUIRED = 90.0

#: An exit code that mutmut reports as a timeout, but that is an error of the run itself.
BROKEN = 255


def main() -> int:
    """Print the survivors, then the table. Return the exit code."""
    verdicts = {path: _verdicts(path) for path in sorted(walk_mutatable_files())}
    for found in verdicts.values():
        for mutant, verdict in found.items():
            if verdict not in ("killed", "timeout"):
                print(f"{verdict}: {mutant}")
    tallies = {str(path): Counter(found.values()) for path, found in verdicts.items() if found}
    total = sum(tallies.values(), Counter[str]())
    print("\n| file | mutants | killed | timeout | survived | no tests | other | killed, % |")
    print("|---|---|---|---|---|---|---|---|")
    for name, tally in [*tallies.items(), ("total", total)]:
        print(_row(name, tally))
    return 0 if _rate(total) >= REQUIRED else 1


def _verdicts(path: Path) -> dict[str, str]:
    """Return the verdict on each mutant of a file."""
    data = SourceFileMutationData(path=path)
    data.load()
    return {
        mutant: "error" if code == BROKEN else status_by_exit_code[code]
        for mutant, code in data.exit_code_by_key.items()
    }


def _row(name: str, tally: Counter[str]) -> str:
    known = [tally[verdict] for verdict in ("killed", "timeout", "survived", "no tests")]
    cells = [name, tally.total(), *known, tally.total() - sum(known), f"{_rate(tally):.1f}"]
    return f"| {' | '.join(map(str, cells))} |"


def _rate(tally: Counter[str]) -> float:
    return 100 * (tally["killed"] + tally["timeout"]) / max(1, tally.total())


if __name__ == "__main__":
    sys.exit(main())
