# SPDX-License-Identifier: Apache-2.0
"""The fake of Responses in the background, by plain HTTP: what is read again, what is cancelled, what is refused."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from andon.testing.providers import FakeResponses, cut, end, fail, raw, stall, text

BODY = {"model": "gpt-5.2", "input": "go", "stream": True, "background": True}


def ask(fake: FakeResponses, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, str]:
    """The status and as much of the body as comes."""
    address = urlsplit(fake.base_url)
    connection = http.client.HTTPConnection(address.netloc, timeout=10)
    try:
        headers = {"authorization": f"Bearer {key or fake.api_key}", "connection": "close"}
        connection.request(method, address.path + path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        try:
            return response.status, response.read().decode()
        except http.client.IncompleteRead as error:
            return response.status, error.partial.decode()
    finally:
        connection.close()


def events(said: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in said.split("\n") if line.startswith("data: ")]


def numbers(said: str) -> list[int]:
    return [event["sequence_number"] for event in events(said)]


def test_it_can_be_read_again_from_any_event() -> None:
    with FakeResponses([[text("One two three.")]]) as fake:
        status, said = ask(fake, "POST", "/responses", BODY)
        assert status == 200
        began = [event["type"] for event in events(said)[:3]]
        assert began == ["response.created", "response.queued", "response.in_progress"]
        assert numbers(said) == list(range(len(events(said))))
        path = f"/responses/{fake.served[0].response_id}"
        assert ask(fake, "GET", f"{path}?stream=true") == (200, said)
        for after in numbers(said):
            again = ask(fake, "GET", f"{path}?stream=true&starting_after={after}")[1]
            assert events(again) == events(said)[after + 1 :]
        assert json.loads(ask(fake, "GET", path)[1])["status"] == "completed"
        assert fake.served[0].resumed == [-1, *numbers(said)]


@pytest.mark.parametrize("word", [cut(), cut(reset=True), cut(mid_chunk=True), end()], ids=str)
def test_what_is_cut_goes_on(word: Any) -> None:
    with FakeResponses([[text("One "), word, text("two.")]]) as fake:
        if word == cut(reset=True):
            with pytest.raises(ConnectionResetError):
                ask(fake, "POST", "/responses", BODY)
        else:
            first = ask(fake, "POST", "/responses", BODY)[1]
            assert "One " in first
            assert "two." not in first
        again = ask(fake, "GET", f"/responses/{fake.served[0].response_id}?stream=true")[1]
        assert events(again)[-1]["response"]["output"][0]["content"][0]["text"] == "One two."


def test_cut_before_the_headers() -> None:
    with FakeResponses([[cut(), text("One.")]]) as fake:
        with pytest.raises(http.client.RemoteDisconnected):
            ask(fake, "POST", "/responses", BODY)
        assert "One." in ask(fake, "GET", f"/responses/{fake.served[0].response_id}?stream=true")[1]


def test_dropped_after_so_many_events() -> None:
    with FakeResponses([[text("One two three.")]], drop_every=2) as fake:
        first = ask(fake, "POST", "/responses", BODY)[1]
        path = f"/responses/{fake.served[0].response_id}?stream=true&starting_after="
        second = ask(fake, "GET", f"{path}1")[1]
        assert (numbers(first), numbers(second)) == ([0, 1], [2, 3])


def test_a_cancel() -> None:
    with FakeResponses([[text("One "), stall()]], drop_every=6) as fake:
        first = ask(fake, "POST", "/responses", BODY)[1]
        path = f"/responses/{fake.served[0].response_id}"
        for times in (1, 2):
            status, said = ask(fake, "POST", f"{path}/cancel")
            assert (status, json.loads(said)["status"]) == (200, "cancelled")
            assert fake.served[0].cancels == times
        again = ask(fake, "GET", f"{path}?stream=true")[1]
        assert events(again)[:6] == events(first)
        assert "response.completed" not in again


def test_what_is_refused() -> None:
    with FakeResponses([[text("One.")]], on_cancel=[fail(500, "It broke.")]) as fake:
        status, said = ask(fake, "POST", "/responses", {**BODY, "store": False})
        assert (status, "Background mode requires 'store'" in said) == (400, True)
        for method, path in (("GET", ""), ("POST", "/cancel")):
            assert ask(fake, method, f"/responses/resp_none{path}")[0] == 404
            assert ask(fake, method, f"/responses/resp_none{path}", key="sk-wrong")[0] == 401
        ask(fake, "POST", "/responses", BODY)
        status, said = ask(fake, "POST", f"/responses/{fake.served[1].response_id}/cancel")
        assert (status, "It broke." in said) == (500, True)
    with pytest.raises(TypeError, match="on_cancel and on_resume take"):
        FakeResponses(on_cancel=[text("no")])


@pytest.mark.parametrize("word", [fail(429, "Slow."), raw(b"<html>", content_type="text/html", status=502)], ids=str)
def test_an_answer_that_is_no_stream(word: Any) -> None:
    with FakeResponses([[word]]) as fake:
        assert ask(fake, "POST", "/responses", BODY)[0] in (429, 502)


def test_without_a_stream_it_is_an_ordinary_answer() -> None:
    with FakeResponses() as fake:
        status, said = ask(fake, "POST", "/responses", {**BODY, "stream": False})
        assert (status, json.loads(said)["status"]) == (200, "completed")
