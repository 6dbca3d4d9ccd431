"""docs/how-to/audit-and-privacy.md: what it shows of receipts is what the commands print."""

from __future__ import annotations

import re
import textwrap

from click.testing import CliRunner

from sayso.ops.cli.main import main
from tests.contracts.rigs import CHAT, turn
from tests.docs.pages import part
from tests.pending.audit.receipt_story import ReceiptStory
from tests.pending.state_log import KEY

USER = "4915112345"


def test_commands_print_what_the_page_shows(redis_client, tmp_path, monkeypatch):
    """Ids, digests and times differ from run to run."""
    monkeypatch.setenv("SAYSO_SECRET_KEYS", KEY)
    monkeypatch.setenv("SAYSO_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "bots" / "shop"
    folder.mkdir(parents=True)
    story = ReceiptStory(redis_client, folder, "milk", preview="Delete the task {name}")
    story.bot.say("delete milk", user=USER)
    scope = turn(user=USER).scope
    action_id = story.bot.rig.repository.load_open(CHAT.id, scope.id).action_id
    story.bot.say("yes", user=USER)
    story.collect()

    page = part("audit-and-privacy.md", begin="Prove a decision to others", end="Keep the log safe")
    blocks = re.findall(r"(?:^ {8}.*\n)+", page, re.MULTILINE)
    keys, receipt, verified, fault = (textwrap.dedent(block) for block in blocks)
    assert keys == "$ sayso audit public-key > shop.pem\n"
    (tmp_path / "shop.pem").write_text(printed("public-key"))

    command = f"sayso audit receipt {action_id} --out receipt.json"
    assert masked(receipt) == masked(f"$ {command}\n{printed(*command.split()[2:])}")
    command = "sayso audit verify-receipt receipt.json --public-key shop.pem"
    assert masked(verified) == masked(f"$ {command}\n{printed(*command.split()[2:])}")

    file = tmp_path / "receipt.json"
    file.write_text(file.read_text().replace('"words":"yes"', '"words":"sure"'))
    assert fault == printed(*command.split()[2:])


def printed(*args: str) -> str:
    """Return what a command prints."""
    return CliRunner().invoke(main, ["audit", *args]).stdout


def masked(text: str) -> str:
    """Return a text with its digests, ids and times replaced."""
    text = re.sub(r"\b[0-9a-f]{22,64}\b", "HEX", text)
    return re.sub(r"\b\d{4}-\d\d-\d\dT[0-9:.]{12}Z", "TIME", text)
