"""Installing a Slack app into a workspace in a browser.

What is asked of Slack, and what is refused.
"""

from __future__ import annotations

import logging
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from redis import Redis

from sayso.channels.slack.install import INVITATION_SECONDS, MAX_NAME_CHARS, STATE_SECONDS
from sayso.channels.slack.installations import INVITATION
from sayso.channels.slack.setup import scopes
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.slack_manifests import CREDENTIALS
from tests.config.wiring.slack_bot import PUBLIC_URL, OpenBot, SlackBot, full_memory


def invite(bot: SlackBot) -> str:
    """Return the path of an invitation."""
    invitation = bot.channel.installations.issue(INVITATION, "1", INVITATION_SECONDS)
    return f"/slack/desk/install?invitation={invitation}"


def test_forged_state_installs_nothing(open_bot: OpenBot):
    """A link that an attacker sends cannot connect their workspace in another person's name."""
    bot = open_bot()
    bot.begin()
    answer = bot.come_back(code=bot.slack.oauth.allow("T01"), state="0" * 48)
    assert (answer.status_code, bot.channel.installations.ids()) == (403, [])


def test_state_of_another_browser_installs_nothing(open_bot: OpenBot):
    """The cookie binds the state to the browser that began; the state is used up then."""
    bot = open_bot()
    state = bot.begin()
    code = bot.slack.oauth.allow("T01")
    stranger = bot.browser()
    assert bot.come_back(stranger, code=code, state=state).status_code == 403
    bot.begin(stranger)  # a cookie of its own does not help
    assert bot.come_back(stranger, code=code, state=state).status_code == 403
    assert bot.come_back(code=code, state=state).status_code == 403
    assert bot.channel.installations.ids() == []


def test_look_at_the_link_uses_nothing_up(open_bot: OpenBot):
    """Filters of mail and of offices ask with HEAD before the browser opens a link."""
    bot = open_bot()
    state = bot.begin()
    code = bot.slack.oauth.allow("T01")
    looked = bot.browser().head(
        f"/slack/desk/oauth_redirect?code={code}&state={state}", base_url=PUBLIC_URL
    )
    assert (looked.status_code, bot.channel.installations.ids()) == (200, [])
    assert bot.come_back(code=code, state=state).status_code == 200


def test_state_works_once(open_bot: OpenBot):
    """Going back in the browser cannot install again."""
    bot = open_bot()
    state = bot.begin()
    assert bot.come_back(code=bot.slack.oauth.allow("T01"), state=state).status_code == 200
    assert bot.come_back(code=bot.slack.oauth.allow("T02"), state=state).status_code == 403
    assert bot.channel.installations.ids() == ["T01"]


def test_state_lives_for_ten_minutes(open_bot: OpenBot, redis_client: Redis):
    """A late return is refused; Redis itself deletes the state."""
    bot = open_bot()
    state = bot.begin()
    (key,) = redis_client.scan_iter("*:state:*")
    assert STATE_SECONDS - 10 < redis_client.ttl(key) <= STATE_SECONDS
    redis_client.delete(key)
    answer = bot.come_back(code=bot.slack.oauth.allow("T01"), state=state)
    assert answer.status_code == 403
    assert "took longer than 10 minutes" in answer.text


def test_state_of_another_channel_installs_nothing(
    tmp_path: Path,
    redis_client: Redis,
    redis_url: str,
):
    """Two apps of one bot do not share what was begun."""
    more = "\n  other: {platform: slack, client_id: '${SLACK_CLIENT_ID}', client_secret: '${SLACK_CLIENT_SECRET}', "
    more += "signing_secret: '${SLACK_SIGNING_SECRET}'}"
    with FakePlatforms() as platforms:
        bot = SlackBot(tmp_path, redis_url, platforms, more)
        state = bot.begin(path="/slack/other/install")
        assert bot.come_back(code=bot.slack.oauth.allow("T01"), state=state).status_code == 403
        assert bot.channel.installations.ids() == []


def test_two_tabs_of_one_browser_both_install(open_bot: OpenBot):
    """The second tab does not spoil the first one."""
    bot = open_bot()
    first = bot.begin()
    second = bot.begin()
    for state, team in ((first, "T01"), (second, "T02")):
        assert bot.come_back(code=bot.slack.oauth.allow(team), state=state).status_code == 200
    assert bot.channel.installations.ids() == ["T01", "T02"]


def test_browser_is_sent_to_slack_with_all_scopes(open_bot: OpenBot):
    """Slack's page shows what the bot needs, and the cookie works for this host and https alone."""
    bot = open_bot()
    answer = bot.client.get("/slack/install", base_url=PUBLIC_URL)
    asked = {
        name: values[0]
        for name, values in parse_qs(urlsplit(answer.headers["Location"]).query).items()
    }
    assert asked["client_id"] == CREDENTIALS["client_id"]
    assert asked["scope"].split(",") == list(scopes("agent"))
    assert asked["redirect_uri"] == f"{PUBLIC_URL}/slack/desk/oauth_redirect"
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith("__Host-sayso_slack_desk=")
    assert all(part in cookie for part in ("Secure", "HttpOnly", "SameSite=Lax", "Path=/"))


