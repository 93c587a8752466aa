"""Connections of clients that are slow, or say nothing.

A server that waits for each of them as long as they like can be kept from
others by a few clients that hold many.
"""

import asyncio
from typing import Any, Optional

from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """HTTP on a connection, which is cut off when patience is at an end.

    Whatever takes so long is covered: a request that does not come, comes
    byte by byte, or whose answer is not taken.
    """

    def __init__(self, *arguments: Any, patience: float, **named: Any):
        """Takes what uvicorn hands in.

        Args:
            *arguments: uvicorn's.
            patience: seconds from one answer of a connection to the next.
            **named: uvicorn's.
        """
        super().__init__(*arguments, **named)
        self._patience = patience
        self._end: Optional[asyncio.TimerHandle] = None

    def connection_made(self, transport: Any) -> None:
        """Begins to wait."""
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        """Begins to wait anew."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Optional[Exception]) -> None:
        """Waits no more."""
        super().connection_lost(exc)
        self._end.cancel()

    def _wait(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = self.loop.call_later(self._patience, self.transport.abort)
