# SPDX-License-Identifier: Apache-2.0
"""A worker: an interpreter that has imported the module of a tool, and serves one call after another.

What must stay true: SIGTERM means that the call was cut. It raises `ToolCancelled` in a sync tool, wherever that is,
and cancels the task of an async one, so both can clean up for as long as the grace is. Then the worker exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn, cast

import msgspec

from andon.errors import BadResultError, ToolCancelled, ToolError, ToolInterrupted, describe
from andon.tools.base import ToolContext, ToolOutput
from andon.tools.function import FunctionTool, to_output
from andon.tools.internals import CallInternals
from andon.tools.process.command import limit
from andon.tools.process.deps import NO_DEPS, NO_STEPS
from andon.tools.process.pool import pool
from andon.tools.process.protocol import (
    DONE,
    HELPERS,
    KEEP_BYTES,
    LAST,
    READY,
    Answer,
    Call,
    Failure,
    Frames,
    Question,
    Spec,
    encode,
)
from andon.tools.process.tree import listed_children
from andon.tools.sizes import check_output, check_questions, cut_short

MAIN = "__andon_main__"
"""The name under which a script is imported that the host runs as `__main__`."""

WHILE_IMPORTED = """was imported for a call in a process, and started another one: put what runs agents under
`if __name__ == "__main__":`"""

CUT = 128 + signal.SIGTERM


def serve(spec: Spec, line: socket.socket) -> NoReturn:
    """All that a worker does."""
    try:
        _settle_in(spec)
        pool.refusal = f"{os.fsdecode(spec.main) or spec.module} {WHILE_IMPORTED}"
        module = _load(spec)
        pool.refusal = None
    except BaseException as error:  # noqa: BLE001 - the boundary: the host raises it
        line.sendall(encode(READY, _failure_of(error)))
        os._exit(1)
    helpers = listed_children(os.getpid()) + listed_children(os.getppid())
    line.sendall(encode(HELPERS, helpers) + encode(READY, None))
    worker, surroundings = Worker(module), Surroundings()
    frames = Frames()
    while data := line.recv(256 * 1024):
        for _, body in frames.feed(data):
            # A tool may have forked, and have returned in the child too: only one of them answers.
            pid = os.getpid()
            answer = worker.answer(msgspec.json.decode(body, type=Call))
            if os.getpid() != pid:
                os._exit(0)
            # More threads than this one would go on during the next call. And limits of time count from the start.
            again = threading.active_count() == 1 and spec.limits.cpu is None and not _ran_out(answer)
            again = again and surroundings.restore()
            _flush()
            line.sendall(encode(DONE if again else LAST, answer))
    os._exit(0)


def _settle_in(spec: Spec) -> None:
    """Be where the host is, as far as a tool can notice."""
    os.environ.clear()
    os.environb.update(spec.environment)
    os.chdir(os.fsdecode(spec.cwd))
    sys.path[:] = map(os.fsdecode, spec.path)
    sys.argv[:] = map(os.fsdecode, spec.arguments)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            cast(Any, stream).reconfigure(line_buffering=True, write_through=False)
    limit(spec.limits)


def _load(spec: Spec) -> types.ModuleType:
    """Import the module of the tools."""
    if not spec.main:
        return importlib.import_module(spec.module)
    module = types.ModuleType(MAIN)
    if spec.main_is_file:
        names = runpy.run_path(os.fsdecode(spec.main), run_name=MAIN)
    else:
        names = runpy.run_module(os.fsdecode(spec.main), run_name=MAIN, alter_sys=True)
    module.__dict__.update(names)
    sys.modules["__main__"] = sys.modules[MAIN] = module
    return module


class CallScope:
    """What the call's context needs of the call, in this process."""

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        self.cancelled = self.watches_cancel = False
        self._callbacks: dict[object, Callable[[], object]] = {}

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], object]:
        key = object()
        self._callbacks[key] = callback
        return lambda: self._callbacks.pop(key, None)

    def on_undo(self, step: Callable[[], object]) -> NoReturn:
        raise ToolError(NO_STEPS)

    def cut(self) -> None:
        """SIGTERM came."""
        self.cancelled = True
        for callback in list(self._callbacks.values()):
            try:
                callback()
            except Exception:  # noqa: BLE001 - the boundary: it is printed, with what else the tool prints
                traceback.print_exc()