def test_person_who_does_not_allow_it_reads_so(open_bot: OpenBot):
    """Nothing is stored, and the page leads back to the beginning."""
    bot = open_bot()
    answer = bot.come_back(error="access_denied", state=bot.begin())
    assert answer.status_code == 200
    assert "You did not allow the installation" in answer.text
    assert 'href="/slack/desk/install"' in answer.text
    assert bot.channel.installations.ids() == []


@pytest.mark.parametrize(
    "query", [{"code": "unknown-code"}, {}, {"error": "<script>alert(1)</script>"}]
)
def test_what_slack_does_not_confirm_is_a_plain_page(open_bot: OpenBot, query: dict[str, str]):
    """No traceback, no echo of what came."""
    bot = open_bot()
    answer = bot.come_back(state=bot.begin(), **query)
    assert answer.status_code in (403, 502)
    assert "Not installed" in answer.text
    assert "<script>" not in answer.text
    assert "unknown-code" not in answer.text


def test_name_of_a_workspace_is_one_line(open_bot: OpenBot):
    """Its owner chooses it, and `sayso channel workspaces` prints it into the terminal of an operator."""
    bot = open_bot()
    assert bot.install("T01", f"Acme\x1b[2J\nT02  \u202eBeta{'x' * 500}").status_code == 200
    assert (
        bot.channel.installations.get("T01").name == f"Acme[2JT02  Beta{'x' * 500}"[:MAX_NAME_CHARS]
    )


def test_tokens_and_codes_are_in_no_page_log_or_record(
    open_bot: OpenBot, redis_client: Redis, caplog: pytest.LogCaptureFixture
):
    """The token is sealed in Redis, and shown nowhere."""
    caplog.set_level(logging.DEBUG)
    bot = open_bot()
    bot.slack.oauth.rotates = True
    code = bot.slack.oauth.allow("T01")
    page = bot.come_back(code=code, state=bot.begin())
    (token,) = bot.slack.oauth.tokens_of("T01")
    refresh_token = bot.slack.oauth.grant_of(token).refresh_token
    log = "".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    stored = b"".join(redis_client.dump(key) or b"" for key in redis_client.scan_iter()).decode(
        "latin-1"
    )
    for secret in (token, refresh_token, code, CREDENTIALS["client_secret"]):
        assert [secret in place for place in (page.text, str(page.headers), log, stored)] == [
            False
        ] * 4


def test_app_with_a_bot_token_has_no_install_page(
    tmp_path: Path,
    redis_client: Redis,
    redis_url: str,
):
    """The routes exist with client_id and client_secret alone."""
    with FakePlatforms() as platforms:
        secret = "${SLACK_SIGNING_SECRET}"
        one = f"\n  one: {{platform: slack, bot_token: '{secret}', signing_secret: '{secret}'}}"
        bot = SlackBot(tmp_path, redis_url, platforms, one)
        assert bot.client.get("/slack/one/install", base_url=PUBLIC_URL).status_code == 404
        assert bot.client.get("/slack/unknown/install", base_url=PUBLIC_URL).status_code == 404


def test_organization_that_is_not_listed_is_refused_and_its_token_revoked(open_bot: OpenBot):
    """Slack has granted a token by then: it is given back."""
    bot = open_bot("install: {organizations: [T01, E05]}")
    assert bot.install("T66", "Strangers").status_code == 403
    (token,) = bot.slack.oauth.tokens_of("T66")
    assert bot.slack.oauth.refusal(token) == "token_revoked"
    assert bot.install("T01").status_code == 200
    assert bot.install("T02", organization="E05").status_code == 200
    assert bot.channel.installations.ids() == ["T01", "T02"]


def test_uninvited_browser_cannot_begin(open_bot: OpenBot):
    """With `invited` only a link of the operator begins an installation."""
    bot = open_bot("install: {invited: true}")
    for path in ("/slack/install", "/slack/desk/install", "/slack/desk/install?invitation=made-up"):
        answer = bot.client.get(path, base_url=PUBLIC_URL)
        assert (answer.status_code, "by invitation" in answer.text) == (403, True)


def test_invitation_installs_one_workspace(open_bot: OpenBot):
    """Opening the link uses nothing up, as a preview of a chat app would.

    Two browsers with one link install once.
    """
    bot = open_bot("install: {invited: true}")
    path = invite(bot)
    other = bot.browser()
    first = bot.begin(path=path)
    second = bot.begin(other, path)
    assert bot.come_back(code=bot.slack.oauth.allow("T01"), state=first).status_code == 200
    late = bot.come_back(other, code=bot.slack.oauth.allow("T02"), state=second)
    assert (late.status_code, "was used meanwhile" in late.text) == (403, True)
    assert bot.client.get(path, base_url=PUBLIC_URL).status_code == 403
    assert bot.channel.installations.ids() == ["T01"]


