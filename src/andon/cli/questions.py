# SPDX-License-Identifier: Apache-2.0
"""The questions of a run to a person: asked at the terminal, or answered by options.

If a question is not answered, the run stays paused, and the exit code says so.
"""

from __future__ import annotations

import json
import select
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from andon.cli.command_error import CommandError, Exit
from andon.cli.report import Report, to_json
from andon.cli.terminal import is_terminal, note, one_line, styled, without_controls
from andon.core.receipt import Deny, Interrupt

Answers = dict[str, Any]


class QuestionsAborted(Exception):  # noqa: N818 - it is no error
    """There will be no answer: a signal ends this command."""


def can_ask(as_json: bool, no_input: bool) -> bool:
    """Whether a person can be asked: at a terminal, and not with --json or --no-input."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr) and not as_json and not no_input


def ask(interrupts: Sequence[Interrupt], left: int | None = None) -> Answers | None:
    """The person's answers, one for each question; None at the end of the input (Ctrl-D).

    As soon as the file descriptor `left` is readable, it raises `QuestionsAborted`. A signal handler can't do that
    reliably: a signal right before the read of the terminal would have no effect until the next line.
    """
    answers: Answers = {}
    for interrupt in interrupts:
        answer = _approval(interrupt, left) if interrupt.approval else _other(interrupt, left)
        if answer is None:
            return None
        answers[interrupt.id] = answer[0]
    return answers


def _approval(interrupt: Interrupt, left: int | None) -> tuple[Any] | None:
    _show(f"{interrupt.name} wants to run", interrupt.payload)
    line = _read("Allow it? [y/N, or n and why] ", left)
    if line is None:
        return None
    word, _, why = line.strip().partition(" ")
    if word.lower() in ("y", "yes"):
        return (True,)
    if word.lower() in ("n", "no", ""):
        return (Deny(why.strip()) if why.strip() else False,)
    return (Deny(line.strip()),)  # anything but yes is a refusal, with the text as the reason


def _other(interrupt: Interrupt, left: int | None) -> tuple[Any] | None:
    _show(interrupt.name, interrupt.payload)
    while (line := _read("Answer (text, or JSON): ", left)) is not None:
        if line.strip():
            return (value_of(line.strip()),)
    return None


def _show(name: str, payload: Any) -> None:
    what = "" if payload in (None, {}) else f": {without_controls(to_json(payload))}"
    print(f"{styled(one_line(name), 'bold', sys.stderr)}{what}", file=sys.stderr)


def _read(prompt: str, left: int | None) -> str | None:
    print(styled(prompt, "cyan", sys.stderr), end="", file=sys.stderr, flush=True)
    if left is not None and left in select.select([sys.stdin, left], [], [])[0]:
        print(file=sys.stderr)
        raise QuestionsAborted
    line = sys.stdin.readline()
    if not line:
        print(file=sys.stderr)
        return None
    return line


def value_of(text: str) -> Any:
    """The text as JSON if it is JSON, otherwise as it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def answers_from_options(answers: Sequence[str], denials: Sequence[str], interrupts: Sequence[Interrupt]) -> Answers:
    """The answers in `--answer ID=VALUE` and `--deny ID[=why]`. Continuing the run checks the ids."""
    found: Answers = {}
    for each in answers:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise CommandError(f"--answer {each!r} is not ID=VALUE; the questions are: {_list(interrupts)}")
        found[key] = value_of(value)
    for each in denials:
        key, _, why = each.partition("=")
        found[key] = Deny(why) if why else False
    return found


def explain_pause(report: Report, how: str | None) -> Exit:
    """Print the open questions, and the command to continue."""
    for interrupt in report.interrupts:
        kind = "wants to run" if interrupt.approval else "asks"
        note(f"andon: {one_line(interrupt.name)} {kind}: {one_line(to_json(interrupt.payload))}", "yellow")
    if how is None:
        note("andon: the run was kept in memory and ends here; with --db it could go on later", "yellow")
        return Exit.paused
    answers = " ".join(
        f"--answer {shlex.quote(each.id + '=' + ('true' if each.approval else 'VALUE'))}" for each in report.interrupts
    )
    note(f"andon: it is paused; to go on: andon continue {shlex.quote(report.run_id)} {how}{answers}", "yellow")
    return Exit.paused


def _list(interrupts: Sequence[Interrupt]) -> str:
    return ", ".join(f"{each.id} ({each.name})" for each in interrupts) or "none"


def answers_to_json(answers: Answers) -> Answers:
    """The answers in the JSON of the server."""
    return {key: {"deny": value.reason} if isinstance(value, Deny) else value for key, value in answers.items()}
