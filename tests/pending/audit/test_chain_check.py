"""Audit chain: each edited, removed, moved or repeated entry is noticed, and the first one is named."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sayso.pending.audit.chain_check import ALLOWED, CheckContext, check_chains
from sayso.pending.audit.entries import (
    AuditEntry,
    ChainHead,
    EntrySigner,
    Fault,
    RecordedEntry,
    entry_hash,
)
from sayso.pending.stored_limits import NO_HEAD
from tests.pending.state_log import KEY, SIGNER, StateLog, as_list, busy_log, signed

LOG = busy_log()
ROWS = LOG.ledger
SIZE = len(ROWS)
TIPS = {0: LOG.head}
SIGNED = CheckContext(signer=SIGNER, whole=True, heads_before=TIPS)
#: Entries in Redis are unsigned: only the links and the head protect them.
UNSIGNED = CheckContext(whole=True, heads_before=TIPS)
EVERY = range(SIZE)
FLIPS = {
    "n": 7_000,
    "at": 1,
    "pid": "another",
    "event": "cancelled",
    "by": "somebody",
    "body": "0" * 64,
    "prev": "1" * 40,
}
#: Each entry with one of the fields in turn, and the first, the middle and the last ones with all of them.
EDITS = [
    (index, field)
    for index, (at, field) in product(EVERY, enumerate(FLIPS))
    if index % len(FLIPS) == at or index in (0, 1, SIZE // 2, SIZE - 2, SIZE - 1)
]


def flipped(text: str, field: str, value: object = None) -> str:
    """Return the text with one field changed, in the spelling of the scripts."""
    fields = json.loads(text) | {field: FLIPS[field] if value is None else value}
    return json.dumps(fields, separators=(",", ":"))


def first(kept: list[RecordedEntry], terms: CheckContext) -> tuple[int, str] | None:
    """Return number and reason of the first fault."""
    fault = next(iter(check_chains([kept], terms).faults), None)
    return (fault.number, fault.reason) if fault else None


def changed(rows: list[RecordedEntry], index: int, **changes: object) -> list[RecordedEntry]:
    """Return the rows with one of them changed."""
    return [replace(row, **changes) if at == index else row for at, row in enumerate(rows)]


def test_whole_log_has_no_fault():
    """The scripts' entries pass in a ledger, in an export, in Redis, and spread over all three."""
    export = [replace(row, stored_hash=None) for row in ROWS]
    for sources in (
        [ROWS],
        [export],
        [ROWS, export],
        [ROWS[:40], LOG.waiting[30:]],
        [ROWS[:20], [], ROWS[20:]],
    ):
        report = check_chains(sources, SIGNED)
        assert (report.entries, report.shards, report.faults, report.notes) == (60, 1, (), ())
    assert check_chains([LOG.waiting], UNSIGNED).faults == ()


@pytest.mark.parametrize(("index", "field"), EDITS)
def test_edited_entry_of_a_ledger_is_named(index, field):
    """An attacker with the file edits a row; a careful one updates its head as well."""
    text = flipped(ROWS[index].text, field)
    assert first(changed(ROWS, index, text=text), SIGNED) == (index + 1, "edited")
    number, reason = first(changed(ROWS, index, text=text, stored_hash=entry_hash(text)), SIGNED)
    assert number == index + 1
    assert reason == ("edited" if field in ("n", "prev") or index < SIZE - 1 else "bad signature")


@pytest.mark.parametrize(("index", "field"), EDITS)
def test_edited_entry_of_an_export_is_named(index, field):
    """An export has no heads beside its texts, so the signature shows it."""
    export = [replace(row, stored_hash=None) for row in ROWS]
    text = flipped(ROWS[index].text, field)
    place = json.loads(text)["n"]
    number, reason = first(changed(export, index, text=text, number=place), SIGNED)
    assert number == index + 1
    assert reason in ("edited", "bad signature")


@pytest.mark.parametrize(("index", "field"), EDITS)
def test_edited_entry_in_redis_is_named(index, field):
    """Unsigned entries must fit their links and the head in Redis."""
    texts = [flipped(text, field) if at == index else text for at, text in enumerate(LOG.texts)]
    assert first(as_list(0, texts), UNSIGNED) == (index + 1, "edited")


def test_edited_entry_in_redis_is_named_where_it_is_the_only_one():
    """It has no neighbor, so only the head shows it."""
    log = StateLog()
    log.add("a", "armed")
    terms = CheckContext(whole=True, heads_before={0: log.head})
    assert first(as_list(0, log.texts), terms) is None
    assert first(as_list(0, [flipped(log.texts[0], "by")]), terms) == (1, "edited")


