"""deploy/systemd: the units are valid and hardened, and their commands run."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from sayso.testing.platforms import webhooks as signing
from tests.deploy.conftest import SECRETS, Site, compose, program
from tests.deploy.sandbox import ROOT
from tests.deploy.units import UNITS, run_unit, settings
from tests.flows.system import until

NAMES = ("sayso-web.service", "sayso-worker@1.service", "sayso-poll.service")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of a machine with the units and nothing else but what they name."""
    root = tmp_path_factory.mktemp("machine")
    shutil.copytree(UNITS, root / "etc/systemd/system")
    (root / "etc/passwd").write_text("sayso:x:10001:10001::/var/lib/sayso:/usr/sbin/nologin\n")
    (root / "etc/group").write_text("sayso:x:10001:\n")
    (root / "opt/sayso/bin").mkdir(parents=True)
    (root / "opt/sayso/bin/sayso").touch(mode=0o755)
    return root


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze and return its result."""
    return subprocess.run(
        [program("systemd-analyze"), *words], capture_output=True, text=True, check=False
    )


def test_units_are_valid(root: Path):
    """systemd-analyze knows every key and finds every command."""
    done = analyze("verify", "--recursive-errors=no", f"--root={root}", *NAMES)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_wrong_command_or_key_is_found(root: Path, tmp_path: Path):
    """This proves that the check above can fail."""
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    unit = tmp_path / "etc/systemd/system/sayso-web.service"
    unit.write_text(
        unit.read_text()
        .replace("/opt/sayso/bin/sayso", "/opt/sayso/bin/seyso")
        .replace("TimeoutS", "TimeutS")
    )
    said = analyze("verify", "--recursive-errors=no", f"--root={tmp_path}", NAMES[0]).stderr
    assert "seyso is not executable" in said
    assert "'TimeutStopSec'" in said


@pytest.mark.parametrize("name", NAMES)
def test_units_are_hardened(root: Path, name: str):
    """Their exposure is at most 2.0 of 10, which systemd-analyze calls OK."""
    done = analyze("security", "--offline=true", "--threshold=20", f"--root={root}", name)
    assert done.returncode == 0, done.stdout


def test_a_stop_reaches_the_parent_only():
    """A worker that got SIGTERM from systemd and from its parent would cut off its turns."""
    assert "\nKillMode=mixed\n" in (UNITS / "sayso-.service.d/common.conf").read_text()


def test_commands_of_the_units_answer_a_message(systemd_web: Site):
    """They run as their user on a read-only system, and write only to their state folder and /tmp."""
    site = systemd_web
    with ExitStack() as stack:
        run_unit(site, stack, "sayso-worker@.service")
        before = len(site.platforms.sent)
        headers, body = signing.telegram_hook(
            SECRETS["TELEGRAM_SECRET"], signing.telegram_text(21, "count the apples")
        )
        assert (
            site.post("http://127.0.0.1:8000/hooks/tg", headers=headers, content=body).status_code
            == 200
        )
        until(lambda: "There are 3 apples." in json.dumps(site.platforms.sent[before:]))


def test_poll_unit_runs_what_compose_runs():
    """The test of compose.yaml runs that command."""
    assert settings("sayso-poll.service")["ExecStart"] == ["/opt/sayso/bin/sayso poll"]
    assert compose()["services"]["poll"]["command"] == ["poll"]


def test_example_of_the_environment_has_the_variables_of_the_units():
    """systemd reads /etc/sayso/sayso.env, which is made from the same example as in every deployment."""
    text = (ROOT / "deploy/sayso.env.example").read_text()
    assert all(
        f"\n{name}=" in text or f"\n# {name}=" in text
        for name in ("SAYSO_SECRET_KEYS", "REDIS_URL")
    )
