"""Second opinion on Telegram: all calls of the adapter, and all updates in tests, fit aiogram's models too."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from telegram import BotCommand, BotCommandScopeAllGroupChats

from sayso.channels.telegram.adapter import TelegramChannel
from sayso.channels.telegram.setup import _command_in_groups
from sayso.channels.types import Button, Conversation, Delivery, Media, Reply
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import TELEGRAM_SECRET, FakePlatforms
from sayso.testing.platforms.server import FakeResponse, RecordedRequest
from sayso.testing.platforms.telegram import MOVED_GROUPS
from tests.channels.harness import FILES, IMAGE, PDF, YES_NO, MemoryMedia, telegram, telegram_hook

ROOT = Path(__file__).parents[2]
MODELS = ROOT / ".venv-models"
PAYLOADS = sorted((ROOT / "tests" / "payloads" / "telegram").glob("*.json"))
#: Fields of payloads that aiogram does not know.
UNKNOWN = {"unknown_kind.json": ["someday_kind: unknown"]}
PRIVATE, TOPIC = Conversation("tg", "5123456789"), Conversation("tg", "-1002000000001", "77")
MOVING = Conversation("tg", "-4000000001")
SHOWN = {
    "sendAnimation": Media("any", "image/gif", "a.gif", stored=True),
    "sendAudio": Media("any", "audio/mpeg", "a.mp3", stored=True),
    "sendVideo": Media("any", "video/mp4", "a.mp4", stored=True),
    "sendVoice": Media("any", "audio/ogg", "a.ogg", stored=True),
    "sendDocument": PDF,
    "sendPhoto": IMAGE,
}
DECIDED = (Button("✓ Yes", "", effect="✓ Delete it"), Button("No", ""))
KEY = {"text": "Yes", "callback_data": "y"}


class Listening(FakePlatforms):
    """Fake platforms that note each call of the Bot API, refused ones included."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[dict[str, Any]] = []

    def answer(self, call: RecordedRequest) -> FakeResponse | None:
        """Note the call, with its file in the field where the Bot API would look for it."""
        route = call.route
        if route.startswith("/telegram/bot"):
            files = {part.name: f"attach://{part.filename}" for part in call.parts if part.filename}
            self.heard.append(
                {"method": route.rpartition("/")[2], "params": {**call.params, **files}}
            )
        return super().answer(call)


