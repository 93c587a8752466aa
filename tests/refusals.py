"""Tables of errors that a user causes: a call, and what its message names."""

import pytest

from adapter_bert.errors import UserError


def check(call, *parts):
    """Calls `call`, whose UserError is one line that holds every part."""
    with pytest.raises(UserError) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message, f"{part!r} is not in: {message}"


def table(refusals):
    """Parametrizes a test's `call` and `parts` by `{name: (call, *parts)}`."""
    return pytest.mark.parametrize(
        "call, parts",
        [(call, parts) for call, *parts in refusals.values()],
        ids=list(refusals),
    )
