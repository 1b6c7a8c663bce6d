# SPDX-License-Identifier: Apache-2.0
"""An agent that was used before a fork, by `os.fork` and by multiprocessing, works in the child and in the parent."""

import asyncio
import multiprocessing
import os
import threading
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor

from andon import Agent, RunResult
from andon.models.scripted import ScriptedModel, Stall

# Python warns of every fork of a process that has threads, since 3.12; the portal is one.
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)

agent = Agent("Forked", ScriptedModel("First.", ["Once ", Stall()], then="OK."))
context = multiprocessing.get_context("fork")


def work(prompt: str) -> tuple[list[str], RunResult]:
    """All that an agent does: a run that is cancelled from another thread, and one that is not, blocking and async."""
    stream = agent.run(prompt, stream=True)
    for event in stream:
        if event.content == "Once ":
            canceller = threading.Thread(target=agent.cancel_run, args=(event.run_id,))
            canceller.start()
            canceller.join()
    assert event.status is not None
    last = asyncio.run(agent.invoke_async("async"))
    return [event.status.name, agent.run("blocking").content, last.content], last


agent.run("go")

pid = os.fork()
if pid == 0:
    code = 1
    try:
        assert work("in the child")[0] == ["cancelled", "OK.", "OK."]
        code = 0
    except BaseException:  # noqa: BLE001 - reported
        traceback.print_exc()  # `os._exit` would not
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

with ProcessPoolExecutor(1, mp_context=context) as pool:
    said, result = pool.submit(work, "in a pool").result()
assert said == ["cancelled", "OK.", "OK."]
assert result.status.name == "completed"

# Nothing that a child did is the parent's: its conversation, its model's script.
assert len(agent.messages) == 2
assert work("in the parent")[0] == ["cancelled", "OK.", "OK."]
print("fine")
