"""The Redis ACL file that ships with Sayso: each process has a user of its own, and a whole turn works."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from sayso.channels.types import Conversation
from sayso.config.settings.loader import load_settings
from sayso.config.settings.schema import Settings
from sayso.config.wiring.bootstrap import bootstrap, check_redis
from sayso.config.wiring.redis_parts import risks_of
from sayso.infra.redis.checks import check_guarded
from sayso.infra.redis.client import ACL_FILE, RedisUnfit, connect
from sayso.ops.server.embedded_redis import server_binary
from sayso.pending.sharded_scripts import SHARDS
from sayso.testing.platforms.fake_platforms import SLACK_SIGNING_SECRET, TELEGRAM_SECRET
from sayso.testing.platforms.slack_oauth import FakeInstallations
from sayso.testing.platforms.webhooks import (
    slack_hook,
    telegram_hook,
    telegram_tap,
    telegram_text,
    whatsapp_text,
)
from sayso.workers.data_loss.watermarks import FILE as WATERMARKS
from sayso.workers.data_loss.watermarks import WatermarkFile, keys_of
from tests.config.processes import free_port, sayso
from tests.config.wiring.slack_bot import SECRETS, lifecycle, message, of_organization
from tests.flows.system import (
    PATIENCE,
    HurriedPerson,
    SlackPerson,
    System,
    TelegramPerson,
    WhatsAppPerson,
    until,
)


@dataclass(slots=True)
class GuardedRedis:
    """The bundled server with the shipped ACL file, with test passwords."""

    folder: Path
    user: str = "sayso-web"
    #: Rules that each user gets in addition, such as `-config`.
    rules: str = ""
    pid: int | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Return the Redis URL with the current user's login."""
        password = self.user.removeprefix("sayso-").upper()
        return f"unix://{self.user}:{password}-secret@{self.folder}/guarded.sock"

    def start(self) -> None:
        """Start the server, and wait until the operator can log in."""
        acl = self.folder / "users.acl"
        text = ACL_FILE.read_text().replace("_PASSWORD", "-secret").replace("NAME", "sayso")
        text = re.sub(r"(?m)^(user sayso-.*)$", rf"\1 {self.rules}", text)
        acl.write_text(f"{text}user sayso-tester on >TESTER-secret ~* &* +@all\n")
        settings = {
            "port": "0",
            "unixsocket": f"{self.folder}/guarded.sock",
            "aclfile": str(acl),
            "appendonly": "yes",
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        log = (self.folder / "guarded.log").open("wb")
        self._process = subprocess.Popen(
            [server_binary(), *options], cwd=self.folder, stdout=log, stderr=log
        )
        until(self._answers)

    def stop(self) -> None:
        """Stop the server."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def login(self, user: str) -> Redis:
        """Return a client of one user."""
        self.user = user
        return Redis.from_url(self.url, decode_responses=True)

    def _answers(self) -> bool:
        try:
            return bool(self.login("sayso-operator").ping())
        except RedisError:
            return False


#: The name of a worker of the bot.
OWN = f"sayso-sayso-{'0' * 16}"
#: What a command needs to be tried: its own keys are allowed or not by other rules.
ARGUMENTS = {
    "EVAL": ("return 1", "0"), "EVALSHA": ("0", "0"), "CONFIG GET": ("save",), "WAIT": ("0", "1"),
    "CLIENT SETINFO": ("lib-name", "x"), "CLIENT SETNAME": ("x",),
    "SUBSCRIBE": (f"rq:pubsub:{OWN}",), "PUBLISH": (f"rq:pubsub:{OWN}", ""),
}  # fmt: skip


class GuardedSystem(System):
    """A web and a worker, each with a login of its own."""

    def process(self, command: str, *args: str) -> subprocess.Popen[bytes]:
        """Start a command as its user."""
        user = {"web": "web", "worker": "worker"}.get(command, "operator")
        self.redis.user = f"sayso-{user}"  # type: ignore[attr-defined]
        return super().process(command, *args)


@pytest.fixture(scope="module")
def system() -> Iterator[GuardedSystem]:
    """Web and one worker on a guarded server."""
    with tempfile.TemporaryDirectory(prefix="sayso-acl-") as folder:
        system = GuardedSystem(Path(folder), workers=1, environ={"SAYSO_METRICS_TOKEN": "word"})
        system.redis = GuardedRedis(Path(folder))  # type: ignore[assignment]
        with system:
            yield system


def test_web_and_worker_do_a_whole_turn_with_the_shipped_acl(system: GuardedSystem) -> None:
    """A question, its yes, the effect, a stop, and an operator's trace and erasure work without a denied command."""
    person = TelegramPerson(system, 61)
    person.say("delete invoice INV-51")
    assert "INV-51" in person.hears()[0]["text"]
    person.say("yes")
    assert "deleted" in person.hears()[0]["text"]
    assert system.effects("delete", "INV-51") == 1
    person.say("/stop")
    person.hears()
    for wanted, code in (
        (Conversation("ops-tg", person.chat).id, 0),
        ("SM404", 3),
    ):  # the second one scans all keys
        assert system.process("trace", wanted).wait(60) == code, system.log.read_text()[-3000:]
    operator = system.process("people erase", "ops-tg", person.chat)
    assert operator.wait(60) == 0, system.log.read_text()[-3000:]
    log = system.log.read_text().replace("CONFIG of this Redis (NoPermissionError)", "")
    assert ("NoPermission" in log, "No permissions" in log) == (False, False), log[-3000:]


def test_web_reports_readiness_and_health_with_the_shipped_acl(system: GuardedSystem) -> None:
    """The web's login allows every Redis command of the readiness and health checks."""
    for path in ("/readyz", "/healthz?full"):
        answer = system.http.get(f"{system.url}{path}", timeout=10)
        assert (answer.status_code, answer.json()["redis"]) == (200, "ok"), answer.text


def test_web_reads_the_state_for_its_metrics_with_the_shipped_acl(system: GuardedSystem) -> None:
    """A denied command would be reported as an outage of Redis."""
    samples = system.http.get(
        f"{system.url}/metrics", headers={"Authorization": "Bearer word"}, timeout=10
    ).text
    for line in (
        "sayso_redis_up 1.0",
        "sayso_workers 1.0",
        "sayso_queue_suspended 0.0",
        "sayso_outbox_replies 0.0",
    ):
        assert line in samples.splitlines(), samples


#: What web and worker try at their start, to warn of, and are denied on purpose.
DENIED_ON_PURPOSE = {("sayso-web", "config|get"), ("sayso-worker", "config|get")}


#: A Slack app that many workspaces install.
INSTALLED = """
  inst: {{platform: slack, client_id: "${{SLACK_CLIENT_ID}}", client_secret: "${{SLACK_CLIENT_SECRET}}",
    signing_secret: "${{SLACK_SIGNING_SECRET}}", api_url: {url}/slack, messages_per_second: 0}}
"""


@pytest.fixture
def system_apart() -> Iterator[GuardedSystem]:
    """Web and worker as on two machines, since only the web of another machine has notes of its own to tell from."""
    with tempfile.TemporaryDirectory(prefix="sayso-acl-") as folder:
        environ = {"SAYSO_METRICS_TOKEN": "word", "SAYSO_SECRET_KEYS": "k" * 40, **SECRETS}
        system = GuardedSystem(Path(folder), workers=1, apart=True, environ=environ)
        text = system.config.read_text() + INSTALLED.format(url=system.platforms.url)
        system.config.write_text(
            text.replace("confirm_ttl: 0.2}", "confirm_ttl: 0.2, access: {pairing: true}}")
        )
        system.redis = GuardedRedis(Path(folder))  # type: ignore[assignment]
        with system:
            yield system


def test_no_command_of_any_process_is_denied_by_the_shipped_acl(
    system_apart: GuardedSystem,
) -> None:
    """Each process does all that it ever does: the server's log of denials holds only what is denied on purpose."""
    system = system_apart
    guarded: GuardedRedis = system.redis  # type: ignore[assignment]
    talk(system)
    operate(system)
    system.workers[0].terminate()  # only the web is there to tell people
    system.workers[0].wait(PATIENCE)
    person = lose_a_turn(system)
    until(lambda: "loss.told" in system.log.read_text())
    assert denials(guarded) <= DENIED_ON_PURPOSE
    system.start_worker()
    assert person.hears()[0]["text"].startswith(
        "A storage failure made me forget what you wrote from"
    )
    assert denials(guarded) <= DENIED_ON_PURPOSE


def talk(system: GuardedSystem) -> None:
    """Let people ask, answer in words and by taps, in a group too, be refused, stop, and be forgotten."""
    person, shop, desk = (
        TelegramPerson(system, 71),
        WhatsAppPerson(system, 72),
        SlackPerson(system, 73),
    )
    for each, invoice in ((person, "INV-3"), (shop, "INV-4"), (desk, "INV-7")):
        each.say(f"delete invoice {invoice}")
        each.hears()
        each.say("yes")
        each.hears()
    person.say("delete invoice INV-11")
    person.tap(person.hears()[0]["buttons"][0]["data"])
    person.hears()
    for text in ("/status", "/reset", "/stop"):
        person.say(text)
        person.hears()
    ask_in_group(system, -1_002_000_000_074)
    stranger = HurriedPerson(system, 75)
    stranger.say("hello")  # gets a code
    assert len(stranger.hears()) == 1
    change_number(shop)
    install_and_remove(system)


def change_number(person: WhatsAppPerson) -> None:
    """Let a person write from another number."""
    form = person._form(whatsapp_text, person._next(), "hello")
    hook = person._signed({**form, "From": "whatsapp:+4915199999999"})
    assert person.system.post(*hook).status_code == 200
    until(lambda: person.system.ledger("whatsapp:+4915199999999"))


def install_and_remove(system: GuardedSystem) -> None:
    """Install the app for an organization, answer in one of its workspaces, and remove the app."""
    oauth: FakeInstallations = system.platforms.fakes["slack"].oauth  # type: ignore[attr-defined]
    with httpx.Client(base_url=system.url, timeout=PATIENCE) as browser:
        begun = browser.get("/slack/inst/install")
        state = httpx.URL(begun.headers["Location"]).params["state"]
        back = {"code": oauth.allow("E09", "Grid"), "state": state}
        assert browser.get("/slack/inst/oauth_redirect", params=back).status_code == 200
    envelope = of_organization("E09", "T91")
    removal = lifecycle("app_uninstalled", "E09", time.time() + 5, **envelope)
    for body in (message("T91", "1795204801.000100", "hello", **envelope), removal):
        hook = slack_hook(SLACK_SIGNING_SECRET, body, time.time())
        assert system.post("inst", hook).status_code == 200
        until(lambda: any(entry.get("team") == "E09" for entry in system.platforms.sent))


def ask_in_group(system: GuardedSystem, group: int) -> None:
    """Ask a question in a group; a stranger and then its owner tap its button."""
    owner, stranger = 5_000_000_076, 5_000_000_077

    def deliver(update: dict[str, Any]) -> None:
        assert system.post("ops-tg", telegram_hook(TELEGRAM_SECRET, update)).status_code == 200

    deliver(telegram_text(76_001, "@acme_bot delete invoice INV-12", user=owner, chat=group))
    question = until(lambda: system.ledger(str(group)))[0]
    for number, user in enumerate((stranger, owner)):
        deliver(
            telegram_tap(76_002 + number, question["buttons"][0]["data"], user=user, chat=group)
        )
    until(lambda: any("is deleted" in entry["text"] for entry in system.ledger(str(group))))
    until(system.is_settled)


def operate(system: GuardedSystem) -> None:
    """Run the commands of an operator, and read health and metrics."""
    chat = Conversation("ops-tg", str(5_000_000_071)).id
    data = [
        "--data",
        str(system.worker_data),
    ]  # the machine of the worker has the audit ledger and the key
    commands = {
        ("redis status",): 0, ("migrate",): 0, ("doctor",): None,
        ("trace", chat): 0, ("trace", "SM404"): 3,
        ("channel workspaces", "inst"): 0,
        ("deliveries list",): 0, ("deliveries show", chat): 0, ("deliveries retry", f"{chat}#1"): 3,
        ("people list", "quick-tg"): 0, ("people approve", "quick-tg", "5000000075"): 0,
        ("people block", "quick-tg", "5000000075"): 0, ("people forget", "quick-tg", "5000000075"): 0,
        ("audit show", *data): 0, ("audit verify", *data): 0, ("backup", str(system.data / "backup"), *data): 0,
        ("people erase", "ops-tg", "5000000071", *data): 0,
    }  # fmt: skip
    for command, expected in commands.items():
        code = system.process(*command).wait(PATIENCE)
        assert expected in (None, code), (command, code, system.log.read_text()[-3000:])
    for path in ("/readyz", "/healthz?full", "/metrics"):
        answer = system.http.get(
            f"{system.url}{path}", headers={"Authorization": "Bearer word"}, timeout=PATIENCE
        )
        assert answer.status_code == 200, answer.text


def lose_a_turn(system: GuardedSystem) -> TelegramPerson:
    """Let Redis lose a turn that it acknowledged, and resume it. Return the person who wrote it."""
    guarded: GuardedRedis = system.redis  # type: ignore[assignment]
    files, copy = guarded.folder / "appendonlydir", guarded.folder / "copy"
    shutil.copytree(files, copy)
    person = TelegramPerson(system, 78)
    person.say("delete invoice INV-15")
    with guarded.login("sayso-tester") as client:
        writes = sum(
            int(client.get(keys_of(shard, "sayso:sayso:").write_counter) or 0)
            for shard in range(SHARDS)
        )
    until(lambda: noted_writes(system) >= writes)
    guarded.stop()
    shutil.rmtree(files)
    copy.rename(files)
    guarded.start()
    until(lambda: system.http.get(f"{system.url}/readyz", timeout=PATIENCE).status_code == 503)
    until(lambda: system.process("redis resume").wait(PATIENCE) == 0)
    return person


def noted_writes(system: GuardedSystem) -> int:
    """Return how many writing scripts the web has noted on its disk: the sum of its watermarks."""
    file = WatermarkFile(system.data / "bots" / "sayso" / WATERMARKS)
    servers = file.load().values()
    return max((sum(mark.writes for mark in marks.values()) for marks in servers), default=0)


def denials(guarded: GuardedRedis) -> set[tuple[str, str]]:
    """Return which users were denied what: a command, or a key."""
    with guarded.login("sayso-tester") as client:
        entries = client.execute_command("ACL", "LOG", 1000)
    return {(entry["username"], entry["object"].lower()) for entry in entries}


def test_table_of_commands_has_every_command_of_a_turn(
    system: GuardedSystem, redis_client: Redis
) -> None:
    """The server counted them for web, worker and operator, including those of scripts. Plain reads and writes need no
    row.
    """
    data = {
        name.upper()
        for kind in ("read", "write")
        for name in redis_client.execute_command("ACL", "CAT", kind)
    }
    with GuardedRedis.login(system.redis, "sayso-operator") as client:  # type: ignore[arg-type]
        used = {
            name.removeprefix("cmdstat_").replace("|", " ").upper()
            for name in client.info("commandstats")
        }
    assert used - data - documented_commands() == set()


def documented_commands() -> set[str]:
    """Return the commands in the table of docs/reference/redis.md."""
    table = (
        (Path(__file__).parents[2] / "docs/reference/redis.md")
        .read_text()
        .partition("### Commands")[2]
    )
    rows = [row for row in table.partition("\n### ")[0].splitlines() if row.startswith("| `")]
    return {name for row in rows for name in re.findall("`([A-Z ]+)`", row.split("|")[1])}


def test_users_of_the_shipped_acl_may_send_each_command_of_the_table(redis_client: Redis) -> None:
    """Commands of the operator are denied to web and worker."""
    lines = ACL_FILE.read_text().replace("NAME", "sayso").splitlines()
    for line in lines[1:]:
        redis_client.execute_command("ACL", "SETUSER", *line.split()[1:])
    denied = {
        (name, user)
        for name in documented_commands() - {"SCRIPT"}
        for user in ("sayso-web", "sayso-worker", "sayso-operator")
        if is_denied(redis_client, user, name)
    }
    redis_client.execute_command("ACL", "DELUSER", "sayso-web", "sayso-worker", "sayso-operator")
    assert {name for name, _ in denied} == {"CONFIG GET", "BGREWRITEAOF"}
    assert {user for _, user in denied} == {"sayso-web", "sayso-worker"}


def test_web_may_store_the_tokens_of_workspaces(redis_client: Redis) -> None:
    """A browser installs a Slack app in the web process, which redeems its state once."""
    (line,) = (
        line for line in ACL_FILE.read_text().splitlines() if line.startswith("user sayso-web")
    )
    redis_client.execute_command("ACL", "SETUSER", *line.replace("NAME", "sayso").split()[1:])
    key = "sayso:sayso:{slack:desk}:installed"
    for command in (
        ("HSET", key, "T01", "x"),
        ("GETDEL", f"{key}:x"),
        ("EVAL", "return 1", 1, key),
    ):
        assert redis_client.execute_command("ACL", "DRYRUN", "sayso-web", *command) in ("OK", True)
    redis_client.execute_command("ACL", "DELUSER", "sayso-web")


def is_denied(client: Redis, user: str, name: str) -> bool:
    """Return whether the ACL denies a user this command. It is sent with the number of arguments that it takes."""
    for count in range(6):
        with suppress(ResponseError):
            arguments = ARGUMENTS.get(name, ("rq:x",) * count)
            return "command" in client.execute_command(
                "ACL", "DRYRUN", user, *name.split(), *arguments
            )
    raise AssertionError(f"{name} takes other arguments: add them to ARGUMENTS")


def test_turn_works_where_optional_commands_are_forbidden() -> None:
    """Managed servers forbid CONFIG, SCRIPT or CLIENT. Without PUBLISH, the start says what does not work."""
    with tempfile.TemporaryDirectory(prefix="sayso-poor-") as folder:
        system = GuardedSystem(Path(folder), workers=1)
        system.redis = GuardedRedis(Path(folder), rules="-script -client -config -info -publish")  # type: ignore[assignment]
        with system:
            person = TelegramPerson(system, 62)
            person.say("delete invoice INV-51")
            person.hears()
            person.say("yes")
            assert "deleted" in person.hears()[0]["text"]
            person.say("/stop")
            person.hears()
        log = system.log.read_text()
    assert "this Redis forbids PUBLISH, and a /stop takes up to 4 s" in log


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        ("-eval", "EVAL"),
        ("-evalsha", "EVALSHA"),
        ("-time", "TIME"),
        ("-wait", "WAIT"),
        ("-multi", "MULTI"),
    ],
)
def test_start_is_refused_where_a_required_command_is_forbidden(
    redis_url: str, redis_client: Redis, rules: str, missing: str
):
    """The line names the command and the cure."""
    redis_client.execute_command(
        "ACL", "SETUSER", "poor", "reset", "on", ">pw", "~*", "&*", "+@all", rules
    )
    settings = Settings.model_validate(
        {"channels": {"web": {"platform": "console"}}, "redis_wait_replicas": 1}
    )
    with (
        connect(redis_url.replace("unix://", "unix://poor:pw@")) as client,
        pytest.raises(RedisUnfit, match=rf"this Redis forbids {missing} \(.*allow"),
    ):
        risks_of(client, settings)
    redis_client.execute_command("ACL", "DELUSER", "poor")


