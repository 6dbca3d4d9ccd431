"""Actions that other people decide: asked on one channel, decided on another."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, ToolPolicy, tool
from sayso.agent.channel.approval_votes import MAX_ANSWERS_EACH
from sayso.agent.channel.tool_executors import ToolExecutors
from sayso.channels.base import AddressClosed, WindowClosed
from sayso.channels.types import Conversation
from sayso.infra.redis.client import PREFIX
from sayso.pending import stash_pending
from sayso.pending.approval_rule import (
    ApprovalEscalation,
    ApprovalPlace,
    ApprovalRule,
    Deciders,
)
from sayso.pending.approvals.people import Account
from sayso.pending.approvals.requests import requests_of
from sayso.pending.sharded_scripts import shard_of
from tests.agent.channel.shop import ANA, GROUP, MANAGERS, Shop, colleague

TWO = replace(MANAGERS, need=2)
IN_GROUP = replace(MANAGERS, on=ApprovalPlace("team", "C1"))
HOUR = 3600.0


def test_manager_confirms_by_tap():
    """The one who asked is told who was asked, then the outcome; each request is closed."""
    shop = Shop(30)
    shop.ask()
    assert shop.refunds == []
    assert "bea, cem" in shop.texts[-1]
    assert "ana asks for this" in shop.texts_to("bea")[-1]
    assert "Refund 30 EUR" in shop.texts_to("bea")[-1]

    shop.tap("bea", shop.request("bea")[0])
    assert shop.refunds == [30]
    assert "Agreed by bea" in shop.texts[-1]
    assert "refunded 30" in shop.texts[-1]
    for user in ("bea", "cem"):
        assert "Agreed by bea" in shop.texts_to(user)[-1]


def test_two_at_once_carry_it_out_once():
    """The second answer changes nothing, and its person is told who decided."""
    shop = Shop(30)
    shop.ask()
    for user in ("bea", "cem"):
        shop.hear(Conversation("team", user), user, tap=shop.request(user)[0].data)
    shop.work()
    assert shop.refunds == [30]
    assert len([each for each in shop.texts if "Agreed by" in each]) == 2  # notice and outcome


def test_a_no_and_a_yes_at_once_end_it_once():
    """What came first in the conversation of the action counts."""
    shop = Shop(30)
    shop.ask()
    shop.hear(Conversation("team", "bea"), "bea", tap=shop.request("bea")[1].data)
    shop.work(Conversation("team", "bea"))
    shop.hear(Conversation("team", "cem"), "cem", tap=shop.request("cem")[0].data)
    shop.work()
    assert shop.refunds == []
    assert "bea said no" in shop.texts[-1]


def test_the_same_tap_twice_counts_once():
    """A platform sends the tap again, and the person taps a second time."""
    shop = Shop(30, rule=TWO)
    shop.ask()
    yes = shop.request("bea")[0]
    shop.tap("bea", yes, event="t1")
    shop.tap("bea", yes, event="t1")
    shop.tap("bea", yes, event="t2")
    assert shop.refunds == []
    assert "1 of 2" in shop.texts_to("bea")[-1]


def test_two_of_two_need_two_people():
    """The second yes carries it out, and both are named."""
    shop = Shop(30, rule=TWO)
    shop.ask()
    shop.tap("bea", shop.request("bea")[0])
    assert "1 of 2" in shop.texts_to("bea")[-1]
    shop.tap("cem", shop.request("cem")[0])
    assert shop.refunds == [30]
    assert "Agreed by bea, cem" in shop.texts[-1]


def test_one_person_under_two_names_counts_once():
    """Two accounts of one person are one vote."""
    shop = Shop(30, rule=replace(TWO, on=ApprovalPlace("team", "C1")))
    shop.directory.set("bea", accounts=(Account("team", "bea"), Account("team", "bea2")))
    shop.ask()
    yes = shop.request("C1")[0]
    shop.tap("bea", yes, GROUP, in_group=True)
    shop.tap("bea2", yes, GROUP, in_group=True)
    assert shop.refunds == []


def test_role_lost_between_question_and_tap():
    """The role counts at the decision. The person is told, and nothing changes."""
    shop = Shop(30)
    shop.ask()
    shop.directory.set("bea", roles=frozenset())
    shop.tap("bea", shop.request("bea")[0])
    assert shop.refunds == []
    assert shop.texts_to("bea")[-1] == "You may not decide this."
    shop.tap("cem", shop.request("cem")[0])
    assert shop.refunds == [30]


def test_role_lost_after_the_first_of_two():
    """A yes of a person who is no manager any more does not count."""
    shop = Shop(30, rule=TWO)
    shop.ask()
    shop.tap("bea", shop.request("bea")[0])
    shop.directory.set("bea", roles=frozenset())
    shop.tap("cem", shop.request("cem")[0])
    assert shop.refunds == []
    assert "1 of 2" in shop.texts_to("cem")[-1]


def test_nobody_approves_their_own_request():
    """Not even a manager, from another account."""
    shop = Shop(30, rule=IN_GROUP)
    shop.directory.set("ana", roles=frozenset({"manager"}))
    shop.ask()
    shop.tap("ana", shop.request("C1")[0], GROUP, in_group=True)
    assert shop.refunds == []
    assert "yourself" in shop.texts_to("C1")[-1]


def test_the_asker_is_not_asked():
    """Of the managers only the others get a request."""
    shop = Shop(30)
    shop.directory.set("ana", roles=frozenset({"manager"}))
    shop.ask()
    assert shop.texts_to("ana") == []


def test_yes_of_the_asker_is_no_yes():
    """In their own chat a yes goes to the model."""
    shop = Shop(30, lines=["They decide."])
    shop.ask()
    shop.ask("yes")
    assert shop.refunds == []
    assert shop.texts[-1] == "They decide."


def test_stranger_in_the_group_is_refused():
    """The click changes nothing, and only its person sees the notice."""
    shop = Shop(30, rule=IN_GROUP)
    shop.ask()
    shop.tap("dan", shop.request("C1")[0], GROUP, in_group=True)
    assert shop.refunds == []
    notice = shop.team.sent[-1].reply
    assert (notice.text, notice.only_for) == ("You may not decide this.", "dan")
    shop.tap("cem", shop.request("C1")[0], GROUP, in_group=True)
    assert shop.refunds == [30]


def test_anyone_else_in_the_group():
    """Each member but the one who asked may decide."""
    rule = ApprovalRule(Deciders("anyone_else"), on=ApprovalPlace("team", "C1"))
    shop = Shop(30, rule=rule)
    shop.ask()
    shop.tap("ana", shop.request("C1")[0], GROUP, in_group=True)
    assert shop.refunds == []
    shop.tap("zoe", shop.request("C1")[0], GROUP, in_group=True)
    assert shop.refunds == [30]


def test_forwarded_button_of_another_person():
    """A button of a personal request works for that person only."""
    shop = Shop(30)
    shop.ask()
    shop.tap("cem", shop.request("bea")[0], Conversation("team", "bea"))
    assert shop.refunds == []


def test_typed_yes_names_the_request():
    """A person decides in words, in their own chat."""
    shop = Shop(30)
    shop.ask()
    code = code_of(shop, "bea")
    shop.say("bea", f"yes {code.lower()}")
    assert shop.refunds == [30]


def test_typed_yes_in_the_language_of_the_request():
    """The channel of the manager has another one, in which the word is a false friend of others."""
    shop = Shop(30, language="de")
    shop.ask()
    request = shop.texts_to("bea")[-1]
    code = requests_of(shop.home_action())[0].code
    assert f"**ja {code}**" in request
    shop.say("bea", f"ja {code}")
    assert shop.refunds == [30]


def test_answers_in_a_row_are_not_joined():
    """A person decides about two actions in quick succession, on a channel that joins messages."""
    shop = Shop(30, 40)
    turns = replace(shop.processor.turns, joins=True)
    shop.processor = replace(shop.processor, turns=turns)
    codes = []
    for _ in range(2):
        shop.ask()
        codes.append(requests_of(shop.home_action())[0].code)
    for code in codes:
        shop.hear(Conversation("team", "bea"), "bea", f"yes {code}")
    shop.work()
    assert shop.refunds == [30, 40]


def test_yes_in_a_group_is_answered_there():
    """The request stands in the person's own chat, and they name its code in a group."""
    shop = Shop(30)
    shop.ask()
    shop.hear(GROUP, "bea", f"yes {code_of(shop, 'bea')}", in_group=True)
    shop.work()
    assert shop.refunds == [30]
    assert shop.texts_to("C1")[-1].startswith("Agreed by bea")


