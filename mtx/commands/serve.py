"""`mtx serve`: translate over HTTP, with LibreTranslate's interface and a page for a browser."""

import contextlib
import socket
from importlib.util import find_spec
from pathlib import Path

from mtx.commands.command_line import DEVICE, argument, complete_runs, logger, option
from mtx.errors import MtxError, UsageError
from mtx.formatting import install_command
from mtx.storage.streams import progress


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
    keys = list[str]()
    if api_key_file:
        from mtx.storage.text_files import read_lines

        keys = list(filter(None, map(str.strip, read_lines(api_key_file))))
        if not keys:
            raise UsageError(f"{api_key_file}: expected an API key", f"openssl rand -hex 32 > {api_key_file}")
        if short_keys := [number for number, key in enumerate(keys, start=1) if len(key) < 16]:
            raise UsageError(
                f"{api_key_file}: key {short_keys[0]} has fewer than 16 characters", "openssl rand -hex 32"
            )
    packages = ("starlette", "uvicorn", "python-multipart")
    if missing := [package for package in packages if not find_spec(package.replace("-", "_"))]:
        raise MtxError(f"not installed: {', '.join(missing)}", install_command(*missing))
    from mtx.decoding.translator import Translator
    from mtx.serve import server
    from mtx.serve.translation import Pairs, TranslationQueue

    limits = server.Limits()
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        server.refuse_public_without_keys(host, str(address[0]), keys, models)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)  # it does not listen yet, so that nobody waits while the models are loaded
    except (OSError, UnicodeError) as error:  # or a name with a part that is too long or empty
        raise UsageError(f"--host {host} --port {port}: {getattr(error, 'strerror', None) or error}") from None
    with listener, progress("serving", is_hidden=True):  # requests show none of their own
        server.log_as_json()
        loaded = [Translator.load(model, device=device) for model in models]
        num_threads = max(translator.engine.num_calls for translator in loaded)
        translators = [translator.to(tgt, src) for translator in loaded for src, tgt in translator.directions]
        pairs = Pairs(translators)
        for translator in loaded:
            src, tgt = translator.directions[0]
            translator.to(tgt, src).translate(["hello"])  # the first takes longer; "." would not reach the engine
        names = ", ".join(f"{translator.src} to {translator.tgt}" for translator in translators)
        with TranslationQueue(limits.batch_tokens, limits.waiting_s, num_threads) as queue:
            app = server.Server(pairs, queue, keys, limits).app()
            listener.listen()
            name = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
            logger.info("serving %s at http://%s:%d/", names, name, listener.getsockname()[1])
            with contextlib.suppress(KeyboardInterrupt):  # it stops as it should, after the last answer
                server.run(server.http_server(app, limits), listener)
        logger.info("stopped")
