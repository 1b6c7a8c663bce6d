# SPDX-License-Identifier: Apache-2.0
"""The names that programs written for the AgentOS family import: `run.agent.RunEvent` and `run.base.RunStatus`."""
