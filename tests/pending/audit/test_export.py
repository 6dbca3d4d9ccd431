"""Export: entries as lines that people can read, and that say as much as the ledger when they are read back."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from sayso.pending.audit.export import read_export, to_lines
from sayso.pending.audit.ledger import LedgerUnusable
from sayso.pending.audit.verify import verify
from tests.pending.state_log import KEY, StateLog


def written(path, lines):
    """A file of these lines."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_lines_come_back_as_they_were(tmp_path):
    """Shard, number, text and signature, whatever letters the text has, and on any machine's encoding."""
    log = StateLog(3)
    log.add("a", "armed", by="é")
    lines = list(to_lines(log.ledger))
    assert json.loads(lines[0]) == {"shard": 3, "text": log.texts[0], "sig": log.ledger[0].sig}
    (kept,) = read_export(written(tmp_path / "x", lines))
    assert (kept.shard, kept.number, kept.text, kept.sig, kept.stored_hash) == (
        3,
        1,
        log.texts[0],
        log.ledger[0].sig,
        None,
    )


def test_letters_of_any_script_stay_readable():
    """An auditor reads the file, not escapes."""
    log = StateLog()
    log.texts.append('{"garbage":"日本"}')
    assert "日本" in next(to_lines(log.ledger))


def test_marks_that_end_a_line_elsewhere_end_none_here(tmp_path):
    """Unicode has other ends of line, and JSON writes them as they are."""
    log = StateLog()
    for end in "\u2028\u2029\x85\x0b\r":
        log.texts.append(f"garbage{end}here")
    assert [
        kept.text for kept in read_export(written(tmp_path / "x", to_lines(log.ledger)))
    ] == log.texts


READ = """
import sys
from pathlib import Path
from sayso.pending.audit.export import read_export
print(ascii(read_export(Path(sys.argv[1]))[0].text))
"""


def test_lines_are_read_on_a_machine_with_another_encoding(tmp_path):
    """The file may be checked far from where it was written."""
    log = StateLog()
    log.texts.append('{"garbage":"日本"}')
    file = written(tmp_path / "x", to_lines(log.ledger))
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", READ, file], env=plain, capture_output=True, text=True, check=False
    )
    (here,) = read_export(file)
    assert (done.returncode, done.stdout.strip()) == (0, ascii(here.text))


def test_text_that_is_no_entry_stands_where_the_next_one_of_its_shard_would(tmp_path):
    """So that the fault is named at its place."""
    log = StateLog(3)
    for pid in "ab":
        log.add(pid, "armed")
    lines = [
        *to_lines(log.ledger),
        *(json.dumps({"shard": shard, "text": "x", "sig": "s"}) for shard in (3, 3, 4)),
    ]
    assert [(kept.shard, kept.number) for kept in read_export(written(tmp_path / "x", lines))] == [
        (3, 1), (3, 2), (3, 3), (3, 4), (4, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("missing", [{"sig": None}, {"sig": ""}, {}])
def test_line_without_its_signature_is_a_fault(tmp_path, missing):
    """Only what waits in Redis is unsigned: in a file it was stripped."""
    log = StateLog()
    log.live("a")
    lines = list(to_lines(log.ledger))
    fields = json.loads(lines[2])
    del fields["sig"]
    lines[2] = json.dumps(fields | missing)
    faults = verify([written(tmp_path / "x", lines)], [KEY]).faults
    assert [str(fault) for fault in faults] == ["shard 0, entry 3: bad signature"]
    assert read_export(tmp_path / "x")[2].sig == ""


def test_file_that_cannot_be_read_is_named(tmp_path):
    """With the reason; a line that is none is named with its number."""
    with pytest.raises(LedgerUnusable, match=r"gone cannot be read: .*No such file"):
        read_export(tmp_path / "gone")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(LedgerUnusable, match="bytes cannot be read: "):
        read_export(tmp_path / "bytes")


@pytest.mark.parametrize(
    "line",
    [
        "", "{}", "7", "[" * 5000, '{"shard": 1e999, "text": "", "sig": ""}', '{"shard": "x", "text": "", "sig": ""}',
        r'{"shard": 0, "text": "\ud800", "sig": ""}', r'{"shard": 0, "text": "", "sig": "\ud800"}',
    ],
)  # fmt: skip
def test_line_that_is_none_is_named(tmp_path, line):
    """With its number, whatever it is."""
    log = StateLog()
    log.add("a", "armed")
    with pytest.raises(LedgerUnusable, match="x:2: not a line that `sayso audit export` wrote"):
        read_export(written(tmp_path / "x", [*to_lines(log.ledger), line]))


def test_empty_export_has_no_entries(tmp_path):
    """A log that has just begun."""
    assert read_export(written(tmp_path / "x", [])) == []
