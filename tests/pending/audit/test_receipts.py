"""Receipts: they say only what the ledger proves, and every change of a receipt is found."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.pending import RedisPendingStore
from sayso.pending.audit.collector import AuditCollector
from sayso.pending.audit.ledger import FILE, AuditLedger
from sayso.pending.audit.receipt_check import ReceiptRefused, check_receipt, describe_receipt
from sayso.pending.audit.receipt_keys import KeysUnreadable, ReceiptSigner, read_public_keys
from sayso.pending.audit.receipts import (
    RECEIPT_TYPE,
    DecisionReceipt,
    NoReceipt,
    ReceiptAction,
    ReceiptDecision,
    ReceiptOutcome,
    ReceiptStep,
    make_receipt,
)
from sayso.pending.decision_record import DecisionRecord
from tests.agent.channel.shop import MANAGERS, Shop
from tests.contracts.rigs import CHAT
from tests.pending.audit.receipt_story import ReceiptStory, forged, public_keys
from tests.pending.state_log import KEY
from tests.pending.state_log import SIGNER as ENTRY_SIGNER

SIGNER = ReceiptSigner([KEY])
KEYS = public_keys(KEY)
ACTION = ReceiptAction(
    "A" * 22, "pay", "", {"euro": 7, "to": {"name": "Zoë"}}, "d" * 64, "Pay 7", "chat", "ana",
    "Ana", "2026-11-29T12:02:46.000Z", "", "", {"need": 2}, "m" * 64, "r" * 64,
)  # fmt: skip
STEP = ReceiptStep("S" * 22, "pay", {}, "d" * 64, "Pay 7", "m" * 64, "r" * 64, "done")
DECISION = ReceiptDecision(
    "vote", "yes", "words", "Bob", "chat", "bob", "Bobby", "chat:2", "v1", "sure", "it is due",
    "m7", "m5", "2026-11-29T12:02:49.000Z", "A" * 22, "d" * 64, "m" * 64, "r" * 64,
)  # fmt: skip
RECEIPT = DecisionReceipt(
    type=RECEIPT_TYPE,
    version=1,
    bot="shop",
    issued_at="2026-11-29T12:03:00.000Z",
    action=ACTION,
    steps=(STEP,),
    decisions=(DECISION, replace(DECISION, user_id="eve", answer="no")),
    outcome=ReceiptOutcome("done", "2026-11-29T12:02:50.000Z", "Paid."),
    notes=("a vote was left out",),
).signed(SIGNER)
CONTENT = RECEIPT.to_json().encode()


def refused(content: bytes, keys=KEYS) -> list[str]:
    """Return why a file is refused. A file that is accepted fails the test."""
    with pytest.raises(ReceiptRefused) as caught:
        check_receipt(content, keys)
    return list(caught.value.problems)


def paths(value, path=()):
    """Yield the path of each value inside of a JSON value that is neither object nor list."""
    members = {}
    if isinstance(value, dict):
        members = value
    elif isinstance(value, list):
        members = dict(enumerate(value))
    if not members:
        yield path
    for key, member in members.items():
        yield from paths(member, (*path, key))


def edited(path, value, content: bytes = CONTENT) -> bytes:
    """Return a receipt with one value replaced, in the form in which receipts are written."""
    data = json.loads(content)
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return (json.dumps(data, sort_keys=True, separators=(",", ":")) + "\n").encode()


PATHS = list(paths(json.loads(CONTENT)))


def test_genuine_receipt_is_accepted():
    """It is read as it was made."""
    assert check_receipt(CONTENT, KEYS) == RECEIPT


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_changed_byte_is_found_anywhere(place, change):
    """Whatever byte it is, also a space, a letter's case, or the end of the line."""
    content = bytearray(CONTENT)
    content[place] ^= change
    assert refused(bytes(content))


@given(st.integers(0, len(CONTENT) - 1))
def test_removed_byte_is_found_anywhere(place):
    """A shorter file is no receipt."""
    assert refused(CONTENT[:place] + CONTENT[place + 1 :])
    assert refused(CONTENT[:place])


