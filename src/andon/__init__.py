# SPDX-License-Identifier: Apache-2.0
"""Andon: a runtime for AI agents whose runs can always be cancelled, leaving everything sound.

A map of the package. Imports point one way, from the bottom of this list to its top.

    errors      the error tree
    messages    provider-neutral messages and blocks, usage
    core/       runs and their cancelling: signal, step, run, journal, session, cord, receipt, runtime
    models/     one protocol (base); OpenAI's models; the scripted model for offline work
    tools/      async functions, and sync functions in threads of our own
    store/      the in-memory store, and SQLite or Postgres (an extra); the seams are core/store and core/shared
    sync        the blocking facade
    telemetry/  OpenTelemetry: spans and metrics, imported when somebody listens
    agent/      the definition (agent), THE loop (loop), the loop under telemetry (traced), settling (settle), hooks
    testing/    what you need to test your own agents: the cancel-everywhere explorer, history validators
    server/     agents over HTTP: a FastAPI app (an extra)
    cli/        the command `andon`, one file per command
    run/        two re-exports for programs written for the AgentOS family

Start with `agent/loop.py`: how an agent runs, and where a cancel lands.
"""

from andon.agent.agent import Agent
from andon.agent.hooks import AfterModel, AfterTool, BeforeModel, BeforeTool, Happening, MessageAdded, RunEnded
from andon.agent.retry import Retry
from andon.core.budget import Budget
from andon.core.events import Event, RunEvent, ToolView
from andon.core.receipt import Deny, Interrupt, Receipt, RunResult, ToolReceipt
from andon.core.run import Run
from andon.core.runtime import Runtime
from andon.core.states import CancelCause, CancelMode, CancelOutcome, Phase, RunStatus, StopReason, ToolOutcome
from andon.core.store import RunRecord, SessionKey, SessionRecord, SessionStore, Store
from andon.errors import (
    AndonError,
    AnswersError,
    AuthenticationError,
    BadArgumentsError,
    BadRequestError,
    BadResultError,
    BlockedError,
    ConfigurationError,
    ContextLengthError,
    EmptyPromptError,
    HandleError,
    HookDefinitionError,
    IllegalTransitionError,
    InsideEventLoopError,
    MissingExtraError,
    ModelConnectionError,
    ModelError,
    ModelStreamError,
    NoModelError,
    NotContinuableError,
    OutputError,
    RateLimitError,
    RunIdTakenError,
    SchemaError,
    SessionBusyError,
    SessionPausedError,
    StartError,
    StoreError,
    ThreadsExhaustedError,
    ToolBlockedError,
    ToolCancelled,
    ToolDefinitionError,
    ToolError,
    ToolInterrupted,
    ToolTimeoutError,
    UnknownRunError,
    UnknownToolError,
)
from andon.messages import Block, Message, Reasoning, Text, ToolCall, ToolResult, Usage
from andon.store.memory import MemoryStore
from andon.telemetry import Telemetry
from andon.tools.base import Tool, ToolContext
from andon.tools.function import tool

__version__ = "0.1.0"

__all__ = [
    "AfterModel",
    "AfterTool",
    "Agent",
    "AndonError",
    "AnswersError",
    "AuthenticationError",
    "BadArgumentsError",
    "BadRequestError",
    "BadResultError",
    "BeforeModel",
    "BeforeTool",
    "Block",
    "BlockedError",
    "Budget",
    "CancelCause",
    "CancelMode",
    "CancelOutcome",
    "ConfigurationError",
    "ContextLengthError",
    "Deny",
    "EmptyPromptError",
    "Event",
    "HandleError",
    "Happening",
    "HookDefinitionError",
    "IllegalTransitionError",
    "InsideEventLoopError",
    "Interrupt",
    "MemoryStore",
    "Message",
    "MessageAdded",
    "MissingExtraError",
    "ModelConnectionError",
    "ModelError",
    "ModelStreamError",
    "NoModelError",
    "NotContinuableError",
    "OutputError",
    "Phase",
    "RateLimitError",
    "Reasoning",
    "Receipt",
    "Retry",
    "Run",
    "RunEnded",
    "RunEvent",
    "RunIdTakenError",
    "RunRecord",
    "RunResult",
    "RunStatus",
    "Runtime",
    "SchemaError",
    "SessionBusyError",
    "SessionKey",
    "SessionPausedError",
    "SessionRecord",
    "SessionStore",
    "StartError",
    "StopReason",
    "Store",
    "StoreError",
    "Telemetry",
    "Text",
    "ThreadsExhaustedError",
    "Tool",
    "ToolBlockedError",
    "ToolCall",
    "ToolCancelled",
    "ToolContext",
    "ToolDefinitionError",
    "ToolError",
    "ToolInterrupted",
    "ToolOutcome",
    "ToolReceipt",
    "ToolResult",
    "ToolTimeoutError",
    "ToolView",
    "UnknownRunError",
    "UnknownToolError",
    "Usage",
    "tool",
]
