"""Texts of tools: results, previews and failures are shown as they are, unless the tool says that they are Markdown."""

from __future__ import annotations

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    ChannelAgent,
    Markdown,
    PendingConfirmation,
    ScriptedProvider,
    ToolCall,
    ToolError,
    offer_choices,
    tool,
)
from sayso.channels.markdown.convert import plain, telegram_html
from sayso.pending.proposals import stash_pending
from tests.agent.channel.test_context import make as make  # a fixture

PATH = "__init__.py in D:\\data\\_scratch"


def tool_of(**behaviour):
    """Return a tool that asks first, with a preview or undo; it returns or raises `value`."""
    value = behaviour.pop("value", "done")

    @tool(**{"requires_approval": True, "preview": "Delete it", **behaviour})
    def delete() -> object:
        """Delete it."""
        if isinstance(value, Exception):
            raise value
        return value

    return delete


def seen(bot) -> list[str]:
    """Return what a person reads of each message."""
    return [plain(each.reply.text) for each in bot.channel.sent]


def test_result_after_a_yes_keeps_its_characters(make):
    """Underscores and backslashes belong to the name, also in the question that shows its outcome."""
    bot = make([tool_of(value=f"Deleted {PATH}")], ["delete"])
    bot.say("delete it")
    bot.say("yes")
    assert seen(bot)[-1] == f"Deleted {PATH}"


class Order:
    """A value whose class says nothing about it."""


@pytest.mark.parametrize("value", [None, True, {}, [], {"error": None}, b"\xff", Order()], ids=repr)
def test_result_without_words_says_what_was_done(make, value):
    """Neither words for the model such as "done", nor a "nothing" that reads as if nothing was done."""
    bot = make([tool_of(value=value)], ["delete"])
    bot.say("delete it")
    bot.say("yes")
    assert seen(bot)[-1] == "Done: Delete it"


@pytest.mark.parametrize(
    ("value", "told"), [(False, "no"), (0, "0"), (12.5, "12.5"), ("ok", "ok"), ([1, 2], "- 1\n- 2")]
)
def test_result_that_is_no_sentence_stands_below_what_was_done(make, value, told):
    """A "no" or a number alone does not tell whether the tool ran."""
    bot = make([tool_of(value=value)], ["delete"])
    bot.say("delete it")
    bot.say("yes")
    assert seen(bot)[-1] == f"Done: Delete it\n{told}"


def test_failure_after_a_yes_keeps_its_characters(make):
    """The reason of a tool is text."""
    bot = make([tool_of(value=ToolError(f"cannot open {PATH}"))], ["delete"])
    bot.say("delete it")
    bot.say("yes")
    assert f"cannot open {PATH}" in seen(bot)[-1]


def test_result_that_is_markdown_is_formatted(make):
    """The tool says so with the type."""
    bot = make([tool_of(value=Markdown("**3** files"))], ["delete"])
    bot.say("delete it")
    bot.say("yes")
    assert telegram_html(bot.channel.sent[-1].reply.text) == "<b>3</b> files"


@pytest.mark.parametrize(
    ("words", "html"),
    [(f"Delete {PATH}", f"Delete {PATH}"), (Markdown("Delete **all**"), "Delete <b>all</b>")],
    ids=["text", "markdown"],
)
def test_preview_function_returns_text_unless_it_says_markdown(make, words, html):
    """The question shows what the function returned, and the yes still fits it."""
    bot = make([tool_of(preview=lambda: words, value="Done.")], ["delete"])
    bot.say("delete it")
    assert telegram_html(bot.channel.sent[-1].reply.text).startswith(html)
    bot.say("yes")
    assert seen(bot)[-1] == "Done."


def test_proposal_of_a_tool_and_its_prompt_keep_their_characters(make):
    """A tool that asks by itself gives text as well."""

    @tool(proposes=True)
    def ask() -> PendingConfirmation:
        """Ask."""
        stash_pending(kind="ask", preview=f"Delete {PATH}", executor=lambda: f"Deleted {PATH}")
        return PendingConfirmation(
            action="ask", preview=f"Delete {PATH}", user_prompt="It is *_the last_* one."
        )

    bot = make([ask], ["ask"])
    bot.say("ask")
    assert seen(bot)[-1].startswith(f"Delete {PATH}\n\nIt is *_the last_* one.")
    bot.say("yes")
    assert seen(bot)[-1] == f"Deleted {PATH}"


