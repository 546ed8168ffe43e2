"""Requests to object stores, one method each, so that tests can replace them by a failing store.

They are sent by obstore, an optional library.  Credentials are read from the environment as the tools of the vendors
read them.  They are never printed. A message repeats only the status and the code of the store's answer, as its text
may contain signed URLs or headers.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from rankmill.foundation.errors import InputError, MissingLibrary
from rankmill.foundation.storage.location import ObjectUrl

if TYPE_CHECKING:
    from pathlib import Path

    from obstore.store import ObjectStore

RETRIES = 6  # of one request that failed, or was answered by a 5xx status
LONGEST_PAUSE = timedelta(seconds=5)  # between two tries
RETRY_FOR = timedelta(seconds=90)
TIMEOUT = "60s"  # for one request
CONNECT_TIMEOUT = "5s"
PART = 8 << 20  # bytes of one request for, or of, a part of an object
MOST_PARTS = 9000  # of an upload; S3 allows 10,000


class StoreError(OSError):
    """A request to an object store failed.

    Unless this is a `StoreRefusal`, it may have been carried out all the same.
    """

    def __init__(self, url: ObjectUrl, reason: str, number: int = errno.EIO) -> None:
        super().__init__(number, reason, str(url))


class TruncatedAnswer(StoreError):
    """The store's answer ended before its announced length."""


class StoreRefusal(StoreError):
    """The store has refused a request: nothing was changed, and a repetition would be refused, too."""


class MissingBucket(StoreRefusal):
    """There is no bucket of this name."""


class NoPermission(StoreRefusal):
    """The credentials do not allow this request."""


class BadCredentials(StoreRefusal):
    """There are no credentials, the store does not know them, or they have expired."""


class WrongRegion(StoreRefusal):
    """The bucket is in another region."""


class ObjectFacts(NamedTuple):
    """Facts about an object."""

    url: ObjectUrl
    size: int
    modified: float
    """Seconds since the epoch, by the clock of the store."""
    version: str
    """The ETag, or the generation, of its content."""
    tag: str = ""
    """The ETag alone, which listings and answers share; empty if the store has none."""


