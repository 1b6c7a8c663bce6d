# SPDX-License-Identifier: Apache-2.0
"""Makes a client of the server's OpenAPI document, and does with it what a user would. Prints what it has seen."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx

URL, TOKEN, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])


def generate() -> None:
    document = FOLDER / "openapi.json"
    head = {"Authorization": f"Bearer {TOKEN}"}
    document.write_text(httpx.get(f"{URL}/openapi.json", headers=head, verify=False).text)
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", str(document)]
    command += ["--output-path", str(FOLDER / "made"), "--meta", "none", "--fail-on-warning"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # it wants to find ruff
    made = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path}, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    sys.path.insert(0, str(FOLDER))


generate()
models = importlib.import_module("made.models")
made = importlib.import_module("made")
client = made.AuthenticatedClient(URL, TOKEN, verify_ssl=False)


def api(name: str):
    """A call of the client's, by its tag and name."""
    return importlib.import_module(f"made.api.{name}")


def start(agent: str, **fields):
    return api("runs.start_run").sync_detailed(agent, client=client, body=models.Start(**fields))


def events_of(agent: str, run_id: str, count: int | None = None) -> list:
    """Events as they come, each read by the model that its name says."""
    found = []
    url = f"/agents/{agent}/runs/{run_id}/events"
    with client.get_httpx_client().stream("GET", url) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                found.append(getattr(models, data["event"]).from_dict(data))
                if len(found) == count:
                    break
    return found


def lists():
    agents = api("agents.list_agents").sync(client=client)
    detail = api("agents.get_agent").sync("tools", client=client)
    return {
        "agents": [agent.id for agent in agents],
        "model": agents[0].model.provider,
        "tools": [tool.name for tool in detail.tools.tools],
        "health": api("operations.health").sync(client=client).status,
        "version": type(api("agents.version").sync(client=client)).__name__,
    }


def plainly():
    answer = start("tools", message="What is the weather?", stream=False, session_id="s1")
    run = answer.parsed
    listed = api("runs.list_runs").sync(client=client, session_id="s1")
    return {
        "kind": type(run).__name__,
        "status": run.status,
        "content": run.content,
        "outcomes": {tool.tool_name: tool.tool_call_error for tool in run.tools},
        "listed": [line.run_id for line in listed] == [run.run_id],
        "header": answer.headers["andon-run-id"] == run.run_id,
    }


def in_the_background():
    answer = start("story", message="Tell me a story.", stream=False, background=True)
    run_id = answer.parsed.run_id
    found = events_of("story", run_id, 4)
    state = api("runs.get_run").sync("story", run_id, client=client)
    cancel = models.Cancel(reason="enough", wait=30)
    gone = api("runs.cancel_run").sync("story", run_id, client=client, body=cancel)
    late = api("runs.cancel_run").sync("story", run_id, client=client)
    text = api("runs.read_events").sync("story", run_id, client=client)
    return {
        "code": answer.status_code,
        "location": answer.headers["location"].endswith(f"/agents/story/runs/{run_id}"),
        "events": [type(event).__name__ for event in found],
        "said": found[1].content,
        "state": [type(state).__name__, state.status],
        "outcome": gone.outcome,
        "receipt": [type(gone.receipt).__name__, gone.receipt.cause, gone.receipt.reason, gone.receipt.by],
        "late": late.outcome,
        "text": text.count("\nevent: RunCancelled\n"),
    }


def asking():
    run = start("asks", message="Delete it.", stream=False).parsed
    (question,) = run.interrupts
    paused = events_of("asks", run.run_id)[-1]
    answers = models.ContinueAnswersType1.from_dict({question.id: True})
    body = models.Continue(answers=answers, stream=False)
    ended = api("runs.continue_run").sync("asks", run.run_id, client=client, body=body)
    return {
        "status": run.status,
        "paused": [type(paused).__name__, paused.interrupts[0].id == question.id],
        "ended": [ended.status, ended.content],
    }


def errors():
    unknown = api("runs.get_run").sync_detailed("story", "none", client=client)
    wrong = api("runs.start_run").sync_detailed("story", client=client, body=models.Start(message=" "))
    stranger = made.AuthenticatedClient(URL, "wrong", verify_ssl=False)
    refused = api("runs.list_runs").sync_detailed(client=stranger)
    told = [unknown, wrong, refused]
    return [[answer.status_code, type(answer.parsed).__name__, bool(answer.parsed.detail)] for answer in told]


def by_form():
    form = models.StartForm(message="What is the weather?", stream=False)
    return api("runs.start_run").sync("tools", client=client, body=form).status


def by_session():
    session = api("sessions.create_session").sync("tools", "ada", client=client, body=models.Create(session_id="s9"))
    message = models.InvokeNewMessage.from_dict({"role": "user", "parts": [{"text": "What is the weather?"}]})
    invoke = models.Invoke(user_id="ada", session_id="s9", new_message=message, app_name="tools")
    events = api("sessions.run_whole").sync(client=client, body=invoke)
    again = api("sessions.get_session").sync("tools", "ada", "s9", client=client)
    cancelled = api("sessions.cancel_session").sync("tools", "ada", "s9", client=client)
    return {
        "session": session.id,
        "events": len(events) > 2 and type(events[0]).__name__,
        "kept": len(again.events) > len(events),
        "cancelled": cancelled.cancelled,
    }


def ticket():
    run_id = start("tools", message="What is the weather?", stream=False).parsed.run_id
    found = api("runs.get_ticket").sync("tools", run_id, client=client)
    return httpx.get(f"{URL}{found.url}", verify=False).text.count("event: RunCompleted")


parts = [lists, plainly, in_the_background, asking, errors, by_form, by_session, ticket]
print(json.dumps({part.__name__: part() for part in parts}))
