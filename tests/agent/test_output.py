# SPDX-License-Identifier: Apache-2.0
"""Structured output: the answer as a pydantic model, whoever the model behind it is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, RootModel

from andon import Agent, OutputError, RunStatus, tool
from andon.errors import ConfigurationError
from andon.models.base import OutputSpec
from andon.models.openai.schema import strict
from andon.models.scripted import Call, Stall
from andon.testing.providers import call, text
from tests.support import asked, check_cancelled, cut, make, play
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
    agent = make(answer)
    result = agent.run("go", output_type=Trip)
    assert result.status is RunStatus.error
    assert isinstance(result.error, OutputError)
    assert "no Trip" in str(result.error)
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


@pytest.mark.parametrize("kind", [int, dict, "Trip", Trip(title="", places=[]), Many])
def test_what_is_no_model_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match="output_type"):
        make().run("go", output_type=kind)


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
    from andon.agent.output import Output

    return strict(Output(kind).spec)


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
