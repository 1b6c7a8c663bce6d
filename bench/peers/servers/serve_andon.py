# SPDX-License-Identifier: Apache-2.0
"""Andon's server: `andon serve serve_andon:agent`."""

import os

from tools import block, slow

from andon import Agent, tool
from andon.models.openai import OpenAIChat

model = OpenAIChat("parent-model", base_url=os.environ["PEERS_URL"], api_key="sk-bench")
agent = Agent("peer", model, tools=[tool(slow), tool(block)])