def test_plain_yes_of_a_manager_decides_nothing():
    """They are told how to answer."""
    shop = Shop(30)
    shop.ask()
    shop.say("bea", "yes")
    assert shop.refunds == []
    assert code_of(shop, "bea") in shop.texts_to("bea")[-1]


def test_quoting_the_request_decides():
    """The quoted message says which request is meant."""
    shop = Shop(30)
    shop.ask()
    message = shop.message_of("bea")
    shop.say("bea", "yes", replied_to=message)
    assert shop.refunds == [30]


def test_manager_with_a_question_of_their_own():
    """A plain yes goes to their own question, and a yes with the code to the request."""
    shop = Shop(30)
    shop.ask()
    code = code_of(shop, "bea")
    shop.own_question("bea", 7)
    shop.say("bea", f"yes {code}")
    assert shop.refunds == [30]
    shop.say("bea", "yes")
    assert shop.refunds == [30, 7]


def test_no_with_a_reason_reaches_asker_and_model():
    """The reason stands behind the code."""
    shop = Shop(30, lines=["Too much, sorry."], after="continue")
    shop.ask()
    shop.say("bea", f"no {code_of(shop, 'bea')} too much")
    assert shop.refunds == []
    assert any("bea said no" in each and "too much" in each for each in shop.texts)
    read = json.dumps([str(each) for each in shop.provider.requests[-1].messages])
    assert "denied" in read
    assert "too much" in read


@pytest.mark.parametrize(
    ("words", "refunds"),
    [
        ("{code}: yes", [30]),
        ("yes {code} please", [30]),
        ("yes {code} but only 10", []),
        ("yes {code} if she has paid", []),
    ],
)
def test_only_a_whole_yes_counts(words, refunds):
    """A condition behind it makes it another sentence, and the person is told how to answer."""
    shop = Shop(30)
    shop.ask()
    shop.say("bea", words.format(code=code_of(shop, "bea")))
    assert shop.refunds == refunds
    if not refunds:
        assert "You have a request to decide" in shop.texts_to("bea")[-1]


def test_quoted_no_has_its_reason_behind_it():
    """No code is needed: the quote names the request."""
    shop = Shop(30)
    shop.ask()
    shop.say("bea", "No, too expensive", replied_to=shop.message_of("bea"))
    assert "bea said no" in shop.texts[-1]
    assert "too expensive" in shop.texts[-1]


@pytest.mark.parametrize("quotes", [False, True])
def test_written_answer_after_the_decision_is_told_so(quotes):
    """It does not reach the model."""
    shop = Shop(30)
    shop.ask()
    code = code_of(shop, "cem")
    message = shop.message_of("cem")
    shop.tap("bea", shop.request("bea")[0])
    if quotes:
        shop.say("cem", "no", replied_to=message)
    else:
        shop.say("cem", f"no {code}")
    assert shop.texts_to("cem")[-1].startswith("This is decided already. Agreed by bea")


def test_reason_may_come_from_another_conversation_of_the_person():
    """On Slack each message opens a thread of its own: the code says what it is about."""
    shop = Shop(30, rule=replace(MANAGERS, reason="on_deny"))
    shop.ask()
    code = code_of(shop, "bea")
    shop.tap("bea", shop.request("bea")[1])
    assert f"**no {code}**" in shop.texts_to("bea")[-1]
    thread = Conversation("team", "D-bea", "t1")
    shop.hear(thread, "bea", f"no {code} the invoice is paid")
    shop.work(thread)
    shop.work()
    assert "the invoice is paid" in shop.texts[-1]


def test_yes_in_the_thread_of_a_request_answers_a_question_of_the_person():
    """The thread is a conversation, too. Without such a question the yes decides the request."""
    shop = Shop(30)
    shop.ask()
    thread = Conversation("team", "D-bea", shop.message_of("bea"))
    shop.own_question("bea", 7, thread)
    shop.hear(thread, "bea", "yes")
    shop.work(thread)
    assert shop.refunds == [7]
    shop.hear(thread, "bea", "yes", replied_to=shop.message_of("bea"))
    shop.work(thread)
    shop.work()
    assert shop.refunds == [7, 30]


