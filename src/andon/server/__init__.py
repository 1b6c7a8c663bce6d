# SPDX-License-Identifier: Apache-2.0
"""Agents over HTTP: `create_app(agents)` is a FastAPI app, to be served by itself or mounted into another one.

app       puts the app together
host      what all routes share: the agents, their runs, the limits, draining
runs      the routes by run, in the shapes of the AgentOS family
sessions  the routes by session, in the shapes of ADK
lists     what there is: agents, runs, health
control   what operators ask for: blocks, the record of cancels, metrics
access    tokens, who they stand for, and which names and web pages are known
tokens    a file of tokens, read again when it changes
authentication  a program's own function that says who asks
tickets   how a browser's EventSource reads events without a token in its URL
guard     the door that every request passes
visit     the host as one principal may use it: what routes get
logs      a line per request, and the run with every line
wire      our events and results as that family's JSON
adk       our events and messages as ADK's JSON
place     where a client finds a run: the header and the path
sse       a run's events as a response, and noticing that a client left
body      reading what clients send, within bounds
problems  errors as JSON with `detail`
openapi   the OpenAPI document: what each route takes and answers
shapes    the shapes of these answers
"""

from andon.errors import MissingExtraError

try:
    import fastapi as _  # noqa: F401 - only to say how to get it
    import python_multipart as _multipart  # noqa: F401
except ImportError as error:
    detail = f'the server needs packages that are not here ({error}): pip install "andon[server]"'
    raise MissingExtraError(detail) from error

from andon.server.access import Token, bearer_token
from andon.server.app import create_app
from andon.server.authentication import User
from andon.server.token_file import TokenFile

__all__ = ["Token", "TokenFile", "User", "bearer_token", "create_app"]
