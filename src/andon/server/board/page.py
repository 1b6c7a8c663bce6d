# SPDX-License-Identifier: Apache-2.0
"""The page itself: files that a browser loads as they are.

The files hold no secret, so they need no token. The page asks for a token and sends it with its requests. All of its
links are relative, so it also works below a prefix.
"""

from __future__ import annotations

import hashlib
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

INDEX = "index.html"
FOLDER = "/board/"

_MEDIA = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

HEADERS = {
    # The browser loads and runs only files of this server, and shows the page in no frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # with the ETag: after an upgrade the browser has the new files at once
}


class PageFile:
    """A file of the page."""

    def __init__(self, name: str, body: bytes) -> None:
        self.path = "/" if name == INDEX else f"{FOLDER}{name}"
        self._body, self._media = body, _MEDIA[name.rpartition(".")[2]]
        self._headers = {**HEADERS, "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"'}

    async def respond(self, request: Request) -> Response:
        if self._headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=self._headers)
        return Response(self._body, headers=self._headers, media_type=self._media)


def read_page() -> list[PageFile]:
    folder = resources.files("andon.server.board") / "page"
    return [PageFile(each.name, each.read_bytes()) for each in folder.iterdir() if each.name[0] not in "._"]


FILES = read_page()

PATHS = frozenset(file.path for file in FILES)

ROUTES = [Route(file.path, file.respond, methods=["GET"]) for file in FILES]
