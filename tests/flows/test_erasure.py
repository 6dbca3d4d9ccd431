"""`sayso people erase` against running processes: afterwards no byte of the person is left on the disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms import webhooks as signing
from tests.flows.system import System, TelegramPerson, until

#: The word of the erased person, and the word of another person.
MINE, OTHERS = "plugh-quixotic", "another-xyzzy"


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    """Run a separate system, with reminders and one worker."""
    with tempfile.TemporaryDirectory(prefix="sayso-era-") as folder:
        one = System(Path(folder), workers=1)
        one.config.write_text(
            one.config.read_text().replace(
                "tools: [sayso.examples", "tools: [sayso.examples.reminders, sayso.examples"
            )
        )
        with one as running:
            yield running


def places_of(system: System, words: str) -> list[str]:
    """Return the files of the data folder that contain these words."""
    files = [path for path in system.data.rglob("*") if path.is_file()]
    return [
        str(path.relative_to(system.data)) for path in files if words.encode() in path.read_bytes()
    ]


def test_erasure_leaves_no_byte_of_the_person_on_the_disk(system: System) -> None:
    """History, a long text, a file, a timer, a pending and a done action go; another person's texts stay."""
    ana, bob = TelegramPerson(system, 41), TelegramPerson(system, 42)
    bob.say(OTHERS)
    bob.hears()
    ana.say(f"{MINE} " * 290)
    ana.hears(2)
    for words in (
        f"I am {MINE}",
        f"remind me in 3000 seconds to {MINE}",
        f"wipe disk {MINE}",
        "yes",
    ):
        ana.say(words)
        assert len(ana.hears()) == 1
    (system.data / "wiped.txt").unlink()  # the tool's own record
    photo = system.platforms.host("telegram", signing.JPEG + MINE.encode())
    update = signing.telegram_photo(41_900, photo, f"look at {MINE}", user=int(ana.chat))
    assert (
        system.post("ops-tg", signing.telegram_hook(fakes.TELEGRAM_SECRET, update)).status_code
        == 200
    )
    ana.hears()
    ana.say(f"wipe disk {MINE}-2")
    ana.hears()
    until(
        lambda: (
            {place.split("/")[0] for place in places_of(system, MINE)}
            >= {"redis", "media", "texts", "bots"}
        )
    )
    code, output, errors = system.command("people", "erase", "ops-tg", ana.chat)
    assert (code, "What remains, and until when" in output) == (0, True), output + errors
    until(lambda: not places_of(system, MINE), seconds=10)
    assert places_of(system, OTHERS)
    ana.say("yes")
    assert MINE not in ana.hears()[0]["text"]


def test_erasure_for_an_unknown_channel_lists_the_known_channels(system: System) -> None:
    """The command refuses the channel before it erases anything."""
    code, _, errors = system.command("people", "erase", "nope", "1")
    assert (code, "no channel 'nope'; known: shop-wa" in errors) == (2, True)
