# SPDX-License-Identifier: Apache-2.0
"""What holds for every test: in CI (the variable CI is set) none is skipped, because a skipped test proves nothing."""

import contextlib
import functools
import gc
import os
import signal
import sys
import threading
from collections.abc import Generator

import coverage
import hypothesis
import pytest

from andon.core.portal import portal
from tests.support import HANG, eventually, loops

MEASURE_PROGRAMS = "COVERAGE_PROCESS_CONFIG"
"""Where coverage says to the programs that are started how they are to be measured."""

MANY_MODULES = 200
"""After so many new modules, each collection of garbage takes longer than before. The providers have 4,000 in all."""

MANY_TESTS = 20
"""After so many tests it takes longer, too: of each one, pytest keeps some hundred objects."""


def pytest_configure() -> None:
    """A shell ignores interrupts for what it runs in the background, and so would we and every program we start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    loops.install()
    # How long an example takes says nothing on a busy machine. All else is as Hypothesis has chosen it, for CI or not.
    hypothesis.settings.register_profile("andon", parent=hypothesis.settings(), deadline=None)
    hypothesis.settings.load_profile("andon")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if unsuited := loops.leave_out(items):
        config.hook.pytest_deselected(items=unsuited)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Programs that tests start are measured by themselves; the workers are not, pytest-cov does that."""
    os.environ.pop(MEASURE_PROGRAMS, None)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """In a worker, pytest-cov measures twice, as if it were the main process too, and `no_cover` ends only one of them.

    The other one, which nobody ever reads, would trace what asks not to be traced: more than half of its time.
    """
    unread = coverage.Coverage.current() if hasattr(session.config, "workerinput") else None
    if unread is not None:
        unread.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What is not to be traced starts programs that are not traced either.

    And Python takes the tracer away when there is no room left on the stack for it: then it is put back here, because
    what comes after such a test is to be measured too.
    """
    config = os.environ.pop(MEASURE_PROGRAMS, None) if item.get_closest_marker("no_cover") else None
    tracer = sys.gettrace()
    try:
        return (yield)
    finally:
        if sys.gettrace() is None:
            sys.settrace(tracer)
        if config is not None:
            os.environ[MEASURE_PROGRAMS] = config


def _has_started(thread: threading.Thread) -> bool:
    return thread.ident is not None


@pytest.fixture(autouse=True)
def _no_store_is_left_open() -> Generator[None]:
    """The test that forgets to close a store is the one that fails, not one that counts threads afterwards."""
    with no_store_left_open():
        yield


@contextlib.contextmanager
def no_store_left_open() -> Generator[None]:
    """At the end of the block, no store is open that was opened in it."""
    before = set(threading.enumerate())
    yield
    if left := [each for each in threading.enumerate() if each.name.startswith("andon-store") and each not in before]:
        gc.collect()  # a store that nobody has any more closes itself
        for thread in left:
            eventually(functools.partial(_has_started, thread))  # another thread may be about to start it
            thread.join(HANG)
            assert not thread.is_alive(), f"a store was not closed: {thread.name} is still there"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tests collect garbage by the thousand; what is there before the first of them need not be looked at each time.

    The thread of blocking calls is started here, where it is traced. If the first test that needs it were one that asks
    not to be traced, nothing that runs in that thread would be measured in any later test.
    """
    if hasattr(session.config, "workerinput"):
        portal.submit(_nothing).result(HANG)
    _frozen.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """What is there after a test need not be looked at later: a large package, such as a provider's SDK, which the test
    was the first to import, and what pytest keeps of many tests.
    """
    result = yield
    _frozen.tests += 1
    if _frozen.tests >= MANY_TESTS or len(sys.modules) >= _frozen.modules + MANY_MODULES:
        _frozen.freeze()
    return result


class _Frozen:
    """What the collector of garbage does not look at any more: all that was there when there were so many modules, and
    so many tests ago.
    """

    modules = 0
    tests = 0

    def freeze(self) -> None:
        gc.collect()
        gc.freeze()
        self.modules, self.tests = len(sys.modules), 0


_frozen = _Frozen()


async def _nothing() -> None:
    pass


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    expected_to_fail = hasattr(report, "wasxfail")  # pytest reports it as skipped, but it did run
    if os.environ.get("CI") and report.skipped and not expected_to_fail:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"no test may be skipped in CI: {why}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report
