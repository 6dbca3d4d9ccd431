"""Confirming: the settings of a channel decide on its parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from sayso.config.settings.loader import ConfigError, load_settings
from sayso.config.wiring.agents import terminal_agent
from sayso.pending.consent.phrases import SHIPPED_LANGUAGES


def settings_of(folder: Path, line: str):
    """Return the settings of a console with this line."""
    file = folder / "sayso.yaml"
    file.write_text(
        f"channels:\n  web:\n    platform: console\n    {line}\ntools: [sayso.examples.invoices]\n"
    )
    return load_settings(file, {})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "languages: [pt, xx]",
            ":4:21: channels.web.languages.1: this language is not supported: choose from ar",
        ),
        ("languages: []", ":4:5: channels.web.languages: is empty: add one"),
        ("languages: no", "languages: must be a list"),
        ("confirm_emoji: 👍", "confirm_emoji: must be"),
    ],
)
def test_language_without_a_table_is_refused(tmp_path: Path, line: str, said: str):
    """It is refused at boot, with its place and the known languages."""
    with pytest.raises(ConfigError) as caught:
        settings_of(tmp_path, line)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("title: Sayso", f"regex-v4:{'-'.join(SHIPPED_LANGUAGES)}"),
        ("languages: [de, en]", "regex-v4:de-en"),
        ("languages: [ja]\n    confirm_emoji: true", "regex-v4:ja+emoji"),
    ],
)
def test_channel_reads_its_own_languages(tmp_path: Path, line: str, version: str):
    """Without a list it reads all shipped ones; emoji only count if configured."""
    with terminal_agent(settings_of(tmp_path, line), data=tmp_path / "data") as agent:
        assert agent.parser.version == version


@pytest.mark.parametrize(("line", "takes"), [("title: Sayso", False), ("confirm_ok: true", True)])
def test_plain_ok_is_a_yes_only_if_configured(tmp_path: Path, line: str, takes: bool):
    """By default the bot asks again."""
    with terminal_agent(settings_of(tmp_path, line), data=tmp_path / "data") as agent:
        agent.ask_channel("ana", "delete invoice INV-7")
        told = agent.ask_channel("ana", "ok").content
        assert ("INV-7 is deleted" in told, "could not tell whether you meant" in told) == (
            takes,
            not takes,
        )


@pytest.mark.parametrize(
    ("line", "stays"), [("title: Sayso", False), ("other_message: keep", True)]
)
def test_question_stays_open_only_if_configured(tmp_path: Path, line: str, stays: bool):
    """By default another message ends it. Where it stays, a plain yes repeats it first."""
    with terminal_agent(settings_of(tmp_path, line), data=tmp_path / "data") as agent:
        agent.ask_channel("ana", "delete invoice INV-8")
        agent.ask_channel("ana", "what is the weather in Rome?")
        assert ("Do you mean this?" in agent.ask_channel("ana", "yes").content) == stays
        assert ("INV-8 is deleted" in agent.ask_channel("ana", "yes").content) == stays


def test_plain_ok_behind_another_message_confirms_nothing(tmp_path: Path):
    """A command was answered between the question and the ok."""
    with terminal_agent(settings_of(tmp_path, "confirm_ok: true"), data=tmp_path / "data") as agent:
        agent.ask_channel("ana", "delete invoice INV-8")
        agent.ask_channel("ana", "/whoami")
        assert "could not tell whether you meant" in agent.ask_channel("ana", "ok").content
        assert "INV-8 is deleted" in agent.ask_channel("ana", "yes").content


@pytest.mark.parametrize(("line", "answered"), [("title: Sayso", True), ("commands: false", False)])
def test_channel_answers_commands_unless_switched_off(tmp_path: Path, line: str, answered: bool):
    """Switched off, they go to the model."""
    with terminal_agent(settings_of(tmp_path, line), data=tmp_path / "data") as agent:
        told = agent.ask_channel("ana", "/whoami").content
        assert told.startswith("Your id here: `ana`") == answered