def test_last_entry_under_an_earlier_number_is_edited_and_not_removed():
    """No entry follows it; the predecessor that it names shows its place."""
    texts = [*LOG.texts[:-1], flipped(LOG.texts[-1], "n", 30)]
    faults = check_chains([as_list(0, texts)], UNSIGNED).faults
    assert [(fault.number, fault.reason) for fault in faults] == [(30, "forked"), (SIZE, "edited")]


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("index", EVERY)
def test_entry_with_the_number_of_its_neighbor_is_noticed(index, by):
    """Another entry has the number already."""
    text = flipped(LOG.texts[index], "n", max(1, index + 1 + by))
    texts = [text if at == index else other for at, other in enumerate(LOG.texts)]
    assert texts == LOG.texts or first(as_list(0, texts), UNSIGNED) is not None


@pytest.mark.parametrize("index", EVERY)
def test_forged_signature_is_named(index):
    """A valid text with another signature or none is not genuine."""
    for sig in ("", "0" * 64, EntrySigner(["other"]).sign("entry", 0, index + 1, ROWS[index].text)):
        assert first(changed(ROWS, index, sig=sig), SIGNED) == (index + 1, "bad signature")


@pytest.mark.parametrize("terms", [SIGNED, UNSIGNED])
@pytest.mark.parametrize("index", EVERY)
def test_removed_entry_is_named(index, terms):
    """A gap shows at the start too, and with the head in Redis at the end."""
    rows = ROWS if terms is SIGNED else LOG.waiting
    assert first(rows[:index] + rows[index + 1 :], terms) == (index + 1, "removed")


def test_entry_that_only_a_forged_row_still_has_is_removed():
    """The row is unsigned and has another number. Both the empty and the forged place are named."""
    rows = [*ROWS[:16], *ROWS[17:], replace(ROWS[16], number=SIZE + 1, sig="")]
    faults = check_chains([rows], SIGNED).faults
    assert [(fault.number, fault.reason) for fault in faults] == [
        (17, "removed"),
        (SIZE + 1, "edited"),
    ]


@pytest.mark.parametrize("left", EVERY)
def test_cut_off_tail_is_noticed(left):
    """The head in Redis shows that the log ends too early."""
    assert first(ROWS[:left], SIGNED) == (left + 1, "removed")


@pytest.mark.parametrize("index", range(SIZE - 1))
def test_swapped_neighbors_are_named(index):
    """Rows have each other's number, or lines of an export or entries in Redis are swapped."""
    here, there = ROWS[index], ROWS[index + 1]
    rows = list(ROWS)
    rows[index], rows[index + 1] = (
        replace(there, number=here.number),
        replace(here, number=there.number),
    )
    assert first(rows, SIGNED) == (index + 1, "reordered")
    lines = list(ROWS)
    lines[index], lines[index + 1] = there, here
    assert first(lines, SIGNED) == (index + 1, "reordered")
    texts = list(LOG.texts)
    texts[index], texts[index + 1] = texts[index + 1], texts[index]
    assert first(as_list(0, texts), UNSIGNED) == (index + 1, "reordered")


def test_entry_that_was_moved_ahead_is_one_fault():
    """Only the first place out of order is named, not all later ones."""
    faults = check_chains([[ROWS[3], *ROWS[:3], *ROWS[4:]]], SIGNED).faults
    assert [(fault.number, fault.reason) for fault in faults] == [(1, "reordered")]


@pytest.mark.parametrize("index", EVERY)
def test_repeated_entry_is_named(index):
    """The same entry stands twice: at its place, or as a new row at the end."""
    rows = [*ROWS[: index + 1], *ROWS[index:]]
    assert first(rows, SIGNED) == (index + 1, "repeated")
    assert first([*ROWS, replace(ROWS[index], number=SIZE + 1)], SIGNED) == (SIZE + 1, "repeated")
    assert first(changed(ROWS, index, **fields(ROWS[index - 1])), SIGNED)[0] in (
        index,
        index + 1,
        SIZE,
    )


def fields(row: RecordedEntry) -> dict[str, str | None]:
    """Return the fields of a row besides its number."""
    return {"text": row.text, "sig": row.sig, "stored_hash": row.stored_hash}