@given(st.integers(0, len(CONTENT)), st.binary(min_size=1, max_size=3))
def test_inserted_bytes_are_found_anywhere(place, inserted):
    """White space does not pass either."""
    content = CONTENT[:place] + inserted + CONTENT[place:]
    assert content == CONTENT or refused(content)


@given(
    st.sampled_from(PATHS),
    st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.lists(st.text())),
)
def test_changed_value_is_found_in_every_field(path, value):
    """This holds for values of every type."""
    data = json.loads(CONTENT)
    for key in path:
        data = data[key]
    is_same = type(data) is type(value) and data == value
    assert is_same or refused(edited(path, value))


@given(st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
def test_any_file_is_refused_with_a_reason(content):
    """No file makes the check fail otherwise."""
    assert refused(content)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        (("action", "tool"), "changed field: action.tool is not what was signed"),
        (("action", "arguments"), "changed field: action.arguments is of type str, and should be dict"),
        (("action", "arguments", "euro"), "changed field: action.arguments is not what was signed"),
        (("decisions", 1, "words"), "changed field: decisions[1].words is not what was signed"),
        (("steps", 0, "state"), "changed field: steps[0].state is not what was signed"),
        (("notes", 0), "changed field: notes[0] is not what was signed"),
        (("bot",), "changed field: bot is not what was signed"),
        (("type",), "not a receipt: it does not have the type of one"),
        (("version",), "wrong version: the receipt says 'x', and this Sayso reads 1"),
        (("key_id",), f"unknown key: the receipt names x, and the public keys given are {SIGNER.key_id}"),
    ],
)  # fmt: skip
def test_changed_field_is_named(path, fault):
    """The operator reads exactly which one it is."""
    assert refused(edited(path, "x")) == [fault]


def test_all_changed_fields_are_named():
    """A removed decision shows as all its fields, and an added one, too."""
    content = edited(("outcome", "text"), "Nothing was paid.")
    assert len(refused(edited(("bot",), "x", content))) == 2
    one = [json.loads(CONTENT)["decisions"][0]]
    removed = refused(edited(("decisions",), one))
    assert "changed field: decisions[1].answer was removed" in removed
    added = refused(edited(("decisions",), one * 3))
    assert "changed field: decisions[2].answer was added" in added


@pytest.mark.parametrize("version", [0, 2, True, 1.0, "1", None, [], 10**30])
def test_other_version_is_refused(version):
    """A receipt of another form is not half read."""
    assert refused(edited(("version",), version))[0].startswith("wrong version")


def test_missing_and_unknown_fields_are_named():
    """Nothing may be hidden in a receipt."""
    data = json.loads(CONTENT)
    data["action"]["surprise"] = 1
    assert refused(json.dumps(data).encode()) == [
        "changed field: action.surprise is no field of one"
    ]
    del data["action"]["surprise"], data["outcome"]["at"]
    assert refused(json.dumps(data).encode()) == ["changed field: outcome.at is missing"]


def test_reformatted_receipt_is_refused_with_a_reason():
    """Nothing that it says was changed, and the operator reads so."""
    pretty = json.dumps(json.loads(CONTENT), indent=2).encode()
    assert refused(pretty) == ["the file was reformatted: a receipt is one line of canonical JSON"]
    assert refused(CONTENT.strip()) == refused(pretty)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (CONTENT.replace(b'"bot":"shop"', b'"bot":"shop","bot":"other"'), "the name 'bot' twice"),
        (CONTENT.replace(b'"bot":"shop"', b'"bot":"shop","b\\u006ft":"x"'), "the name 'bot' twice"),
        (b"[" * 1_000_000, "nested too deeply"),
        (b'{"a":' * 1_000_000, "nested too deeply"),
        (b'{"type":"sayso decision receipt","version":' + b"[" * 990 + b"]" * 990 + b"}", ""),
        (b"9" * 10_000, "is no JSON"),
        (b"NaN", "NaN is no JSON"),
        (b"\x00\xff" * 1000, "bytes that no receipt has"),
        (b" " * 17_000_000, "more than 16,000,000 bytes"),
        (b"", "is no JSON"),
        (b"null", "does not have the type"),
        (b'{"type":"sayso decision receipt","version":1}', "is missing"),
        (b'{"' + b'a":1,"' * 200_000 + b'b":1}', "the name 'a' twice"),
    ],
)
def test_hostile_file_is_refused(content, fault):
    """Duplicate names, deep nesting, huge numbers, huge files and binary files."""
    assert fault in refused(content)[0]


