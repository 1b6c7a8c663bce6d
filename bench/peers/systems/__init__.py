# SPDX-License-Identifier: Apache-2.0
"""One file for each system that is measured, run by the Python of that system's environment.

Each has `CANCEL`, the name of its official cancel, `CHILD_CALL`, the tool call with which its model calls a child
agent, and `Conversation`: `begin` a run, `cancel` it, wait for its `end`, which says how the caller is told of it
(`completed`, `cancelled`, `failed`, or `unsaid`) and by what, and `usage`, its output tokens. All settings are the
defaults.
"""
