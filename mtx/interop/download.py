"""Downloads files; the part of an interrupted download is kept, and the same command resumes it.

Flow: address -> a part next to the file, named after what identifies the file of the server -> the file.
"""

import glob
import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from mtx.errors import DamagedFileError, MtxError, TerminatedError, first_line
from mtx.storage import disk, durable
from mtx.storage.streams import progress

_CHUNK_BYTES = 1 << 16  # a connection that breaks after each of them still makes progress
_MAX_FAILURES = 5  # in a row, without progress
_TIMEOUT_S = 60
_PROXY = "HTTPS_PROXY=URL sets a proxy"


def new_session() -> requests.Session:
    """A session that asks by https only, and follows redirects to https only."""
    session = requests.Session()
    del session.adapters["http://"]
    return session


def fetch_json(url: str, query: Mapping[str, str]) -> Any:
    """The JSON at an address.

    Raises:
        MtxError: if it cannot be fetched, or is not JSON.
    """
    with _errors_of(url, _PROXY):
        response = new_session().get(url, params=query, timeout=_TIMEOUT_S)
        response.raise_for_status()
    try:
        return durable.parse_json(response.content)
    except ValueError as error:
        raise MtxError(f"{url}: expected JSON, got another answer ({error})", "try again later") from None


def download(
    url: str,
    path: Path,
    headers: Mapping[str, str] | None = None,
    sha256: str | None = None,
    session: requests.Session | None = None,
) -> None:
    """Download a file, or the rest of it if an earlier call was interrupted and the server still has the same file.

    Args:
        path: appears when the file is complete.
        headers: of the requests, such as an authorization.
        sha256: of the file, if it is known; otherwise the server's ETag identifies it, or its date or size.
        session: None: a new one.

    Raises:
        MtxError: if the file cannot be downloaded, or the disk is too small for it.
        DamagedFileError: if its sha256 is another one.
    """
    session = session or new_session()
    num_failures = most_bytes = 0
    while True:
        with _errors_of(url, f"the same command resumes the download; {_PROXY}"):
            try:
                part = _receive(session, url, path, headers or {}, sha256)
                if sha256 and durable.sha256(part) != sha256:
                    disk.unlink(part)
                    raise DamagedFileError(f"{url} was damaged on the way", "repeat the command")
                disk.sync(part)
                disk.rename(part, path)
                disk.sync(path.parent)
                return
            except TerminatedError as error:
                error.help = "the same command resumes the download"
                raise
            except requests.RequestException as error:
                num_bytes = sum(part.stat().st_size for part in _parts(path))
                num_failures = 0 if num_bytes > most_bytes else num_failures + 1
                most_bytes = max(num_bytes, most_bytes)
                if num_failures == _MAX_FAILURES or not is_temporary(error):
                    raise
                time.sleep(num_failures)


def _receive(session: requests.Session, url: str, path: Path, headers: Mapping[str, str], sha256: str | None) -> Path:
    """Add to the part what the server sends; returns the complete part.

    Raises:
        requests.RequestException: if the connection breaks, or the server has another file than the part belongs to.
    """
    old_parts = _parts(path)
    num_bytes = old_parts[0].stat().st_size if old_parts else 0
    headers = {**headers, "Accept-Encoding": "identity"}
    if num_bytes:
        headers["Range"] = f"bytes={num_bytes}-"
    with session.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
        is_complete = response.status_code == requests.codes.requested_range_not_satisfiable
        if not is_complete:
            response.raise_for_status()
        is_resumed = is_complete or response.status_code == requests.codes.partial_content
        length = response.headers.get("Content-Length", "")
        if is_resumed:
            length = response.headers.get("Content-Range", "").rpartition("/")[2]
        identity = sha256 or response.headers.get("ETag") or response.headers.get("Last-Modified") or length
        name = hashlib.sha256(f"{url} {identity}".encode()).hexdigest()[:16]
        part = path.with_name(f"{path.name}.{name}.part")
        if old_parts != [part] or not is_resumed:
            num_bytes = 0
            for old_part in old_parts:
                disk.unlink(old_part)
            if is_resumed:
                raise requests.ConnectionError("the file on the server has changed")
        total = int(length) if length.isdecimal() else None
        if total is not None:
            durable.require_space(path.parent, total - num_bytes, path.name, "free some; the same command resumes")
        with disk.append(part) as file, progress(url.rpartition("/")[2], total, "bytes") as update:
            update(num_bytes)
            chunks = () if is_complete else response.iter_content(_CHUNK_BYTES)  # otherwise the body is an error page
            for chunk in chunks:
                file.write(chunk)
                update(len(chunk))
    num_bytes = part.stat().st_size
    if total not in (None, num_bytes):
        disk.unlink(part)
        raise requests.ConnectionError(f"expected {total} bytes, got {num_bytes}")
    return part


def _parts(path: Path) -> list[Path]:
    return [*path.parent.glob(f"{glob.escape(path.name)}.*.part")]


def is_temporary(error: requests.RequestException) -> bool:
    """Whether the same request may succeed soon."""
    if error.response is not None:
        return error.response.status_code in (408, 429) or error.response.status_code >= 500
    if isinstance(error, requests.exceptions.SSLError):  # such as a certificate that nobody vouches for
        return False
    return isinstance(error, requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError)


@contextmanager
def _errors_of(url: str, hint: str) -> Iterator[None]:
    """Turn an error of requests into an MtxError that names the address; `hint` is for those of the connection."""
    try:
        yield
    except requests.RequestException as error:
        cause = getattr(error.args[0], "reason", error) if error.args else error  # of urllib3's "Max retries exceeded"
        if isinstance(error, requests.exceptions.InvalidSchema):
            hint = "only https is allowed, also where a server refers to another address"
        elif error.response is not None and not is_temporary(error):
            hint = ""
        raise MtxError(f"{url} cannot be downloaded: {first_line(cause)}", hint or None) from error
