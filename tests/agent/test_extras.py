"""What installs an optional part: libraries that an index has, wherever Sayso itself came from."""

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
def test_a_cure_names_libraries_and_never_sayso(extra: str):
    """Sayso may have been installed from a file or a checkout."""
    command = install_command(extra)
    assert command.startswith("pip install '")
    assert "sayso" not in command


def test_extras_of_an_extra_are_followed(monkeypatch: pytest.MonkeyPatch):
    """As `examples`, which is the toolbox."""
    monkeypatch.setattr(extras, "requires", lambda _: METADATA)
    assert install_command("examples") == "pip install 'jmespath>=1.1' 'tzdata>=2026.1'"


def test_a_checkout_that_is_not_installed_names_itself(monkeypatch: pytest.MonkeyPatch):
    """There is no metadata, but there is the folder."""

    def nothing(_: str) -> list[str]:
        raise extras.PackageNotFoundError

    monkeypatch.setattr(extras, "requires", nothing)
    assert install_command("mcp") == "pip install '.[mcp]'"
