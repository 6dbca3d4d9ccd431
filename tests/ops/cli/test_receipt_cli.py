"""The commands about receipts: made from the ledger, verified elsewhere with the public keys alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sayso.ops.cli.main import main
from sayso.pending.audit.ledger import FILE
from tests.pending.audit.receipt_story import ReceiptStory
from tests.pending.state_log import KEY


@pytest.fixture
def story(redis_client, tmp_path, monkeypatch):
    """Return a bot with the data folder `data`, and its ledger."""
    monkeypatch.setenv("SAYSO_SECRET_KEYS", KEY)
    monkeypatch.delenv("SAYSO_CONFIG", raising=False)
    folder = tmp_path / "data" / "bots" / "shop"
    folder.mkdir(parents=True)
    return ReceiptStory(redis_client, folder, "A")


@pytest.fixture
def data(story) -> Path:
    """Return the data folder."""
    return story.ledger.path.parents[2]


def run(*args: object) -> Result:
    """Run a `sayso audit` command. Any other exception than an exit is a bug."""
    result = CliRunner().invoke(main, ["audit", *map(str, args)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def decided(story: ReceiptStory, answer: str = "yes") -> str:
    """Return the id of an action that was decided in words, and is in the ledger."""
    action_id = story.ask()
    story.bot.say(answer)
    story.collect()
    return action_id


def test_receipt_is_verified_without_redis_data_folder_and_secret(story, data, tmp_path):
    """A process with nothing but both files says what the receipt proves."""
    action_id = decided(story)
    out, keys, empty = tmp_path / "receipt.json", tmp_path / "shop.pem", tmp_path / "empty"
    empty.mkdir()
    assert run("receipt", action_id, "--data", data, "--out", out).stdout == (
        f"the receipt of {action_id} is in {out}\n"
    )
    keys.write_text(run("public-key", "--data", data).stdout)
    command = [sys.executable, "-m", "sayso", "audit", "verify-receipt", out, "--public-key", keys]
    unset = ("SAYSO_SECRET_KEYS", "SAYSO_DATA", "SAYSO_CONFIG", "REDIS_URL")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        command, cwd=empty, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "of the bot 'shop' signed it." in done.stdout
    assert "ana on chat said yes at " in done.stdout
    assert 'by the words "yes"' in done.stdout
    assert f'Action {action_id}: delete {{"name":"A"}}' in done.stdout
    assert "Outcome: done at " in done.stdout
    assert [*empty.iterdir()] == []


def test_receipt_goes_to_standard_output(story, data, tmp_path):
    """It is the same file as with --out, and verifies with the keys of the data folder."""
    action_id = decided(story)
    content = run("receipt", action_id, "--data", data).stdout
    assert json.loads(content)["bot"] == "shop"
    assert KEY not in content.split('"')
    file = tmp_path / "receipt.json"
    file.write_text(content)
    verified = run("verify-receipt", file, "--data", data, "--json")
    assert verified.exit_code == 0
    value = json.loads(verified.stdout)
    assert value["genuine"]
    assert value["receipt"]["decisions"][0]["words"] == "yes"


def test_changed_receipt_is_a_finding(story, data, tmp_path):
    """The exit code is 1, and the output names what was changed."""
    content = run("receipt", decided(story, "no"), "--data", data).stdout
    file = tmp_path / "receipt.json"
    file.write_text(content.replace('"answer":"no"', '"answer":"yes"'))
    result = run("verify-receipt", file, "--data", data)
    assert (result.exit_code, result.stdout) == (
        1,
        "fault: changed field: decisions[0].answer is not what was signed\n"
        "The receipt is NOT genuine.\n",
    )
    value = json.loads(run("verify-receipt", file, "--data", data, "--json").stdout)
    assert not value["genuine"]
    assert len(value["faults"]) == 1


def test_many_faults_are_counted(story, data, tmp_path):
    """At most twenty are printed."""
    receipt = json.loads(run("receipt", decided(story), "--data", data).stdout)
    receipt["decisions"] *= 2
    receipt["notes"] = ["more"] * 20
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(receipt))
    lines = run("verify-receipt", file, "--data", data).stdout.splitlines()
    assert (len(lines), lines[-1]) == (22, "The receipt is NOT genuine.")
    assert lines[-2].startswith("... and ")


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[" * 100_000, b"{}", b"SQLite format 3\0"])
def test_other_file_is_a_finding(story, data, tmp_path, content):
    """A file that is no receipt is said to be none."""
    file = tmp_path / "file"
    file.write_bytes(content)
    result = run("verify-receipt", file, "--data", data)
    assert result.exit_code == 1
    assert result.stdout.startswith("fault: not a receipt: ")


def test_files_that_cannot_be_used_are_named(story, data, tmp_path):
    """They are a missing receipt, a file of keys without keys, and an output without a folder."""
    action_id = decided(story)
    none = tmp_path / "none" / "receipt.json"
    for command, words in (
        (["verify-receipt", none, "--data", data], "none/receipt.json cannot be read"),
        (["verify-receipt", data, "--data", data], "data cannot be read: Is a directory"),
        (["verify-receipt", none, "--public-key", none], "cannot be read: No such file"),
        (["verify-receipt", none, "--public-key", story.ledger.path], "is no file of public keys"),
        (["receipt", action_id, "--data", data, "--out", none], "cannot be written"),
    ):
        result = run(*command)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1)
        assert words in result.stderr


def test_action_without_a_decision_is_a_finding(story, data, tmp_path):
    """No file is written, and the reason is said."""
    action_id = story.ask()
    story.collect()
    out = tmp_path / "receipt.json"
    result = run("receipt", action_id, "--data", data, "--out", out)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: no decision about {action_id} is recorded: its last state is 'shown'\n"
    )
    assert run("receipt", "unknown", "--data", data).exit_code == 1
    assert not out.exists()


def test_broken_vote_is_said_beside_the_receipt(story, data):
    """The receipt on standard output stays one line of JSON."""
    action_id = story.ask()
    story.store_votes(action_id, story.vote(action_id), "broken")
    story.collect()
    result = run("receipt", action_id, "--data", data)
    assert result.stderr == "note: a vote was left out: it cannot be read\n"
    assert json.loads(result.stdout)["notes"] == ["a vote was left out: it cannot be read"]


def test_public_keys_of_rotated_keys(story, data, tmp_path, monkeypatch):
    """The file has the new key and the old one, so it verifies receipts of both."""
    action_id = decided(story)
    old = tmp_path / "old.json"
    run("receipt", action_id, "--data", data, "--out", old)
    monkeypatch.setenv("SAYSO_SECRET_KEYS", f"newer,{KEY}")
    new, keys = tmp_path / "new.json", tmp_path / "shop.pem"
    run("receipt", action_id, "--data", data, "--out", new)
    output = run("public-key", "--data", data).stdout
    assert output.count("-----BEGIN PUBLIC KEY-----") == 2
    keys.write_text(output)
    assert [run("verify-receipt", file, "--public-key", keys).exit_code for file in (old, new)] == [
        0,
        0,
    ]
    as_json = json.loads(run("public-key", "--data", data, "--json").stdout)
    assert as_json[0]["key_id"] == json.loads(new.read_text())["key_id"]

    keys.write_text(as_json[1]["pem"])
    result = run("verify-receipt", new, "--public-key", keys)
    assert (result.exit_code, result.stdout.startswith("fault: unknown key: ")) == (1, True)


def test_missing_library_is_named(story, data, monkeypatch):
    """The error has the command that installs it."""
    for name in [each for each in sys.modules if each.startswith("cryptography")]:
        monkeypatch.setitem(sys.modules, name, None)
    for command in (["receipt", "a"], ["public-key"], ["verify-receipt", "a"]):
        result = run(*command, "--data", data)
        assert result.exit_code == 3
        assert "the extra 'receipts'" in result.stderr


def test_secret_key_is_needed_to_sign_and_none_is_created(story, data, monkeypatch):
    """A new key could sign nothing that anyone knows."""
    action_id = decided(story)
    monkeypatch.delenv("SAYSO_SECRET_KEYS")
    for command in (["receipt", action_id], ["public-key"], ["verify-receipt", "x"]):
        result = run(*command, "--data", data)
        assert (result.exit_code, result.stderr.startswith("Error: no secret key")) == (3, True)
    assert not (data / "secret_keys").exists()


def test_missing_ledger_is_named(tmp_path, monkeypatch):
    """No folder and no file is created."""
    monkeypatch.setenv("SAYSO_SECRET_KEYS", KEY)
    result = run("receipt", "a", "--data", tmp_path / "none")
    assert (result.exit_code, f"no ledger in {tmp_path}/none" in result.stderr) == (3, True)
    assert not (tmp_path / "none" / FILE).exists()
