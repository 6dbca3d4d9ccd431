"""Extras: what is said of a library that is missing or broken, and the commands that install an optional part."""

from __future__ import annotations

from pathlib import Path

import pytest

from sayso.agent import extras
from sayso.agent.extras import LibraryError, import_libraries, install_command

METADATA = [
    "click>=8.3",
    'sayso[toolbox]; extra == "examples"',
    'jmespath>=1.1; extra == "toolbox"',
    "tzdata>=2026.1; python_version >= '3.11' and extra == 'toolbox'",
]


@pytest.mark.parametrize(
    "extra", ["llm", "anthropic", "google", "mcp", "otel", "toolbox", "examples"]
)
def test_install_command_names_libraries_and_never_sayso(extra: str):
    """Sayso may have been installed from a file or a checkout."""
    command = install_command(extra)
    assert command.startswith("pip install '")
    assert "sayso" not in command


def test_extras_of_an_extra_are_resolved(monkeypatch: pytest.MonkeyPatch):
    """The extra `examples` requires the extra `toolbox`."""
    monkeypatch.setattr(extras, "requires", lambda _: METADATA)
    assert install_command("examples") == "pip install 'jmespath>=1.1' 'tzdata>=2026.1'"


def test_uninstalled_checkout_names_itself(monkeypatch: pytest.MonkeyPatch):
    """It has no package metadata, so the command installs from the folder."""

    def nothing(_: str) -> list[str]:
        raise extras.PackageNotFoundError

    monkeypatch.setattr(extras, "requires", nothing)
    assert install_command("mcp") == "pip install '.[mcp]'"


def failure(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> str:
    """Return what is said when an extra's library has this source."""
    (folder / "lately").mkdir()
    (folder / "lately" / "__init__.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(LibraryError) as caught:
        import_libraries("mcp", "lately")
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise OSError('libz.so: bad ELF header')", "OSError: libz.so: bad ELF header"),
        ("from json import gone", "ImportError: cannot import name 'gone' from 'json'"),
        ("import json.gone", "ModuleNotFoundError: No module named 'json.gone'"),
    ],
)
def test_broken_library_is_reported_with_its_own_error(
    source: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is installed already, so only a new installation mends it."""
    said = failure(tmp_path, monkeypatch, source)
    assert said.startswith(
        f"a library of the extra 'mcp' is installed and cannot be imported ({error}"
    )
    assert said.endswith("install it again: pip install --force-reinstall 'mcp>=2.3'")


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("import absent_part", "absent_part"),
        # As pydantic-ai does: it replaces the error by an advice of its own.
        (
            "try:\n import absent_part.models\nexcept ImportError as e:\n raise ImportError('try pip') from e",
            "absent_part",
        ),
        ("import google.absent", "google.absent"),
    ],
)
def test_missing_module_of_a_library_is_named(
    source: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The extra brings it, also where another library needs it."""
    said = failure(tmp_path, monkeypatch, source)
    assert (
        said
        == f"the module '{missing}' is missing, which the extra 'mcp' brings: pip install 'mcp>=2.3'"
    )