def test_manager_is_asked_under_the_id_of_their_messages():
    """The directory knows bea by her number. Her tap and her words come in under an id."""
    shop = Shop(30, 40, rule=ApprovalRule(Deciders("people", ("bea",))))
    shop.directory.set("bea", accounts=(Account("team", "+49"),))
    shop.directory.known_as["+49"] = "bea"
    shop.ask()
    shop.tap("bea", shop.request("bea")[0], aliases=("+49",))
    assert shop.refunds == [30]
    shop.ask()
    code = code_of(shop, "bea")
    shop.say("bea", f"yes {code}", aliases=("+49",))
    assert shop.refunds == [30, 40]


def test_status_names_what_a_person_has_to_decide():
    """And what the asker waits for."""
    shop = Shop(30)
    shop.ask()
    shop.say("bea", "/status")
    assert shop.texts_to("bea")[-1].startswith("This still waits for your answer: Refund 30 EUR")
    assert f"**yes {code_of(shop, 'bea')}**" in shop.texts_to("bea")[-1]
    shop.ask("/status")
    assert shop.texts[-1].startswith("Waiting for the decision of bea, cem")


def test_all_others_of_a_conversation_are_asked_there():
    """They have no names, and the asker reads no name of a channel."""
    shop = Shop(30, rule=ApprovalRule(Deciders("anyone_else")))
    shop.hear(ANA, "ana", "refund please", in_group=True)
    shop.work()
    notice, request = shop.texts
    assert notice.startswith("I have asked the others here: Refund 30 EUR")
    assert request.startswith("ana asks for this:")
    shop.ask("/status")
    assert shop.texts[-1].startswith("Waiting for the decision of the others here")


def test_decision_goes_on_while_the_asker_cannot_be_written_to():
    """WhatsApp takes no message a day after the asker has written. The outcome waits for them.

    Meanwhile the requests are closed, and another action is decided.
    """
    shop = Shop(30, 40)
    shop.ask()
    first = shop.request("bea")[0]
    shop.ask()
    second = shop.request("bea")[0]
    shop.shop.errors = [WindowClosed("24 hours")] * 20
    shop.tap("bea", first)
    assert shop.refunds == [30]
    assert "Agreed by bea" in shop.texts_to("cem")[-1]
    assert not any("Agreed by" in each for each in shop.texts)

    shop.tap("bea", second)
    assert shop.refunds == [30, 40]
    assert len([each for each in shop.texts_to("cem") if "Agreed by bea" in each]) == 2
    shop.shop.errors = []
    shop.ask("hello?")
    told = [each for each in shop.texts if "refunded" in each]
    assert ["refunded 30" in told[0], "refunded 40" in told[1]] == [True, True]


def test_request_passes_a_reply_that_waits_for_its_person():
    """An answer to her is held. A request may come as a template, so it does not wait behind that."""
    shop = Shop(30)
    shop.team.errors = [WindowClosed("24 hours")]
    shop.say("bea", "hello?")
    assert shop.texts_to("bea") == []
    shop.ask()
    assert "asks for this" in shop.texts_to("bea")[0]
    shop.tap("bea", shop.request("bea")[0])
    assert shop.refunds == [30]


def test_time_ends_while_the_asker_cannot_be_written_to():
    """The requests are closed then, and do not wait for the asker."""
    shop = Shop(30, 40, rule=replace(MANAGERS, within_seconds=HOUR))
    shop.ask()
    first = shop.request("bea")[0]
    shop.ask()
    shop.shop.errors = [WindowClosed("24 hours")] * 20
    shop.tap("bea", first)
    shop.later(HOUR + 5)
    assert "time to decide is over" in shop.texts_to("cem")[-1]
    assert shop.refunds == [30]


def test_late_answer_is_told_who_decided():
    """It reads nothing of what the tool returned: that is for the asker."""
    shop = Shop(30)
    shop.ask()
    for user in ("bea", "cem"):
        shop.hear(Conversation("team", user), user, tap=shop.request(user)[0].data)
    for user in ("bea", "cem"):
        shop.work(Conversation("team", user))
    shop.work()
    late = next(each for each in shop.texts_to("cem") if "decided already" in each)
    assert "Agreed by bea" in late
    assert not any("refunded 30" in each for each in shop.texts_to("cem"))


def test_those_who_agreed_hear_that_nothing_was_done():
    """The tool has changed since the request."""
    shop = Shop(30)
    shop.ask()

    @tool(preview="Refund {amount} EUR at once")
    def refund(amount: int) -> str:
        """Refund an amount, faster."""
        return f"refunded {amount}"

    shop.rig.store.executors.kinds = ToolExecutors(lambda: [refund], AgentConfig)
    shop.tap("bea", shop.request("bea")[0])
    assert "This has changed" in shop.texts[-1]
    for user in ("bea", "cem"):
        assert "Agreed by bea" in shop.texts_to(user)[-1]
        assert "something has changed since the request" in shop.texts_to(user)[-1]


def test_group_is_asked_to_tap_and_may_mention_the_bot():
    """Most platforms bring the bot no message of a group that does not mention it.

    On Slack, such a message stands in a thread of its own.
    """
    shop = Shop(30, rule=IN_GROUP)
    shop.ask()
    assert shop.texts_to("C1")[-1].endswith("Tap a button within 24 hours.")
    code = requests_of(shop.home_action())[0].code
    thread = replace(GROUP, thread="t9")
    shop.hear(thread, "bea", f"yes {code}", in_group=True)
    shop.work(thread)
    shop.work()
    assert shop.refunds == [30]


def test_anyone_else_may_answer_in_a_thread_of_the_chat():
    """Where a request stands outside of threads."""
    rule = ApprovalRule(Deciders("anyone_else"), on=ApprovalPlace("team", "C1"))
    shop = Shop(30, rule=rule)
    shop.ask()
    code = requests_of(shop.home_action())[0].code
    thread = replace(GROUP, thread="t9")
    shop.hear(thread, "zoe", f"yes {code}", in_group=True)
    shop.work(thread)
    shop.work()
    assert shop.refunds == [30]
    assert "Agreed by Zoe" in shop.texts[-2]


