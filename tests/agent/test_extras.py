"""Extras: the commands that install an optional part name libraries from a package index."""

from __future__ import annotations

import pytest

from sayso.agent import extras
from sayso.agent.extras import install_command

METADATA = [
    "click>=8.3",
    'sayso[toolbox]; extra == "examples"',
    'jmespath>=1.1; extra == "toolbox"',
    "tzdata>=2026.1; python_version >= '3.11' and extra == 'toolbox'",
]


@pytest.mark.parametrize("extra", ["llm", "anthropic", "google", "mcp", "otel", "toolbox", "examples"])
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
