# SPDX-License-Identifier: Apache-2.0
"""Images and files over HTTP: as uploads, as JSON, and as parts of ADK's messages."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pytest

from andon import Agent, File, Image
from andon.errors import UnsupportedContentError
from andon.messages import Block
from andon.models.scripted import ScriptedModel
from tests.server.live import Live, serving

RUNS = "/agents/helper/runs"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
CAT = Image(PNG)
NOTES = File(b"Buy milk.", "text/plain", name="notes.txt")


class Blind(ScriptedModel):
    """Takes no images."""

    def check_content(self, blocks: Sequence[Block], *, in_result: bool = False) -> None:
        if any(isinstance(block, Image) for block in blocks):
            raise UnsupportedContentError("this model takes no images")


def helper(model: ScriptedModel | None = None) -> Agent:
    return Agent("Helper", model or ScriptedModel(then="I see."))


def prompt(agent: Agent) -> list[Any]:
    """The blocks of the last prompt, as the model got them."""
    assert isinstance(agent.model, ScriptedModel)
    return list(agent.model.requests[-1].messages[-1].content)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def refused(answer: Any, code: int, *words: str) -> None:
    assert answer.status_code == code, answer.text
    assert all(word in answer.json()["detail"] for word in words), answer.text


def test_a_form_has_uploads() -> None:
    agent = helper()
    with serving(agent) as live:
        parts: list[Any] = [
            ("message", (None, "What is this?")),
            ("stream", (None, "false")),
            ("files", ("cat.png", PNG, "image/png")),
            ("files", ("notes.txt", b"Buy milk.", "text/plain")),
            ("files", ("report.bin", b"%PDF-1.7", "application/octet-stream")),  # its first bytes tell what it is
            ("files", ("", b"", "application/octet-stream")),  # what a browser sends for an empty field
        ]
        assert live.client.post(RUNS, files=parts).json()["content"] == "I see."
        text, *files = prompt(agent)
        assert text.text == "What is this?"
        assert files == [CAT, NOTES, File(b"%PDF-1.7", "application/pdf", name="report.bin")]


def test_json_has_blocks() -> None:
    agent = helper()
    with serving(agent) as live:
        files = [{"type": "image", "data": encoded(PNG)}, {"type": "file", "url": "https://example.com/a.pdf"}]
        asked = {"message": "What is this?", "stream": False, "files": files, "session_id": "s1"}
        assert live.client.post(RUNS, json=asked).status_code == 200
        assert prompt(agent)[1:] == [CAT, File(url="https://example.com/a.pdf")]
        shown = live.client.get("/agents/helper/sessions/s1").json()["messages"][0]["content"]
        again = {"message": "And again?", "stream": False, "files": shown[1:]}  # as they came back
        assert live.client.post(RUNS, json=again).status_code == 200
        assert prompt(agent)[1:] == [CAT, File(url="https://example.com/a.pdf")]


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        ([{"type": "image", "data": "%%"}], 422, ["files[0]", "Send it like"]),
        ([{"type": "image"}], 422, ["files[0]", "neither is given"]),
        ([{"type": "image", "data": encoded(b"?")}], 422, ["files[0]", "media_type="]),
        ([{"type": "film", "url": "https://example.com"}], 422, ["files[0]", "film"]),
        (["cat.png"], 422, ["files[0]"]),
        ("cat.png", 422, ["files"]),
        ([{"type": "image", "url": "https://example.com/cat.png"}] * 1001, 413, ["1,001 files"]),
    ],
)
def test_what_is_no_file_is_refused(files: Any, code: int, words: list[str]) -> None:
    agent = helper()
    with serving(agent) as live:
        refused(live.client.post(RUNS, json={"message": "Hi", "files": files}), code, *words)
        assert not agent.runtime.live_runs


def test_an_upload_in_another_field_is_refused() -> None:
    with serving(helper()) as live:
        answer = live.client.post(RUNS, data={"message": "Hi"}, files={"photo": ("cat.png", PNG, "image/png")})
        refused(answer, 422, "'photo'", "files")
        refused(live.client.post(RUNS, files={"message": ("cat.png", PNG, "image/png")}), 422, "message")


def test_what_the_model_can_not_take_is_refused() -> None:
    with serving(helper(Blind(then="No."))) as live:
        files = [{"type": "image", "data": encoded(PNG)}]
        refused(live.client.post(RUNS, json={"message": "Hi", "files": files}), 415, "no images")


def test_two_files_are_two_requests_for_one_idempotency_key() -> None:
    with serving(helper()) as live:

        def send(data: bytes) -> Any:
            asked = {"message": "Hi", "stream": False, "files": [{"type": "image", "data": encoded(data)}]}
            return live.client.post(RUNS, json=asked, headers={"idempotency-key": "k1"})

        first = send(PNG).json()
        assert send(PNG).json()["run_id"] == first["run_id"]
        refused(send(PNG[:-1] + b"!"), 422, "different request")


# -- ADK's routes -----------------------------------------------------------------------------------------------------


def invoke(live: Live, *parts: dict[str, Any]) -> Any:
    live.client.post("/apps/helper/users/ann/sessions/s1")
    said = {"role": "user", "parts": list(parts)}
    return live.client.post("/run", json={"appName": "helper", "userId": "ann", "sessionId": "s1", "newMessage": said})


def test_adks_parts() -> None:
    agent = helper()
    with serving(agent) as live:
        inline = {"mimeType": "image/png", "data": base64.urlsafe_b64encode(PNG).decode(), "displayName": "cat.png"}
        by_address = {"file_uri": "https://example.com/a.pdf", "mime_type": "application/pdf"}
        notes = {"mime_type": "text/plain", "data": encoded(b"Buy milk."), "display_name": "notes.txt"}
        answer = invoke(
            live, {"text": "Look:"}, {"inlineData": inline}, {"file_data": by_address}, {"inline_data": notes}
        )
        assert answer.status_code == 200, answer.text
        address = File(media_type="application/pdf", url="https://example.com/a.pdf")
        assert prompt(agent)[1:] == [CAT, address, NOTES]
        events = live.client.get("/apps/helper/users/ann/sessions/s1").json()["events"]
        assert events[0]["content"]["parts"][1] == {"inlineData": {"mimeType": "image/png", "data": encoded(PNG)}}


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"inlineData": {"mimeType": "image/png"}}, 422),
        ({"inlineData": {"mimeType": 5, "data": ""}}, 422),
        ({"inlineData": {"mimeType": "image/png", "data": encoded(PNG)}, "text": "both"}, 415),
        ({"functionResponse": {}}, 415),
        ("text", 415),
    ],
)
def test_other_parts_of_adks_are_refused(part: Any, code: int) -> None:
    with serving(helper()) as live:
        assert invoke(live, part).status_code == code
