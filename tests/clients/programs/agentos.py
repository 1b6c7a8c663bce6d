# SPDX-License-Identifier: Apache-2.0
"""Drives an Andon server with AgentOS's own client, and prints what the client saw as JSON.

    python agentos.py URL AGENT

The agent tells an endless story to the first prompt of a session, and a short answer to every later one. The agents
`tools` and `broken` are there too.
"""

import asyncio
import json
import sys

import httpx
from agno.agent import RemoteAgent
from agno.client import AgentOSClient
from agno.run.agent import RunOutput


async def status_of(call):
    """The status of a call that the client raises for."""
    try:
        await call
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return None


def show(output):
    shown = ("run_id", "session_id", "agent_id", "agent_name", "user_id", "content", "model")
    return {name: getattr(output, name) for name in shown} | {
        "status": getattr(output.status, "value", output.status),
        "tools": [tool.to_dict() for tool in output.tools or []],
        "messages": [message.to_dict() for message in output.messages or []],
    }


async def get_run(client, agent, run_id):
    """The client has no call for it, but it has the class for the answer."""
    return RunOutput.from_dict(await client._aget(f"/agents/{agent}/runs/{run_id}"))


async def until(ask):
    """Ask again and again, as a client does that has nothing to wait for; the test ends what takes too long."""
    while not (found := await ask()):  # noqa: ASYNC110 - there is nothing else over HTTP
        await asyncio.sleep(0.01)
    return found


async def ended(client, agent, run_id):
    async def ask():
        run = await get_run(client, agent, run_id)
        return run if show(run)["status"] in ("COMPLETED", "CANCELLED", "ERROR") else None

    return await until(ask)


async def found(client, agent):
    return {
        "config": [each.id for each in (await client.aget_config()).agents],
        "agents": [each.model_dump(mode="json") for each in await client.list_agents()],
        "agent": (await client.aget_agent(agent)).model_dump(mode="json", exclude_none=True),
    }


async def cancelled_while_streaming(client, agent):
    events = []
    async for event in client.run_agent_stream(agent, "Tell me a story.", session_id="s1", user_id="ada"):
        events.append(event.to_dict())
        if event.event == "RunContent" and not any(each["event"] == "RunContent" for each in events[:-1]):
            await client.cancel_agent_run(agent, event.run_id)
    run_id = events[0]["run_id"]
    after = await client.run_agent(agent, "Are you there?", session_id="s1", user_id="ada")
    return {
        "events": events,
        "run": show(await get_run(client, agent, run_id)),
        "after": show(after),
        "again": await status_of(client.cancel_agent_run(agent, run_id)),
        "finished": await status_of(client.cancel_agent_run(agent, after.run_id)),
        "unknown": await status_of(client.cancel_agent_run(agent, "nobody")),
    }


async def cancelled_in_the_background(client, agent):
    started = await client.run_agent(agent, "Tell me a story.", session_id="s2", background=True)

    async def spoken():
        return (await get_run(client, agent, started.run_id)).content

    await until(spoken)
    running = [RunOutput.from_dict(each) for each in await client._aget(f"/agents/{agent}/runs")]
    await client.cancel_agent_run(agent, started.run_id)
    run = await ended(client, agent, started.run_id)
    after = await client.run_agent(agent, "Are you there?", session_id="s2")
    return {
        "started": show(started),
        "listed": [each.run_id for each in running],
        "run": show(run),
        "after": show(after),
    }


async def left_while_streaming(client, agent):
    stream = client.run_agent_stream(agent, "Tell me a story.", session_id="s3")
    async for event in stream:
        if event.event == "RunContent":
            break
    await stream.aclose()
    run = await ended(client, agent, event.run_id)
    return {"run": show(run), "after": show(await client.run_agent(agent, "Are you there?", session_id="s3"))}


async def by_a_remote_agent(url, agent):
    """How an AgentOS program uses an agent that is somewhere else."""
    remote = RemoteAgent(url, agent)
    events, cancelled = [], None
    async for event in remote.arun("Tell me a story.", stream=True, session_id="s4"):
        events.append(event.event)
        if event.event == "RunContent" and cancelled is None:
            cancelled = await remote.acancel_run(event.run_id)
    after = await remote.arun("Are you there?", session_id="s4")
    return {
        "events": events,
        "cancelled": cancelled,
        "after": show(after),
        "late": await remote.acancel_run(after.run_id),
    }


async def with_tools(client):
    events = [event.to_dict() async for event in client.run_agent_stream("tools", "What is the weather?")]
    return {"events": events, "plain": show(await client.run_agent("tools", "And tomorrow?"))}


async def failing(client):
    events = [event.to_dict() async for event in client.run_agent_stream("broken", "Hello?")]
    return {"events": events, "unknown": await status_of(client.run_agent("nobody", "Hello?"))}


async def main(url, agent):
    client = AgentOSClient(url)
    print(
        json.dumps(
            {
                "found": await found(client, agent),
                "streaming": await cancelled_while_streaming(client, agent),
                "background": await cancelled_in_the_background(client, agent),
                "left": await left_while_streaming(client, agent),
                "remote": await by_a_remote_agent(url, agent),
                "tools": await with_tools(client),
                "failing": await failing(client),
            }
        )
    )


asyncio.run(main(*sys.argv[1:]))
