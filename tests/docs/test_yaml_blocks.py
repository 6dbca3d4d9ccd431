"""What pages show of the YAML's `agent` is read as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sayso.config.settings.loader import load_settings
from tests.docs.pages import part

ROOT = Path(__file__).parents[2]
KEYS = {"OPENAI_API_KEY": "a", "ANTHROPIC_API_KEY": "b"}


PARTS = (
    ("use-a-real-model.md", ""),
    ("guard-the-agent.md", "Guardrails, budgets and loops"),
    ("logs-and-traces.md", ""),
    ("memory.md", "Memories in the YAML"),
)


@pytest.mark.parametrize(("page", "begin"), PARTS)
def test_the_configuration_of_a_page_is_valid(tmp_path: Path, page: str, begin: str) -> None:
    """With a channel, where the page leaves that out."""
    text = re.findall(r"```yaml\n(.*?)```", part(page, begin=begin), re.DOTALL)[0]
    file = tmp_path / "sayso.yaml"
    file.write_text(
        text if "channels:" in text else f"{text}\nchannels: {{web: {{platform: console}}}}\n"
    )
    assert load_settings(file, KEYS).agent.model_fields_set


def test_the_commented_model_of_the_demo_is_valid(tmp_path: Path) -> None:
    """Without its comment marks it is a configuration."""
    text = (ROOT / "config" / "demo.yaml").read_text()
    real = re.sub(
        r"^  # (?=model:|api_key:|fallback:|memory:|budget:)", "  ", text, flags=re.MULTILINE
    )
    file = tmp_path / "sayso.yaml"
    file.write_text(
        real.replace("  model: offline            # rule-based, needs no account\n", "")
    )
    settings = load_settings(file, KEYS)
    assert (settings.agent.model, settings.agent.fallback[0].model) == (
        "openai:gpt-5-mini",
        "ollama:llama3.2",
    )