class BucketClient:
    """The requests to a bucket, by obstore.  All raise `StoreError`; FileNotFoundError if the object is missing."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def get(self, url: ObjectUrl, limit: int = -1) -> bytes:
        """Read an object, whole or its first ``limit`` bytes."""
        import obstore

        with _explained(url):
            answer = obstore.get(self._store, url.key)
            size = int(answer.meta["size"])
            if 0 <= limit < size:
                size, parts = limit, bytearray()
                for part in answer.stream():
                    parts += memoryview(part)
                    if len(parts) >= limit:
                        break
                data = bytes(parts[:limit])
            else:
                data = bytes(answer.bytes())
        if len(data) != size:
            raise TruncatedAnswer(url, f"the answer was cut off: expected {size} bytes, found {len(data)}; try again")
        return data

    def part(self, url: ObjectUrl, start: int, size: int) -> tuple[bytes | memoryview, str]:
        """Read ``size`` bytes of an object from ``start``; also return its ETag."""
        import obstore

        with _explained(url):
            answer = obstore.get(self._store, url.key, options={"range": (start, start + size)})
            tag, data = _tag(answer.meta), memoryview(answer.bytes())
        if len(data) != size:
            raise TruncatedAnswer(url, f"the answer was cut off: expected {size} bytes, found {len(data)}; try again")
        return data, tag

    def head(self, url: ObjectUrl) -> ObjectFacts:
        """Return the facts about an object."""
        import obstore

        with _explained(url):
            return _stored(url, obstore.head(self._store, url.key))

    def names(self, above: ObjectUrl) -> list[str]:
        """Return the next part of every key below ``above``, sorted: names of objects and of prefixes."""
        import obstore

        with _explained(above):
            found = obstore.list_with_delimiter(self._store, above.key or None)
        keys = [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]
        return sorted({key.rstrip("/").rpartition("/")[2] for key in keys if key.strip("/") != above.key})

    def below(self, above: ObjectUrl, after: str = "", prefix: str = "") -> Iterator[ObjectFacts]:
        """List every object below ``above``, in order of keys.

        Only names that begin with ``prefix`` and follow ``after`` count.
        """
        import obstore

        first = f"{above.key}/" if above.key else ""
        offset = max(first + after, first + prefix) if after or prefix else None
        with _explained(above):
            for page in obstore.list(self._store, above.key or None, offset=offset):
                for meta in page:
                    key = meta["path"]
                    name = key.removeprefix(first)
                    if name.startswith(prefix) and name > after:
                        yield _stored(ObjectUrl(above.scheme, above.bucket, key), meta)
                    elif not name.startswith(prefix) and name > prefix:
                        return

    def put(self, url: ObjectUrl, data: bytes) -> None:
        """Write an object; an existing one is replaced."""
        import obstore

        with _explained(url):
            obstore.put(self._store, url.key, data, use_multipart=False)

    def put_file(self, url: ObjectUrl, path: Path) -> None:
        """Write the bytes of a file as an object, in parts, visible once all are there; an existing one is replaced."""
        import obstore

        size = max(PART, path.stat().st_size // MOST_PARTS + 1)
        with _explained(url):
            obstore.put(self._store, url.key, path, chunk_size=size, max_concurrency=4)

    def put_new(self, url: ObjectUrl, data: bytes) -> bool:
        """Write an object unless it exists (``If-None-Match: *``); return whether it was written.

        False may also mean that an earlier try of the same request has written it and its answer was lost.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with _explained(url):
            try:
                obstore.put(self._store, url.key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def delete(self, url: ObjectUrl) -> None:
        """Remove an object; nothing happens if it is missing."""
        import obstore

        with _explained(url):
            try:
                obstore.delete(self._store, url.key)
            except FileNotFoundError as error:  # Azure says so, S3 does not
                if _code(str(error)) in _MISSING_BUCKET:
                    raise


def open_bucket(url: ObjectUrl) -> BucketClient:
    """Return the bucket of ``url``, which is not asked for anything yet.

    Raises
    ------
    MissingLibrary
        obstore is not installed.
    InputError
        A setting in the environment is not valid.
    """
    scheme, bucket, options = url.scheme, url.bucket, _settings(url.scheme)
    try:
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError:
        raise MissingLibrary(
            f"{scheme}://{bucket} needs obstore, which is not installed: pip install 'rankmill[cloud]'"
        ) from None
    stores: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    client: dict[str, Any] = {"timeout": TIMEOUT, "connect_timeout": CONNECT_TIMEOUT}
    if options.get("endpoint", "").startswith("http://"):  # asked for by its URL
        client["allow_http"] = True
    retries = {
        "max_retries": RETRIES,
        "retry_timeout": RETRY_FOR,
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": LONGEST_PAUSE, "base": 2},
    }
    try:
        return BucketClient(stores[scheme](bucket, client_options=client, retry_config=retries, **options))
    except (BaseError, ValueError, TypeError) as error:  # its text may hold what it could not read
        raise InputError(
            f"{scheme}://{bucket}: the settings in the environment are not valid ({type(error).__name__});"
            " see the page on storage"
        ) from None


def _settings(scheme: str) -> dict[str, str]:
    """Return the settings of the environment that obstore does not read by itself as the vendors' tools do."""
    found: dict[str, str] = {}

    def take(name: str, *variables: str) -> None:
        if value := next((os.environ[variable] for variable in variables if os.environ.get(variable)), None):
            found[name] = value

    if scheme == "s3":
        take("endpoint", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        take("region", "AWS_REGION", "AWS_DEFAULT_REGION")
    elif scheme == "az":
        take("endpoint", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
        take("account_name", "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME")
        take("account_key", "AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY")
    return found


_MISSING_BUCKET = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"}
_EXPIRED = {"ExpiredToken", "TokenRefreshRequired", "ExpiredAuthenticationToken"}
_UNKNOWN = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthenticationFailed", "InvalidSecurity"}
_OTHER_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_SKEWED = {"RequestTimeTooSkewed", "RequestExpired"}
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>|\(code: ([A-Za-z]{1,60})\)")
_STATUS = re.compile(r"non-2xx status code: ([1-5][0-9]{2})\b")


def _code(text: str) -> str:
    """Return the code of the store's answer in the text of an error; empty if there is none."""
    found = _CODE.search(text)
    return "" if found is None else found[1] or found[2]


@contextmanager
def _explained(url: ObjectUrl) -> Iterator[None]:
    """Raise an error of obstore again as one of ours, without its text."""
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError as error:
        if _code(str(error)) in _MISSING_BUCKET:
            raise _missing_bucket(url) from None
        raise FileNotFoundError(errno.ENOENT, "no such object", str(url)) from None
    except StoreError:
        raise
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise store_error(url, str(error), type(error).__name__) from None


def _missing_bucket(url: ObjectUrl) -> MissingBucket:
    what = "container" if url.scheme == "az" else "bucket"
    return MissingBucket(url, f"there is no {what} {url.bucket!r}; create it first, or correct the name", errno.ENOENT)


def store_error(url: ObjectUrl, text: str, kind: str = "") -> StoreError:
    """Return the error for what the client says of a failed request; nothing of ``text`` but codes is repeated."""
    code, status = _code(text), ((found := _STATUS.search(text)) and found[1]) or ""
    answer = " ".join(part for part in (status, code) if part)
    if code in _MISSING_BUCKET:
        return _missing_bucket(url)
    if code in _OTHER_REGION or status == "301" or "BareRedirect" in text:
        return WrongRegion(
            url, f"the bucket is in another region ({answer or 'a redirection'}); set AWS_REGION to its region"
        )
    if code in _EXPIRED:
        return BadCredentials(url, f"the credentials have expired ({answer}); renew them, then try again", errno.EACCES)
    if code in _SKEWED:
        return BadCredentials(
            url, f"the clock of this machine differs from the store's ({answer}); set it", errno.EACCES
        )
    if code in _UNKNOWN or status == "401" or kind == "UnauthenticatedError":
        return BadCredentials(
            url, f"the store does not accept the credentials ({answer}); check them in the environment", errno.EACCES
        )
    if status == "403" or kind == "PermissionDeniedError":
        return NoPermission(
            url,
            f"no permission ({answer or 'refused'}); the credentials need the rights that the page on storage lists",
            errno.EACCES,
        )
    if re.search(r"token request|redential|MissingRegion|Missing(Access|Secret)", text):
        return BadCredentials(url, "no usable credentials in the environment", errno.EACCES)
    if not answer and re.search(r"IncompleteBody|IncompleteMessage|UnexpectedEof|kind: (Body|Decode)\b", text):
        return TruncatedAnswer(url, "the answer was cut off; try again")
    if status == "400" and not code:  # to a request for facts, whose answers have no text
        return StoreRefusal(url, "the store refuses the request (400)")
    if answer:
        return StoreError(url, f"the store failed ({answer}); try again")
    if re.search(r"kind: Timeout\b|TimedOut|timed out", text):
        return StoreError(url, "the store did not answer in time; try again", errno.ETIMEDOUT)
    if re.search(r"kind: Connect\b|dns error", text):
        return StoreError(url, "the store cannot be reached; check the network and the endpoint", errno.ECONNREFUSED)
    return StoreError(url, f"the request failed ({kind or 'unknown error'}); try again")


def _stored(url: ObjectUrl, meta: Any) -> ObjectFacts:
    version = meta.get("version") or meta.get("e_tag") or ""
    return ObjectFacts(url, int(meta["size"]), meta["last_modified"].timestamp(), version, _tag(meta))


def _tag(meta: Any) -> str:
    """Return the ETag without its quotes, which some stores leave out in listings."""
    return str(meta.get("e_tag") or "").removeprefix("W/").strip('"')