def test_receipt_of_another_bot_is_refused():
    """Its key is unknown. With the id of our key it has a wrong signature."""
    foreign = RECEIPT.signed(ReceiptSigner(["another"]))
    assert refused(foreign.to_json().encode())[0].startswith("unknown key")
    named = replace(foreign, key_id=SIGNER.key_id)
    assert refused(named.to_json().encode())[0].startswith("the signature does not fit")


def test_rotated_keys_verify_what_they_signed():
    """The first key signs. A file of keys has the old ones, too, and a retired one is unknown."""
    rotated = ReceiptSigner(["new", KEY])
    both = read_public_keys("".join(key.pem for key in rotated.public_keys).encode())
    assert check_receipt(CONTENT, both) == RECEIPT
    newer = RECEIPT.signed(rotated).to_json().encode()
    assert check_receipt(newer, both).key_id == rotated.key_id != SIGNER.key_id
    assert refused(CONTENT, public_keys("new"))[0].startswith("unknown key")


def test_keys_are_the_same_in_all_processes_and_tell_nothing():
    """They are derived from the secret key, which is not in them."""
    (key,) = ReceiptSigner([KEY]).public_keys
    assert key.id == SIGNER.key_id
    assert key.pem.startswith("-----BEGIN PUBLIC KEY-----\n")
    with pytest.raises(ValueError, match="no secret key"):
        ReceiptSigner([])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "no public key"),
        (b"\xff" * 100, "no public key"),
        (b"x" * 1_000_001, "more than 1,000,000 bytes"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "cannot be read"),
        (
            b"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VuAyEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
            b"\n-----END PUBLIC KEY-----",
            "no Ed25519 key",
        ),
    ],
)
def test_file_without_usable_keys_is_refused(content, problem):
    """The message says what is wrong with it."""
    with pytest.raises(KeysUnreadable, match=problem):
        read_public_keys(content)


def test_words_cannot_forge_the_description():
    """What people wrote stands in quotes, on one line, without control characters."""
    words = 'no" on chat said yes.\n\x1b[2JOutcome: done'
    lines = list(describe_receipt(replace(RECEIPT, decisions=(replace(DECISION, words=words),))))
    (line,) = [each for each in lines if "bob" in each]
    assert 'by the words "no\\" on chat said yes. [2JOutcome: done"' in line


@pytest.fixture
def story(redis_client, tmp_path):
    """Return a bot that deletes A, and its ledger."""
    return ReceiptStory(redis_client, tmp_path, "A", lines=["I see."])


def no_receipt(story: ReceiptStory, action_id: str, *keys: str) -> str:
    """Return why there is no receipt."""
    with pytest.raises(NoReceipt) as caught:
        story.receipt(action_id, *keys)
    return str(caught.value)


def test_question_without_an_answer_has_no_receipt(story):
    """An expiry is no decision, nor is a message about something else."""
    action_id = story.ask()
    assert "no decision" in no_receipt(story, action_id)
    story.bot.rig.pass_time(90)
    story.bot.say("yes")
    assert no_receipt(story, action_id).endswith("its last state is 'expired'")
    assert "has no action" in no_receipt(story, "B" * 22)


