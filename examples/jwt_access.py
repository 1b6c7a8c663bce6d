"""Users with a JWT: `create_app(authenticate=…)` takes a function that returns the user of a request.

The example checks the token by hand, so that it needs no other package. In your program, use a library, for example
PyJWT: `claims = jwt.decode(token, KEY, algorithms=["HS256"], audience="agents")`.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from typing import Any

import httpx
from starlette.requests import HTTPConnection

from andon import Agent
from andon.models.scripted import ScriptedModel
from andon.server import User, bearer_token, create_app

KEY = b"a key of 32 bytes or more, which your sign-in service has as well"


def claims_of(token: str) -> dict[str, Any] | None:
    """The claims of a JWT, if it is signed with our key and has not expired."""
    try:
        head, body, signature = token.split(".")
        signed = hmac.digest(KEY, f"{head}.{body}".encode(), hashlib.sha256)
        # The server chooses the algorithm, never the token.
        if json.loads(_decoded(head)).get("alg") != "HS256" or not hmac.compare_digest(signed, _decoded(signature)):
            return None
        claims: dict[str, Any] = json.loads(_decoded(body))
        return claims if claims["exp"] > time.time() and claims["aud"] == "agents" and claims["sub"] else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


async def authenticate(request: HTTPConnection) -> User | None:
    """`bearer_token` finds the token in the header, or in a WebSocket's subprotocol. None is a 401."""
    token = bearer_token(request)
    claims = None if token is None else claims_of(token)
    return None if claims is None else User(claims["sub"], admin="admin" in claims.get("roles", []))


app = create_app(Agent(name="Storyteller", model=ScriptedModel("Once upon a time.")), authenticate=authenticate)


# -- what your sign-in service does, and your clients -----------------------------------------------------------------


def sign(**claims: Any) -> str:
    parts = [{"alg": "HS256", "typ": "JWT"}, {"aud": "agents", "exp": time.time() + 600, **claims}]
    text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
    return f"{text}.{_encoded(hmac.digest(KEY, text.encode(), hashlib.sha256))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:

        async def ask(who: str, method: str, path: str, token: str | None, **fields: str) -> None:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            answer = await client.request(method, path, headers=headers, data=fields or None)
            print(f"{who}: {answer.status_code} {answer.json().get('content') or answer.json().get('detail', '')}")

        runs, ada = "/agents/storyteller/runs", sign(sub="ada")
        await ask("nobody", "POST", runs, None, message="Hello")
        await ask("ada", "POST", runs, ada, message="Hello", stream="false", run_id="r1")
        await ask("ada, too late", "POST", runs, sign(sub="ada", exp=time.time() - 1), message="Hello")
        forged = ".".join([*sign(sub="olga", roles=["admin"]).split(".")[:2], ada.split(".")[2]])
        await ask("forged", "POST", runs, forged, message="Hello")
        await ask("bob, about ada's run", "GET", f"{runs}/r1", sign(sub="bob"))
        await ask("olga, an admin", "GET", f"{runs}/r1", sign(sub="olga", roles=["admin"]))


if __name__ == "__main__":
    asyncio.run(main())
