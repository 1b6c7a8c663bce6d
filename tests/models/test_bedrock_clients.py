# SPDX-License-Identifier: Apache-2.0
"""Bedrock's clients: region and credentials, what is shared, and what is whole after any number of cancels."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import aiobotocore.session
import pytest
from aiobotocore.session import AioSession

from andon import Agent, Retry, RunStatus
from andon.errors import ConfigurationError, SetupError
from andon.models.bedrock import Bedrock
from andon.models.bedrock.clients import CONNECTIONS, READ_SECONDS, Settings, _new_session, clients
from andon.testing.providers import FakeBedrock
from tests.support import play
from tests.support.bedrock import CLAUDE, client_of, model_of


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither variables nor files of the machine."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def ask(agent: Agent, **options: Any) -> None:
    result = await agent.invoke_async("go", **options)
    assert result.status is RunStatus.completed, result.error


# -- region and credentials -------------------------------------------------------------------------------------------


def problem(**options: Any) -> str:
    with pytest.raises(SetupError) as caught:
        Agent("Tester", Bedrock(CLAUDE, **options)).run("go")
    return str(caught.value)


def test_what_is_missing_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "AWS_REGION" in problem()
    assert "AWS_REGION" in problem(aws_access_key_id="AKIA", aws_secret_access_key="secret")
    assert "AWS_REGION" in problem(api_key="token")
    said = problem(region="us-east-1")
    assert "AWS_BEARER_TOKEN_BEDROCK" in said
    assert "AWS_ACCESS_KEY_ID" in said
    assert "secret access key is missing" in problem(region="us-east-1", aws_access_key_id="AKIA")
    assert "'nobody'" in problem(region="us-east-1", profile="nobody")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert "'nobody'" in problem(region="us-east-1")
    monkeypatch.delenv("AWS_PROFILE")
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    assert "AWS_REGION" in problem()
    (tmp_path / "credentials").write_text("no such file")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert "access key id is missing" in problem(region="us-east-1")


def test_what_may_be_found_elsewhere_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    Bedrock(CLAUDE, "us-east-1").check_setup()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nowhere")
    Bedrock(CLAUDE, "us-east-1").check_setup()


def test_credentials_that_are_found_nowhere_after_all(tmp_path: Path) -> None:
    """A profile may have any source of credentials. Whether it has one is known when a client is made."""
    (tmp_path / "config").write_text("[default]\nregion = us-east-1\n")
    with FakeBedrock() as fake:
        result = Agent("Tester", model_of(fake, api_key=None), retry=Retry(attempts=1)).run("go")
        assert "no AWS credentials" in str(result.error)
        assert not fake.served


def signed_with(fake: FakeBedrock, **options: Any) -> str:
    """The `Authorization` header of a request."""
    Agent("Tester", Bedrock(CLAUDE, **options)).run("go").raise_for_error()
    return fake.served[-1].headers["authorization"]


def test_where_they_come_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is passed wins. Then a token in the environment, then keys there, then a profile."""
    with FakeBedrock() as fake:
        keys = f"aws_access_key_id = {fake.access_key_id}\naws_secret_access_key = s\n"
        (tmp_path / "credentials").write_text(f"[work]\n{keys}")
        (tmp_path / "config").write_text("[profile work]\nregion = eu-west-3\n")
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", fake.base_url)
        assert "/eu-west-3/bedrock/" in signed_with(fake, profile="work")
        monkeypatch.setenv("AWS_PROFILE", "work")
        assert "/eu-west-3/bedrock/" in signed_with(fake)
        pair = {"aws_access_key_id": fake.access_key_id, "aws_secret_access_key": "s"}
        assert "/eu-west-3/bedrock/" in signed_with(fake, **pair)
        monkeypatch.delenv("AWS_PROFILE")
        assert "/eu-west-3/bedrock/" in signed_with(fake, profile="work", **pair)
        monkeypatch.setenv("AWS_PROFILE", "work")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-2")
        assert "/eu-west-2/bedrock/" in signed_with(fake)
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", fake.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "t")
        assert "/eu-west-1/bedrock/" in signed_with(fake)
        assert fake.served[-1].headers["x-amz-security-token"] == "t"
        monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", fake.api_key)
        assert signed_with(fake) == f"Bearer {fake.api_key}"
        assert "/us-west-2/bedrock/" in signed_with(fake, region="us-west-2", **pair)
        assert "/us-west-2/bedrock/" in signed_with(fake, region="us-west-2", profile="work")
        monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "another")
        assert signed_with(fake, api_key=fake.api_key) == f"Bearer {fake.api_key}"
        monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
        assert Settings().resolved().base_url is None


