"""Bearer tokens of clients, as ASGI middleware.

Source: RFC 6750, section 2.1.
"""

import hashlib
import re
import time
from typing import Any, Callable, Dict, Optional, Sequence

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from adapter_bert import files
from adapter_bert.errors import UserError

# Paths that need no token: they say nothing but that the server is there.
OPEN = ("/healthz", "/readyz")
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,200}=*", re.ASCII)


def read_tokens(path: str) -> Sequence[str]:
    """The tokens of a file, one on each line.

    Raises UserError if the file cannot be read, holds none, or a line is none.
    """
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


class Allowance:
    """Requests that a client may still make; they come back with time."""

    def __init__(self, per_minute: int, clock: Callable[[], float]):
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


class TokenGuard:
    """Refuses requests without a token, and too many of one token."""

    def __init__(
        self,
        app: Any,
        tokens: Sequence[str],
        per_minute: Optional[int] = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Takes an application, and most requests of a token in a minute."""
        self._app = app
        # Looked up by hash, so that no time tells how much of a token is right.
        self._allowed: Dict[bytes, Optional[Allowance]] = {
            _hash(token): Allowance(per_minute, clock) if per_minute else None
            for token in tokens
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a refusal, or lets the application answer."""
        refusal = None
        if scope["type"] == "http" and scope["path"] not in OPEN:
            refusal = self._refusal(Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, headers: Headers) -> Optional[JSONResponse]:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = _hash(token.strip())
        if scheme.lower() != "bearer" or key not in self._allowed:
            return JSONResponse(
                {"error": "expected Authorization: Bearer and a known token"},
                401,
                {"WWW-Authenticate": "Bearer"},
            )
        allowance = self._allowed[key]
        seconds = allowance.take() if allowance else 0
        if seconds:
            return JSONResponse(
                {"error": "too many requests of this token"},
                429,
                {"Retry-After": str(int(seconds) + 1)},
            )
        return None


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
