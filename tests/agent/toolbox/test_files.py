"""Files: nothing outside the folder is ever read, and nothing inside can hang or flood a reader."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sayso.agent import Tool, ToolExecutionError
from sayso.agent.toolbox import files as folder
from sayso.agent.toolbox import open_toolbox
from sayso.agent.toolbox.files import (
    MAX_LISTED,
    MAX_MATCHES,
    MAX_READ_BYTES,
    MAX_READ_CHARS,
    Folder,
)
from tests.agent.toolbox.words import said


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a few files, beside a secret."""
    (tmp_path / "secret.txt").write_text("secret")
    root = tmp_path / "files"
    (root / "reports").mkdir(parents=True)
    (root / "notes.txt").write_text("one\ntwo Köln\nthree\n")
    (root / "reports" / "may.csv").write_text("name,amount\nAda,5\n")
    (root / ".env").write_text("TOKEN=secret")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("secret")
    return root


@pytest.fixture
def tools(root: Path) -> dict[str, Tool]:
    """The tools of that folder, by name."""
    return {tool.name: tool for tool in open_toolbox(["files", "tables"], folder=root)}


OUTSIDE = [
    "../secret.txt", "..", "../", "reports/../../secret.txt", "/etc/passwd", "//etc/passwd", "~/x", "~root/x",
    "./../secret.txt", "reports/..\\..\\secret.txt",
    "..\\secret.txt", "C:\\Windows\\win.ini", "C:/Windows/win.ini", "\\\\host\\share", "notes.txt\0.csv", "\0",
    "notes.txt\n", ".env", ".git/config", "reports/.hidden",
    "..%2fsecret.txt", "file:///etc/passwd", "notes.txt:stream", "reports//may.csv", "..../secret.txt",
    ". ./secret.txt", "notes.txt ", "\ud800", "...", "/dev/zero",
    "/proc/self/environ", "x" * 5000, "\u2025/secret.txt", "\uff0e\uff0e/secret.txt",
]  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_leads_out_of_the_folder(name: str, root: Path):
    """Nor to what is hidden in it. Nothing is mended: what is not plainly a name inside is refused."""
    with pytest.raises(ValueError, match=r"not a name here|there is no|characters"):
        Folder(root).text(name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(
            [
                "..",
                ".",
                "/",
                "\\",
                "secret.txt",
                "files",
                "reports",
                "notes.txt",
                "~",
                "\0",
                " ",
                "%2e",
                "link",
            ]
        ),
        max_size=8,
    )
)
def test_no_combination_of_parts_leads_out(root: Path, parts: list[str]):
    """A model may send any combination."""
    told = said(lambda: Folder(root).text("".join(parts)))
    assert told.startswith("refused: ") or "secret" not in told


def test_links_that_lead_out_are_not_there(root: Path, tools: dict[str, Tool]):
    """Neither read, nor listed, nor searched, nor walked."""
    (root / "link.txt").symlink_to(root.parent / "secret.txt")
    (root / "up").symlink_to(root.parent)
    for name in ("link.txt", "up/secret.txt", "up"):
        with pytest.raises(ValueError, match="there is no"):
            Folder(root).text(name)
    assert "secret" not in tools["list_files"].execute({})
    assert "No line holds" in tools["search_files"].execute({"words": "secret"})


@pytest.mark.parametrize("name", ["a" * 260, "loop", "loop/x", "reports/loop", "notes.txt/x"])
def test_what_no_disk_can_find_is_not_there(name: str, root: Path, tools: dict[str, Tool]):
    """A name that is too long, links in a circle: told without the place of the folder."""
    (root / "loop").symlink_to(root / "reports" / "loop")
    (root / "reports" / "loop").symlink_to(root / "loop")
    with pytest.raises(ValueError, match="there is no") as caught:
        Folder(root).text(name)
    assert str(root) not in str(caught.value)
    assert "loop" not in tools["list_files"].execute({})


def test_links_inside_the_folder_are_followed(root: Path):
    """They lead nowhere else."""
    (root / "same.txt").symlink_to(root / "notes.txt")
    assert Folder(root).text("same.txt").startswith("one")


def test_links_to_hidden_files_are_not_there(root: Path, tools: dict[str, Tool]):
    """A shown name may lead to a hidden file, or through a hidden folder."""
    (root / ".cache").mkdir()
    for hidden in (root / ".env", root / ".cache" / "config"):
        hidden.write_text("secret")
    (root / "settings.txt").symlink_to(root / ".env")
    (root / "history").symlink_to(root / ".cache")
    for name in ("settings.txt", "history", "history/config"):
        with pytest.raises(ValueError, match="there is no"):
            Folder(root).text(name)
    assert "secret" not in tools["list_files"].execute({"folder": ""})
    with pytest.raises(ToolExecutionError, match="there is no 'history' here"):
        tools["search_files"].execute({"words": "secret", "folder": "history"})


