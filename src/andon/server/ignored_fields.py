# SPDX-License-Identifier: Apache-2.0
"""Fields that clients of other frameworks send, and that the server ignores.

Every other unknown field is refused. So a field is listed here only if a common client sends it by default, and if
ignoring it surprises no user: media, for example, are not listed.
"""

from __future__ import annotations

AGENTOS_START = frozenset(
    {
        "add_dependencies_to_context",
        "add_history_to_context",
        "add_session_state_to_context",
        "dependencies",
        "factory_input",
        "files_metadata",
        "knowledge_filters",
        "retries",
        "session_state",
        "stream_events",
        "version",
    }
)
AGENTOS_CONTINUE = frozenset({"input", "session_id", "user_id"})
AGENTOS_RESUME = frozenset({"session_id", "user_id"})
AGENTOS_CANCEL = frozenset({"session_id"})
"""In the query, beside the run's id."""
ADK_RUN = frozenset({"service_tier"})
ADK_LIVE = frozenset(
    {
        "enable_affective_dialog",
        "enable_session_resumption",
        "explicit_vad_signal",
        "modalities",
        "proactive_audio",
        "save_live_blob",
    }
)
"""These concern audio only."""
ADK_LIVE_MESSAGE = frozenset({"activity_end", "activity_start", "audio_stream_end"})
"""These too, in the messages of a live connection."""
IGNORED_QUERY = {"get_run": frozenset({"session_id"}), "list_apps": frozenset({"relative_path"})}
"""In the query, by route: AgentOS's clients send the session of a run, and ADK's web page sends a folder."""
