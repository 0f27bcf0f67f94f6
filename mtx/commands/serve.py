"""`mtx serve`: translate over HTTP, with LibreTranslate's interface and a page for a browser."""

import contextlib
import ipaddress
import logging
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from mtx.commands.command_line import Device, argument, complete_runs, option
from mtx.errors import MtxError, UsageError
from mtx.formatting import install_command, mtx_command

logger = logging.getLogger("mtx")
_PACKAGES = "starlette", "uvicorn", "python-multipart"
_MIN_KEY_CHARS = 16


def serve(
    models: Annotated[
        list[str],
        argument("MODEL...", "Run or model directories, one for each language pair.", complete_runs),
    ],
    host: Annotated[
        str,
        option("ADDRESS", "Address to listen on; access from other machines needs API keys."),
    ] = "127.0.0.1",
    port: Annotated[int, option("INT", "Port to listen on; 0 takes a free one.", min=0, max=65535)] = 5000,
    api_key_file: Annotated[
        Path | None,
        option("FILE", "File with one API key a line; requests must send one.", "--api-key-file"),
    ] = None,
    device: Device = "auto",
) -> None:
    """Serve translations over HTTP and on a web page.

    Programs use LibreTranslate's API.
    """
    keys = [] if api_key_file is None else _read_keys(api_key_file)
    if not keys and not _is_loopback(host):
        raise UsageError(
            f"--host {host}: other machines could use the server without an API key",
            mtx_command("serve", *map(Path, models), "--host", host, "--api-key-file", "FILE"),
        )
    if missing := [package for package in _PACKAGES if find_spec(package.replace("-", "_")) is None]:
        raise MtxError(f"not installed: {', '.join(missing)}", install_command(*missing))
    from mtx.decoding.translator import Translator
    from mtx.serve import server
    from mtx.serve.translation import Pairs, TranslationQueue

    limits = server.Limits()
    with _listener(host, port) as listener:
        server.log_as_json()
        translators = [Translator.load(model, device=device) for model in models]
        num_threads = max(translator.engine.num_calls for translator in translators)
        pairs = Pairs(translators)
        for translator in translators:
            translator.translate(["."])  # the first translation takes longer than others
        names = ", ".join(f"{translator.src} to {translator.tgt}" for translator in translators)
        with TranslationQueue(limits.batch_tokens, limits.waiting_s, num_threads) as queue:
            app = server.Server(pairs, queue, keys, limits).app()
            listener.listen()
            logger.info("serving %s at %s", names, _url(listener))
            with contextlib.suppress(KeyboardInterrupt):  # it stops as it should, after the last answer
                server.run(server.http_server(app, limits), listener)
        logger.info("stopped")


def _read_keys(path: Path) -> list[str]:
    """The API keys of a file, one a line."""
    from mtx.storage.text_files import read_lines

    keys = list(filter(None, map(str.strip, read_lines(path))))
    if not keys:
        raise UsageError(f"{path}: expected an API key", f"openssl rand -hex 32 > {path}")
    for number, key in enumerate(keys, start=1):
        if len(key) < _MIN_KEY_CHARS:
            raise UsageError(f"{path}: key {number} has fewer than {_MIN_KEY_CHARS} characters", "openssl rand -hex 32")
    return keys


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listener(host: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen yet, so that nobody waits while the models are loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, UnicodeError) as error:  # or a name with a part that is too long or empty
        raise UsageError(f"--host {host} --port {port}: {getattr(error, 'strerror', None) or error}") from None
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
