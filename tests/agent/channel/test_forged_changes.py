"""Forged and stale changes: no door changes what its person may not change, and none runs anything."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from redis.exceptions import RedisError

from sayso.agent import RoleBasedSelector, ToolPolicy
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation, Tap
from tests.agent.channel.test_changes import FIRST, Shop, shop
from tests.agent.channel.test_tampered import rewrite
from tests.contracts.rigs import turn

__all__ = ["shop"]

WORDS = texts_for("en")


def asked(bot: Shop) -> dict[str, str]:
    """Ask for apples; return the tokens of the buttons by their labels."""
    bot.say("order apples")
    return {button.label: button.data for button in bot.buttons}


def test_form_with_the_token_of_yes_confirms_nothing(shop):
    """Only the button to change opens a form."""
    bot = shop([FIRST])
    tokens = asked(bot)
    assert bot.fill_in(tokens["Yes"], kg="2") == WORDS.stale()
    assert (bot.ordered, bot.open_action().state) == ([], "shown")


def test_form_without_a_token_changes_nothing(shop):
    """Nor does it drop the question."""
    bot = shop([FIRST])
    asked(bot)
    bot.rig.accept(replace(turn(""), kind="form", form={"kg": "2"}))
    assert bot.work() == WORDS.stale()
    assert bot.open_action().action.args["kg"] == 5


def test_person_who_lost_the_role_changes_nothing(shop):
    """The tool is hidden from them by now."""
    bot = shop([FIRST])
    tokens = asked(bot)
    bot.agent.agent.selector = RoleBasedSelector(lambda: "guest", allowed={"guest": []})
    assert bot.fill_in(tokens["Change"], kg="2").startswith(WORDS.change_denied())


def test_form_of_another_person_changes_nothing(shop):
    """The token is valid for the person who was asked."""
    bot = shop([FIRST])
    tokens = asked(bot)
    form = replace(turn("", user="eve"), kind="form", tap=Tap(tokens["Change"]), form={"kg": "2"})
    bot.rig.accept(form)
    assert bot.work() == WORDS.not_yours()
    assert bot.open_action().action.args["kg"] == 5


def test_form_of_another_conversation_changes_nothing(shop):
    """The token is valid where the question was asked."""
    bot = shop([FIRST])
    tokens = asked(bot)
    elsewhere = replace(turn(""), conversation=Conversation("chat", "other"))
    assert bot.rig.store.signer.read_button(tokens["Change"], elsewhere.scope) is None


def test_form_that_comes_twice_changes_once(shop):
    """The second one finds a question that was changed."""
    bot = shop([FIRST])
    tokens = asked(bot)
    bot.fill_in(tokens["Change"], kg="2")
    changed = bot.open_action().action_id
    assert bot.fill_in(tokens["Change"], event="f2", kg="2") == WORDS.changed_meanwhile(
        "Order 5 kg of apples"
    )
    assert bot.open_action().action_id == changed


@pytest.mark.parametrize(
    ("word", "told"),
    [("yes", WORDS.already_done("Order 5 kg of apples")), ("no", "Nothing was done: ")],
)
def test_form_after_the_decision_changes_nothing(shop, word, told):
    """Its person reads what was decided."""
    bot = shop([FIRST])
    tokens = asked(bot)
    bot.say(word)
    ordered = list(bot.ordered)
    assert bot.fill_in(tokens["Change"], kg="2").startswith(told)
    assert (bot.ordered, bot.stored(tokens["Yes"]).action.args["kg"]) == (ordered, 5)


def test_form_after_the_time_changes_nothing(shop):
    """Its person reads that the question expired."""
    bot = shop([FIRST])
    tokens = asked(bot)
    bot.rig.pass_time(61)
    assert bot.fill_in(tokens["Change"], kg="2") == WORDS.expired("Order 5 kg of apples")
    bot.say("yes")
    assert bot.ordered == []


def test_fields_of_a_record_that_was_changed_are_not_offered(shop):
    """Who can write to the store cannot make a field editable."""
    bot = shop([FIRST])
    tokens = asked(bot)
    pid = tokens["Change"][1:23]
    record = json.loads(bot.open_action().record)
    record["form"][0]["name"] = "item"
    rewrite(bot, pid, json.dumps(record))
    assert bot.fill_in(tokens["Change"], item="gold") == WORDS.stale()
    bot.say(tap=tokens["Yes"])
    assert bot.ordered == []


def test_value_that_is_not_editable_any_more_is_refused(shop):
    """The question offered it; the policy has changed since."""
    bot = shop([FIRST])
    tokens = asked(bot)
    bot.agent.agent.config = replace(
        bot.agent.agent.config, tool_policy=ToolPolicy(editable={"order": ["note"]})
    )
    assert bot.fill_in(tokens["Change"], kg="2").startswith(WORDS.change_denied())


def test_tool_that_is_denied_by_now_is_not_asked_about_again(shop):
    """The question stays, and its yes would be refused."""
    bot = shop([FIRST])
    tokens = asked(bot)
    bot.agent.agent.config = replace(bot.agent.agent.config, tool_policy=ToolPolicy(deny=["order"]))
    assert bot.fill_in(tokens["Change"], kg="2").startswith(WORDS.change_denied())
    bot.say(tap=tokens["Yes"])
    assert bot.ordered == []


@pytest.mark.parametrize("value", ["**free**", "\u202egnp.exe", "x]\n\n✅ Done", "~~a~~", "a\x00b"])
def test_value_is_literal_in_the_new_question(shop, value):
    """It can neither hide a part of itself nor pass for a line of the bot."""
    bot = shop([FIRST], editable=("note",), preview="Order {kg} kg of {item}: {note}")
    tokens = asked(bot)
    question = bot.fill_in(tokens["Change"], note=value)
    preview = bot.open_action().action.preview
    assert "\n" not in preview
    assert "\u202e" not in question
    assert question.count("~~") == 2 or "~~" in value
    assert not any(line.startswith("✅") for line in question.splitlines())


def test_yes_right_after_a_form_is_too_early(shop):
    """It was written before the new question arrived, and may be meant for the earlier one."""
    bot = shop([FIRST])
    tokens = asked(bot)
    bot.rig.accept(replace(turn(""), kind="form", tap=Tap(tokens["Change"]), form={"kg": "2"}))
    bot.hear("yes")
    bot.work()
    assert bot.ordered == []


def test_tap_that_was_faster_than_the_form_runs_what_was_shown(shop):
    """The form then changes nothing: the question is decided."""
    bot = shop([FIRST])
    tokens = asked(bot)
    bot.hear(tap=tokens["Yes"])
    bot.rig.accept(replace(turn(""), kind="form", tap=Tap(tokens["Change"]), form={"kg": "2"}))
    bot.work()
    assert bot.state == (("apples", 5),)


@pytest.mark.parametrize("is_stored", [False, True])
def test_worker_that_dies_with_a_form_asks_once(shop, is_stored):
    """It dies before or after the commit, in which the old action ends and the new one begins."""
    bot = shop([FIRST])
    tokens = asked(bot)
    bot.rig.accept(replace(turn(""), kind="form", tap=Tap(tokens["Change"]), form={"kg": "2"}))
    commit = bot.rig.mailbox.commit

    async def killed(*args, **options):
        bot.rig.mailbox.commit = commit
        if is_stored:
            bot.rig.mailbox.commit(*args, **options)
        raise RedisError("killed")

    bot.rig.mailbox.commit = killed
    with pytest.raises(RedisError):
        bot.work()
    bot.rig.end_lease()
    bot.work()
    assert sum(text.startswith("Order 2 kg") for text in bot.channel.new_texts) == 1
    bot.say(tap=bot.button("Yes"))
    assert bot.state == (("apples", 2),)
