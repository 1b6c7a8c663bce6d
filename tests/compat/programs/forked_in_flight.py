# SPDX-License-Identifier: Apache-2.0
"""A fork while a run is in flight: the run is the parent's. The child does not know it, and its session is free."""

import os
import threading
import traceback
import warnings

from andon import Agent, CancelOutcome
from andon.models.scripted import ScriptedModel, Stall

# Python warns of every fork of a process that has threads, since 3.12; the portal is one.
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)

agent = Agent("Forked", ScriptedModel(["Once ", Stall()], then="OK."))
said = threading.Event()


def read() -> None:
    for event in agent.run("go", stream=True, run_id="r"):
        if event.content == "Once ":
            said.set()


reader = threading.Thread(target=read, daemon=True)  # a failure below must not wait for it
reader.start()
said.wait()

pid = os.fork()
if pid == 0:
    code = 1
    try:
        assert agent.runtime.live == 0
        assert agent.runtime.runs == []
        assert agent.cancel_run("r") is CancelOutcome.unknown
        for prompt in ("one", "two"):
            assert agent.run(prompt, timeout=30).status.name == "completed"
        assert agent.run("three", timeout=30, on_busy="cancel").status.name == "completed"
        assert agent.cancel() is CancelOutcome.already_finished  # of the child's own runs
        code = 0
    except BaseException:  # noqa: BLE001 - reported
        traceback.print_exc()  # `os._exit` would not
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

run = agent.runtime.run("r")
assert run is not None
assert run.status.name == "running"
assert agent.cancel() is CancelOutcome.requested
reader.join()
assert run.status.name == "cancelled"
assert agent.run("go on").content == "OK."
print("fine")
