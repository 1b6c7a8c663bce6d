# SPDX-License-Identifier: Apache-2.0
"""A real MCP server, built with the SDK, as a program of its own.

    python mcp_server.py WITNESS [--http] [--legacy] [--hang] [--stubborn] [--children] [--died FILE]

It tells the test what it sees, over a connection to the port WITNESS, one JSON object per line: its start, each call,
and each call's end, with the cancellation that it saw. The end of the connection is its own end.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

WITNESS = int(sys.argv[1])
FLAGS = sys.argv[2:]
CHILD = """
import json, os, signal, socket, sys, time
if sys.argv[2]:
    os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
witness = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
witness.sendall((json.dumps({"what": "child", "pid": os.getpid()}) + "\\n").encode())
print(1, flush=True)
time.sleep(600)
"""
NAMES = [
    "echo",
    "wait",
    "release",
    "fail",
    "picture",
    "structured",
    "progress",
    "ask",
    "ask_twice",
    "sample",
    "die",
    "grow",
    "env",
]

release = asyncio.Event()
grown: list[str] = []
bus = InMemorySubscriptionBus()
witness = socket.create_connection(("127.0.0.1", WITNESS))


def record(what: str, **facts: Any) -> None:
    line = json.dumps({"what": what, "at": time.time(), "pid": os.getpid(), **facts}) + "\n"
    witness.sendall(line.encode())


def tool(name: str) -> types.Tool:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    hints = types.ToolAnnotations(idempotent_hint=True) if name == "once_more" else None
    return types.Tool(name=name, description=f"The tool {name}.", input_schema=schema, annotations=hints)


async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[tool(name) for name in [*NAMES, "once_more", "die once", *grown]])


def said(*texts: str, **more: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text) for text in texts], **more)


async def call_tool(ctx: Any, params: Any) -> Any:
    text = (params.arguments or {}).get("text", "")
    record("call", tool=params.name, text=text, version=ctx.protocol_version)
    try:
        result = await do(ctx, params, text)
    except anyio.get_cancelled_exc_class():
        record("cancelled", tool=params.name, text=text)
        if text == "ignore":
            with anyio.CancelScope(shield=True):
                await release.wait()
        raise
    record("done", tool=params.name, text=text)
    return result


async def do(ctx: Any, params: Any, text: str) -> Any:
    match params.name:
        case "echo":
            return said(f"echo {text}")
        case "wait":
            await release.wait()
            return said(f"waited {text}")
        case "release":
            release.set()
            return said("released")
        case "fail":
            return said("the disk is full", is_error=True)
        case "env":
            return said(json.dumps(dict(os.environ)))
        case "picture":
            content = [types.ImageContent(type="image", data="iVBORw0KGgo=", mime_type="image/png")]
            return types.CallToolResult(content=content)  # type: ignore[arg-type]
        case "structured":
            return types.CallToolResult(content=[], structured_content={"degrees": 21})
        case "progress":
            await ctx.session.report_progress(1, 2, "half")
            await ctx.session.report_progress(2, 2, "all")
            return said("done")
        case "ask" | "ask_twice":
            return await ask(ctx, params)
        case "sample":
            message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="Hello?"))
            answer = await ctx.session.create_message([message], max_tokens=5)
            return said(answer.content.text)
        case "die":
            os.write(2, b"no licence\n")
            os._exit(3)
        case "once_more" | "die once":
            if die_once(FLAGS[FLAGS.index("--died") + 1]):
                os._exit(4)
            return said("survived")
        case "grow":
            grown.append("grown")
            if ctx.protocol_version >= "2026":
                await bus.publish(ToolsListChanged())
            else:
                await ctx.session.send_tool_list_changed()
            return said("grew")
        case _:
            return said(f"{params.name} {text}")


def die_once(file: str) -> bool:
    first = not Path(file).exists()
    Path(file).touch()
    return first


FORM = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}


async def ask(ctx: Any, params: Any) -> Any:
    questions = ["Really?"] if params.name == "ask" else ["Really?", "Really really?"]
    if ctx.protocol_version >= "2026":
        state = json.loads(params.request_state) if params.request_state else []
        if params.input_responses:
            state += [each.content for each in params.input_responses.values()]
        if len(state) < len(questions):
            form = types.ElicitRequestFormParams(message=questions[len(state)], requested_schema=FORM)
            requests: Any = {"q": types.ElicitRequest(params=form)}
            return types.InputRequiredResult(input_requests=requests, request_state=json.dumps(state))
        answers = state
    else:
        answers = []
        for question in questions:
            answer = await ctx.session.elicit_form(question, FORM)
            record("answered", action=answer.action)
            if answer.action != "accept":
                return said(f"not answered: {answer.action}", is_error=True)
            answers.append(answer.content)
    return said(json.dumps(answers))


def make() -> Server[Any]:
    return Server("tests", on_list_tools=list_tools, on_call_tool=call_tool, on_subscriptions_listen=ListenHandler(bus))


async def serve_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (reading, writing):
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        if "--legacy" in FLAGS:  # a server from before 2026-07-28
            await serve_loop(server, reading, writing, lifespan_state={}, init_options=options)
        else:
            await server.run(reading, writing, options)
    record("end of input")
    if "--stubborn" in FLAGS:
        await asyncio.sleep(600)


def main() -> None:
    server = make()
    children = []
    if "--stubborn" in FLAGS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--children" in FLAGS:
        for leaves_group in ("", "yes"):
            command = [sys.executable, "-c", CHILD, str(WITNESS), leaves_group]
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            assert child.stdout is not None
            child.stdout.readline()
            children.append(child.pid)
    print("a line that is no message", flush=True)
    print("a last word", file=sys.stderr, flush=True)
    record("start", children=children)
    if "--hang" in FLAGS:
        time.sleep(600)
    if "--http" in FLAGS:
        import uvicorn

        port = int(FLAGS[FLAGS.index("--port") + 1]) if "--port" in FLAGS else 0
        listener = socket.create_server(("127.0.0.1", port))
        record("port", port=listener.getsockname()[1])
        config = uvicorn.Config(server.streamable_http_app(), log_level="warning", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run([listener])
    else:
        asyncio.run(serve_stdio(server))


if __name__ == "__main__":
    main()
