# SPDX-License-Identifier: Apache-2.0
"""Processes that start afresh: each imports this module, and makes the agent of its own."""

import multiprocessing
import sys
import threading
from concurrent.futures import ProcessPoolExecutor

from andon import Agent, RunResult
from andon.models.scripted import ScriptedModel, Stall

agent = Agent("Spawned", ScriptedModel(["Once ", Stall()], then="OK."))


def work(prompt: str) -> list[RunResult]:
    """A run that is cancelled from another thread, and one that is not."""
    for event in agent.run(prompt, stream=True, run_id="r"):
        if event.content == "Once ":
            canceller = threading.Thread(target=agent.cancel_run, args=(event.run_id,))
            canceller.start()
            canceller.join()
    return [agent.run("again")]


def main(method: str) -> None:
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        results = pool.submit(work, "in a pool").result()
    assert [result.content for result in results] == ["OK."]
    assert len(results[0].messages) == 4  # what was cut, and what came after: a result survives the way back
    assert work("in the parent")[0].content == "OK."
    print("fine")


if __name__ == "__main__":
    main(sys.argv[1])
