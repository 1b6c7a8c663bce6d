# SPDX-License-Identifier: Apache-2.0
"""docs/peers.md, made of docs/peers.json alone: a test compares the two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers import better, http_tables, tables
from bench.peers.environments import SYSTEMS
from bench.peers.record import ROOT, Records
from bench.peers.scripts import FAST

PAGE = ROOT / "docs" / "peers.md"
Json = dict[str, Any]

HEAD = """\
# Andon beside six other frameworks

`make bench-peers` makes this page and its plots. It installs the newest release of each framework into a virtual
environment of its own, and measures what is not in `docs/peers.json` yet with that version: a run that was broken off
goes on where it was. `python -m bench.peers agno --part situation --again` measures a part of one system anew.

Each system has one short file in `bench/peers/systems/`: its official cancel, its default settings, nothing tuned. If
you know one of these systems better than that file does, please correct it. What they send to their makers is switched
off (`bench/peers/environments.py`), because the measurement makes no traffic to other machines.

"""

METHOD = f"""\
## Method

Each system runs in a process of its own, with tools that are the same plain functions. So does the provider: a [strict
fake](testing.md#fakes-of-providers) of OpenAI's Chat Completions, or of Anthropic's Messages, which rejects what the
real one rejects. It also tells when a connection was closed and what was sent after a moment. A cancel is timed from
the moment at which a thread of the process reads the command. It is called in the event loop, as a web handler would,
and waits for it if the loop is blocked. Each situation is tried three times, each time in a new conversation; a cell is
the median. What is **bold** is longer than a second, or is lost, late or unsaid.

In each situation the same conversation is prompted again at once, and the provider's record of that request says what
was kept. Throughput: {FAST:,} tokens as fast as the provider sends them. CPU and memory are those of the whole process.
The import is that of the system's file in `bench/peers/systems/` with all that it needs. Distributions are what the
library needs for OpenAI, itself included.

"""


def page_of(records: Records) -> str:
    names = [system.name for system in SYSTEMS]
    parts = [HEAD, *_systems(records, names), METHOD, *_in_process(records, names), *_over_http(records)]
    return "".join([*parts, "## Where another one is better\n\n", BETTER, better.lines(records, names)])


def _systems(records: Records, names: Sequence[str]) -> list[str]:
    rows, machines = [], set()
    for name in names:
        record = next((each for part, system, _, each in records.all() if (part, system) == ("system", name)), None)
        if record is None:
            rows.append([name, "–", "–", "not measured"])
        elif failure := record["values"].get("failure"):
            rows.append([name, "–", record["date"], f"could not be installed: {failure}"])
        else:
            cancel = next(system for system in SYSTEMS if system.name == name).cancel
            rows.append([name, record["version"], _dates(records, name), cancel])
            machines.add(record["machine"])
    machine = "; ".join(sorted(machines))
    return [tables.table(["system", "version", "measured", "its cancel"], rows), f"\nMachine: {machine}.\n\n"]


def _dates(records: Records, name: str) -> str:
    dates = sorted({record["date"] for _, system, _, record in records.all() if system == name})
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def plot(name: str, alternative: str) -> str:
    return (
        f'<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="img/{name}-dark.svg">\n'
        f'  <img src="img/{name}-light.svg" alt="{alternative}">\n</picture>\n\n'
    )


def _in_process(records: Records, names: Sequence[str]) -> list[str]:
    return [
        "## Seconds from the cancel to the end of the run\n\n",
        plot("peers-latency", "Cancel latency by situation, one mark for each system"),
        tables.latencies(records, names),
        "\nopenai-agents has no model of its own for Anthropic.\n",
        "\n## What is left behind\n\n",
        tables.aspects(records, names),
        ASPECTS_NOTE,
        "\n## Cancels at random moments\n\n",
        RANDOM,
        tables.randoms(records, names),
        "\n## Cost\n\n",
        plot("peers-throughput", "Tokens per second against memory, one mark for each system"),
        tables.costs(records, names),
    ]


ASPECTS_NOTE = """
Reported output tokens: the run had got about fourteen words when it was cancelled. openai-agents reports none for a
streamed run over Chat Completions by default, also if it is not cancelled.
"""

RANDOM = """\
The run says twenty words, calls two tools at once, and says twenty words more. It is cancelled at a moment that is
drawn evenly from its normal length, the same share of it for each system, and the conversation is prompted again. A
tool call or a token counts as late if it began, or was sent by the provider, after the call of the cancel had returned;
the provider needs a moment to learn that the connection is closed. A run that had only its last event to tell when the
cancel came may go on to its normal end. openai-agents ends a cancelled run without a word, but its `final_output` is
None then; who looks there can tell it from a success.

"""

HTTP = """\

## Over HTTP

The frameworks' own servers, started by their own commands (`bench/peers/servers/`), each with one process; clients on
bare sockets in another one. The other frameworks have no server of their own in their library. Each row of tokens is
10,000 of them: one run, or ten runs of 1,000 at once.

"""

BETTER = """\
Found in these figures by a rule (`bench/peers/better.py`): better by a tenth, and a time by half a millisecond.

"""


def _over_http(records: Records) -> list[str]:
    return [
        HTTP,
        http_tables.speeds(records),
        "\n### The cancel route\n\n",
        http_tables.routes(records),
        "\n### Clients that leave, and other processes\n\n",
        http_tables.others(records),
        "\n",
    ]


def write(records: Records, path: Path = PAGE) -> None:
    path.write_text(page_of(records), "utf-8")
