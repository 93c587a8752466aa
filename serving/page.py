"""The page on which a person types a text and sees every task's answer."""

import pathlib
from typing import List

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from serving.exported import ExportedModel

FOLDER = pathlib.Path(__file__).parent
FILES = {"/": "page.html", "/page.js": "page.js", "/page.css": "page.css"}
# The page runs its own script alone, and talks to its own server alone.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


def page_routes(
    model: ExportedModel, name: str, max_rows: int, max_body_bytes: int
) -> List[Route]:
    """The page's files, and `/tasks`, of which it asks.

    Args:
        model: that answers.
        name: by which clients know it.
        max_rows: of a request.
        max_body_bytes: of a request.
    """
    told = {
        "name": name,
        "version": model.version,
        "max_rows": max_rows,
        "max_body_bytes": max_body_bytes,
        "tasks": list(model.tasks.values()),
    }

    async def tell_tasks(request: Request) -> Response:
        return JSONResponse(told)

    def file_route(path: str, file: str) -> Route:
        async def send(request: Request) -> Response:
            return FileResponse(FOLDER / file, headers=HEADERS)

        return Route(path, send)

    return [
        Route("/tasks", tell_tasks),
        *(file_route(path, file) for path, file in FILES.items()),
    ]
