# SPDX-License-Identifier: Apache-2.0
"""Results, receipts and events as plain data: `to_dict()`, pydantic's fields, and the answers of FastAPI endpoints."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Generic, TypeVar

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel, PlainSerializer, TypeAdapter, ValidationError

from andon import (
    Agent,
    Event,
    Interrupt,
    Message,
    Receipt,
    RunEvent,
    RunResult,
    RunStatus,
    StoredSession,
    Text,
    ToolReceipt,
    ToolView,
    Usage,
    tool,
)
from andon.models.scripted import Call, Fail, ScriptedModel
from andon.plain import Plain

T = TypeVar("T")


class Story(BaseModel):
    title: str


class Node(Plain, frozen=True):
    """A part of itself."""

    name: str
    below: list[Node] = []  # noqa: RUF012 - msgspec copies it


class Box(Plain, Generic[T], frozen=True):
    """Holds something."""

    what: T


class Answer(BaseModel):
    result: RunResult
    events: list[Event]
    usage: Usage | None = None


class Anything(BaseModel):
    data: Any


@tool
async def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def told() -> list[Event]:
    """The events of a run with a tool call."""
    return list(
        Agent("Helper", ScriptedModel([Call("look", {"where": "Oslo"})], "Done."), tools=[look]).run("Hi", stream=True)
    )


def cancelled() -> RunResult:
    agent = Agent("Helper", ScriptedModel("Never said."))
    agent.cancel(reason="too late", by="ada")
    return agent.run("Hi")


# -- to_dict ----------------------------------------------------------------------------------------------------------


def test_a_result_is_plain_data() -> None:
    result = Agent("Helper", ScriptedModel("Hello.")).run("Hi", metadata={"tenant": 7})
    plain = result.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert set(plain) == set(RunResult.__struct_fields__)
    assert (plain["status"], plain["stop_reason"], plain["content"]) == ("COMPLETED", "end_turn", "Hello.")
    assert plain["message"] == {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}
    assert plain["metadata"] == {"tenant": 7}
    assert plain["error"] is None


def test_what_failed_says_so_in_words() -> None:
    result = Agent("Helper", ScriptedModel(then=Fail(RuntimeError("out of order")))).run("Hi")
    plain = result.to_dict()
    assert plain["status"] == "ERROR"
    assert "out of order" in plain["error"]
    again = TypeAdapter(RunResult).validate_json(json.dumps(plain))
    assert str(again.error) == plain["error"]


def test_an_answer_of_pydantics_is_written_by_pydantic() -> None:
    result: Any = Agent("Helper", ScriptedModel('{"title": "The sea"}')).run("Hi", output_type=Story)
    assert result.output == Story(title="The sea")
    assert result.to_dict()["output"] == {"title": "The sea"}


@dataclass
class Parcel:
    weight: Decimal
    number: Annotated[int, PlainSerializer(lambda value: f"#{value}")]


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (Parcel, '{"weight": "1.5", "number": 3}'),
        (list[Parcel], '{"result": [{"weight": "1.5", "number": 3}]}'),
        (Annotated[int, PlainSerializer(lambda value: f"#{value}")], '{"result": 3}'),
        (str, "Hello."),
    ],
)
def test_an_answer_is_written_as_the_event_has_it(kind: Any, answer: str) -> None:
    agent: Agent = Agent("Helper", ScriptedModel(then=answer))
    *_, ended = agent.run("Hi", output_type=kind, stream=True)
    result = agent.run("Hi", output_type=kind)
    assert ended.output is not None
    assert result.to_dict()["output"] == ended.output
    assert TypeAdapter(RunResult).dump_python(result)["output"] == ended.output


def test_a_result_can_be_copied_and_pickled() -> None:
    agent: Agent = Agent("Helper", ScriptedModel(then='{"title": "The sea"}'))
    result = agent.run("Hi", output_type=Story)
    assert pickle.loads(pickle.dumps(result)) == copy.deepcopy(result) == result
    assert copy.copy(result).to_dict() == result.to_dict()


def test_what_can_not_be_written_becomes_its_text() -> None:
    result = Agent("Helper", ScriptedModel("Hello.")).run("Hi", metadata={"thing": object(), 1: {2: 3}})  # type: ignore[dict-item]
    plain = result.to_dict()["metadata"]
    assert plain["thing"].startswith("<object object")
    assert plain["1"] == {"2": 3}


def test_a_receipt_is_plain_data() -> None:
    receipt = cancelled().receipt
    assert receipt is not None
    plain = receipt.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert set(plain) == set(Receipt.__struct_fields__)
    assert (plain["cause"], plain["reason"], plain["by"], plain["mode"]) == ("user", "too late", "ada", "now")


def test_an_event_is_plain_data_without_what_it_has_not() -> None:
    events = told()
    for event in events:
        plain = event.to_dict()
        assert json.loads(json.dumps(plain)) == plain
        assert {"event", "run_id", "session_id", "agent_id", "seq", "created_at"} <= set(plain)
    started, *_, ended = events
    assert set(started.to_dict()) == {"event", "run_id", "session_id", "agent_id", "seq", "created_at"}
    assert (ended.to_dict()["event"], ended.to_dict()["status"]) == ("RunCompleted", "COMPLETED")
    (view,) = [event.to_dict()["tool"] for event in events if event.event is RunEvent.tool_call_started]
    assert (view["name"], view["arguments"]) == ("look", {"where": "Oslo"})


def test_each_is_a_dict_by_way_of_its_pairs() -> None:
    result = cancelled()
    assert dict(result) == result.to_dict()
    assert dict(result.usage) == {**dict.fromkeys(Usage.__struct_fields__, 0), "estimated": False}


# -- pydantic ---------------------------------------------------------------------------------------------------------


def test_a_model_holds_them_and_writes_what_to_dict_says() -> None:
    result, events = cancelled(), told()
    answer = Answer(result=result, events=events, usage=result.usage)
    assert answer.result is result
    assert answer.model_dump(mode="json")["result"] == answer.model_dump()["result"] == result.to_dict()
    assert json.loads(answer.model_dump_json())["events"] == [event.to_dict() for event in events]
    again = Answer.model_validate_json(answer.model_dump_json())
    assert again == answer
    assert again.result.status is RunStatus.cancelled


@pytest.mark.parametrize(
    "kind",
    [RunResult, Receipt, ToolReceipt, Event, ToolView, Interrupt, Message, Usage, StoredSession],
    ids=lambda kind: kind.__name__,
)
def test_each_can_be_described(kind: type[Plain]) -> None:
    written = TypeAdapter(kind).json_schema(mode="serialization")
    written = written.get("$defs", {}).get(kind.__name__, written)
    assert written["title"] == kind.__name__
    assert written["description"] == kind.__doc__ or "\n" in str(kind.__doc__)
    assert list(written["properties"]) == list(kind.__struct_fields__)


def test_what_is_always_written_is_required_and_what_has_a_default_need_not_be_given() -> None:
    adapter = TypeAdapter(Usage)
    assert adapter.json_schema(mode="serialization")["required"] == list(Usage.__struct_fields__)
    assert "required" not in adapter.json_schema(mode="validation")
    assert "content" not in TypeAdapter(Event).json_schema(mode="serialization")["required"]


def test_what_is_part_of_itself_is_described_and_read() -> None:
    adapter = TypeAdapter(Node)
    tree = Node("a", [Node("b", [Node("c")])])
    assert adapter.validate_json(adapter.dump_json(tree)) == tree
    assert adapter.json_schema()["$defs"]["Node"]["properties"]["below"]["items"] == {"$ref": "#/$defs/Node"}


def test_what_is_generic_is_described_with_what_it_holds() -> None:
    adapter = TypeAdapter(Box[Story])
    assert adapter.json_schema()["properties"]["what"] == {"$ref": "#/$defs/Story"}
    assert adapter.validate_json(adapter.dump_json(Box(Story(title="The sea")))) == Box(Story(title="The sea"))


def test_what_does_not_fit_is_pydantics_error() -> None:
    with pytest.raises(ValidationError, match="missing required field `role`"):
        TypeAdapter(Message).validate_python({"content": []})
    with pytest.raises(ValidationError, match="title"):
        TypeAdapter(Box[Story]).validate_python({"what": {}})
    with pytest.raises(ValidationError, match="Expected"):
        TypeAdapter(RunResult).validate_python(Text("Hello."))


# -- FastAPI ----------------------------------------------------------------------------------------------------------


def test_endpoints_return_them() -> None:
    app, result, events = FastAPI(), cancelled(), told()

    @app.get("/said")
    async def said() -> RunResult:
        return result

    @app.get("/unsaid")
    async def unsaid():  # type: ignore[no-untyped-def]  # noqa: ANN202, RUF100 - that is the test
        return result

    @app.get("/model", response_model=Answer)
    async def model() -> Any:
        return {"result": result, "events": events}

    @app.get("/parts")
    async def parts():  # type: ignore[no-untyped-def]  # noqa: ANN202, RUF100
        return {"receipt": result.receipt, "messages": result.messages, "last": events[-1]}

    @app.get("/events")
    async def all_events() -> list[Event]:
        return events

    with TestClient(app) as client:
        assert client.get("/said").json() == client.get("/unsaid").json() == result.to_dict()
        assert client.get("/model").json()["events"] == client.get("/events").json()
        assert client.get("/events").json() == [event.to_dict() for event in events]
        assert result.receipt is not None
        assert client.get("/parts").json() == {
            "receipt": result.receipt.to_dict(),
            "messages": [message.to_dict() for message in result.messages],
            "last": events[-1].to_dict(),
        }
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
        assert {"RunResult", "Receipt", "Event", "Message", "Usage"} <= set(schemas)
        assert schemas["RunResult"]["properties"]["receipt"]["anyOf"][0] == {"$ref": "#/components/schemas/Receipt"}


def test_endpoints_whose_type_is_any_return_them() -> None:
    app, result, events = FastAPI(), cancelled(), told()

    @app.get("/dict")
    async def in_a_dict() -> dict[str, Any]:
        return {"result": result, "receipt": result.receipt}

    @app.get("/list")
    async def in_a_list() -> list[Any]:
        return events

    @app.get("/field")
    async def in_a_field() -> Anything:
        return Anything(data=result)

    with TestClient(app) as client:
        assert result.receipt is not None
        assert client.get("/dict").json() == {"result": result.to_dict(), "receipt": result.receipt.to_dict()}
        assert client.get("/list").json() == [event.to_dict() for event in events]
        assert client.get("/field").json() == {"data": result.to_dict()}


def test_endpoints_leave_out_what_they_say() -> None:
    app, result = FastAPI(), cancelled()

    @app.get("/without", response_model=RunResult, response_model_exclude={"messages", "message"})
    async def without() -> Any:
        return result

    @app.get("/only", response_model=RunResult, response_model_include={"run_id", "content"})
    async def only() -> Any:
        return result

    @app.get("/none", response_model=RunResult, response_model_exclude_none=True)
    async def no_none() -> Any:
        return result

    with TestClient(app) as client:
        assert set(client.get("/without").json()) == set(RunResult.__struct_fields__) - {"messages", "message"}
        assert client.get("/only").json() == {"run_id": result.run_id, "content": result.content}
        assert "error" not in client.get("/none").json()
        assert "None" not in str(client.get("/none").json())


def test_pydantic_leaves_out_parts_of_parts() -> None:
    result = Agent("Helper", ScriptedModel("Hello.")).run("Hi", metadata={"tenant": None})
    whole, adapter = result.to_dict(), TypeAdapter(RunResult)
    usage = {name: value for name, value in whole["usage"].items() if value not in (0, False)}
    ways: list[Callable[..., Any]] = [
        adapter.dump_python,
        lambda *args, **options: json.loads(adapter.dump_json(*args, **options)),
        TypeAdapter(Any).dump_python,
    ]
    for dump in ways:
        assert dump(result) == whole
        assert dump(result, exclude={"usage": {"estimated"}})["usage"].keys() == whole["usage"].keys() - {"estimated"}
        assert dump(result, include={"usage": {"estimated"}}) == {"usage": {"estimated": False}}
        assert dump(result, include={"messages": {0}}) == {"messages": whole["messages"][:1]}
        assert dump(result, exclude={"messages": {0: True}})["messages"] == whole["messages"][1:]
        assert dump(result, exclude={"messages": {-1: ...}})["messages"] == whole["messages"][:-1]
        roles = dump(result, include={"messages": {"__all__": {"role"}}})
        assert roles == {"messages": [{"role": "user"}, {"role": "assistant"}]}
        assert dump(result, exclude_none=True)["metadata"] == {"tenant": None}, "it was given"
        assert dump(result, exclude_defaults=True)["usage"] == usage
    answer = Answer(result=result, events=told())
    assert answer.model_dump(include={"result": {"run_id"}}) == {"result": {"run_id": result.run_id}}
    assert "messages" not in answer.model_dump(exclude={"result": {"messages"}})["result"]
    (first, *_) = answer.model_dump(include={"events": {"__all__": {"seq"}}})["events"]
    assert first.keys() == {"seq"}


def test_what_is_generic_is_named_as_pydantic_would() -> None:
    app, result = FastAPI(), cancelled()

    @app.get("/story")
    async def story() -> RunResult[Story]:
        return result  # type: ignore[return-value]

    with TestClient(app) as client:
        assert {"RunResult_Story_", "Story"} <= set(client.get("/openapi.json").json()["components"]["schemas"])


def test_endpoints_return_sessions() -> None:
    app, agent = FastAPI(), Agent("Teller", ScriptedModel(then="Hello."))

    @app.get("/sessions/{session_id}")
    async def read(session_id: str) -> StoredSession | None:
        return await agent.sessions.get(session_id)

    agent.run("Hi", session_id="s1")
    with TestClient(app) as client:
        assert client.get("/sessions/none").json() is None
        answered = client.get("/sessions/s1").json()
    assert [message["role"] for message in answered["messages"]] == ["user", "assistant"]
    assert agent.run("Hi", messages=answered["messages"]).messages[1].text == "Hello."
