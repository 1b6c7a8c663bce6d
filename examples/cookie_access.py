"""Agents as a part of your app: users are identified by the session cookie of your site.

A browser sends the cookie with the requests of every page. Three things make that safe. The cookie is `HttpOnly` and
`SameSite=Lax`. Andon refuses requests from pages of another origin if they change something. And `cors_origins` can't
be `*` together with `authenticate`. With a cookie, an `EventSource` of your own pages needs nothing else.
"""

import asyncio
import secrets

import httpx
from fastapi import FastAPI, Form, HTTPException, Response
from starlette.requests import HTTPConnection

from andon import Agent
from andon.models.scripted import ScriptedModel
from andon.server import create_app

PASSWORDS = {"ada": "lovelace"}  # your users; in a real app, hashes of passwords in your database
sessions: dict[str, str] = {}  # users who have signed in, by the value of the cookie


async def authenticate(request: HTTPConnection) -> str | None:
    """Return the id of the user, or None for a missing or unknown cookie, which is a 401."""
    return sessions.get(request.cookies.get("session", ""))


app = FastAPI()
app.mount(
    "/ai",
    create_app(
        Agent(name="Storyteller", model=ScriptedModel("Once upon a time.")),
        authenticate=authenticate,
        # For the OpenAPI document, and so for /ai/docs: authentication is by this cookie.
        security_schemes={"session": {"type": "apiKey", "in": "cookie", "name": "session"}},
    ),
)


@app.post("/login")
async def login(response: Response, name: str = Form(), password: str = Form()) -> str:
    if not secrets.compare_digest(PASSWORDS.get(name, "").encode(), password.encode()) or name not in PASSWORDS:
        raise HTTPException(401, "the name or the password is wrong")
    key = secrets.token_urlsafe(32)
    sessions[key] = name
    response.set_cookie("session", key, max_age=8 * 3600, httponly=True, samesite="lax")  # and secure=True, with TLS
    return f"hello, {name}"


@app.post("/logout")
async def logout(request: HTTPConnection, response: Response) -> None:
    sessions.pop(request.cookies.get("session", ""), None)
    response.delete_cookie("session")


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://site.example") as browser:
        runs, hello = "/ai/agents/storyteller/runs", {"message": "Hello", "stream": "false", "run_id": "r1"}
        print("before:", (await browser.post(runs, data=hello)).status_code)
        print("signed in:", (await browser.post("/login", data={"name": "ada", "password": "lovelace"})).json())
        page = {"Origin": "http://site.example"}
        print("our page:", (await browser.post(runs, data=hello, headers=page)).json()["content"])
        foreign = {"Origin": "http://evil.example"}
        print("another page:", (await browser.post(runs, data=hello, headers=foreign)).status_code)
        events = await browser.get(f"{runs}/r1/events", headers={"Accept": "text/event-stream"})
        print("an EventSource:", events.text.count("event: "), "events")
        await browser.post("/logout")
        print("after:", (await browser.post(runs, data=hello)).status_code)


if __name__ == "__main__":
    asyncio.run(main())