def test_group_reads_whose_answer_counts():
    """A notice that an answer does not count is for its person alone."""
    shop = Shop(30, rule=replace(TWO, on=ApprovalPlace("team", "C1")))
    shop.ask()
    yes = shop.request("C1")[0]
    shop.tap("bea", yes, GROUP, in_group=True)
    assert shop.team.sent[-1].reply.text.startswith("bea has answered: 1 of 2")
    assert shop.team.sent[-1].reply.only_for == ""
    shop.tap("bea", yes, GROUP, in_group=True)
    assert shop.team.sent[-1].reply.only_for == "bea"
    shop.tap("cem", yes, GROUP, in_group=True)
    assert shop.refunds == [30]


def test_reason_with_letters_that_grow_in_upper_case():
    """The reason begins right behind the code."""
    shop = Shop(30)
    shop.ask()
    shop.say("bea", f"no {code_of(shop, 'bea')} zu groß")
    assert "The reason: zu groß" in shop.texts[-1]


def test_tap_on_no_is_asked_why():
    """Where a no needs a reason, the next message is the reason."""
    shop = Shop(30, rule=replace(MANAGERS, reason="on_deny"))
    shop.ask()
    shop.tap("bea", shop.request("bea")[1])
    assert shop.texts_to("bea")[-1].startswith("Why?")
    shop.say("bea", "the invoice is paid")
    assert "the invoice is paid" in shop.texts[-1]
    assert "bea said no" in shop.texts[-1]


def test_yes_to_an_own_question_is_no_reason():
    """A person who was asked why says yes to a question of their own."""
    shop = Shop(30, rule=replace(MANAGERS, reason="on_deny"))
    shop.ask()
    shop.own_question("bea", 7)
    shop.tap("bea", shop.request("bea", number=0)[1])
    shop.say("bea", "yes")
    assert "said no" not in shop.texts[-1]
    shop.say("bea", "the invoice is paid")
    assert "the invoice is paid" in shop.texts[-1]


def test_change_of_mind_before_the_reason():
    """A tap on yes takes the place of the no that waits for its reason."""
    shop = Shop(30, rule=replace(MANAGERS, reason="on_deny"))
    shop.ask()
    yes, no = shop.request("bea")
    shop.tap("bea", no)
    shop.tap("bea", yes)
    assert shop.refunds == [30]
    shop.say("bea", "because")
    assert "said no" not in shop.texts[-1]


def test_asker_is_recognized_by_another_id():
    """The platform knows the asker by two ids, and the YAML by the second."""
    shop = Shop(30, rule=IN_GROUP)
    shop.directory.set("ana", accounts=(Account("shop", "+49"), Account("team", "ana")))
    shop.directory.set("ana", roles=frozenset({"manager"}))
    shop.hear(ANA, "ana", "refund", aliases=("+49",))
    shop.work()
    shop.tap("ana", shop.request("C1")[0], GROUP, in_group=True)
    assert shop.refunds == []


def test_two_noes_end_it_where_the_rule_says_so():
    """One no of two is not enough."""
    shop = Shop(30, rule=replace(MANAGERS, denials=2))
    shop.ask()
    shop.tap("bea", shop.request("bea")[1])
    assert "said no" not in shop.texts[-1]
    shop.tap("cem", shop.request("cem")[1])
    assert "bea, cem said no" in shop.texts[-1]


def test_asker_withdraws_by_the_button():
    """The requests end, and a late yes is told so."""
    shop = Shop(30)
    shop.ask()
    yes = shop.request("bea")[0]
    shop.hear(ANA, "ana", tap=shop.notice_button().data)
    shop.work()
    assert "Nothing was done" in shop.texts[-1]
    assert "Withdrawn by ana" in shop.texts_to("bea")[-1]
    shop.tap("bea", yes)
    assert shop.refunds == []
    assert "Withdrawn by ana" in shop.texts_to("bea")[-1]


def test_asker_withdraws_in_words():
    """A no that quotes the notice."""
    shop = Shop(30)
    shop.ask()
    notice = next(i for i, each in enumerate(shop.shop.sent, 1) if each.reply.buttons)
    shop.hear(ANA, "ana", "no", replied_to=f"m{notice}")
    shop.work()
    assert "Withdrawn by ana" in shop.texts_to("bea")[-1]


def test_reset_withdraws_what_waits():
    """The asker reads what was taken back, and those who were asked, too."""
    shop = Shop(30)
    shop.ask()
    shop.ask("/reset")
    assert "Nothing was done: “Refund 30 EUR”" in shop.texts[-1]
    assert "Withdrawn by ana" in shop.texts_to("bea")[-1]
    shop.tap("bea", shop.request("bea")[0])
    assert shop.refunds == []


def test_worker_dies_while_it_withdraws():
    """The next one ends the requests of what was cancelled already."""
    shop = Shop(30)
    shop.ask()
    shop.hear(ANA, "ana", "/reset")
    shop.die_after("change")
    assert shop.home_action().state == "cancelled"
    shop.work()
    for user in ("bea", "cem"):
        assert "Withdrawn by ana" in shop.texts_to(user)[-1]
    assert "Nothing was done: “Refund 30 EUR”" in shop.texts[-1]


def test_withdrawal_that_fails_is_told():
    """What was cancelled before the failure ends, with its requests."""
    shop = Shop(30)
    shop.ask()
    votes = shop.agents["shop"]._votes
    real = votes._answers
    votes._answers = None
    shop.hear(ANA, "ana", "/reset")
    withdraw_all = votes.withdraw_all

    async def fail_once(*args):
        try:
            return await withdraw_all(*args)
        finally:
            votes._answers = real

    votes.withdraw_all = fail_once
    shop.work()
    assert shop.home_action().state == "cancelled"
    assert "Nothing was done: “Refund 30 EUR”" in shop.texts[-1]
    assert "Withdrawn by ana" in shop.texts_to("bea")[-1]


def test_conversation_goes_on_while_others_decide():
    """Another message ends nothing, and the model cannot ask for the same again."""
    shop = Shop(30, 30, lines=["Still waiting."])
    shop.ask()
    shop.ask("what is the weather?")
    assert len(shop.texts_to("bea")) == 1
    assert shop.texts[-1] == "Still waiting."
    read = str(shop.provider.requests[-1].messages)
    assert "waiting" in read
    shop.tap("bea", shop.request("bea")[0])
    assert shop.refunds == [30]


