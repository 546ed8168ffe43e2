"""Small files of ours that carry their own digest: ``{"<name>":<canonical JSON>,"sha256":"<digest of that>"}`` and a line end."""

from __future__ import annotations

import hashlib
import re

_MIDDLE, _TAIL = b',"sha256":"', b'"}\n'
_DIGEST = re.compile(rb"[0-9a-f]{64}")


def seal(name: str, body: bytes) -> bytes:
    """Return the file that holds ``body``.

    >>> seal("entry", b"{}")[:22]
    b'{"entry":{},"sha256":"'
    """
    return b"".join((_head(name), body, _MIDDLE, hashlib.sha256(body).hexdigest().encode(), _TAIL))


def unseal(name: str, data: bytes) -> tuple[bytes, bool] | None:
    """Return what the file holds, and whether that is what was sealed; None if it has not the form of such a file.

    >>> unseal("entry", seal("entry", b"{}"))
    (b'{}', True)
    >>> unseal("entry", seal("entry", b"{}").replace(b"{}", b"{ }"))
    (b'{ }', False)
    >>> unseal("entry", b"torn") is None
    True
    """
    head, end = _head(name), len(data) - len(_TAIL) - 64
    body, digest = data[len(head) : max(end - len(_MIDDLE), 0)], data[max(end, 0) : max(end, 0) + 64]
    formed = data == b"".join((head, body, _MIDDLE, digest, _TAIL)) and body[:1] == b"{" and body[-1:] == b"}"
    if not (formed and _DIGEST.fullmatch(digest)):
        return None
    return body, hashlib.sha256(body).hexdigest().encode() == digest


def _head(name: str) -> bytes:
    return b'{"%b":' % name.encode()
