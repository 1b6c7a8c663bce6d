# SPDX-License-Identifier: Apache-2.0
"""Structured output: the answer as any type that pydantic can adapt, whoever the model behind it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, RootModel, field_serializer
from typing_extensions import TypedDict

from andon import Agent, Message, OutputError, RunEvent, RunStatus, tool
from andon.errors import ConfigurationError
from andon.messages import Text, assistant, user
from andon.models.base import OutputSpec
from andon.models.openai.schema import strict
from andon.models.scripted import Call, Stall
from andon.testing import probe
from andon.testing.providers import call, text
from andon.testing.validators import validate
from tests.support import Silence, asked, check_cancelled, check_events, cut, make, play, record_of
from tests.support.openai import Api, each_api


class Place(BaseModel):
    """Where it is."""

    city: str = Field(description="The city's name", min_length=2)
    people: int | None = None


class Trip(BaseModel):
    title: str
    places: list[Place]
    kind: Literal["short", "long"] = "short"


ANSWER = '{"title": "North", "places": [{"city": "Oslo", "people": null}], "kind": "long"}'
TRIP = Trip(title="North", places=[Place(city="Oslo")], kind="long")


def test_every_way_to_run_takes_it() -> None:
    agent = make(ANSWER, ANSWER, ANSWER)
    assert agent.run("go", output_type=Trip).output == TRIP
    list(agent.run("go", stream=True, output_type=Trip))

    async def main() -> None:
        assert (await agent.invoke_async("go", output_type=Trip)).output == TRIP

    play(main)
    spec = asked(agent)[0].output
    assert spec is not None
    assert spec.name == "Trip"
    assert spec.schema["properties"].keys() == {"title", "places", "kind"}


def test_without_it_there_is_none() -> None:
    agent = make(ANSWER)
    assert agent.run("go").output is None
    assert asked(agent)[0].output is None


def test_only_the_last_answer_counts() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    agent = make(["I look. ", Call("look")], ANSWER, tools=[look])
    result = agent.run("go", output_type=Trip)
    assert result.output == TRIP
    assert result.content == "I look. " + ANSWER


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("It is lovely there.", "Invalid JSON"),
        ('{"title": "North"}', "places: Field required"),
        ('{"title": "N", "places": [{"city": "O"}]}', "places.0.city"),
    ],
)
def test_an_answer_of_another_form_fails_the_run_and_is_kept(answer: str, words: str) -> None:
    agent = make(answer, output_retries=0)
    result = agent.run("go", output_type=Trip)
    assert result.status is RunStatus.error
    assert isinstance(result.error, OutputError)
    assert "not a Trip" in str(result.error)
    assert words in str(result.error)
    assert result.error.text == answer
    assert result.content == answer
    assert result.output is None
    assert agent.run("and now?").status is RunStatus.completed


def test_a_cancelled_run_has_none() -> None:
    async def main() -> None:
        agent = make([ANSWER, Stall()])
        ended = await cut(agent, lambda run: run.phase == "streaming", output_type=Trip)
        check_cancelled(ended, phase="streaming")
        assert ended.result.output is None

    play(main)


class Many(RootModel[list[int]]):
    pass


@dataclass
class Point:
    x: int
    y: int = 0


class Size(TypedDict):
    width: int


class Cycle(TypedDict):
    inner: Cycle | None


KINDS: list[tuple[Any, str, str, Any]] = [  # the type, an answer, another one that does not fit, the output
    (list[Place], '[{"city": "Oslo"}]', '[{"city": 3}]', [Place(city="Oslo")]),
    (Point, '{"x": 1}', '{"y": 1}', Point(1)),
    (Size, '{"width": 3}', '{"width": "wide"}', {"width": 3}),
    (Cycle, '{"inner": {"inner": null}}', '{"inner": 1}', {"inner": {"inner": None}}),
    (int, "3", '"many"', 3),
    (bool | None, "null", "7", None),
    (Place | Point, '{"x": 1, "y": 2}', '{"z": 1}', Point(1, 2)),
    (Literal["yes", "no"], '"yes"', '"perhaps"', "yes"),
    (dict[str, int], '{"a": 1}', '{"a": "b"}', {"a": 1}),
    (tuple[int, str], '[1, "x"]', '["x", 1]', (1, "x")),
    (Annotated[int, Field(ge=10)], "10", "9", 10),
    (Many, "[1, 2]", '["x"]', Many([1, 2])),
]


@pytest.mark.parametrize(("kind", "good", "bad", "output"), KINDS, ids=[str(each[0]) for each in KINDS])
def test_any_type_that_pydantic_can_adapt(kind: Any, good: str, bad: str, output: Any) -> None:
    agent = make(bad, good, f"```json\n{good}\n```", f'{{"result": {good}}}', output_type=kind)
    result = agent.run("go")
    assert (result.status, result.output) == (RunStatus.completed, output)
    assert len(asked(agent)) == 2
    spec = asked(agent)[0].output
    assert spec is not None
    assert spec.schema["type"] == "object"  # what providers want
    assert agent.run("in a fence").output == output
    if spec.schema.get("required") == ["result"]:
        assert agent.run("as it was asked for").output == output


def test_a_field_that_has_the_name_of_the_wrapping() -> None:
    class Outcome(BaseModel):
        result: int

    agent = make('{"result": {"result": 1}}', '{"result": 2}', '{"result": [1]}', '{"result": 3}')
    assert agent.run("go", output_type=Outcome | Place).output == Outcome(result=1)
    assert agent.run("go", output_type=Outcome | Place).output == Outcome(result=2)
    assert agent.run("go", output_type=Outcome).output == Outcome(result=3)


class Opaque:
    pass


@pytest.mark.parametrize("kind", ["Trip", Trip(title="", places=[]), 3, Opaque, list["Nowhere"]])  # type: ignore[name-defined]  # noqa: F821
def test_what_is_no_type_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match="output_type"):
        make().run("go", output_type=kind)
    with pytest.raises(ConfigurationError, match="output_type"):
        make(output_type=kind)


def test_the_agents_own_is_for_every_run_that_has_none() -> None:
    agent = make(ANSWER, "[1]", "Just words.", output_type=Trip)
    assert agent.run("go").output == TRIP
    assert agent.run("go", output_type=list[int]).output == [1]
    result = agent.run("go", output_type=str)
    assert result.output == result.content == "Just words."
    assert asked(agent)[-1].output is None


def test_it_is_kept_and_told_as_json() -> None:
    class Secret(BaseModel):
        word: str

        @field_serializer("word")
        def hide(self, word: str) -> str:
            return "*" * len(word)

    async def main() -> None:
        agent = make('{"word": "abc"}')
        async with agent.start("go", output_type=Secret) as run:
            result = await run.result()
        assert result.output == Secret(word="abc")
        assert probe(run).events[-1].output == {"word": "***"} == (await record_of(agent, run.run_id)).output

    play(main)


def test_a_sub_agent_answers_with_its_output_alone() -> None:
    """Not with what it had said before, and what did not fit."""
    guide = make("Somewhere.", ANSWER, name="Guide", output_type=Trip)
    agent = make(Call("guide", {"prompt": "Where to?"}), tools=[guide.as_tool("guide")])
    agent.run("go")
    assert asked(agent)[-1].messages[-1].tool_results[0].content == ANSWER


# -- an answer that does not fit --------------------------------------------------------------------------------------


def test_the_model_is_told_what_is_wrong_and_may_try_again() -> None:
    agent = make('{"title": "North"}', "Sorry.", ANSWER)
    events = list(agent.run("go", stream=True, output_type=Trip))
    check_events(events)
    told = [event for event in events if event.event is RunEvent.model_retry]
    assert [(event.error, event.delay) for event in told] == [
        ("OutputError: the answer is not a Trip: places: Field required", 0),
        ("OutputError: the answer is not a Trip: Invalid JSON: expected value at line 1 column 1", 0),
    ]
    assert events[-1].status is RunStatus.completed
    said = [message.text for message in asked(agent)[-1].messages]
    assert "places: Field required" in said[2]
    assert "Invalid JSON" in said[4]
    assert agent.messages[-1] == assistant(Text(ANSWER))
    assert validate(agent.messages) == []


@pytest.mark.parametrize(("settings", "calls"), [({}, 3), ({"output_retries": 0}, 1), ({"output_retries": 4}, 5)])
def test_it_may_not_try_for_ever(settings: dict[str, int], calls: int) -> None:
    agent = make(*(f"No {number}." for number in range(10)), **settings)
    result = agent.run("go", output_type=Trip)
    assert result.status is RunStatus.error
    assert isinstance(result.error, OutputError)
    assert result.error.text == f"No {calls - 1}."
    assert ("asked" in str(result.error)) is (calls > 1)
    assert len(asked(agent)) == calls
    assert result.output is None
    assert agent.run("and now?").status is RunStatus.completed
    assert validate(agent.messages) == []


def test_the_error_has_what_the_model_really_said() -> None:
    agent = make("```json\n{}\n```", output_retries=0)
    result = agent.run("go", output_type=Trip)
    assert isinstance(result.error, OutputError)
    assert result.error.text == "```json\n{}\n```"


def test_out_of_turns_it_is_an_error_too() -> None:
    agent = make("No.", ANSWER)
    result = agent.run("go", output_type=Trip, max_turns=1)
    assert isinstance(result.error, OutputError)
    assert len(asked(agent)) == 1
    assert agent.run("go", output_type=Trip, max_turns=2).output == TRIP


@pytest.mark.parametrize("given", [-1, "many", 1.5])
def test_a_number_of_tries_that_means_nothing_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="output_retries"):
        make(output_retries=given)


def test_a_cancel_in_the_middle_of_a_repair() -> None:
    async def main() -> None:
        talking = Silence()
        agent = make("No.", ["Still ", talking])
        ended = await cut(agent, talking.reached, output_type=Trip)
        check_cancelled(ended, phase="streaming")
        assert [message.role for message in ended.result.messages] == ["user", "assistant", "user", "assistant"]
        assert ended.result.output is None

    play(main)


def test_hooks_hear_of_the_message_that_tells_it() -> None:
    heard: list[Message] = []

    class Listener:
        def message_added(self, event: Any) -> None:
            heard.append(event.message)

    agent = make("No.", ANSWER, hooks=[Listener()])
    agent.run("go", output_type=Trip)
    assert heard == agent.messages
    assert heard[0] == user("go")


# -- as OpenAI wants it -----------------------------------------------------------------------------------------------


class Node(BaseModel):
    name: str
    next: Node | None = None


class Cat(BaseModel):
    sort: Literal["cat"]


class Dog(BaseModel):
    sort: Literal["dog"]


class Pet(BaseModel):
    animal: Annotated[Cat | Dog, Field(discriminator="sort")]
    home: Place = Field(description="where it lives")


class Loose(BaseModel):
    anything: dict[str, int]


class Looser(BaseModel):
    anything: Any
    pair: tuple[int, str]


def shape(kind: type[BaseModel]) -> dict[str, Any]:
    from andon.agent.output import TypedOutput

    return strict(TypedOutput(kind).spec)


@each_api
@pytest.mark.parametrize(
    ("kind", "answer", "closed"),
    [
        (Trip, ANSWER, True),
        (Node, '{"name": "a", "next": {"name": "b", "next": null}}', True),
        (Pet, '{"animal": {"sort": "dog"}, "home": {"city": "Rome", "people": 3}}', True),
        (Loose, '{"anything": {"a": 1}}', False),
        (Looser, '{"anything": [], "pair": [1, "x"]}', False),
    ],
)
def test_openai_is_given_the_schema(api: Api, kind: type[BaseModel], answer: str, closed: bool) -> None:
    """The fakes check a strict schema as OpenAI does."""
    assert shape(kind)["strict"] is closed
    with api.fake([[text(answer)]]) as fake:
        result = Agent("Tester", api.model(fake)).run("go", output_type=kind)
        assert result.error is None
        assert result.output == kind.model_validate_json(answer)
        body = fake.requests[0]
        given = body["response_format"]["json_schema"] if api.name == "chat" else body["text"]["format"]
        assert shape(kind).items() <= given.items()


@each_api
def test_with_tools_it_is_asked_in_every_turn(api: Api) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    with api.fake([[call("look")], [text(ANSWER)]]) as fake:
        result = Agent("Tester", api.model(fake), tools=[look]).run("go", output_type=Trip)
        assert result.output == TRIP
        assert ["json_schema" in str(body) for body in fake.requests] == [True, True]


def test_a_schema_is_not_changed_in_place() -> None:
    schema = Trip.model_json_schema()
    strict(OutputSpec("My Trip!", schema))
    assert schema == Trip.model_json_schema()
    assert strict(OutputSpec("My Trip!", schema))["name"] == "My_Trip_"