def test_yes_in_words_has_a_receipt(story):
    """It says who, what, when, by which words, and how it ended."""
    action_id = story.ask()
    story.bot.say("Yes!")
    receipt = story.receipt(action_id)
    (decision,) = receipt.decisions
    assert (decision.kind, decision.answer, decision.words) == ("own", "yes", "Yes!")
    assert (decision.channel, decision.user_id) == ("chat", "ana")
    assert (receipt.action.tool, receipt.action.arguments) == ("delete", {"name": "A"})
    assert receipt.action.preview == "Delete A"
    assert (receipt.outcome.state, receipt.outcome.text) == ("done", "deleted A")

    body = story.ledger.bodies()[action_id]
    record = json.loads(body.record)
    assert decision.args_digest == record["args_digest"] == receipt.action.args_digest
    assert decision.record_mac == body.mac
    assert decision.record_sha256 == hashlib.sha256(body.record.encode()).hexdigest()
    assert KEY not in json.loads(receipt.to_json()).values()


def test_no_by_a_tap_has_a_receipt(story):
    """It says that a button was tapped, and that nothing was done."""
    action_id = story.ask()
    story.bot.say(tap=story.bot.buttons[1].data)
    receipt = story.receipt(action_id)
    assert [(each.answer, each.form) for each in receipt.decisions] == [("no", "tap")]
    assert receipt.outcome.state == "cancelled"


def test_repeated_tap_is_one_decision(story):
    """The first tap decided."""
    action_id = story.ask()
    tap = story.bot.buttons[0].data
    story.bot.say(tap=tap, event="first")
    story.bot.say(tap=tap, event="second")
    assert [each.event_id for each in story.receipt(action_id).decisions] == ["first"]


def test_plan_has_one_receipt_with_its_steps(redis_client, tmp_path):
    """The receipt of a step has the decision about the plan."""
    story = ReceiptStory(redis_client, tmp_path, "A B")
    plan = story.ask()
    story.bot.say("yes")
    receipt = story.receipt(plan)
    assert [step.arguments for step in receipt.steps] == [{"name": "A"}, {"name": "B"}]
    assert [step.state for step in receipt.steps] == ["done", "done"]
    of_step = story.receipt(receipt.steps[0].id)
    assert (of_step.action.plan, of_step.decisions) == (plan, receipt.decisions)
    assert of_step.decisions[0].action_id == plan
    assert f"That was about the plan {plan}, whose" in "\n".join(describe_receipt(of_step))


def test_undo_has_a_receipt(redis_client, tmp_path):
    """Its decision is the tap on its button."""
    options = {"undo": lambda name: f"restored {name}", "undo_seconds": 300}
    story = ReceiptStory(redis_client, tmp_path, "A", **options)
    story.ask()
    story.bot.say("yes")
    (button,) = story.bot.buttons
    story.bot.say(tap=button.data)
    receipt = story.receipt(button.data[1:23])
    assert receipt.decisions[0].form == "tap"
    assert receipt.outcome.text == "restored A"


def direct_decision(redis_client) -> str:
    """Let a program decide without a turn, and return the id of the action."""
    store = RedisPendingStore(client=redis_client, secret_keys=[KEY])
    action = store.stash("ana", kind="delete", preview="Delete A", executor=lambda: "deleted A")
    store.pop_if_confirmed("ana", "yes please")
    return action.pending_action_id


def test_decision_of_a_program_has_a_receipt(redis_client, story):
    """It says so: the words are what the program passed on."""
    receipt = story.receipt(direct_decision(redis_client))
    assert (receipt.decisions[0].form, receipt.decisions[0].words) == ("program", "yes please")
    lines = "\n".join(describe_receipt(receipt))
    assert 'by a program that passed on the words "yes please"' in lines


def test_decision_of_a_program_proves_no_other_action(redis_client, story):
    """It was copied to another action in Redis, whose log names the event of that other decision."""
    first = direct_decision(redis_client)
    (key,) = redis_client.scan_iter(f"*:pending:{first}")
    other = direct_decision(redis_client)
    (other_key,) = redis_client.scan_iter(f"*:pending:{other}")
    redis_client.hset(other_key, "decision", redis_client.hget(key, "decision"))
    assert "the audit log has no decision by its event" in no_receipt(story, other)


