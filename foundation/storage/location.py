"""A location is a local path or the URL of an object in a bucket: ``s3://``, ``gs://`` or ``az://``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rankmill.foundation.errors import InputError, without_secrets

SCHEMES = {"s3": "Amazon S3 and compatible stores", "gs": "Google Cloud Storage", "az": "Azure Blob Storage"}
_OTHERS = frozenset(
    ["http", "https", "ftp", "sftp", "file", "hdfs", "abfs", "abfss", "wasb", "wasbs", "adl", "oss", "hf"]
)  # refused, not taken for folders
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/(/?)(.*)", flags=re.DOTALL)


@dataclass(frozen=True, order=True, slots=True)
class ObjectUrl:
    """An object, or all objects below a prefix, of one bucket.  It is joined and split like a path.

    >>> log = ObjectUrl("s3", "models", "web") / "log" / "1.json"
    >>> print(log, log.name, log.parent)
    s3://models/web/log/1.json 1.json s3://models/web/log
    """

    scheme: str
    bucket: str
    key: str = ""
    """Without a slash at its ends; empty: the whole bucket."""

    def __truediv__(self, name: str | PurePosixPath) -> ObjectUrl:
        return ObjectUrl(self.scheme, self.bucket, f"{self.key}/{name}" if self.key else str(name))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The suffix of the name, with its dot; empty if there is none."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> ObjectUrl:
        """Everything before the last part of the key."""
        return ObjectUrl(self.scheme, self.bucket, self.key.rpartition("/")[0])

    def relative_to(self, above: ObjectUrl) -> PurePosixPath:
        """Return the key below ``above``; ValueError if this is elsewhere."""
        if (self.scheme, self.bucket) != (above.scheme, above.bucket):
            raise ValueError(f"{self} is not below {above}")
        return PurePosixPath(self.key).relative_to(above.key)


Location = Path | ObjectUrl


def location(text: str | os.PathLike[str] | ObjectUrl) -> Location:
    """Return what ``text`` names: a URL of a known scheme, or else a local path.

    Raises
    ------
    InputError
        The URL is malformed, has another scheme, or holds a user name or password, which is not repeated in the
        message.

    >>> location("s3://models/web/"), location("models/web") == Path("models/web")
    (ObjectUrl(scheme='s3', bucket='models', key='web'), True)
    """
    if isinstance(text, ObjectUrl | Path):
        return text
    parts = _URL.fullmatch(os.fspath(text))
    if parts is None or (not parts[2] and parts[1] not in SCHEMES):
        return Path(text)
    scheme, rest = parts[1].lower(), parts[3].strip("/")
    bucket, _, key = rest.partition("/")
    if "@" in bucket or ":" in bucket:
        raise InputError(
            f"{scheme}://...: expected {scheme}://BUCKET/PREFIX without a user name, password or port;"
            " credentials and the endpoint are read from the environment"
        )
    if scheme not in SCHEMES:
        raise InputError(f"{text}: expected a path or a URL of {', '.join(f'{known}://' for known in SCHEMES)}")
    if without_secrets(str(text)) != str(text):
        raise InputError(
            f"{text}: expected {scheme}://BUCKET/PREFIX without a query string (left out here); credentials are read "
            "from the environment"
        )
    if not parts[2]:
        raise InputError(f"{text}: expected two slashes: {scheme}://{rest}")
    if not bucket or not rest.isprintable() or any(part in {"", ".", ".."} for part in rest.split("/")):
        raise InputError(f"{text!r}: expected {scheme}://BUCKET/PREFIX, without empty parts, '.' and '..'")
    return ObjectUrl(scheme, bucket, key)


def meant_as_url(path: Path) -> str:
    """Return the URL that ``path`` spells; empty if it is a local path.

    >>> meant_as_url(Path("s3://bucket/file")), meant_as_url(Path("file"))
    ('s3://bucket/file', '')
    """
    parts = _URL.fullmatch(str(path))
    known = parts is not None and (parts[1].lower() in SCHEMES or parts[1].lower() in _OTHERS)
    return f"{parts[1]}://{parts[3]}" if parts and known and not path.exists() else ""