@pytest.mark.parametrize(
    "options", [{"terminal": True}, {"read_only": True}], ids=["terminal", "read"]
)
@pytest.mark.parametrize(
    ("value", "html"),
    [(f"Found {PATH}", f"Found {PATH}"), (Markdown("**3** found"), "<b>3</b> found")],
)
def test_result_that_people_read_without_a_model_keeps_its_characters(make, options, value, html):
    """The text of a terminal tool is the answer; that of a reading one stands above the question."""

    @tool(**options)
    def look() -> str:
        """Look."""
        return value

    bot = make([look, tool_of()], ["look", "delete"])
    bot.say("look and delete")
    assert telegram_html(bot.channel.sent[0].reply.text) == html


def test_undone_result_keeps_its_characters(make):
    """The message whose effect was taken back repeats what the tool had reported."""
    bot = make([tool_of(value=f"Deleted {PATH}", undo=lambda: f"Restored {PATH}")], ["delete"])
    bot.say("delete it")
    bot.say("yes")
    assert f"Deleted {PATH}" in seen(bot)[-1]
    bot.hear(tap=bot.channel.sent[-1].reply.buttons[0].data)
    bot.work()
    texts = seen(bot)
    assert texts[-1] == f"Restored {PATH}"
    assert all("init.py" not in text or PATH in text for text in texts)


def printing(*lines, tools=None) -> ChannelAgent:
    """Return a bot without a worker, whose tool deletes a path and says so."""
    delete = tool_of(preview=lambda: f"Delete {PATH}", value=f"Deleted {PATH}")
    return ChannelAgent(
        Agent(tools or [delete], ScriptedProvider(lines), AgentConfig(max_retries=0))
    )


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("yes", f"Deleted {PATH}"),
        ("no", f"Nothing was done: “Delete {PATH}”"),
        (
            "maybe",
            f"I could not tell whether you meant yes or no: Delete {PATH}\nReply **yes** or **no**.",
        ),
        ("/status", f"left: Delete {PATH}"),
    ],
)
def test_printed_content_has_no_escapes(answer, told):
    """A program that calls `ask_channel` and prints the content shows names as they are."""
    bot = printing(ToolCall("delete"))
    assert bot.ask_channel("ana", "delete it").content.startswith(
        f"Delete {PATH}\n\nReply **yes** or **no**"
    )
    assert bot.ask_channel("ana", answer).content.endswith(told)


def test_printed_content_keeps_what_the_model_wrote():
    """Its Markdown is its own, with its escapes; the words of the bot above it have none. However long, it is whole."""
    written = r"Look: `a\_b`, **bold**, \_not italic\_ and \(x\)." + " So." * 5000
    bot = printing(ToolCall("delete"), written)
    bot.ask_channel("ana", "delete it")
    told = bot.ask_channel("ana", "what is the weather?").content
    assert told == f"You did not say yes, so nothing was done: “Delete {PATH}”\n\n{written}"


def test_printed_choices_have_no_escapes():
    """They are listed below the answer, in which the model's own escapes stay."""

    @tool
    def ask() -> str:
        """Ask for a file."""
        offer_choices("__init__.py", "a*b")
        return "asked"

    bot = printing(ToolCall("ask"), r"Which \_one\_?", tools=[ask])
    assert (
        bot.ask_channel("ana", "delete one").content == "Which \\_one\\_?\n\n- __init__.py\n- a*b"
    )


def test_printed_content_of_another_digest_has_no_escapes():
    """A yes to other arguments is refused."""
    bot = printing(ToolCall("delete"))
    bot.ask_channel("ana", "delete it")
    told = bot.ask_channel("ana", "yes", args_digest="0").content
    assert (
        told
        == f"I could not safely confirm this: Delete {PATH}\nNothing was done. Please ask again."
    )


@pytest.mark.parametrize("intent", ["confirm", "cancel", "ignore"])
def test_printed_preview_of_the_store_has_no_escapes(intent):
    """The seed's program acknowledges a tap with it. The executor's record has the preview as it was signed."""
    store = printing().store
    signed = []
    store.register_executor_factory("delete", lambda record: lambda: signed.append(record.preview))
    assert store.stash("ana", kind="delete", preview=f"Delete {PATH}").preview == f"Delete {PATH}"
    assert store.get("ana").preview == f"Delete {PATH}"
    outcome = store.pop_if_intent("ana", intent)
    assert (outcome.record.preview, PATH in outcome.outcome_text) == (f"Delete {PATH}", True)
    assert [plain(each) for each in signed] == ([f"Delete {PATH}"] if intent == "confirm" else [])