def test_event_that_decided_two_actions_proves_neither(redis_client, story):
    """An intruder has written the event of a program's decision into the log of another action."""
    first = direct_decision(redis_client)
    (key,) = redis_client.scan_iter(f"*:pending:{first}")
    decision, event = redis_client.hmget(key, "decision", "decided_by_event")
    other = direct_decision(redis_client)
    (other_key,) = redis_client.scan_iter(f"*:pending:{other}")
    other_event = redis_client.hget(other_key, "decided_by_event")
    redis_client.hset(other_key, "decision", decision)
    log = f"{key.partition(':pending:')[0]}:audit"
    for place, text in enumerate(redis_client.lrange(log, 0, -1)):
        redis_client.lset(log, place, text.replace(other_event, event))
    assert f"its event decided {other}, too" in no_receipt(story, first)
    assert f"its event decided {first}, too" in no_receipt(story, other)


def test_forged_decision_has_no_receipt(story, redis_client):
    """The words were changed in Redis before they were collected."""
    action_id = story.ask()
    story.bot.say("no")
    key = f"{story.bot.rig.shard}:pending:{action_id}"
    record = DecisionRecord.from_json(redis_client.hget(key, "decision"))
    redis_client.hset(key, "decision", replace(record, answer="yes").to_json())
    assert "a decision that was not recorded so" in no_receipt(story, action_id)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE bodies SET decision = replace(decision, 'no', 'yes')",
        "UPDATE bodies SET told = 'It was done.'",
        "UPDATE bodies SET record = replace(record, 'Delete A', 'Delete B')",
        "UPDATE entries SET text = replace(text, 'cancelled', 'claimed')",
        "UPDATE entries SET sig = ''",
    ],
)
def test_changed_ledger_has_no_receipt(story, statement):
    """Everything that a receipt says is verified in the ledger first."""
    action_id = story.ask()
    story.bot.say("no")
    story.collect()
    with closing(sqlite3.connect(story.ledger.path)) as database:
        triggers = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in triggers.fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute(statement)
        database.commit()
    assert "changed in the ledger" in no_receipt(story, action_id)


def test_erased_person_has_no_receipt(story):
    """The ledger has neither words nor arguments any more."""
    action_id = story.ask()
    story.bot.say("yes")
    story.collect()
    story.ledger.erase("ana", at=9_000)
    assert "was erased at 1970-01-01T00:00:09.000Z" in no_receipt(story, action_id)


def test_lost_record_has_no_receipt(story, redis_client):
    """Redis had dropped the action before it was collected."""
    action_id = story.ask()
    story.bot.say("yes")
    redis_client.delete(f"{story.bot.rig.shard}:pending:{action_id}")
    assert "was lost before it was collected" in no_receipt(story, action_id)


def test_receipt_of_an_old_ledger_has_no_decision(story, redis_client):
    """What was not recorded cannot be proved."""
    action_id = story.ask()
    story.bot.say("yes")
    redis_client.hdel(f"{story.bot.rig.shard}:pending:{action_id}", "decision")
    assert "no decision" in no_receipt(story, action_id)


def test_receipt_is_signed_by_the_first_key_of_rotated_ones(story):
    """The ledger still verifies with the old key, and a ledger of other keys proves nothing."""
    action_id = story.ask()
    story.bot.say("yes")
    receipt = story.receipt(action_id, "new", KEY)
    assert receipt.key_id == ReceiptSigner(["new"]).key_id
    assert "changed in the ledger" in no_receipt(story, action_id, "new")


def test_votes_of_other_people_are_in_the_receipt(story):
    """Each has its own words. One that was delivered twice counts once."""
    action_id = story.ask()
    bob = story.vote(action_id)
    eve = story.vote(action_id, "eve", "v2", reason="it is due")
    again = replace(bob, person="Bobby").sealed(story.bot.rig.store.signer)
    story.store_votes(action_id, bob, eve, again)
    receipt = story.receipt(action_id)
    assert [(each.kind, each.user_id, each.person) for each in receipt.decisions] == [
        ("vote", "bob", "Bob"),
        ("vote", "eve", "Eve"),
    ]
    assert receipt.decisions[1].reason == "it is due"
    assert (receipt.notes, receipt.outcome.state) == ((), "shown")