def test_expiry_at_one_of_two_tells_both():
    """Nothing is done, and asker and manager know."""
    shop = Shop(30, rule=replace(TWO, within_seconds=HOUR))
    shop.ask()
    shop.tap("bea", shop.request("bea")[0])
    shop.later(HOUR + 5)
    assert "1 of 2" in shop.texts[-1]
    assert "time to decide is over" in shop.texts_to("bea")[-1]
    shop.tap("cem", shop.request("cem")[0])
    assert shop.refunds == []


def test_second_yes_is_on_its_way_when_the_time_ends():
    """It came in time: it waits in the conversation of its person while the end comes."""
    shop = Shop(30, rule=replace(MANAGERS, within_seconds=HOUR))
    shop.ask()
    yes = shop.request("bea")[0]
    shop.rig.pass_time(HOUR - 5)
    shop.hear(Conversation("team", "bea"), "bea", tap=yes.data)
    shop.work(Conversation("team", "bea"))
    shop.later(10)
    assert shop.refunds == [30]


def test_yes_after_the_time():
    """The request is over."""
    shop = Shop(30, rule=replace(MANAGERS, within_seconds=HOUR))
    shop.ask()
    yes = shop.request("bea")[0]
    shop.rig.pass_time(HOUR + 5)
    shop.tap("bea", yes)
    shop.later(1)
    assert shop.refunds == []
    assert "in time" in shop.texts[-1]


def test_reminder_goes_to_those_who_did_not_answer():
    """Once."""
    shop = Shop(30, rule=replace(TWO, within_seconds=3 * HOUR, reminder_seconds=HOUR))
    shop.ask()
    shop.tap("bea", shop.request("bea")[0])
    shop.later(HOUR + 5)
    assert "still waits" in shop.texts_to("cem")[-1]
    assert "still waits" not in shop.texts_to("bea")[-1]
    shop.later(HOUR)
    assert len([each for each in shop.texts_to("cem") if "still waits" in each]) == 1


def test_escalation_asks_others_too():
    """They may decide from then on, and not before."""
    rule = replace(
        MANAGERS,
        within_seconds=3 * HOUR,
        escalation=ApprovalEscalation(HOUR, Deciders("people", ("dan",))),
    )
    shop = Shop(30, rule=rule)
    shop.ask()
    assert shop.texts_to("dan") == []
    shop.later(HOUR + 5)
    assert "also asked dan" in shop.texts[-1]
    shop.tap("dan", shop.request("dan")[0])
    assert shop.refunds == [30]


def test_request_that_cannot_be_delivered():
    """The others can still decide."""
    shop = Shop(30)
    shop.team.errors = [AddressClosed("blocked")]
    shop.ask()
    reached = "bea" if shop.texts_to("bea") else "cem"
    shop.tap(reached, shop.request(reached)[0])
    assert shop.refunds == [30]


def test_asker_cannot_be_told():
    """Nobody can take the action back, so it ends, and so do its requests."""
    shop = Shop(30)
    shop.shop.errors = [AddressClosed("blocked")]
    shop.ask()
    for user in ("bea", "cem"):
        assert "could be reached" in shop.texts_to(user)[-1]
    shop.tap("bea", shop.request("bea")[0])
    assert shop.refunds == []


@pytest.mark.parametrize("error", [AddressClosed("blocked"), WindowClosed("24 hours")])
def test_nobody_can_be_reached(error):
    """The asker hears it, and nothing is done."""
    shop = Shop(30)
    shop.team.errors = [error, error]
    shop.ask()
    assert "cannot reach" in shop.texts[-1]
    assert shop.refunds == []


def test_nobody_is_left_so_the_next_are_asked():
    """Before their time, because the first cannot be reached."""
    rule = replace(MANAGERS, escalation=ApprovalEscalation(HOUR, Deciders("people", ("dan",))))
    shop = Shop(30, rule=rule)
    shop.team.errors = [AddressClosed("blocked"), AddressClosed("blocked")]
    shop.ask()
    assert "Not enough of them can be reached" in shop.texts[-1]
    shop.tap("dan", shop.request("dan")[0])
    assert shop.refunds == [30]


def test_nobody_has_the_role():
    """Nothing is stored, and the asker hears it."""
    shop = Shop(30)
    for name in ("bea", "cem"):
        shop.directory.set(name, roles=frozenset())
    shop.ask()
    assert "cannot reach enough people" in shop.texts[-1]


def test_nobody_is_asked_while_it_is_not_known_who():
    """The asker is told to try again later, and nothing is stored."""
    shop = Shop(30)
    shop.directory.is_down = True
    shop.ask()
    assert "try again later" in shop.texts[-1]
    assert shop.team.sent == []


def test_platform_does_not_say_who_is_in_a_group():
    """No answer counts until it does."""
    shop = Shop(30)
    shop.ask()
    shop.directory.is_down = True
    shop.tap("bea", shop.request("bea")[0])
    assert shop.refunds == []
    assert "try again later" in shop.texts_to("bea")[-1]
    shop.directory.is_down = False
    shop.tap("bea", shop.request("bea")[0])
    assert shop.refunds == [30]


def test_colleague_decides_for_a_person_who_is_away():
    """The colleague is asked, and may decide until the person is back."""
    shop = Shop(30, rule=ApprovalRule(Deciders("people", ("bea",))))
    shop.directory.set("bea", stand_in="dan", away_until=shop.rig.now + HOUR)
    shop.ask()
    assert shop.texts_to("bea") == []
    shop.tap("dan", shop.request("dan")[0])
    assert shop.refunds == [30]
    assert "Agreed by dan (bea)" in shop.texts[-1]


def test_answer_of_a_colleague_counts_when_the_person_is_back():
    """It was given in their absence. It ends with the role of the person."""
    rule = replace(TWO, by=Deciders("people", ("bea", "cem")))
    shop = Shop(30, rule=rule)
    shop.directory.set("bea", stand_in="dan", away_until=shop.rig.now + HOUR)
    shop.ask()
    shop.tap("dan", shop.request("dan")[0])
    shop.directory.set("bea", stand_in="", away_until=0.0)
    shop.tap("cem", shop.request("cem")[0])
    assert shop.refunds == [30]


