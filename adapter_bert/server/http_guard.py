"""Who may ask: tokens of clients, and origins of pages.

Sources: RFC 6750, section 2.1, on bearer tokens; RFC 6454 on origins.
"""

import hashlib
import re
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from adapter_bert import files
from adapter_bert.errors import UserError
from adapter_bert.server.client_endpoints import error_content

# Paths that need no token: they say nothing but that the server is there. The
# page is open, so that a person can type a token into it.
OPEN = ("/healthz", "/readyz", "/", "/page.js", "/page.css")
# Paths for those who run the server begin with this.
ADMIN = "/admin/"
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,200}=*", re.ASCII)
ORIGIN = re.compile(
    r"([a-z][a-z\d+.-]*)://([^\s/?#@*:\[\]]+|\[[\da-f:.]+\])(?::(\d+))?/?",
    re.ASCII,
)
# All origins, and that of a page in a file.
ANY_ORIGIN, NO_ORIGIN = "*", "null"
PORTS = {"http": "80", "https": "443"}


def read_tokens(path: str) -> Sequence[str]:
    """Reads tokens, one on each line."""
    lines = files.read_text(path, "the file of tokens").splitlines()
    tokens = [line.strip() for line in lines if line.strip()]
    for number, line in enumerate(lines, 1):
        if line.strip() and not TOKEN.fullmatch(line.strip()):
            raise UserError(
                f"{path}:{number}: expected a token of 16 to 200 letters, "
                "digits and . _ ~ + / -"
            )
    if not tokens:
        raise UserError(f"{path} holds no token, expected one on each line")
    return tokens


def origin_of(text: str) -> str:
    """Gives an origin the form in which browsers send it."""
    if text in (ANY_ORIGIN, NO_ORIGIN):
        return text
    try:
        scheme, host, port = ORIGIN.fullmatch(text.lower()).groups()
        host = host.encode("idna").decode()
    # There is no match, or a part of the name is empty.
    except (AttributeError, UnicodeError) as error:
        raise UserError(
            f"--cors_origins has {text!r}, expected origins as "
            f"https://example.org or http://localhost:3000, or {ANY_ORIGIN}"
        ) from error
    is_default = port in (None, PORTS.get(scheme))
    return f"{scheme}://{host}" + ("" if is_default else f":{port}")


class Allowance:
    """Requests that a client may still make; they come back with time."""

    def __init__(
        self, per_minute: int, clock: Callable[[], float] = time.monotonic
    ):
        """Begins with a minute's requests; `clock` tells seconds."""
        self._most, self._clock = per_minute, clock
        self._left, self._last = float(per_minute), clock()

    def take(self) -> float:
        """Takes a request, or tells the seconds until there is one."""
        now = self._clock()
        back = (now - self._last) * self._most / 60
        self._left, self._last = min(self._most, self._left + back), now
        if self._left < 1:
            return (1 - self._left) * 60 / self._most
        self._left -= 1
        return 0.0


class Tokens:
    """Tokens of clients, and how often each may ask."""

    def __init__(self, tokens: Sequence[str], per_minute: Optional[int] = None):
        """Takes tokens, and most requests of one in a minute."""
        # Looked up by hash, so that no time tells how much of a token is right.
        self._allowed: dict[bytes, Optional[Allowance]] = {
            _hash(token): Allowance(per_minute) if per_minute else None
            for token in tokens
        }

    def refusal(self, authorization: str, path: str) -> Optional[JSONResponse]:
        """Says why a request is refused, else takes one request from its token.

        `authorization` is the content of the header of that name.
        """
        scheme, _, token = authorization.partition(" ")
        key = _hash(token.strip())
        if scheme.lower() != "bearer" or key not in self._allowed:
            message = "expected Authorization: Bearer and a known token"
            return JSONResponse(
                error_content(path, 401, message),
                401,
                {"WWW-Authenticate": "Bearer"},
            )
        allowance = self._allowed[key]
        seconds = allowance.take() if allowance else 0
        if not seconds:
            return None
        return JSONResponse(
            error_content(path, 429, "too many requests of this token"),
            429,
            {"Retry-After": str(int(seconds) + 1)},
        )


def guarded(
    app: Any,
    tokens: Optional[Tokens],
    admin: Optional[Tokens] = None,
    count: Callable[[int], None] = lambda code: None,
) -> Callable[..., Any]:
    """Refuses requests without a token, and too many of one token.

    Args:
        app: answers.
        tokens: of clients; None lets all ask.
        admin: those for paths below `ADMIN`, which take no others.
        count: counts a refusal by its code.
    """

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        answering = app
        if scope["type"] == "http" and scope["path"] not in OPEN:
            is_admin = admin and scope["path"].startswith(ADMIN)
            needed = admin if is_admin else tokens
            authorization = Headers(scope=scope).get("authorization", "")
            refusal = needed and needed.refusal(authorization, scope["path"])
            if refusal:
                count(refusal.status_code)
                answering = refusal
        await answering(scope, receive, send)

    return answer


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
