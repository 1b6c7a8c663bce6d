# SPDX-License-Identifier: Apache-2.0
"""agno's AgentOS: `python serve_agno.py PORT DATABASE`, where the database is `memory` or a file."""

import os
import sys

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.db.sqlite import SqliteDb
from agno.models.openai import OpenAIChat
from agno.os import AgentOS
from tools import block, slow

port, database = sys.argv[1:]
db = InMemoryDb() if database == "memory" else SqliteDb(db_file=database)
model = OpenAIChat(id="parent-model", base_url=os.environ["PEERS_URL"], api_key="sk-bench")
agent = Agent(id="peer", name="peer", model=model, tools=[slow, block], db=db, add_history_to_context=True)
agent_os = AgentOS(agents=[agent])

if __name__ == "__main__":
    agent_os.serve(agent_os.get_app(), port=int(port))