operations = st.lists(
    st.tuples(
        st.sampled_from(["drop", "swap", "repeat", "edit", "cut"]),
        st.integers(0, SIZE - 1),
        st.text(max_size=5),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=300)
@given(operations)
def test_any_changes_to_a_log_are_noticed(done):
    """Any few changes in a row are noticed, unless they cancel out."""
    rows = list(ROWS)
    for what, index, word in done:
        at = index % max(1, len(rows))
        match what:
            case "drop":
                del rows[at : at + 1]
            case "swap":
                rows[at : at + 2] = reversed(rows[at : at + 2])
            case "repeat":
                rows[at:at] = rows[at : at + 1]
            case "edit":
                rows[at : at + 1] = [
                    replace(row, text=row.text.replace("event-", word)) for row in rows[at : at + 1]
                ]
            case "cut":
                del rows[at:]
    assert (not check_chains([rows], SIGNED).faults) == (rows == ROWS)


@settings(max_examples=200)
@given(st.lists(st.one_of(st.text(), st.sampled_from(LOG.texts)), max_size=6))
def test_garbage_is_a_fault_and_no_crash(texts):
    """Any text may stand in the list."""
    kept = [RecordedEntry(0, n, text) for n, text in enumerate(texts, start=1)]
    assert (not check_chains([kept], CheckContext(whole=True)).faults) == (
        texts == LOG.texts[: len(texts)]
    )


def test_entry_from_another_shard_is_not_genuine():
    """The signature covers the shard."""
    assert first([replace(row, shard=5) for row in ROWS], replace(SIGNED, heads_before={})) == (
        1,
        "bad signature",
    )


def test_log_that_starts_late_is_a_note():
    """Old entries may be deleted; an operator who keeps all can ask for a fault."""
    report = check_chains([ROWS[10:]], replace(SIGNED, whole=False))
    assert report.faults == ()
    assert report.notes == ("shard 0 begins with entry 11: older ones are not here",)
    assert check_chains([ROWS[10:]], SIGNED).faults[0] == Fault(0, 1, "removed", "up to 10")


def test_redis_from_an_old_file_is_noticed():
    """Its head is behind the log. As soon as it goes on, two entries have one number."""
    for head in (NO_HEAD, "1" * 40):
        assert first(ROWS, CheckContext(SIGNER, heads_before={0: ChainHead(0, head)})) == (
            1,
            "rolled back",
        )
    other = StateLog()
    other.live("other")
    faults = check_chains([ROWS, other.ledger], CheckContext(SIGNER)).faults
    assert [(fault.number, fault.reason) for fault in faults] == [
        (n, "forked") for n in range(1, 6)
    ]


def test_log_that_grows_while_it_is_read_is_whole():
    """Entries written after the first read of the head are found by the second read."""
    early = {0: ChainHead(50, entry_hash(LOG.texts[49]))}
    assert (
        check_chains([ROWS], CheckContext(SIGNER, heads_before=early, heads_after=TIPS)).faults
        == ()
    )
    assert check_chains([ROWS], CheckContext(SIGNER, heads_before=early, heads_after=early)).faults


def test_faults_of_several_shards_come_in_order():
    """The first fault is of the first shard."""
    logs = [busy_log(shard=shard).ledger for shard in (9, 3)]
    report = check_chains([changed(kept, 4, text="{}") for kept in logs], CheckContext(SIGNER))
    assert [str(fault) for fault in report.faults] == [
        "shard 3, entry 5: edited",
        "shard 9, entry 5: edited",
    ]


def test_only_shards_that_have_entries_are_counted():
    """One entry is enough; a shard without entries in Redis does not count."""
    log = StateLog(3)
    log.add("a", "armed")
    report = check_chains(
        [log.ledger], CheckContext(SIGNER, heads_before={3: log.head, 4: ChainHead(0, NO_HEAD)})
    )
    assert (report.entries, report.shards, report.faults) == (1, 1, ())


@pytest.mark.parametrize("before", [event for event in ALLOWED if event])
@pytest.mark.parametrize("after", [*(event for event in ALLOWED if event), "paid"])
def test_impossible_transitions_are_faults(before, after):
    """An action cannot go from done to shown, or by any other transition outside the protocol."""
    path = {
        "armed": [], "shown": ["armed"], "claimed": ["armed", "shown"], "started": ["armed", "shown", "claimed"],
        "cancelled": ["armed"], "expired": ["armed"], "superseded": ["armed"], "voted": ["armed", "shown"],
    }  # fmt: skip
    log = StateLog()
    log.live("a", *path.get(before, [*path["started"], "started"]), before, after)
    faults = check_chains([log.ledger], CheckContext(SIGNER, whole=True)).faults
    expected = [] if after in ALLOWED[before] else [(log.head.number, "impossible")]
    assert [(fault.number, fault.reason) for fault in faults] == expected


def test_claim_without_a_question_needs_a_standing_yes():
    """The claim of a covered action is by a turn of its own; any other one is a fault."""
    log = StateLog()
    log.add("a", "armed")
    log.add("a", "claimed", by="standing:a")
    log.live("a", "started", "done")
    assert check_chains([log.ledger], CheckContext(SIGNER, whole=True)).faults == ()
    log.add("b", "armed")
    log.add("b", "claimed", by="standing:a")
    (fault,) = check_chains([log.ledger], CheckContext(SIGNER, whole=True)).faults
    assert str(fault) == "shard 0, entry 6: impossible (armed -> claimed)"


def test_votes_leave_the_action_shown():
    """Any number of people may vote, and the action then ends as without votes."""
    log = StateLog()
    log.live("a", "armed", "shown", "voted", "voted", "claimed", "started", "done")
    log.live("b", "armed", "shown", "voted", "expired")
    assert check_chains([log.ledger], CheckContext(SIGNER, whole=True)).faults == ()


def test_vote_that_names_no_answer_is_a_fault():
    """A script always writes the event of the answer."""
    log = StateLog()
    log.live("a", "armed", "shown")
    log.add("a", "voted")
    (fault,) = check_chains([log.ledger], CheckContext(SIGNER, whole=True)).faults
    assert str(fault) == "shard 0, entry 3: impossible (a vote by no event)"


def test_every_impossible_transition_is_named():
    """This holds for several in one log, and for one after an unknown event."""
    log = StateLog()
    log.live("a")
    log.live("a", "shown")
    log.live("b", "armed", "paid", "done")
    assert [str(fault) for fault in check_chains([log.ledger], CheckContext(SIGNER)).faults] == [
        "shard 0, entry 6: impossible (done -> shown)",
        "shard 0, entry 8: impossible ('paid' is no event)",
        "shard 0, entry 9: impossible (paid -> done)",
    ]


LIFE_AFTER_SHOWN = ("claimed", "started", "done")


def test_second_start_is_a_fault_unless_it_may_be_repeated():
    """The body tells whether it may."""
    log = StateLog()
    log.live("a", "armed", "shown", "claimed", "started", "started", "done")
    assert check_chains([log.ledger], CheckContext(SIGNER)).faults == ()
    once = check_chains([log.ledger], CheckContext(SIGNER, run_once=frozenset({"a"})))
    assert [str(fault) for fault in once.faults] == ["shard 0, entry 5: impossible (started twice)"]


def test_action_without_a_proposal_is_a_fault():
    """In a complete log, every claimed action was proposed."""
    log = StateLog()
    log.live("a")
    log.live("b", "claimed", "started")
    faults = check_chains([log.ledger], CheckContext(SIGNER)).faults
    assert [str(fault) for fault in faults] == ["shard 0, entry 6: impossible (nothing -> claimed)"]
    assert check_chains([log.ledger[5:]], CheckContext(SIGNER)).faults == ()


def test_entry_about_another_record_is_a_fault():
    """All entries of an action name one record."""
    log = StateLog()
    log.add("a", "armed")
    log.add("a", "shown", body="f" * 64)
    faults = check_chains([log.ledger], CheckContext(SIGNER)).faults
    assert [str(fault) for fault in faults] == ["shard 0, entry 2: impossible (another record)"]


def test_only_the_spelling_of_the_scripts_is_an_entry():
    """Another order, repeated names or spaces could mean different things to Lua and to Python."""
    text = LOG.texts[0]
    assert AuditEntry.parse(text) is not None
    for other in (
        text.replace(":", ": "), text + " ", text.replace('"n":1,', '"n":01,'), text.replace('"n":1,', '"n":1.0,'),
        text.replace("}", ',"n":2}'), json.dumps(json.loads(text), sort_keys=True), "{}", "", "null",
    ):  # fmt: skip
        assert AuditEntry.parse(other) is None
    awkward = StateLog().add("a", "armed", by='an "odd" \\ \n/ é \u2028 event')
    assert AuditEntry.parse(awkward).decided_by_event == 'an "odd" \\ \n/ é \u2028 event'


def test_keys_may_rotate():
    """The first key signs and all verify. A signed entry does not pass as any other value."""
    assert check_chains([ROWS], CheckContext(EntrySigner(["new", KEY]))).faults == ()
    assert check_chains([ROWS], CheckContext(EntrySigner(["new"]))).faults[0] == Fault(
        0, 1, "bad signature"
    )
    assert signed(0, 1, "x").sig != signed(0, 2, "x").sig
