# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the set-up raises where a run is asked for, before anything is recorded, and tells no secret."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest

from andon import Agent, ConfigurationError, MissingExtraError, NoModelError, RunStatus, SetupError, Summarise
from andon.models.base import ModelRequest, Sink
from andon.models.openai import OpenAIChat, OpenAIResponses
from andon.models.scripted import Call, ScriptedModel
from andon.testing.providers import FakeChat
from tests.server.live import serving
from tests.support import HANG, play

NO_KEY = "there is no API key for OpenAI: set OPENAI_API_KEY"
SECRET = "hunter2hunter2"


@pytest.fixture(autouse=True)
def keyless(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def keyless_agent(**options: Any) -> Agent:
    return Agent("Keyless", OpenAIChat("gpt-5.2"), **options)


async def enter(agent: Agent) -> None:
    async with agent.start("go"):
        pass


async def read(agent: Agent) -> None:
    async for _ in agent.stream_async("go"):
        pass


async def invoke(agent: Agent) -> None:
    await agent.invoke_async("go")


WAYS: dict[str, Callable[[Agent], Any]] = {
    "run": lambda agent: agent.run("go"),
    "run, streaming": lambda agent: list(agent.run("go", stream=True)),
    "invoke_async": lambda agent: play(lambda: invoke(agent)),
    "stream_async": lambda agent: play(lambda: read(agent)),
    "start": lambda agent: play(lambda: enter(agent)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_missing_key_raises_at_the_call_and_leaves_nothing(way: str) -> None:
    agent = keyless_agent()
    with pytest.raises(SetupError, match=NO_KEY):
        WAYS[way](agent)
    assert (agent.messages, agent.runtime.live, agent.runtime.ended) == ([], 0, [])


@pytest.mark.parametrize("way", WAYS)
def test_a_missing_package_raises_at_the_call(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1234")
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r'pip install "andon\[openai\]"') as caught:
        WAYS[way](keyless_agent())
    assert isinstance(caught.value, SetupError)
    assert isinstance(caught.value, ImportError)


def test_what_was_missing_may_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeChat() as fake:
        agent = Agent("Late", OpenAIChat("gpt-5.2"))
        with pytest.raises(SetupError):
            agent.run("go")
        monkeypatch.setenv("OPENAI_API_KEY", fake.api_key)
        monkeypatch.setenv("OPENAI_BASE_URL", fake.base_url)
        assert agent.run("go").status is RunStatus.completed


@pytest.mark.parametrize("make", [OpenAIChat, OpenAIResponses])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'; it is a number"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": True}, "top_p is True"),
        ({"max_output_tokens": 0}, "max_output_tokens is 0; it is a whole number, 1 or more"),
        ({"max_output_tokens": 1.5}, "max_output_tokens is 1.5"),
        ({"timeout": "soon"}, "timeout is 'soon'"),
        ({"timeout": -1}, "timeout is -1"),
        ({"metadata": {"a": object()}}, "can't be sent as JSON"),
        ({"extra_body": {"a": {1, 2}}}, "can't be sent as JSON"),
        ({"extra_body": [1]}, "extra_body must be a dict, not list"),
        ({"extra_query": SECRET}, "extra_query must be a dict, not str"),
        ({"extra_headers": SECRET}, "extra_headers must be a dict, not str"),
        ({"extra_headers": {"X-A": 7}}, "the header 'X-A' in extra_headers is int; it must be text"),
        ({"extra_headers": {"X-A": f"{SECRET}\n"}}, "the header 'X-A' in extra_headers has characters"),
        ({"extra_headers": {"X-A": f"{SECRET}é"}}, "the header 'X-A' in extra_headers has characters"),
        ({"extra_headers": {"X A": SECRET}}, "a name that no header can have"),
        ({"base_url": f"joe:{SECRET}@localhost:11434"}, "base_url is no address of a server"),
        ({"base_url": f"https://joe:{SECRET}@"}, "base_url is no address of a server"),
        ({"base_url": f"http://host:port/{SECRET}"}, "base_url is no address of a server"),
        ({"base_url": 7}, "base_url is no address of a server"),
        ({"api_key": f"{SECRET}\n"}, "the API key has characters that no key has"),
        ({"api_key": pydantic.SecretStr(SECRET)}, "the API key is SecretStr; it must be text"),
        ({"api_key": SECRET.encode()}, "the API key is bytes; it must be text"),
    ],
)
def test_an_option_that_can_not_be_right(make: Any, options: dict[str, Any], words: str) -> None:
    agent = Agent("Wrong", make("gpt-5.2", **{"api_key": "sk-1234", **options}))
    with pytest.raises(SetupError) as caught:
        agent.run("go")
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_options_that_are_unusual_and_good() -> None:
    """What the SDK takes is not refused: its own objects, a client of one's own, an address of one's own transport."""
    import openai

    client = openai.AsyncOpenAI(api_key="sk-1234", http_client=openai.DefaultAsyncHttpxClient(verify=False))
    for model in (
        OpenAIChat("m", "sk-1234", timeout=openai.Timeout(5.0), extra_headers={"User-Agent": openai.Omit()}),  # type: ignore[dict-item]
        OpenAIChat("m", "sk-1234", extra_query={"a": [1, 2]}, extra_body={"n": None}, temperature=1, seed=-3),
        OpenAIChat("m", client=client),
        OpenAIChat("m", "sk-1234", "http+unix://socket/v1", http_client=openai.DefaultAsyncHttpxClient),
        OpenAIResponses("m", base_url="http://localhost:11434/v1"),
    ):
        model.check_setup()


def test_a_model_of_ones_own_can_say_what_is_wrong() -> None:
    class Mine:
        id = "mine"

        def check_setup(self) -> None:
            raise SetupError("there is no licence: put one here")

        async def stream(self, request: ModelRequest, sink: Sink) -> None:
            sink.text("Hello.")

    with pytest.raises(SetupError, match="no licence"):
        Agent("A", Mine()).run("go")
    with pytest.raises(NoModelError) as caught:
        Agent("A").run("go")
    assert isinstance(caught.value, SetupError)
    assert issubclass(SetupError, ConfigurationError)


def test_a_summary_whose_model_is_not_set_up() -> None:
    """Otherwise each long conversation would lose its beginning, and only a warning would say so."""
    agent = Agent("Forgetful", ScriptedModel("Hello."), context=Summarise(tokens=10, model=OpenAIChat("gpt-5.2")))
    with pytest.raises(SetupError, match=NO_KEY):
        agent.run("go")
    agent.context = Summarise(tokens=10)
    assert agent.run("go").content == "Hello."


def test_a_sub_agent_that_is_not_set_up_is_a_failed_call() -> None:
    agent = Agent("Parent", ScriptedModel(Call("keyless", {"prompt": "go"}), "Oh."), tools=[keyless_agent().as_tool()])
    result = agent.run("go")
    assert result.status is RunStatus.completed
    assert NO_KEY in result.messages[2].tool_results[0].content


# -- over HTTP, and at the command line -------------------------------------------------------------------------------


def test_over_http_it_is_a_clear_500(caplog: pytest.LogCaptureFixture) -> None:
    agent = keyless_agent()
    with serving(agent) as live:
        warned = [each.getMessage() for each in caplog.records if each.name == "andon.server.host"]
        assert warned == [f"agent 'keyless' can't run as it is set up: {NO_KEY}, or pass api_key= to the model"]
        for stream in (True, False):
            answer = live.client.post("/agents/keyless/runs", json={"message": "Hi", "stream": stream})
            assert answer.status_code == 500
            assert NO_KEY in answer.json()["detail"]
        live.client.post("/apps/keyless/users/u/sessions/s", json={})
        wanted = {"app_name": "keyless", "user_id": "u", "session_id": "s"}
        wanted["new_message"] = {"role": "user", "parts": [{"text": "Hi"}]}  # type: ignore[assignment]
        for route in ("/run", "/run_sse"):
            answer = live.client.post(route, json=wanted)
            assert answer.status_code == 500, route
            assert NO_KEY in answer.json()["detail"]
        assert live.client.get("/runs").json() == []
    refused = [each for each in caplog.records if each.name == "andon.server.problems"]
    assert {each.levelname for each in refused} == {"ERROR"}
    assert len(refused) == 4


def test_a_server_warns_of_sub_agents_too(caplog: pytest.LogCaptureFixture) -> None:
    middle = Agent("Middle", ScriptedModel(), tools=[keyless_agent().as_tool()])
    with serving(Agent("Top", ScriptedModel(), tools=[middle.as_tool()])):
        pass
    warned = [each.getMessage() for each in caplog.records if each.name == "andon.server.host"]
    assert warned == [f"agent 'keyless' can't run as it is set up: {NO_KEY}, or pass api_key= to the model"]


PROGRAM = f"""
from andon import Agent
from andon.models.openai import OpenAIChat

agent = Agent("Keyless", OpenAIChat("gpt-5.2"))
wrong = Agent("Wrong", OpenAIChat("gpt-5.2", api_key="sk-1234", extra_headers={{"X-A": "{SECRET}\\n"}}))
"""


@pytest.mark.parametrize(("name", "words"), [("agent", NO_KEY), ("wrong", "the header 'X-A' in extra_headers")])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_command_line_says_so_and_fails(name: str, words: str, options: list[str], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "andon", "run", f"program:{name}", "Hello", *options],
        cwd=tmp_path,
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("andon: ")
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert SECRET not in ended.stderr


def test_the_model_that_writes_summaries_is_checked_too() -> None:
    model = ScriptedModel()
    agent = Agent("Helper", model, context=Summarise(tokens=1_000, model=OpenAIChat("gpt-5-mini")))
    with pytest.raises(SetupError, match=NO_KEY):
        agent.run("go")
    assert (list(model.requests), agent.messages) == ([], [])
    assert Agent("Helper", ScriptedModel(), context=Summarise(tokens=1_000)).run("go").status is RunStatus.completed


def test_a_model_that_is_set_later_is_checked_too() -> None:
    agent = Agent("Tester", ScriptedModel("Hi."))
    wrong: Any = "gpt-5.2"
    agent.model = wrong
    with pytest.raises(ConfigurationError, match=r"'gpt-5\.2' is no model"):
        agent.run("Hello")
