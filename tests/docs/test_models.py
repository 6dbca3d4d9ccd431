"""docs/how-to/use-a-real-model.md: what it shows is run, and what it says is so."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from sayso.agent.providers.file_reading import MAX_TEXT_CHARS
from sayso.agent.providers.model_errors import MAX_REASON_CHARS
from sayso.agent.providers.vendors import AnthropicProvider, GeminiProvider, OpenAIProvider
from tests.docs.pages import part, run

PAGE = part("use-a-real-model.md", end="Fall back to another model, and retry")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_providers_of_the_page_can_be_made(tmp_path: Path) -> None:
    """Without a network."""
    assert run(BLOCKS[0], tmp_path) == [
        "openai gpt-5-mini",
        "anthropic claude-haiku-4-5",
        "gemini gemini-2.5-flash",
        "ollama llama3.2",
        "openai-compatible Qwen/Qwen3-8B",
    ]
    assert run(BLOCKS[1], tmp_path) == ["{'thinking_budget': 2000, 'top_p': 0.99}"]
    assert run(BLOCKS[2], tmp_path) == ["True"]


def test_the_table_has_the_defaults_of_the_code() -> None:
    """Keys, extras and models."""
    for kind in (OpenAIProvider, AnthropicProvider, GeminiProvider):
        default = inspect.signature(kind).parameters["default_model"].default
        row = next(line for line in PAGE.splitlines() if f"(`{kind.__name__}`)" in line)
        assert f"`{default}`" in row
        assert f"'sayso[{kind.extra}]'" in row


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    """So that no limit on the page is out of date."""
    assert f"first {MAX_TEXT_CHARS:,} characters" in PAGE
    assert f"{MAX_REASON_CHARS} characters of them" in PAGE
    sizes = [kind.max_file_bytes / 1e6 for kind in (OpenAIProvider, AnthropicProvider)]
    assert f"{sizes[0]:g} MB at most, {sizes[1]:g} MB for Anthropic" in PAGE
