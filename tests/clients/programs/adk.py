# SPDX-License-Identifier: Apache-2.0
"""Drives an Andon server with ADK's own client, and prints what the client saw as JSON.

    python adk.py URL APP

The agent tells an endless story to the first prompt of a session, and a short answer to every later one. The agents
`tools` and `broken` are there too.
"""

import asyncio
import json
import sys

import httpx
from google.adk.cli.adk_web_server import RunAgentRequest
from google.adk.cli.conformance.adk_web_server_client import AdkWebServerClient
from google.genai import types

USER = "ada"


def request(app, session, text, streaming=False, **more):
    message = types.Content(role="user", parts=[types.Part(text=text)])
    return RunAgentRequest(
        app_name=app, user_id=USER, session_id=session.id, new_message=message, streaming=streaming, **more
    )


def dump(event):
    return event.model_dump(mode="json", by_alias=True, exclude_none=True)


async def status_of(call):
    """The status of a call that the client raises for."""
    try:
        await call
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return None


async def until(ask):
    """Ask again and again, as a client does that has nothing to wait for; the test ends what takes too long."""
    while not (found := await ask()):  # noqa: ASYNC110 - there is nothing else over HTTP
        await asyncio.sleep(0.01)
    return found


async def collect(client, asked):
    return [dump(event) async for event in client.run_agent(asked)]


async def cancel(client, app, session):
    """ADK's client has no such call: it is one POST."""
    async with client._get_client() as http:
        answer = await http.post(f"/apps/{app}/users/{USER}/sessions/{session.id}:cancel")
        return {"status": answer.status_code, "body": answer.json()}


async def cancelled_while_streaming(client, app):
    session = await client.create_session(app_name=app, user_id=USER, state={"mood": "calm"})
    events, answer = [], None
    async for event in client.run_agent(request(app, session, "Tell me a story.", streaming=True)):
        events.append(dump(event))
        if answer is None and event.partial and event.content:
            answer = await cancel(client, app, session)
    after = await collect(client, request(app, session, "Are you there?"))
    kept = await client.get_session(app_name=app, user_id=USER, session_id=session.id)
    nothing = await cancel(client, app, session)
    return {"events": events, "cancel": answer, "after": after, "session": dump(kept), "again": nothing}


async def cancelled_while_whole(client, app):
    """Without streaming nothing is said before the end, so the cancel is repeated until it finds the run."""
    session = await client.create_session(app_name=app, user_id=USER)
    reading = asyncio.create_task(collect(client, request(app, session, "Tell me a story.")))

    async def found():
        return (await cancel(client, app, session))["body"]["cancelled"]

    await until(found)
    events = await reading
    return {"events": events, "after": await collect(client, request(app, session, "Are you there?"))}


async def left_while_streaming(client, app):
    session = await client.create_session(app_name=app, user_id=USER)
    stream = client.run_agent(request(app, session, "Tell me a story.", streaming=True))
    seen = ""
    async for event in stream:
        seen += event.content.parts[0].text
        break
    await stream.aclose()

    async def noticed():
        kept = await client.get_session(app_name=app, user_id=USER, session_id=session.id)
        return kept if kept.events and kept.events[-1].error_code else None

    kept = await until(noticed)
    after = await collect(client, request(app, session, "Are you there?"))
    return {"seen": seen, "events": [dump(event) for event in kept.events], "after": after}


async def with_tools(client):
    session = await client.create_session(app_name="tools", user_id=USER)
    events = await collect(client, request("tools", session, "What is the weather?", streaming=True))
    kept = await client.get_session(app_name="tools", user_id=USER, session_id=session.id)
    return {"events": events, "session": dump(kept)}


async def failing(client):
    session = await client.create_session(app_name="broken", user_id=USER)
    return await collect(client, request("broken", session, "Hello?"))


async def sessions(client, app):
    session = await client.create_session(app_name=app, user_id=USER, state={"a": 1})
    patched = await client.update_session(app_name=app, user_id=USER, session_id=session.id, state_delta={"b": 2})
    named = {"app_name": app, "user_id": USER, "session_id": session.id}
    await client.delete_session(**named)
    return {
        "created": dump(session),
        "patched": dump(patched),
        "gone": await status_of(client.get_session(**named)),
        "run in it": await status_of(collect(client, request(app, session, "Hello?"))),
    }


async def main(url, app):
    async with AdkWebServerClient(url) as client:
        print(
            json.dumps(
                {
                    "version": await client.get_version_data(),
                    "sessions": await sessions(client, app),
                    "streaming": await cancelled_while_streaming(client, app),
                    "whole": await cancelled_while_whole(client, app),
                    "left": await left_while_streaming(client, app),
                    "tools": await with_tools(client),
                    "failing": await failing(client),
                }
            )
        )


asyncio.run(main(*sys.argv[1:]))