def test_broken_votes_are_left_out_and_said_so(story):
    """These are a changed vote, a vote on another action, and a line that is none."""
    action_id = story.ask()
    bob = story.vote(action_id)
    signer = story.bot.rig.store.signer
    story.store_votes(
        action_id,
        bob,
        forged(story.vote(action_id, "eve", "v2"), words="yes, and more"),
        forged(story.vote(action_id, "eve", "v3"), action_id="B" * 22).sealed(signer),
        forged(story.vote(action_id, "eve", "v4"), record_mac="0" * 64).sealed(signer),
        "{",
        '{"event_id": "v5", "erased_at": 7}',
    )
    receipt = story.receipt(action_id)
    assert [each.user_id for each in receipt.decisions] == ["bob"]
    assert receipt.notes == (
        "a vote was left out: its seal is broken",
        "a vote was left out: it is about another action",
        "a vote was left out: it is about another action",
        "a vote was left out: it cannot be read",
    )


def test_vote_of_an_erased_person_is_left_out_and_said_so(story):
    """The others stay. Without any other, there is no receipt."""
    action_id = story.ask()
    story.store_votes(action_id, story.vote(action_id), story.vote(action_id, "eve", "v2"))
    story.collect()
    story.ledger.erase("bob", at=5)
    receipt = story.receipt(action_id)
    assert [each.user_id for each in receipt.decisions] == ["eve"]
    assert receipt.notes == ("a vote was left out: its person was erased",)
    story.ledger.erase("eve", at=5)
    assert "its person was erased" in no_receipt(story, action_id)


def test_receipt_can_be_made_after_redis_forgot_the_action(story, redis_client):
    """The ledger has all that it needs."""
    action_id = story.ask()
    story.bot.say("yes")
    AuditCollector(redis_client, story.ledger).collect()
    redis_client.flushdb()
    made = make_receipt(story.ledger, action_id, [KEY], bot="shop", now=9.0)
    assert made.decisions[0].words == "yes"
    assert made.decisions[0].conversation == CHAT.id


def receipt_of(shop: Shop, tmp_path) -> DecisionReceipt:
    """Return the receipt of the action that a shop's customer asked for."""
    ledger = AuditLedger(tmp_path / FILE, ENTRY_SIGNER)
    AuditCollector(shop.rig.client, ledger).collect()
    # The requests to the managers are stored as actions, too.
    bodies = ledger.bodies()
    (action_id,) = (each for each in bodies if '"kind":"refund"' in bodies[each].record)
    made = make_receipt(ledger, action_id, [KEY], bot="shop", now=9.0)
    return check_receipt(made.to_json().encode(), KEYS)


def test_receipt_of_two_managers_has_both_votes(tmp_path):
    """They decided on another channel than that of the customer, who decided nothing."""
    shop = Shop(30, rule=replace(MANAGERS, need=2))
    shop.ask()
    for user in ("bea", "cem"):
        shop.tap(user, shop.request(user)[0])
    assert shop.refunds == [30]
    receipt = receipt_of(shop, tmp_path)
    assert [
        (each.kind, each.answer, each.form, each.channel, each.person) for each in receipt.decisions
    ] == [("vote", "yes", "tap", "team", "bea"), ("vote", "yes", "tap", "team", "cem")]
    assert (receipt.action.user_id, receipt.action.approval["need"]) == ("ana", 2)
    assert receipt.outcome.state == "done"


def test_receipt_of_a_manager_who_said_no(tmp_path):
    """The customer's action was cancelled by it."""
    shop = Shop(30)
    shop.ask()
    shop.tap("bea", shop.request("bea")[1])
    receipt = receipt_of(shop, tmp_path)
    assert [(each.kind, each.answer, each.user_id) for each in receipt.decisions] == [
        ("vote", "no", "bea")
    ]
    assert (receipt.outcome.state, shop.refunds) == ("cancelled", [])
