"""A chat with a Stop button, in a web page of your own: `python examples/chat/main.py`, and open the printed address.

The page is index.html. It talks to the agents at /ai. These ones are offline; put your own in their place.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.responses import FileResponse

from andon.cli.demo_agents import agents
from andon.server import create_app

ai = create_app(agents)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with ai.router.lifespan_context(ai):
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/ai", ai)


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(Path(__file__).with_name("index.html"))


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    uvicorn.run(app, port=port, timeout_graceful_shutdown=10)