def test_start_warns_of_commands_that_only_operators_need(
    redis_url: str, redis_client: Redis
) -> None:
    """They fail when they are needed most."""
    redis_client.execute_command(
        "ACL", "SETUSER", "poor", "reset", "on", ">pw", "~*", "&*", "+@all", "-scan"
    )
    settings = Settings.model_validate({"channels": {"web": {"platform": "console"}}})
    with connect(redis_url.replace("unix://", "unix://poor:pw@")) as client:
        risks = risks_of(client, settings)
    redis_client.execute_command("ACL", "DELUSER", "poor")
    lost = "`sayso redis resume`, `backup`, `migrate` and `people erase` fail: allow it"
    assert f"this Redis forbids SCAN, and {lost}" in risks


@pytest.mark.parametrize(
    ("user", "command"),
    [
        ("sayso-web", ("GET", "sayso:sayso:{1}:history:tg:x:y")),
        ("sayso-web", ("RPUSH", "sayso:sayso:{1}:closed_questions", "action")),
        ("sayso-web", ("SET", "sayso:sayso:{1}:forwarded:tg:x#1", "2")),
        ("sayso-web", ("HSET", "sayso:sayso:people:tg", "x", "{}")),
        ("sayso-web", ("ZADD", "sayso:sayso:workers", "1", "x")),
        ("sayso-web", ("BLPOP", "rq:wip:sayso-sayso", "1")),
        ("sayso-web", ("CONFIG", "GET", "requirepass")),
        ("sayso-web", ("LPUSH", "rq:queue:default", "job")),
        ("sayso-web", ("HSET", "rq:job:another-applications", "data", "")),
        ("sayso-web", ("SADD", "rq:suspended", "")),
        (
            "sayso-web",
            (
                "FUNCTION",
                "LOAD",
                "#!lua name=x\nredis.register_function('x', function() return 1 end)",
            ),
        ),
        ("sayso-worker", ("LPUSH", "rq:queue:sayso-sayso-2", "job")),
        ("sayso-worker", ("HSET", "rq:job:sayso-sayso-2-0123456789abcdef_1", "data", "")),
        ("sayso-worker", ("HSET", "rq:worker:another-applications", "state", "")),
        ("sayso-worker", ("PUBLISH", "rq:pubsub:another-applications", "")),
        ("sayso-worker", ("FUNCTION", "FLUSH")),
        ("sayso-operator", ("FUNCTION", "FLUSH")),
        ("sayso-worker", ("GET", "sayso:other:{1}:history:tg:x:y")),
        ("sayso-worker", ("FLUSHALL",)),
        ("sayso-operator", ("CONFIG", "SET", "appendonly", "no")),
    ],
)
def test_each_user_is_denied_commands_outside_its_role(
    system: GuardedSystem, user: str, command: tuple[str, ...]
) -> None:
    """A compromised web cannot read history. No process can read another bot, write to queues of others or change
    the server.
    """
    guarded: GuardedRedis = system.redis  # type: ignore[assignment]
    with guarded.login(user) as client, pytest.raises(NoPermissionError):
        client.execute_command(*command)


