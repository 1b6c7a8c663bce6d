# SPDX-License-Identifier: Apache-2.0
"""Prints a run at the terminal: its text on stdout as it comes, the rest dimmed on stderr; or each event as JSON.

So `andon run … > file` writes only the answer into the file.
"""

from __future__ import annotations

import sys

from andon.cli.command_error import Exit
from andon.cli.report import Report, to_json
from andon.cli.terminal import is_terminal, note, one_line, receipt_of, styled, usage_of, width_of, without_controls
from andon.core.events import Event, RunEvent
from andon.core.states import RunStatus

CTRL_C = "Ctrl-C"
"""The reason of a cancel by Ctrl-C."""

_LONGEST = 200
"""How many characters of arguments and results are shown if the width of the terminal is unknown."""


class EventPrinter:
    """Prints one run, from its first event to its end."""

    def __init__(self, *, as_json: bool, quiet: bool, owner: bool) -> None:
        self.as_json, self.quiet = as_json, quiet
        self._owner = owner
        """Whether Ctrl-C cancels the run."""
        self._to_terminal = is_terminal(sys.stdout)
        self._same_screen = self._to_terminal and is_terminal(sys.stderr)  # both are the same screen
        self._mid_line = False  # in the middle of a line of text
        self._thinking = False
        self._printed_any = False

    def print_event(self, event: Event, run_id: str) -> None:
        """Print one event of the run, or of a sub-agent."""
        self._printed_any = True
        if self.as_json:
            print(to_json(event), flush=True)
            return
        own = event.run_id == run_id
        if event.event is RunEvent.run_content:
            if own:
                self._text(event.content)
            return
        if self.quiet:
            return
        told = self._words(event, own)
        if told is not None:
            self._note(told if own else f"  {event.agent_id}: {told}")

    def _text(self, text: str) -> None:
        self._thinking = False
        sys.stdout.write(without_controls(text) if self._to_terminal else text)
        sys.stdout.flush()
        if text:
            self._mid_line = not text.endswith("\n")

    def _note(self, text: str) -> None:
        self._start_line()
        room = width_of(sys.stderr)
        note(cut(text, _LONGEST if room is None else room - 1))

    def _start_line(self) -> None:
        """If stdout and stderr are the same screen, begin a new line."""
        if self._same_screen:
            self.end_line()

    def end_line(self) -> None:
        """End a line of text that has no line break yet."""
        if self._mid_line:
            print(flush=True)
            self._mid_line = False

    def _words(self, event: Event, own: bool) -> str | None:
        kind, tool = event.event, event.tool
        if kind is RunEvent.reasoning:
            first, self._thinking = not self._thinking, True
            return "· thinking" if first and own else None
        self._thinking = False
        if tool is not None:
            if kind is RunEvent.tool_call_started:
                return f"→ {tool.name} {to_json(tool.arguments)}"
            if kind is RunEvent.tool_undo_started:
                return f"↶ {tool.name}: undoing it"
            if (progress := event.progress) is not None:
                of = "" if progress.total is None else f" of {progress.total:g}"
                return f"· {tool.name} {progress.progress:g}{of} {one_line(progress.message or '')}".rstrip()
            how = "" if kind is RunEvent.tool_call_completed else f" {tool.outcome or 'failed'}:"
            return f"← {tool.name}{how} {one_line(tool.result or '')}"
        if kind is RunEvent.tool_output:
            return f"  {one_line(event.content)}"
        if kind is RunEvent.run_started:
            return f"· run {event.run_id} of {event.agent_id}, session {event.session_id}" if own else "began"
        if kind is RunEvent.cancel_requested:
            hint = "; another Ctrl-C leaves at once" if self._owner and event.reason == CTRL_C else ""
            return f"· cancelling{_because(event.reason)}{hint}"
        if kind is RunEvent.model_retry:
            return f"· the model failed ({one_line(event.error or '')}); trying again in {event.delay or 0:.1f} s"
        if kind is RunEvent.context_reduced and (context := event.context) is not None:
            return f"· {context.messages_after} of {context.messages_before} messages are sent: the rest is too long"
        if kind is RunEvent.run_paused:
            return "· paused" if own else None
        if kind is RunEvent.run_continued:
            return "· going on" if own else None
        return None if own else str(event.status.name if event.status else kind)

    def print_end(self, report: Report) -> Exit:
        """Print how the run ended, and return the exit code."""
        if self.as_json:
            print(to_json({"result": report}), flush=True)
            return Exit.of(report.status)
        if not self._printed_any:  # its events are no longer kept
            self._text(report.content)
        self.end_line()
        for warning in report.warnings:
            note(f"andon: {one_line(warning)}", "yellow")
        if report.status is RunStatus.error:
            note(f"andon: the run failed: {one_line(report.error or 'nothing is known of why')}", "red")
        elif report.receipt is not None:
            print(styled("cancelled", "yellow", sys.stderr), file=sys.stderr)
            print(receipt_of(report.receipt, sys.stderr), file=sys.stderr, flush=True)
        elif report.status is RunStatus.completed and report.usage is not None and not self.quiet:
            note(f"· {report.status.name}, {usage_of(report.usage)}")
        return Exit.of(report.status)


def _because(reason: str | None) -> str:
    return f" ({one_line(reason)})" if reason else ""


def cut(text: str, width: int) -> str:
    text = one_line(text)
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"
