# SPDX-License-Identifier: Apache-2.0
"""What Anthropic's errors become, which are tried again, and that no secret is in any of them."""

from __future__ import annotations

import base64
from typing import Any

import anthropic
import pytest
from anthropic.lib.credentials import AccessToken

from andon import Agent, Retry, RunEvent, RunStatus
from andon.errors import (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    ModelConnectionError,
    ModelError,
    RateLimitError,
    SetupError,
)
from andon.models.anthropic import Anthropic
from andon.models.anthropic.clients import secrets_of
from andon.models.common.secrets import in_headers
from andon.testing import probe
from andon.testing.providers import FakeAnthropic, fail, raw, silence, text
from tests.support import play
from tests.support.anthropic import ID, agent, model

TOO_LONG = "prompt is too long: 213462 tokens > 200000 maximum"
TOO_LONG_WITH_ANSWER = "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "No, because.", BadRequestError),
        (400, TOO_LONG, ContextLengthError),
        (400, TOO_LONG_WITH_ANSWER, ContextLengthError),
        (401, "No, because.", AuthenticationError),
        (402, "No, because.", BadRequestError),
        (403, "No, because.", AuthenticationError),
        (404, "No, because.", BadRequestError),
        (413, "Request exceeds the maximum size", ContextLengthError),
    ],
)
def test_what_can_not_work_is_tried_once(status: int, message: str, kind: type[ModelError]) -> None:
    with FakeAnthropic([[fail(status, message)], [text("Fine.")]]) as fake:
        tester = agent(fake)
        error = tester.run("go").error
        assert type(error) is kind
        assert str(error) == f"{status}: {message}"
        assert (error.retryable, error.status) == (False, status)
        assert error.request_id
        assert len(fake.served) == 1
        assert tester.run("and now?").content == "Fine."


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 504, 529])
def test_what_may_work_is_tried_again(status: int) -> None:
    with FakeAnthropic([[fail(status, "Not now.", headers={"retry-after-ms": "1"})], [text("Fine.")]]) as fake:
        result = agent(fake).run("go")
        assert result.content == "Fine.", result.error
        assert len(fake.served) == 2


@pytest.mark.parametrize(("said", "tries"), [("true", 2), ("false", 1)])
@pytest.mark.parametrize("status", [400, 529])
def test_the_provider_has_the_last_word(status: int, said: str, tries: int) -> None:
    headers = {"x-should-retry": said, "retry-after-ms": "1"}
    with FakeAnthropic([[fail(status, "Hm.", headers=headers)], [text("Fine.")]]) as fake:
        agent(fake).run("go")
        assert len(fake.served) == tries


def test_an_empty_account_is_not_tried_again() -> None:
    with FakeAnthropic([[fail(429, "Spent.", code="contract_spend_limit_reached")]]) as fake:
        error = agent(fake).run("go").error
        assert isinstance(error, RateLimitError)
        assert error.code == "contract_spend_limit_reached"
        assert len(fake.served) == 1


@pytest.mark.parametrize(("headers", "delay"), [({"retry-after": "7"}, 7.0), ({"retry-after-ms": "2500"}, 2.5)])
def test_how_long_to_wait(headers: dict[str, str], delay: float) -> None:
    async def main() -> None:
        with FakeAnthropic([[fail(429, "Slow down.", headers=headers)]]) as fake:
            async with agent(fake).start("go") as run:
                async for each in run:
                    if each.event is RunEvent.model_retry:
                        assert each.delay == delay
                        assert each.error == "RateLimitError: 429: Slow down."
                        run.cancel()

    play(main)


def test_a_server_that_is_not_there() -> None:
    with FakeAnthropic() as fake:
        address = fake.base_url
    tester = Agent("Tester", Anthropic("m", "sk-a-key", address), retry=Retry(attempts=1))
    error = tester.run("go").error
    assert isinstance(error, ModelConnectionError)
    assert "can't be reached" in str(error)


def test_a_server_that_does_not_answer_in_time() -> None:
    with FakeAnthropic([[silence()]]) as fake:
        tester = Agent("Tester", model(fake, timeout=0.3), retry=Retry(attempts=1))
        assert "did not answer in time" in str(tester.run("go").error)


# -- keys -------------------------------------------------------------------------------------------------------------