def own_address() -> str:
    """Return an address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 9))  # sends nothing
        except OSError:
            pytest.skip("SKIPPED: this machine has no network")
        return str(probe.getsockname()[0])


def test_a_remote_redis_without_a_login_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    """Every start names the fix; a password or a line in the YAML allows the start."""
    host, port = own_address(), free_port()
    options = [
        "--port",
        str(port),
        "--bind",
        host,
        "--protected-mode",
        "no",
        "--save",
        "",
        "--appendonly",
        "yes",
    ]
    options += ["--unixsocket", f"{tmp_path}/here.sock"]
    server = subprocess.Popen([server_binary(), *options], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        url = f"redis://{host}:{port}/0"
        until(lambda: _is_there(url))
        file = tmp_path / "bot.yaml"
        file.write_text("channels: {web: {platform: console}}\n")
        code, _, errors = sayso(
            "worker", "--config", file, "--data", tmp_path / "data", REDIS_URL=url
        )
        assert (code, "needs no password" in errors, "allow_open_redis: true" in errors) == (
            3,
            True,
            True,
        ), errors
        file.write_text(
            f"agent: {{cache: {{store: redis, redis_url: {url}}}}}\nchannels: {{web: {{platform: console}}}}\n"
        )
        here = {"REDIS_URL": f"unix://{tmp_path}/here.sock"}
        code, _, errors = sayso("worker", "--config", file, "--data", tmp_path / "data", **here)
        assert (code, "needs no password" in errors) == (3, True), errors
        allowed = load_settings(file).model_copy(
            update={"allow_open_redis": True, "redis_url": url}
        )
        check_redis(bootstrap(allowed, data=tmp_path / "data"))
        connect(url).config_set("requirepass", "a-password")
        check_guarded(connect(f"redis://:a-password@{host}:{port}/0"))
    finally:
        server.kill()
        server.wait()


def _is_there(url: str) -> bool:
    try:
        return bool(connect(url).ping())
    except RedisError:
        return False