def test_person_and_their_colleague_count_once():
    """A person who is back cannot add a yes to the one that was given in their place."""
    rule = replace(TWO, by=Deciders("people", ("bea", "cem")))
    shop = Shop(30, rule=rule)
    shop.directory.set("bea", stand_in="dan", away_until=shop.rig.now + HOUR)
    shop.ask()
    shop.tap("dan", shop.request("dan")[0])
    shop.directory.set("bea", stand_in="", away_until=0.0)
    shop.directory.set("cem", stand_in="dan", away_until=shop.rig.now + HOUR)
    shop.tap("dan", shop.request("dan")[0])
    assert shop.refunds == []


def test_colleague_may_not_decide_once_the_person_is_back():
    """What counts is the moment of the answer."""
    shop = Shop(30, rule=ApprovalRule(Deciders("people", ("bea",))))
    shop.directory.set("bea", stand_in="dan", away_until=shop.rig.now + HOUR)
    shop.ask()
    yes = shop.request("dan")[0]
    shop.rig.pass_time(HOUR + 5)
    shop.tap("dan", yes)
    assert shop.refunds == []


@pytest.mark.parametrize("step", ["claim", "start", "finish", "change"])
def test_worker_dies_while_it_counts_the_last_yes(step):
    """The next one goes on: the effect happens at most once, and everybody is told."""
    shop = Shop(30)
    shop.ask()
    repository = shop.rig.store.repository
    shop.hear(Conversation("team", "bea"), "bea", tap=shop.request("bea")[0].data)
    shop.work(Conversation("team", "bea"))
    shop.die_after(step)
    assert shop.rig.store.repository is repository
    shop.work()
    assert len(shop.refunds) <= 1
    assert shop.refunds == [30] or step == "start"
    assert "Agreed by" in shop.texts_to("cem")[-1] or step == "start"


def test_yes_that_was_held_up_does_not_replace_a_later_no():
    """What a person answered last counts, and not what arrived last."""
    shop = Shop(30, rule=replace(MANAGERS, denials=2))
    shop.ask()
    shop.hear(GROUP, "bea", f"yes {code_of(shop, 'bea')}", in_group=True)
    shop.rig.pass_time(1)
    shop.hear(Conversation("team", "bea"), "bea", tap=shop.request("bea")[1].data)
    shop.work(Conversation("team", "bea"), ANA)
    shop.work()
    assert shop.refunds == []
    assert "0 of 1" in shop.texts_to("C1")[-1]


def test_turn_that_fails_after_the_effect():
    """The asker is told the outcome, and those who were asked are told who agreed."""
    shop = Shop(30)
    shop.ask()
    votes = shop.agents["shop"]._votes
    carry_out = votes._carry_out

    async def carry_out_and_fail(*args):
        await carry_out(*args)
        raise RuntimeError("broken")

    votes._carry_out = carry_out_and_fail
    shop.tap("bea", shop.request("bea")[0])
    assert shop.refunds == [30]
    assert "refunded 30" in shop.texts[-1]
    for user in ("bea", "cem"):
        assert "Agreed by bea" in shop.texts_to(user)[-1]


def test_no_of_a_person_who_lost_the_role_does_not_undo_a_claim():
    """The next worker tells that the action was agreed to, as the first one has counted."""
    shop = Shop(30, rule=replace(MANAGERS, denials=2))
    shop.directory.set("dan", roles=frozenset({"manager"}))
    shop.ask()
    shop.tap("bea", shop.request("bea")[1])
    shop.directory.set("bea", roles=frozenset())
    shop.tap("dan", shop.request("dan")[1])
    shop.hear(Conversation("team", "cem"), "cem", tap=shop.request("cem")[0].data)
    shop.work(Conversation("team", "cem"))
    shop.die_after("claim")
    shop.work()
    assert shop.refunds == [30]
    assert "Agreed by cem" in shop.texts[-1]


def test_forged_vote_changes_nothing():
    """A vote without a genuine seal is dropped."""
    shop = Shop(30)
    shop.ask()
    shop.hear(Conversation("team", "bea"), "bea", tap=shop.request("bea")[0].data)
    shop.work(Conversation("team", "bea"))
    shop.forge_inbox('\\"answer\\": \\"yes\\"', '\\"answer\\": \\"yes\\", \\"words\\": \\"x\\"')
    shop.work()
    assert shop.refunds == []


def test_changed_record_is_told_and_ends():
    """Its voter is told, the requests are closed, and the asker is told when the time is over."""
    shop = Shop(30, rule=replace(MANAGERS, within_seconds=HOUR))
    shop.ask()
    action = shop.home_action()
    key = f"{PREFIX}{{{shard_of(ANA.id)}}}:pending:{action.action_id}"
    shop.rig.client.hset(key, "record", action.record.replace("30", "90"))
    shop.tap("bea", shop.request("bea")[0])
    assert "does not count" in shop.texts_to("bea")[-1]
    shop.later(HOUR + 5)
    assert shop.refunds == []
    assert "what is stored is not what I showed you" in shop.texts[-1]
    for user in ("bea", "cem"):
        assert "was changed since it was sent" in shop.texts_to(user)[-1]
    assert shop.home_action().state == "expired"


def test_changed_record_can_be_withdrawn():
    """Its requests end, too."""
    shop = Shop(30)
    shop.ask()
    action = shop.home_action()
    key = f"{PREFIX}{{{shard_of(ANA.id)}}}:pending:{action.action_id}"
    shop.rig.client.hset(key, "record", action.record.replace("30", "90"))
    shop.hear(ANA, "ana", tap=shop.notice_button().data)
    shop.work()
    assert shop.home_action().state == "cancelled"
    assert "Withdrawn by" in shop.texts_to("bea")[-1]


@pytest.mark.parametrize("state", ["shown", "claimed"])
@pytest.mark.parametrize("answer", [0, 1])
def test_votes_made_up_in_redis_carry_out_nothing(state, answer):
    """Who can write to Redis adds votes, and says that a genuine one has decided already."""
    shop = Shop(30, rule=replace(MANAGERS, need=2, denials=2))
    shop.ask()
    shop.hear(Conversation("team", "bea"), "bea", tap=shop.request("bea")[answer].data)
    shop.work(Conversation("team", "bea"))
    vote = shop.waiting_vote()
    made_up = [replace(vote, answer="yes", person=name).to_json() for name in ("bea", "cem")]
    shop.forge_action(votes="\n".join(made_up), state=state, decided_by_event=vote.turn_event_id)
    shop.work()
    assert shop.refunds == []


