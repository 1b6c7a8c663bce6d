# SPDX-License-Identifier: Apache-2.0
"""Agents over HTTP: `create_app(agents)` is a FastAPI app, to be served by itself or mounted into another one.

app              builds the app: routes and middleware
host             shared by all routes: the agents, their runs, the limits, shutdown
authorized_host  the host with the rights of one request; each route gets this

runs             routes: start a run, read it, cancel it (AgentOS format)
continuing       routes: continue a run, cancel one tool call
conversations    routes: read, replace, fork and delete a session
adk_routes       routes: the same agents by session, in ADK's format
lists            routes: agents, runs, health
operations       routes: blocks, the log of cancels, metrics
event_tickets    route and check of tickets for a browser's EventSource

auth_middleware  checks every request before any route
access           tokens, principals, allowed host names and origins
token_file       a file of tokens, read again when it changes
authentication   calls the `authenticate` function of the program

body, query      read and check what clients send
agentos_json     events and results as JSON of the AgentOS family
adk_json         events and messages as ADK's JSON
responses, sse   JSON responses; event streams, and noticing that a client disconnected
run_location     the headers and the path by which a client finds a run
problems         errors as JSON with `detail`
openapi          the OpenAPI document; `response_types` has the types of the responses

run_slots        how many runs there may be; `quotas` limits what a store counts
idempotency      requests with an Idempotency-Key start one run only
drain_report     says during a shutdown which runs the server waits for
serving          uvicorn, with a shutdown that ends runs first
"""

from andon.errors import MissingExtraError

try:
    import fastapi as _  # noqa: F401 - only to name the missing extra
    import python_multipart as _multipart  # noqa: F401
except ImportError as error:
    detail = f'the server needs packages that are not installed ({error}): pip install "andon[server]"'
    raise MissingExtraError(detail) from error

from andon.server.access import Token, bearer_token
from andon.server.app import create_app
from andon.server.authentication import User
from andon.server.token_file import TokenFile

__all__ = ["Token", "TokenFile", "User", "bearer_token", "create_app"]
