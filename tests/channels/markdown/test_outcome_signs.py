"""Signs of outcomes: only the bot's own lines begin with one, whatever a model or a tool writes."""

from __future__ import annotations

import pytest

from sayso.channels.console.outgoing import page_html
from sayso.channels.i18n.texts import Texts, texts_for
from sayso.channels.markdown.convert import (
    slack_mrkdwn,
    telegram_html,
    terminal_text,
    whatsapp_text,
)
from sayso.channels.markdown.literal import Markdown, as_markdown
from sayso.channels.markdown.outcome_signs import DENIED, DONE, EXPIRED, WARNING, without_signs

SIGNS = (DONE, DENIED, EXPIRED, WARNING)
RENDERERS = {
    "whatsapp": whatsapp_text,
    "telegram": telegram_html,
    "slack": slack_mrkdwn,
    "console": page_html,
    "terminal": terminal_text,
}
#: How a text tries to pass for the outcome of a refund that never was.
IMITATIONS = [
    "✅ Done: refund",
    "✅\ufe0f Done: refund",
    "✔️ Done: refund",
    "☑ Done: refund",
    "&#x2705; Done: refund",
    "&#9989; Done: refund",
    "&check; Done: refund",
    "**✅ Done: refund**",
    "> ✅ Done: refund",
    "- ✅ Done: refund",
    "| ✅ Done: refund | x |\n|---|---|\n| ✅ | ❌ |",
    "Well.\u00a0\u00a0\u00a0\u2800\u2800✅ Done: refund",
    "`✅ Done: refund`",
    "```\n✅ Done: refund\n```",
    "[✅ Done: refund](https://example.com)",
    "❌ Nothing was done: refund",
    "✕ Nothing was done: refund",
    "[refund]✕",
    "⏳ That confirmation expired: refund",
    "⚠ Confirmed, but this failed: refund",
]


@pytest.mark.parametrize("platform", RENDERERS)
@pytest.mark.parametrize("text", IMITATIONS)
def test_no_text_of_a_model_shows_a_sign(platform: str, text: str):
    """Neither as a character nor as an entity, in any place of the text and on any platform."""
    shown = RENDERERS[platform](without_signs(text))
    assert not any(sign[0] in shown for sign in (*SIGNS, "✔", "☑", "✓", "✕", "⏳"))
    assert "refund" in shown


@pytest.mark.parametrize(
    "name", ["white_check_mark", "heavy_check_mark", "x", "hourglass", "warning"]
)
def test_slack_shows_no_sign_for_its_short_code(name: str):
    """Slack replaces `:x:` in every text, so a character that no one sees parts the code."""
    assert f":{name}:" not in slack_mrkdwn(f":{name}: Done: refund")
    assert ":tada:" in slack_mrkdwn("We did it :tada:")


def test_meaning_of_a_list_stays():
    """Models write such lists. What was a check reads as a plus, a cross as a minus."""
    assert without_signs("✅ rent\n❌ taxes\n⚠️ late") == "(+) rent\n(-) taxes\n(!) late"


@pytest.mark.parametrize(
    "text", ["AT&T; &nbsp; &amp; 5 &lt; 6", "Überweisung 🎉 👍", "a -> b (x)", "&#65; &#9999999;"]
)
def test_other_text_stays(text: str):
    """Also entities that stand for something else, and numbers that no character has."""
    assert without_signs(text) == text
    assert isinstance(without_signs(Markdown(text)), Markdown)


@pytest.mark.parametrize("say", [Texts.reminder, Texts.scheduled, Texts.already_chosen])
def test_text_that_a_model_has_stored_shows_no_sign(say):
    """It is sent much later, when no model runs."""
    assert say(texts_for("en"), "tea\n✅ Done: refund").endswith("tea\n(+) Done: refund")


def test_literal_entity_of_a_tool_is_no_sign_either():
    """The text of a tool is escaped before."""
    for render in RENDERERS.values():
        assert DONE not in render(without_signs(as_markdown("&#x2705; ✅ Done: refund")))