@pytest.mark.parametrize("state", ["shown", "claimed"])
def test_two_genuine_votes_of_one_person_count_once_after_a_change_in_redis(state):
    """The vote as it came, which names no person, is put beside the one that was counted."""
    shop = Shop(30, rule=TWO)
    shop.ask()
    shop.hear(Conversation("team", "bea"), "bea", tap=shop.request("bea")[0].data)
    shop.work(Conversation("team", "bea"))
    first = shop.waiting_vote()
    shop.work()
    shop.tap("bea", shop.request("bea")[0])
    votes = f"{shop.home_action().votes_text}\n{first.to_json()}"
    shop.hear(Conversation("team", "bea"), "bea", tap=shop.request("bea")[0].data)
    shop.work(Conversation("team", "bea"))
    shop.forge_action(votes=votes, state=state, decided_by_event=shop.waiting_vote().turn_event_id)
    shop.work()
    assert shop.refunds == []


def test_vote_about_another_action_does_not_count():
    """A genuine vote is copied to another action of the same person."""
    shop = Shop(30, 40, rule=TWO)
    shop.ask()
    shop.tap("bea", shop.request("bea")[0])
    votes = shop.home_action().votes_text
    shop.ask()
    shop.forge_action(votes=votes)
    shop.tap("cem", shop.request("cem")[0])
    assert shop.refunds == []


def test_asker_who_separates_their_accounts_stays_the_asker():
    """Both accounts are one person when they ask, and two people when they answer."""
    shop = Shop(30, rule=IN_GROUP)
    shop.ask()
    shop.directory.set("ana", accounts=(Account("shop", "ana"),))
    shop.directory.people["ana2"] = colleague("ana2", "manager")
    shop.directory.set("ana2", accounts=(Account("team", "ana"),))
    shop.tap("ana", shop.request("C1")[0], GROUP, in_group=True)
    assert shop.refunds == []
    assert "yourself" in shop.texts_to("C1")[-1]


@pytest.mark.parametrize("is_joined_first", [True, False])
def test_person_who_separates_accounts_between_votes_counts_once(is_joined_first):
    """One answer comes from both accounts as one person, the other from one of them alone."""
    shop = Shop(30, rule=replace(IN_GROUP, need=2))
    joined = (Account("team", "bea"), Account("team", "bea2"))
    shop.directory.people["bea2"] = replace(colleague("bea2", "manager"), accounts=(joined[1],))
    both = [("bea", joined), ("bea2", joined[:1])]
    shop.ask()
    yes = shop.request("C1")[0]
    for user, accounts in both if is_joined_first else reversed(both):
        shop.directory.set("bea", accounts=accounts)
        shop.tap(user, yes, GROUP, in_group=True)
    assert shop.refunds == []


def test_colleague_of_the_asker_decides_nothing_for_them():
    """A manager asks, is away, and has named a colleague who is no manager."""
    shop = Shop(30, rule=IN_GROUP)
    shop.directory.set(
        "ana", roles=frozenset({"manager"}), stand_in="dan", away_until=shop.rig.now + HOUR
    )
    shop.ask()
    shop.tap("dan", shop.request("C1")[0], GROUP, in_group=True)
    assert shop.refunds == []


def test_colleague_of_the_asker_is_not_asked():
    """The request goes to the other managers only."""
    shop = Shop(30)
    shop.directory.set(
        "ana", roles=frozenset({"manager"}), stand_in="dan", away_until=shop.rig.now + HOUR
    )
    shop.ask()
    assert shop.texts_to("dan") == []
    assert shop.texts_to("cem")


def test_person_and_their_colleague_are_one_vote():
    """A manager who is away answers all the same, and so does the colleague."""
    shop = Shop(30, rule=replace(IN_GROUP, need=2))
    shop.directory.set("bea", stand_in="dan", away_until=shop.rig.now + HOUR)
    shop.ask()
    yes = shop.request("C1")[0]
    shop.tap("bea", yes, GROUP, in_group=True)
    shop.tap("dan", yes, GROUP, in_group=True)
    assert shop.refunds == []
    shop.tap("cem", yes, GROUP, in_group=True)
    assert shop.refunds == [30]


def test_quoted_message_of_a_group_is_no_request_in_the_direct_chat():
    """On Telegram, messages of two chats may have the same id."""
    shop = Shop(30)
    shop.ask()
    same_id = shop.message_of("bea")
    shop.hear(GROUP, "bea", "yes", replied_to=same_id, in_group=True)
    shop.hear(replace(GROUP, thread=same_id), "bea", "yes", in_group=True)
    shop.work(GROUP, replace(GROUP, thread=same_id))
    shop.work()
    assert shop.refunds == []


def test_message_after_a_tap_on_yes_is_no_reason():
    """It may mean anything. A yes that needs a reason names its request."""
    shop = Shop(30, rule=replace(MANAGERS, reason="always"))
    shop.ask()
    shop.tap("bea", shop.request("bea")[0])
    assert shop.texts_to("bea")[-1].startswith("Why?")
    shop.say("bea", "hm, that is the wrong amount")
    assert shop.refunds == []
    shop.say("bea", f"yes {code_of(shop, 'bea')} the parcel was lost")
    assert shop.refunds == [30]


def test_code_of_two_requests_answers_neither(monkeypatch):
    """Codes are drawn by lot. A tap says which request is meant."""
    monkeypatch.setattr("sayso.agent.channel.approval_questions.new_answer_code", lambda: "KMTX")
    shop = Shop(30, 40)
    shop.ask()
    shop.ask()
    shop.say("bea", "yes KMTX")
    assert shop.refunds == []
    assert "Tap one of its buttons" in shop.texts_to("bea")[-1]
    shop.tap("bea", shop.request("bea")[0])
    shop.say("bea", "yes KMTX")
    assert shop.refunds == [40, 30]


def test_long_reason_is_shortened():
    """It is stored with the action, and told to the asker and the model."""
    shop = Shop(30)
    shop.ask()
    shop.say("bea", f"no {code_of(shop, 'bea')} {'x' * 100_000}")
    assert "bea said no" in shop.texts[-1]
    assert len(shop.texts[-1]) < 3000
    assert len(shop.home_action().votes_text) < 6000


