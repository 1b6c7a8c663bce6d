# SPDX-License-Identifier: Apache-2.0
"""Fields that other frameworks' clients are known to send, and that change nothing here.

Every other field that is not known is refused. So a field stands here only if a client that people use sends it by
itself, and if to pass it over is no surprise: media, for one, are not here.
"""

from __future__ import annotations

AGENTOS_START = frozenset(
    {
        "add_dependencies_to_context",
        "add_history_to_context",
        "add_session_state_to_context",
        "dependencies",
        "factory_input",
        "files",
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
"""These have a meaning for sound alone."""
ADK_LIVE_MESSAGE = frozenset({"activity_end", "activity_start", "audio_stream_end"})
"""So have these, in the messages of a live connection."""
IGNORED_QUERY = {"get_run": frozenset({"session_id"}), "list_apps": frozenset({"relative_path"})}
"""In the query, by the route: AgentOS's clients name the session of a run, and ADK's own page a folder."""