class Worker:
    """Calls the functions of a module."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module
        self._tools: dict[tuple[str, str], FunctionTool[..., Any]] = {}

    def answer(self, call: Call) -> Answer:
        """Do the call. Ends this process if the call is cut."""
        scope = CallScope(call.call_id)
        try:
            try:
                tool = self._find(call.function, call.name)
                arguments = tool.with_context(tool.bind(call.arguments), _context_of(call, scope))
                result = _call(tool, arguments, scope)
                returned = to_output(tool.name, result)
                output = ToolOutput(returned) if isinstance(returned, str) else returned
                check_output(tool.name, output, call.max_result, call.max_attachments)
            finally:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        except ToolInterrupted as asked:
            question = asked.questions[0]
            try:
                check_questions(call.name, [question], call.max_result)
            except BadResultError as error:
                return Answer(failure=_failure_of(error, call.max_result))
            return Answer(question=Question(question.name, question.payload))
        except BaseException as error:  # noqa: BLE001 - the boundary: the host raises it
            if scope.cancelled:
                _end()
            return Answer(failure=_failure_of(error, call.max_result))
        if scope.cancelled:
            _end()
        return Answer(output)

    def _find(self, function: str, name: str) -> FunctionTool[..., Any]:
        key = function, name
        if key not in self._tools:
            found: Any = self._module
            for part in function.split("."):
                found = getattr(found, part)
            found = found.__wrapped__ if isinstance(found, FunctionTool) else found
            self._tools[key] = FunctionTool(found, name=name)
        return self._tools[key]


def _call(tool: FunctionTool[..., Any], arguments: dict[str, Any], scope: CallScope) -> object:
    def cut(*_: object) -> None:
        if not scope.cancelled:  # once is enough: it may be cleaning up
            scope.cut()
            raise ToolCancelled

    if not tool.is_async:
        signal.signal(signal.SIGTERM, cut)
        return tool.function(**arguments)

    async def run() -> object:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cut() -> None:
            if not scope.cancelled:
                scope.cut()
                task.cancel()

        loop.add_signal_handler(signal.SIGTERM, cut)
        return await tool.function(**arguments)

    return asyncio.run(run())


def _context_of(call: Call, scope: CallScope) -> ToolContext:
    return ToolContext(
        CallInternals(cast(Any, scope), call.answers),
        run_id=call.run_id,
        session_id=call.session_id,
        user_id=call.user_id,
        deadline=call.deadline,
        metadata=call.metadata,
        deps=NO_DEPS,
    )


def _failure_of(error: BaseException, limit: int = KEEP_BYTES) -> Failure:
    kind, text = type(error).__name__, cut_short(describe(error), limit)
    written = "".join(traceback.format_exception(error)).encode("utf-8", "replace").decode()
    return Failure(kind, text.removeprefix(kind).removeprefix(": "), text, cut_short(written, limit))


class Surroundings:
    """What a call can change, and the next one would find: the folder, the variables, the umask, a timer's signal."""

    def __init__(self) -> None:
        self._cwd, self._environment = os.getcwdb(), dict(os.environb)
        self._umask = os.umask(0o077)
        os.umask(self._umask)

    def restore(self) -> bool:
        """False if that can't be done."""
        if dict(os.environb) != self._environment:
            os.environ.clear()
            os.environb.update(self._environment)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        os.umask(self._umask)
        try:
            os.chdir(self._cwd)
        except OSError:  # it is gone
            return False
        return True


def _ran_out(answer: Answer) -> bool:
    return answer.failure is not None and answer.failure.kind == "MemoryError"


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _end() -> NoReturn:
    _flush()
    os._exit(CUT)