def test_asker_with_the_name_of_a_colleague_is_shown_with_their_id():
    """People choose their names on a platform. Those whom the YAML names have no id beside them."""
    shop = Shop(30)
    del shop.directory.people["ana"]
    shop.hear(ANA, "ana", "refund please", user_name="cem")
    shop.work()
    assert shop.texts_to("bea")[-1].startswith("cem (`ana`) asks for this")


def test_many_requests_in_a_group_are_answered_at_once():
    """They are to each member, so no tap is dropped as one on the question of another person."""
    amounts = range(1, 9)
    shop = Shop(*amounts, rule=IN_GROUP)
    for _ in amounts:
        shop.ask()
    for number, _ in enumerate(amounts):
        yes, _ = shop.request("C1", number)
        shop.hear(GROUP, "bea", tap=yes.data, in_group=True)
    shop.work()
    assert sorted(shop.refunds) == list(amounts)


def test_answers_of_one_account_are_limited():
    """Each is stored and judged again. A last no after a yes still counts."""
    shop = Shop(30, rule=replace(IN_GROUP, need=2, denials=2))
    shop.ask()
    yes, no = shop.request("C1")
    for number in range(MAX_ANSWERS_EACH + 5):
        shop.tap("bea", no if number % 2 else yes, GROUP, in_group=True)
        shop.rig.pass_time(2)
    shop.tap("bea", yes, GROUP, in_group=True)
    assert len(shop.home_action().votes_text.splitlines()) == MAX_ANSWERS_EACH
    shop.tap("cem", yes, GROUP, in_group=True)
    assert shop.refunds == []
    assert "1 of 2" in shop.texts_to("C1")[-1]


def test_groups_are_unknown_when_the_next_worker_goes_on():
    """The worker that claimed the action died. Without knowing who decides, nothing runs."""
    shop = Shop(30)
    shop.ask()
    shop.hear(Conversation("team", "bea"), "bea", tap=shop.request("bea")[0].data)
    shop.work(Conversation("team", "bea"))
    shop.die_after("claim")
    shop.directory.is_down = True
    shop.work()
    assert shop.refunds == []
    assert "Refund 30 EUR" in shop.texts[-1]
    assert shop.home_action().state == "superseded"


def test_person_unknown_to_the_yaml_is_named_as_the_platform_does():
    """A group names whoever tapped."""
    rule = ApprovalRule(Deciders("anyone_else"), on=ApprovalPlace("team", "C1"))
    shop = Shop(30, rule=rule)
    shop.ask()
    shop.tap("zoe", shop.request("C1")[0], GROUP, in_group=True)
    assert "Agreed by Zoe" in shop.texts[-1]


def test_agent_goes_on_after_the_decision():
    """The model reads who agreed and what came of it, and answers the rest of the request."""
    shop = Shop(30, lines=["All done."], after="continue")
    shop.ask()
    shop.tap("bea", shop.request("bea")[0])
    assert shop.texts[-1] == "All done."
    read = str(shop.provider.requests[-1].messages)
    assert "refunded 30" in read
    assert "bea" in read


def code_of(shop: Shop, user: str) -> str:
    """Return the code in the last request to a colleague."""
    text = [each for each in shop.texts_to(user) if "asks for this" in each][-1]
    return text.rpartition("**yes ")[2][:4]


def test_tool_that_asks_in_its_own_code():
    """Its question goes to those who decide, and their yes runs what the code proposed."""
    asked = []

    @tool(proposes=True)
    def refund(amount: int) -> str:
        """Refund an amount."""
        asked.append(amount)
        stash_pending(kind="pay_back", preview=f"Pay {amount} back", args={"amount": amount})
        return "asked"

    config = AgentConfig(tool_policy=ToolPolicy(allow=["*"], approval={"refund": MANAGERS}))
    script = ScriptedProvider([[ToolCall("refund", {"amount": 5}, "c5")]])
    shop = Shop(agent=Agent([refund], script, config))
    paid = []

    def pay(action):
        return lambda: paid.append(action.args["amount"])

    shop.rig.store.executors.register("pay_back", pay)
    shop.ask()
    assert (asked, paid) == ([5], [])
    assert "Pay 5 back" in shop.texts_to("bea")[-1]
    shop.tap("bea", shop.request("bea")[0])
    assert (asked, paid) == ([5], [5])


def test_agent_goes_on_although_the_conversation_went_on():
    """Other messages were answered meanwhile, by a model that did not know the outcome."""
    shop = Shop(30, lines=["It is sunny.", "The refund is done."], after="continue")
    shop.ask()
    shop.ask("what is the weather?")
    shop.tap("bea", shop.request("bea")[0])
    assert shop.texts[-1] == "The refund is done."


def test_question_of_the_asker_when_others_decide():
    """It stays open: the agent does not go on before its person has answered."""
    done = []

    @tool(preview="Refund {amount}")
    def refund(amount: int) -> str:
        """Refund an amount."""
        done.append(amount)
        return "refunded"

    @tool(requires_approval=True, preview="Drop {name}")
    def drop(name: str) -> str:
        """Drop a thing."""
        done.append(name)
        return "dropped"

    config = AgentConfig(tool_policy=ToolPolicy(allow=["*"], approval={"refund": MANAGERS}))
    script = ScriptedProvider(
        [
            [ToolCall("refund", {"amount": 5}, "c5")],
            [ToolCall("drop", {"name": "one"}, "d1")],
            "Both are done.",
        ]
    )
    shop = Shop(agent=Agent([refund, drop], script, config), after="continue")
    shop.ask()
    shop.ask("drop one")
    shop.tap("bea", shop.request("bea")[0])
    assert done == [5]
    assert "Agreed by bea" in shop.texts[-1]
    shop.ask("yes drop it")  # the outcome came after the question, so a plain yes is asked again
    shop.hear(ANA, "ana", tap=shop.notice_button().data)
    shop.work()
    assert done == [5, "one"]
    assert shop.texts[-1] == "Both are done."


def test_at_most_ten_wait_for_others():
    """Nobody is asked about one more."""
    shop = Shop(*range(1, 12))
    for _ in range(11):
        shop.ask()
    assert "Too many" in shop.texts[-1]
    assert len([each for each in shop.texts_to("bea") if "asks for this" in each]) == 10