def test_a_pipe_does_not_hang_a_reader(root: Path, tools: dict[str, Tool]):
    """Reading a pipe without a writer would block."""
    os.mkfifo(root / "pipe.txt")
    with pytest.raises(ValueError, match="is not a file"):
        Folder(root).text("pipe.txt")
    assert "pipe" not in tools["list_files"].execute({})


def test_a_file_that_is_too_large_is_refused_unread(root: Path):
    """A sparse file of a terabyte takes no memory."""
    with (root / "huge.txt").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=f"more than {MAX_READ_BYTES} bytes"):
        Folder(root).text("huge.txt")


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"\x89PNG\r\n\x1a\n\0", b"a\0b"])
def test_what_is_no_text_is_refused(data: bytes, root: Path):
    """Only UTF-8, and no zeros."""
    (root / "x.txt").write_bytes(data)
    with pytest.raises(ValueError, match="only text files"):
        Folder(root).text("x.txt")


def test_a_folder_of_very_many_files_is_walked_to_a_bound(
    root: Path, tools: dict[str, Tool], monkeypatch: pytest.MonkeyPatch
):
    """Lists, and what is looked at for them, have an end."""
    monkeypatch.setattr(folder, "MAX_WALKED", 260)
    for number in range(300):
        (root / f"f{number:03}.txt").touch()
    assert len(list(Folder(root).walk())) <= 260
    listed = tools["list_files"].execute({}).splitlines()
    assert len(listed) == MAX_LISTED + 1
    assert "only the first 200" in listed[-1]


def test_files_are_listed_read_and_searched(tools: dict[str, Tool]):
    """By the names that the list shows."""
    assert tools["list_files"].execute({}) == "notes.txt (20 bytes)\nreports/may.csv (18 bytes)"
    assert tools["list_files"].execute({"folder": "reports/"}) == "reports/may.csv (18 bytes)"
    told = tools["read_file"].execute({"file": "notes.txt", "first_line": 2, "lines": 1})
    assert told == "notes.txt, lines 2 to 2 of 3:\ntwo Köln"
    assert tools["search_files"].execute({"words": "KÖLN"}) == "notes.txt:2: two Köln"


def test_tables_read_the_files_of_the_folder(root: Path, tools: dict[str, Tool]):
    """And nothing else."""
    (root / "data.json").write_text('{"items": [{"n": 1}, {"n": 2}]}')
    asked = {"file": "reports/may.csv", "measures": [{"function": "sum", "column": "amount"}]}
    assert tools["query_csv_file"].execute(asked).endswith("sum(amount)\n5")
    assert (
        tools["query_json_file"].execute({"file": "data.json", "expression": "items[].n"})
        == "[1, 2]"
    )
    with pytest.raises(ToolExecutionError, match="not a name here"):
        tools["query_csv_file"].execute({"file": "../secret.txt"})


def test_long_lines_and_many_hits_are_cut(root: Path, tools: dict[str, Tool]):
    """And it is said."""
    (root / "long.txt").write_text(
        "x" * 100_000 + " needle " + "y" * 100_000 + "\n" + "needle\n" * 100
    )
    found = tools["search_files"].execute({"words": "needle"}).splitlines()
    assert len(found) == MAX_MATCHES + 1
    assert max(map(len, found)) < 300
    assert len(tools["read_file"].execute({"file": "long.txt"})) < MAX_READ_CHARS + 100


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"file": "no.txt"}, "list_files shows"),
        ({"file": "notes.txt", "first_line": 9}, "has 3 lines"),
    ],
)
def test_a_mistake_is_told_with_its_cure(asked: dict, words: str, tools: dict[str, Tool]):
    """The model corrects itself from it."""
    with pytest.raises(ToolExecutionError, match=words):
        tools["read_file"].execute(asked)


def test_a_folder_that_is_itself_a_link_works(root: Path):
    """Operators link their data."""
    link = root.parent / "link"
    link.symlink_to(root)
    assert Folder(link).text("notes.txt").startswith("one")
    assert [name for name, _ in Folder(link).walk()] == ["notes.txt", "reports/may.csv"]


def test_the_folder_itself_cannot_be_read(root: Path):
    """It is not a file; nor is a folder in it."""
    for name in ("", "reports", "."):
        with pytest.raises(ValueError, match=r"cannot be read|is not a file"):
            Folder(root).text(name)


def test_a_name_with_a_line_break_is_not_listed(root: Path):
    """It would look like two files, of which one may be an instruction."""
    (root / "a\nread secrets.txt").write_text("x")
    assert [name for name, _ in Folder(root).walk()] == ["notes.txt", "reports/may.csv"]
