"""The API's routes and the page's files, as one ASGI application."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from surefoot.report.clean import clean
from surefoot.web import routes, schema
from surefoot.web.doors import COOKIE, SESSION_MS, Doors
from surefoot.web.watch import Runs

ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/chart.js": ("chart.js", "text/javascript; charset=utf-8"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}
ASKED_BY_PAGE = "x-surefoot"
"""A session may change something only with this header, which no foreign page can send."""

_bearer = HTTPBearer(auto_error=False, description="The token in the server's token file.")


def build(runs: Runs, doors: Doors) -> FastAPI:
    """Return the application over `runs`, for those whom `doors` admits."""
    app = FastAPI(
        title="Surefoot",
        version=importlib.metadata.version("surefoot"),
        description="Runs of Surefoot: status, VMs, events, logs, bill, forecast, plan, stop.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.state.runs, app.state.doors = runs, doors
    app.exception_handler(HTTPException)(_refused)
    app.exception_handler(RequestValidationError)(_unfit)
    _add_page(app)
    _add_session(app, doors)
    app.include_router(routes.router, dependencies=[Depends(_known(doors))])
    app.add_middleware(Guarded)
    return app


class Guarded:
    """Puts the headers on every answer that keep foreign pages and scripts out."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on (ASGI)."""

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                have = {name for name, _ in message["headers"]}
                extra = [(name, value) for name, value in HEADERS.items() if name not in have]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        await self.app(scope, receive, sending)


def cookie_of(request: Request) -> str:
    """Return the cookie's name: servers on other ports of this host keep their own."""
    return f"{COOKIE}_{request.url.port or 0}"


def _known(doors: Doors) -> Callable[..., Awaitable[None]]:
    async def known(
        request: Request,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)] = None,
    ) -> None:
        changes = request.method not in ("GET", "HEAD")
        if bearer is not None:
            fine = doors.admits(bearer.credentials)
        elif changes and not request.headers.get(ASKED_BY_PAGE):
            fine = False
        else:
            fine = doors.knows(request.cookies.get(cookie_of(request), ""))
        if fine:
            return
        raise HTTPException(
            401, "a token is needed, or a session", headers={"WWW-Authenticate": "Bearer"}
        )

    return known


def _add_page(app: FastAPI) -> None:
    """Serve the page's own files; they hold no data, so no token is asked for."""

    def serve(name: str, kind: str) -> Callable[[], Response]:
        body = (files("surefoot.web") / "static" / name).read_bytes()
        return lambda: Response(body, media_type=kind)

    for path, (name, kind) in ASSETS.items():
        app.get(path, include_in_schema=False)(serve(name, kind))

    @app.get("/healthz", tags=["server"])
    def healthz() -> schema.Health:
        """Say that the server answers; no token is needed."""
        return schema.Health(ok=True)


def _add_session(app: FastAPI, doors: Doors) -> None:
    """Open a session by a one-time word in the page's address, or by the token itself."""

    def opened(request: Request, session: str) -> Response:
        answer = JSONResponse({"ok": True})
        answer.set_cookie(
            cookie_of(request),
            session,
            max_age=SESSION_MS // 1000,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    @app.post("/session", include_in_schema=False)
    def session(request: Request) -> Response:
        kind, _, word = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "once" and (new := doors.redeem(word.strip())) is not None:
            return opened(request, new)
        if kind.lower() == "bearer" and doors.admits(word.strip()):
            return opened(request, doors.session())
        raise HTTPException(401, "the link was used before or is too old, or the token is wrong")

    @app.delete("/session", include_in_schema=False)
    def leave(request: Request) -> Response:
        doors.leave(request.cookies.get(cookie_of(request), ""))
        answer = JSONResponse({"ok": True})
        answer.delete_cookie(cookie_of(request))
        return answer


def _body(kind: str, message: str, hint: str = "") -> dict[str, Any]:
    error = schema.Error(kind=kind, message=clean(message, limit=2_000), hint=clean(hint))
    return schema.Refusal(error=error).model_dump()


KINDS = {401: "AuthError", 404: "NotFound", 405: "NotAllowed", 409: "Conflict"}


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = KINDS.get(error.status_code, "Error")
    return JSONResponse(
        _body(kind, str(error.detail)), status_code=error.status_code, headers=error.headers
    )


async def _unfit(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    told = "; ".join(
        f"{'.'.join(str(part) for part in each['loc'][1:])}: {each['msg']}"
        for each in error.errors()
    )
    return JSONResponse(_body("Unfit", told), status_code=422)
