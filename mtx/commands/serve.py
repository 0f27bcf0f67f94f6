"""`mtx serve`: translate over HTTP, with LibreTranslate's interface and a page for a browser."""

import contextlib
import ipaddress
import socket
from importlib.util import find_spec
from pathlib import Path

from mtx.commands.command_line import DEVICE, argument, complete_runs, logger, option
from mtx.errors import MtxError, UsageError
from mtx.formatting import install_command, mtx_command

_MIN_KEY_CHARS = 16


def serve(
    models: list[str] = argument("MODEL...", "Run or model directories, one for each language pair.", complete_runs),
    host: str = option(
        "ADDRESS", "Address to listen on; access from other machines needs API keys.", default="127.0.0.1"
    ),
    port: int = option("INT", "Port to listen on; 0 takes a free one.", min=0, max=65535, default=5000),
    api_key_file: Path | None = option(
        "FILE", "File with one API key a line; requests must send one.", "--api-key-file"
    ),
    device: str = DEVICE,
) -> None:
    """Serve translations over HTTP and on a web page.

    Programs use LibreTranslate's API.
    """
    keys = [] if api_key_file is None else _read_keys(api_key_file)
    packages = ("starlette", "uvicorn", "python-multipart")
    if missing := [package for package in packages if find_spec(package.replace("-", "_")) is None]:
        raise MtxError(f"not installed: {', '.join(missing)}", install_command(*missing))
    from mtx.decoding.load import load
    from mtx.decoding.options import Placement, SearchOptions
    from mtx.serve import server
    from mtx.serve.translation import Pairs, TranslationQueue

    limits = server.Limits()
    with _listener(host, port) as listener:
        address, port = listener.getsockname()[:2]
        if not keys and not ipaddress.ip_address(address).is_loopback:
            help = mtx_command("serve", *map(Path, models), "--host", host, "--api-key-file", "FILE")
            raise UsageError(f"--host {host}: other machines could use the server without an API key", help)
        server.log_as_json()
        translators = [load(model, SearchOptions(), Placement(device)) for model in models]
        num_threads = max(translator.engine.num_calls for translator in translators)
        pairs = Pairs(translators)
        for translator in translators:
            translator.translate(["."])  # the first translation takes longer than others
        names = ", ".join(f"{translator.src} to {translator.tgt}" for translator in translators)
        with TranslationQueue(limits.batch_tokens, limits.waiting_s, num_threads) as queue:
            app = server.Server(pairs, queue, keys, limits).app()
            listener.listen()
            logger.info("serving %s at http://%s:%d/", names, f"[{address}]" if ":" in address else address, port)
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