VARIABLES = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_PROFILE",
    "ANTHROPIC_CUSTOM_HEADERS",
    "ANTHROPIC_FEDERATION_RULE_ID",
    "ANTHROPIC_ORGANIZATION_ID",
    "ANTHROPIC_IDENTITY_TOKEN",
    "ANTHROPIC_IDENTITY_TOKEN_FILE",
)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("ANTHROPIC_CONFIG_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_without_a_key_it_says_what_to_set() -> None:
    with pytest.raises(SetupError, match="set ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN, or pass api_key="):
        Agent("Tester", Anthropic("m", base_url="http://127.0.0.1:9")).run("go")


@pytest.mark.parametrize("key", ["sk-secret-1\n", "sk-sécret-1"])
@pytest.mark.parametrize("option", ["api_key", "auth_token"])
def test_a_key_that_can_not_be_one(key: str, option: str) -> None:
    with pytest.raises(SetupError) as caught:
        Agent("Tester", Anthropic("m", **{option: key})).run("go")  # type: ignore[arg-type]
    assert "sk-s" not in str(caught.value)


@pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
def test_the_environment_is_read_at_each_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeAnthropic() as fake:
        tester = Agent("Tester", Anthropic("m"))
        monkeypatch.setenv("ANTHROPIC_BASE_URL", fake.base_url)
        with pytest.raises(SetupError):
            tester.run("go")
        monkeypatch.setenv(name, fake.api_key)
        assert tester.run("go").status is RunStatus.completed


async def a_key() -> str:
    return "sk-fake"


@pytest.mark.parametrize(
    "options",
    [
        {"auth_token": "sk-fake"},
        {"api_key": a_key},
        {"extra_headers": {"X-Api-Key": "sk-fake"}},
        {"extra_headers": {"authorization": "Bearer sk-fake"}},
    ],
)
def test_other_ways_to_give_a_key(options: dict[str, Any]) -> None:
    with FakeAnthropic() as fake:
        result = Agent("Tester", Anthropic("m", base_url=fake.base_url, **options)).run("go")
        assert result.status is RunStatus.completed, result.error


def test_headers_of_the_environment_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeAnthropic() as fake:
        monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-One: 1\nX-Api-Key: sk-fake")
        assert Agent("Tester", Anthropic("m", base_url=fake.base_url)).run("go").status is RunStatus.completed


@pytest.mark.parametrize("where", ["named", "folder", "home"])
def test_a_profile_is_left_to_the_sdk(where: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path if where == "folder" else tmp_path / ".config" / "anthropic"
    folder.mkdir(parents=True, exist_ok=True)
    if where == "named":
        monkeypatch.setenv("ANTHROPIC_PROFILE", "work")
    else:
        (folder / "active_config").write_text("work")
    if where == "folder":
        monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(folder))
    result = Agent("Tester", Anthropic("m", base_url="http://127.0.0.1:9"), retry=Retry(attempts=1)).run("go")
    assert isinstance(result.error, SetupError)
    assert "the Anthropic SDK can't use the credentials" in str(result.error)


def test_a_client_of_yours_without_a_key() -> None:
    async def main() -> None:
        with FakeAnthropic() as fake:
            async with anthropic.AsyncAnthropic(base_url=fake.base_url) as client:
                error = (await Agent("Tester", Anthropic("m", client=client)).invoke_async("go")).error
        assert isinstance(error, AuthenticationError)
        assert "set ANTHROPIC_API_KEY" in str(error)

    play(main)


def test_federation_is_left_to_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_FEDERATION_RULE_ID", "ANTHROPIC_ORGANIZATION_ID", "ANTHROPIC_IDENTITY_TOKEN"):
        monkeypatch.setenv(name, "some-identity-value")
    with FakeAnthropic() as fake:
        result = Agent("Tester", Anthropic("m", base_url=fake.base_url), retry=Retry(attempts=1)).run("go")
        assert isinstance(result.error, ModelError), result.error
        assert "some-identity-value" not in str(result.error)


# -- secrets ----------------------------------------------------------------------------------------------------------


def test_all_that_goes_along_with_a_request_is_a_secret() -> None:
    client = anthropic.AsyncAnthropic(
        api_key="sk-the-key",
        base_url="https://name%40home:pass%2Fword@example.com?sig=in-the-address",
        default_headers={"X-Default": "default-value", "anthropic-beta": "one-2026-01-01"},
        default_query={"code": "default-query"},
        webhook_key="the-webhook-key",
        http_client=anthropic.DefaultAsyncHttpxClient(headers={"X-Own": "own-header"}, verify=False),
    )
    basic = base64.b64encode(b"joe:hunter22").decode()
    options: dict[str, Any] = {
        "headers": {"X-Api-Key": "extra-header", "Proxy-Authorization": f"Basic {basic}"},
        "params": {"token": ["one-token", "two-token"]},
    }
    secrets = secrets_of(client, options)
    for secret in (
        "sk-the-key",
        "name@home",
        "pass/word",
        "in-the-address",
        "default-value",
        "default-query",
        "the-webhook-key",
        "extra-header",
        basic,
        "hunter22",
        "one-token",
        "two-token",
        "own-header",
    ):
        assert secrets.hide(f"<{secret}>") == "<***>", secret
    harmless = "application/json, 2026-10-21, one-2026-01-01"
    assert secrets.hide(harmless) == harmless


SENT: dict[str, Any] = {
    "extra_headers": {"X-Gateway-Token": "gateway-secret-1", "X-Api-Key": "authorization-secret-2"},
    "extra_query": {"code": "query-secret-3"},
}
SECRETS = ["sk-the-very-key-0", "gateway-secret-1", "authorization-secret-2", "query-secret-3"]


def told(answer: Any, **options: Any) -> str:
    """All that is said of a request whose answer is this."""
    with FakeAnthropic([answer], api_key=SECRETS[0]) as fake:
        tester = Agent("Tester", model(fake, **SENT, **options), retry=Retry(attempts=1))
        run = tester.run("go", stream=True)
        events = list(run)
        result = probe(run.run).result
    assert result.status is RunStatus.error
    return f"{events} {result.error!r} {result.error} {getattr(result.error, 'code', '')} {result.messages}"


def check_hidden(said: str) -> None:
    for secret in SECRETS:
        for length in range(7, len(secret) + 1):
            assert secret[:length] not in said


@pytest.mark.parametrize("status", [400, 401, 500])
@pytest.mark.parametrize("shown", [True, False])
def test_an_error_that_quotes_everything(status: int, shown: bool) -> None:
    said = told([*([text("So ")] if shown else []), fail(status, "you sent " + ", ".join(SECRETS))])
    assert "you sent ***, ***, ***, ***" in said
    check_hidden(said)


@pytest.mark.parametrize("before", range(150, 205, 18))
def test_an_event_that_can_not_be_read_and_quotes_the_key_at_the_border(before: int) -> None:
    quoted = "x" * before + "".join(f" {secret}" for secret in SECRETS)
    said = told([text("So "), raw(f"data: {{{quoted}\n\n".encode())])
    assert "can't be read" in said
    check_hidden(said)


@pytest.mark.parametrize("before", range(60, 205, 36))
@pytest.mark.parametrize("status", [200, 502])
def test_a_page_that_quotes_the_key_at_the_border(status: int, before: int) -> None:
    page = f"<p>{'x' * before} {' '.join(SECRETS)}</p>"
    said = told([raw(page.encode(), content_type="text/html", status=status)])
    assert "text/html" in said if status == 200 else "502" in said
    check_hidden(said)


def test_a_key_that_a_function_returns_is_hidden() -> None:
    async def key() -> str:
        return SECRETS[0]

    check_hidden(told([fail(400, f"you sent {SECRETS[0]}")], api_key=key))


def test_a_token_that_only_the_sdk_knows_is_hidden() -> None:
    """A profile's token is in no setting of the client. It is found in what was sent."""
    from anthropic.lib.credentials import AccessToken

    async def main() -> None:
        with FakeAnthropic([[fail(400, "you sent token-of-a-profile")]], api_key="token-of-a-profile") as fake:
            async with anthropic.AsyncAnthropic(
                credentials=lambda **_: AccessToken("token-of-a-profile"), base_url=fake.base_url
            ) as client:
                result = await Agent("Tester", Anthropic("m", client=client)).invoke_async("go")
            assert "you sent ***" in str(result.error)

    play(main)


@pytest.mark.parametrize(
    "answer",
    [
        [fail(400, "A bad token: token-of-a-profile.")],
        [text("Well."), fail(400, "A bad token: token-of-a-profile.")],
        [raw(b"<html>token-of-a-profile", content_type="text/html")],
    ],
    ids=["at once", "in the stream", "a page"],
)
def test_a_token_that_the_sdk_finds_itself(answer: Any) -> None:
    """It is in no setting of the client, only in what was sent."""

    async def find(**_: object) -> AccessToken:
        return AccessToken("token-of-a-profile", None)

    async def main() -> None:
        with FakeAnthropic([answer], api_key="token-of-a-profile") as fake:
            async with anthropic.AsyncAnthropic(credentials=find, base_url=fake.base_url) as client:
                result = await Agent("Tester", Anthropic(ID, client=client)).invoke_async("go")
            assert "***" in str(result.error)
            assert "token-of-a-profile" not in repr((result.error, result.error.args if result.error else None))

    play(main)


def test_the_length_of_a_request_is_no_secret() -> None:
    assert list(in_headers({"Content-Length": "20000"}.items())) == []
