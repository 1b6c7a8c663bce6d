# SPDX-License-Identifier: Apache-2.0
"""Every error of the package survives pickling and copying: it may be raised in one process and caught in another."""

from __future__ import annotations

import concurrent.futures
import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest

import andon
from andon import Agent, errors
from andon.cli.command_error import Exit
from andon.core.receipt import Interrupt
from andon.errors import AndonError, MissingExtraError, SessionBusyError
from andon.models.scripted import ScriptedModel, Stall
from tests.support import HANG

ASKED = [Interrupt("d-1", "delete", {"name": "all"}, call_id="d", approval=True)]
SAMPLES: dict[str, Any] = {
    "abandoned": True,
    "after": "; and so on",
    "before": "what happened",
    "body": {"detail": "no"},
    "code": "slow_down",
    "detail": "what happened",
    "details": "where it happened",
    "error": {"message": "what happened"},
    "headers": {"retry-after": "1"},
    "index": 3,
    "interrupts": ASKED,
    "is_cut": True,
    "message": "what happened",
    "more": {"run_id": "r"},
    "number": 15,
    "param": "input[0]",
    "questions": ASKED,
    "quoted": b"<html>",
    "request_id": "req_1",
    "retry_after": 1.5,
    "retryable": True,
    "run_id": "r",
    "status": 429,
    "text": "what happened",
    "type": "rate_limit_error",
}
"""A value for each parameter of an error's constructor, by name; none of them is a default."""


def all_errors() -> list[type[BaseException]]:
    """Every exception class that is defined in the package, wherever."""
    found = set()
    for module in pkgutil.walk_packages(andon.__path__, "andon."):
        if not module.name.endswith("__main__"):
            found |= {each for each in vars(importlib.import_module(module.name)).values() if _is_ours(each)}
    return sorted(found, key=lambda kind: (kind.__module__, kind.__qualname__))


def _is_ours(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, BaseException) and thing.__module__.startswith("andon.")


def sample(kind: type[BaseException]) -> BaseException:
    """One of them, with something in each of its attributes."""
    args: list[Any] = []
    named: dict[str, Any] = {}
    _, *parameters = inspect.signature(kind.__init__).parameters.values()
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            args.append("what happened")
        elif parameter.kind is parameter.VAR_KEYWORD:
            named |= SAMPLES.get(parameter.name, {})
        else:
            assert parameter.name in SAMPLES, f"{kind.__name__} takes {parameter.name}: add a value for it to SAMPLES"
            value = _code_of(parameter) if parameter.name == "code" else SAMPLES[parameter.name]
            if parameter.kind is parameter.KEYWORD_ONLY:
                named[parameter.name] = value
            else:
                args.append(value)
    error = kind(*args, **named)
    error.add_note("and where")
    return error


def _code_of(parameter: inspect.Parameter) -> object:
    if parameter.annotation == "int":
        return 429
    return Exit.unreachable if "Exit" in str(parameter.annotation) else SAMPLES["code"]


def seen(error: BaseException) -> dict[str, Any]:
    """All that can be seen of an error."""
    names = [name for name in dir(error) if name in ("__notes__", "__dict__") or not name.startswith("__")]
    facts = {name: getattr(error, name) for name in names if not callable(getattr(error, name))}
    return {**facts, "type": type(error), "str": str(error), "repr": repr(error)}


def _pickled(protocol: int) -> Callable[[BaseException], Any]:
    return lambda error: pickle.loads(pickle.dumps(error, protocol))


WAYS: dict[str, Callable[[BaseException], Any]] = {
    **{f"pickle {protocol}": _pickled(protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_error_survives(way: str) -> None:
    kinds = all_errors()
    assert {each for each in vars(errors).values() if _is_ours(each)} < set(kinds)
    for kind in kinds:
        error = sample(kind)
        assert seen(WAYS[way](error)) == seen(error), kind


@pytest.mark.parametrize("way", WAYS)
def test_what_python_keeps_of_an_import_error_survives_too(way: str) -> None:
    error = MissingExtraError("pip install it", name="openai", path="/somewhere")
    found = WAYS[way](error)
    assert (found.msg, found.name, found.path) == ("pip install it", "openai", "/somewhere")


class OwnError(AndonError):
    """As a user may write one."""

    def __init__(self, *, shop: str) -> None:
        super().__init__(f"the shop {shop} is closed")
        self.shop = shop


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_a_users_own_survives(way: str) -> None:
    error = OwnError(shop="tea")
    assert seen(WAYS[way](error)) == seen(error)


def busy() -> None:
    """What a worker process does: a session that is busy refuses the second run."""
    agent = Agent("Busy", ScriptedModel(then=["Half a ", Stall()]))
    with_first = agent.run("one", stream=True)
    next(with_first)
    try:
        agent.run("two")
    finally:
        with_first.close()


def test_an_error_in_a_worker_process_does_not_break_the_pool() -> None:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        with pytest.raises(SessionBusyError, match="is busy") as caught:
            pool.submit(busy).result(HANG)
        assert caught.value.run_id
        assert caught.value.run_id in str(caught.value)
        assert pool.submit(len, "abc").result(HANG) == 3