# -- one's own -------------------------------------------------------------------------------------------------------


def test_a_client_of_ones_own() -> None:
    async def main() -> None:
        with FakeBedrock() as fake:
            async with client_of(fake) as client:
                model = Bedrock(CLAUDE, client=client)
                await ask(Agent("Tester", model))
                await model.aclose()
                await ask(Agent("Tester", model))  # it stays open
                with pytest.raises(ConfigurationError, match="client="):
                    Bedrock(CLAUDE, client=client, region="us-east-1")

    play(main)


def test_a_session_of_ones_own() -> None:
    async def main() -> None:
        with FakeBedrock() as fake:
            session = AioSession()
            session.set_credentials(fake.access_key_id, "the-secret", "the-token")
            await ask(Agent("Tester", Bedrock(CLAUDE, "us-east-1", base_url=fake.base_url, session=session)))
            assert fake.served[0].headers["x-amz-security-token"] == "the-token"

    play(main)


# -- sharing ----------------------------------------------------------------------------------------------------------


def test_how_a_client_is_made() -> None:
    async def main() -> None:
        with FakeBedrock() as fake:
            one, other = model_of(fake), model_of(fake, temperature=0.5)
            for model in (one, other):
                await ask(Agent("Tester", model))
            assert [each.connection for each in fake.served] == [1, 1]
            client = await clients.get(Settings(api_key=fake.api_key, base_url=fake.base_url).resolved(), one._endpoint)
            config = client.meta.config
            assert (config.read_timeout, config.max_pool_connections) == (READ_SECONDS, CONNECTIONS)
            assert config.retries["total_max_attempts"] == 1
            with pytest.raises(client.exceptions.ValidationException):  # the SDK itself has not looked at it
                await client.converse_stream(modelId=CLAUDE, messages=[])
            await one.aclose()
            await ask(Agent("Tester", other))
            assert fake.served[-1].connection == 1, "it was closed under another model"
            await other.aclose()
            await fake.wait_until_async(lambda: fake.open_connections == 0)
            await ask(Agent("Tester", one))

    play(main)


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1", "cn-north-1", "us-gov-west-1", "xx-made-up-7"])
def test_the_addresses_of_aws_are_those_that_botocore_reads(region: str) -> None:
    """They are read in a way that takes less memory. A source of credentials may need those of other services."""

    async def addresses(session: AioSession) -> list[Any]:
        resolver = session._get_internal_component("endpoint_resolver")
        if asyncio.iscoroutine(resolver):
            resolver = await resolver
        names = ["bedrock-runtime", "sts", "sso", "unheard-of"]
        found = [resolver.construct_endpoint(name, region) for name in names]
        listed = [resolver.get_available_endpoints(name, part) for name in names for part in ("aws", "aws-cn")]
        return [found, listed, resolver.get_available_partitions()]

    async def main() -> None:
        ours = _new_session(aiobotocore.session, Settings(api_key="any"))
        assert await addresses(ours) == await addresses(AioSession())

    play(main)


def test_the_first_request_does_not_block_the_loop() -> None:
    """The client is made in a thread: a cancel gets through while that thread is kept."""

    async def main() -> None:
        reached, kept = threading.Event(), threading.Event()

        def hold() -> None:
            reached.set()
            kept.wait(60)

        with FakeBedrock() as fake:
            model = model_of(fake)
            original = clients._open_client

            def open_late(settings: Settings) -> Any:
                hold()
                return original(settings)

            clients._open_client = open_late
            try:
                async with Agent("Tester", model).start("go") as run:
                    await asyncio.to_thread(reached.wait)
                    run.cancel()
                    assert (await run.result()).status is RunStatus.cancelled
            finally:
                clients._open_client = original
                kept.set()
            await ask(Agent("Tester", model_of(fake)))

    with asyncio.Runner() as runner:  # a loop of its own, so that the client is opened anew
        runner.run(main())
