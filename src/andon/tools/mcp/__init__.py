# SPDX-License-Identifier: Apache-2.0
"""The tools of MCP servers, on the official SDK.

server        MCPServer: what users write
settings      its options, checked
connections   one connection for each event loop
connection    opens the session with the server, again if it breaks; a task of its own owns it
session       one session: the list of tools, the calls in flight, what the server asks
process       a server that is a program: its pipes, its end
supervisor    the small program between: it ends the server and its processes, also when this process is killed
call          one call: its cancel, its progress, its questions
tool          a tool of a server, as an agent uses it
content       results, as models take them
sdk           the SDK, imported in a thread at the first use
"""

from andon.tools.mcp.content import SamplingRequest
from andon.tools.mcp.server import MCPServer

__all__ = ["MCPServer", "SamplingRequest"]