def test_invitation_is_stored_as_a_hash_alone(open_bot: OpenBot, redis_client: Redis):
    """Who reads Redis cannot install the app with what is begun there."""
    bot = open_bot("install: {invited: true}")
    path = invite(bot)
    bot.begin(path=path)
    secret = path.partition("=")[2]
    stored = [f"{key} {redis_client.dump(key)!r}" for key in redis_client.scan_iter()]
    assert not any(secret in each for each in stored)


def test_path_of_the_public_url_stands_in_front_of_all_addresses(
    tmp_path: Path,
    redis_client: Redis,
    redis_url: str,
):
    """A proxy may serve the bot below a path, and pass that path on or not."""
    with FakePlatforms() as platforms:
        bot = SlackBot(tmp_path, redis_url, platforms, public_url=f"{PUBLIC_URL}/base")
        for path in ("/slack/install", "/base/slack/install"):
            asked = parse_qs(
                urlsplit(bot.client.get(path, base_url=PUBLIC_URL).headers["Location"]).query
            )
            assert asked["redirect_uri"] == [f"{PUBLIC_URL}/base/slack/desk/oauth_redirect"]
        assert 'href="/base/slack/desk/install"' in bot.come_back(state="late").text


def test_invitation_works_again_after_redis_had_no_memory(open_bot: OpenBot, redis_client: Redis):
    """Slack has granted a token by then. The page says what to do, and Slack grants one again."""
    bot = open_bot("install: {invited: true}")
    path = invite(bot)
    state = bot.begin(path=path)
    with full_memory(redis_client):
        answer = bot.come_back(code=bot.slack.oauth.allow("T01"), state=state)
    assert (answer.status_code, "open the link again" in answer.text) == (503, True)
    assert (
        bot.come_back(code=bot.slack.oauth.allow("T01"), state=bot.begin(path=path)).status_code
        == 200
    )
    assert bot.channel.installations.ids() == ["T01"]


def test_redis_that_is_read_only_for_a_while_uses_no_state_up(
    open_bot: OpenBot,
    redis_client: Redis,
):
    """In a failover the browser comes back too early; loading the page again installs the app."""
    bot = open_bot()
    state = bot.begin()
    code = bot.slack.oauth.allow("T01")
    redis_client.replicaof("127.0.0.1", "1")
    try:
        answer = bot.come_back(code=code, state=state)
    finally:
        redis_client.replicaof("NO", "ONE")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "60")
    assert bot.come_back(code=code, state=state).status_code == 200


def test_page_without_a_secret_sends_an_invited_person_back_to_their_link(open_bot: OpenBot):
    """The beginning without an invitation refuses everyone."""
    bot = open_bot("install: {invited: true}")
    answer = bot.come_back(error="access_denied", state=bot.begin(path=invite(bot)))
    assert "open the link of your invitation" in answer.text
    assert "<a " not in answer.text


def test_denied_invitation_works_again(open_bot: OpenBot):
    """A person who pressed Cancel at Slack can change their mind."""
    bot = open_bot("install: {invited: true}")
    path = invite(bot)
    bot.come_back(error="access_denied", state=bot.begin(path=path))
    assert (
        bot.come_back(code=bot.slack.oauth.allow("T01"), state=bot.begin(path=path)).status_code
        == 200
    )


def test_starts_are_limited(open_bot: OpenBot, monkeypatch: pytest.MonkeyPatch):
    """Each start is stored for ten minutes, so a flood is refused; invited people still get in."""
    monkeypatch.setattr("sayso.channels.slack.install_pages.STARTS_PER_MINUTE", 3)
    bot = open_bot()
    answers = [bot.client.get("/slack/install", base_url=PUBLIC_URL) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [302, 302, 302, 429]
    assert answers[-1].headers["Retry-After"] == "60"


def test_made_up_returns_keep_no_one_from_installing(
    open_bot: OpenBot,
    monkeypatch: pytest.MonkeyPatch,
):
    """A stranger can call the page as often as they like, without having begun."""
    monkeypatch.setattr("sayso.channels.slack.install_pages.RETURNS_PER_MINUTE", 3)
    bot = open_bot()
    answers = [bot.come_back(code="c", state=f"{number:048d}") for number in range(4)]
    assert [answer.status_code for answer in answers] == [403, 403, 403, 429]
    assert bot.install("T01").status_code == 200


def test_new_grant_replaces_the_token_of_its_workspace_alone(open_bot: OpenBot):
    """Another person installs with more scopes: one record each workspace, and the new token is used."""
    bot = open_bot()
    bot.install("T01")
    bot.install("T02")
    before = {name: bot.channel.installations.get(name) for name in ("T01", "T02")}
    bot.install("T01")
    assert (
        bot.channel.installations.get("T01").token
        == bot.slack.oauth.tokens_of("T01")[-1]
        != before["T01"].token
    )
    assert bot.channel.installations.get("T02") == before["T02"]