#: Returns the faults of each call or update.
Judge = Callable[[Sequence[dict[str, Any]]], list[list[str]]]


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """Return a function that asks aiogram for the faults of each call, in one process."""
    if not (MODELS / "ready").exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "no aiogram to ask for a second opinion: make .venv-models/ready"
        )

    command = [MODELS / "bin" / "python", Path(__file__).with_name("second_opinion.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as aiogram:
        questions, answers = aiogram.stdin, aiogram.stdout
        assert questions
        assert answers

        def asked(question: dict[str, Any]) -> list[str]:
            questions.write(json.dumps(question) + "\n")
            questions.flush()
            return list(json.loads(answers.readline())["wrong"])

        yield lambda asking: [asked(question) for question in asking]


@pytest.fixture(scope="module")
def heard(media: MemoryMedia) -> Iterator[list[dict[str, Any]]]:
    """Return every call that a bot makes, from its setup to a moved group."""
    with Listening() as platforms, pytest.MonkeyPatch.context() as patch:
        patch.setitem(FILES, "any", b"\xff\xd8\xff" + b"x" * 100)
        asyncio.run(_life(telegram(media, platforms.telegram_url), platforms))
        asyncio.run(_drafts(telegram(media, platforms.telegram_url, draft="native")))
        asyncio.run(_write_richly(telegram(media, platforms.telegram_url, rich_messages=True)))
        yield platforms.heard


async def _life(channel: TelegramChannel, platforms: FakePlatforms) -> None:
    await _set_up(channel)
    for where in (PRIVATE, TOPIC):
        await _talk(channel, where)
    for hook in (
        signing.telegram_text(1, "hi"),
        signing.telegram_tap(2, "y"),
        signing.telegram_text(3, "hi", chat=-1),
    ):
        turn = channel.receive(telegram_hook(hook)).turns[0]
        await channel.show_typing(turn)
        await channel.draft(turn, "**so** far", await channel.draft(turn, "so"))
    await _whisper(channel)
    platforms.log.state[MOVED_GROUPS] = {MOVING.chat: "-1002000000009"}
    await _send(channel, Reply("hello"), MOVING)
    photo = Media(platforms.host("telegram", b"\xff\xd8\xff"), "image/jpeg")
    await channel.fetch(photo, BytesIO())


async def _whisper(channel: TelegramChannel) -> None:
    """Ask one person of a group, after a tap and after a command; edit both; delete a draft."""
    for act, media in (("cb1", None), ("u5123456789:4", IMAGE)):
        asked = Reply("Delete?", YES_NO, media, only_for="5123456789", only_for_act=act)
        prompt = await _send(channel, asked, TOPIC)
        await _send(channel, Reply("**Deleted**", edits=prompt, decided_buttons=DECIDED), TOPIC)
    await _send(
        channel, Reply("…", edits=await _send(channel, Reply("so"), TOPIC), removes=True), TOPIC
    )


async def _write_richly(channel: TelegramChannel) -> None:
    """Send every kind of block in a rich message, with buttons, and edit a message into one."""
    blocks = [
        "# A",
        "1. *b*\n   - `c`",
        "> **d** ~~e~~",
        "```py\nf\n```",
        "---",
        "| g | h |\n|--:|:-:|\n| [i](mailto:a@b.c) | j |",
    ]
    text = "\n\n".join(blocks)
    for where in (PRIVATE, TOPIC):
        await _send(channel, Reply(text, YES_NO), where)
        shown = await _send(channel, Reply("so far"), where)
        await _send(
            channel, Reply(f"{text}\n\n[k](https://e.org) [l](tel:+49)", edits=shown), where
        )


async def _drafts(channel: TelegramChannel) -> None:
    """Show Telegram's own drafts, without and with a text."""
    turn = channel.receive(telegram_hook(signing.telegram_text(4, "hi"))).turns[0]
    await channel.draft(turn, "")
    await channel.draft(turn, "**so** far")


async def _set_up(channel: TelegramChannel) -> None:
    bot = channel._bots.here()
    await bot.get_me()
    kinds = ["message", "edited_message", "callback_query", "my_chat_member"]
    await bot.set_webhook(
        "https://bots.example.com/x", secret_token=TELEGRAM_SECRET, allowed_updates=kinds
    )
    await bot.set_webhook(
        "https://bots.example.com/x", max_connections=5, drop_pending_updates=True
    )
    await bot.get_webhook_info()
    menu = [BotCommand("help", "What I can do"), BotCommand("stop", "Stop")]
    await bot.set_my_commands(menu)
    await bot.set_my_commands(
        [_command_in_groups(each) for each in menu], BotCommandScopeAllGroupChats()
    )
    await bot.get_my_commands()
    await bot.delete_webhook(drop_pending_updates=True)


async def _talk(channel: TelegramChannel, where: Conversation) -> None:
    """Send texts, buttons, files, edits of both, and replies that Telegram refuses in their first form."""
    await _send(channel, Reply("plain"), where)
    await _send(
        channel,
        Reply("# Title\n\n**bold** [link](https://e.org/?a=1&b=2)\n\n```py\nx < 1\n```"),
        where,
    )
    for media in SHOWN.values():
        await _send(channel, Reply("*Here*", YES_NO, media), where)
        photo = await _send(channel, Reply(media=media), where)
        await _send(channel, Reply("Changed", YES_NO, edits=photo), where)
    asked = await _send(channel, Reply("Delete **3**?", (*YES_NO, *YES_NO)), where)
    await _send(channel, Reply("Sure?", YES_NO, edits=asked), where)
    await _send(channel, Reply("**Deleted**", edits=asked, decided_buttons=DECIDED), where)
    await _send(channel, Reply("Deleted again", edits="99999"), where)


async def _send(channel: TelegramChannel, reply: Reply, where: Conversation) -> str:
    return (await channel.send(Delivery("d", where, reply))).message_id


@pytest.mark.parametrize(
    ("method", "params", "wrong"),
    [
        (
            "sendMessage",
            {"reply_markup": json.dumps({"inline_keyboard": [KEY]})},
            "reply_markup.inline_keyboard",
        ),
        (
            "sendMessage",
            {"reply_markup": json.dumps({"inline_keyboard": [[{**KEY, "color": "red"}]]})},
            "reply_markup.inline_keyboard.0.0.color: unknown",
        ),
        ("sendMessage", {"colour": "red"}, "colour: unknown"),
        (
            "sendMessage",
            {"disable_web_page_preview": "true"},
            "disable_web_page_preview: deprecated",
        ),
        (
            "sendMessage",
            {"message_thread_id": '"77"'},
            "message_thread_id: Input should be a valid integer",
        ),
        ("sendMessage", {"message_thread_id": "general"}, "message_thread_id: no JSON"),
        ("editMessageText", {"message_id": "1.5"}, "message_id: Input should be a valid integer"),
        ("sendPhoto", {}, "photo: Field required"),
        ("sendMesage", {}, "unknown method 'sendMesage'"),
    ],
)
def test_a_wrong_call_is_refused(judge: Judge, method: str, params: dict[str, str], wrong: str):
    """A check that accepts everything would prove nothing."""
    good = {} if method == "sendPhoto" else {"text": "x"}
    ((said, *_),) = judge([{"method": method, "params": {"chat_id": "1", **good, **params}}])
    assert said.startswith(wrong)


def test_every_call_fits(judge: Judge, heard: list[dict[str, Any]]):
    """platforms.md 2.3: all Telegram calls validate against aiogram's models, retries after refusals included."""
    wrong = [(call, said) for call, said in zip(heard, judge(heard), strict=True) if said]
    assert wrong == []


def test_every_kind_of_call_was_made(heard: list[dict[str, Any]]):
    """A call that is never made is not checked."""
    methods, keys = (
        {call["method"] for call in heard},
        {key for call in heard for key in call["params"]},
    )
    assert methods >= {
        *SHOWN,
        "sendMessage",
        "sendMessageDraft",
        "editMessageText",
        "editMessageCaption",
    }
    assert methods >= {
        "sendChatAction",
        "answerCallbackQuery",
        "getFile",
        "getMe",
        "getMyCommands",
        "setMyCommands",
    }
    assert methods >= {"editEphemeralMessageText", "editEphemeralMessageCaption", "deleteMessage"}
    assert {"sendRichMessage", "editMessageText"} <= {
        call["method"] for call in heard if "rich_message" in call["params"]
    }
    assert methods >= {"setWebhook", "getWebhookInfo", "deleteWebhook"}
    assert {"parse_mode", "reply_markup", "message_thread_id", "can_stop"} <= keys
    assert {"-4000000001", "-1002000000009"} <= {call["params"].get("chat_id") for call in heard}


def test_every_payload_is_an_update(judge: Judge):
    """platforms.md 2.1: the updates of the tests are valid, but for kinds that do not exist yet."""
    updates = [{"update": json.loads(path.read_text())["json"]} for path in PAYLOADS]
    said = {path.name: wrong for path, wrong in zip(PAYLOADS, judge(updates), strict=True) if wrong}
    assert (said, len(updates) > 40) == (UNKNOWN, True)
