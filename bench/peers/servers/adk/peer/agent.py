# SPDX-License-Identifier: Apache-2.0
"""google-adk's server: `adk api_server adk`, which finds this agent by its folder."""

import os
import sys
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.integrations.openai import OpenAILlm

sys.path.append(str(Path(__file__).parents[2]))
from tools import block, slow

model = OpenAILlm(model="parent-model", base_url=os.environ["PEERS_URL"], api_key="sk-bench")
root_agent = LlmAgent(name="peer", model=model, tools=[slow, block])
