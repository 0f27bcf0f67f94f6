"""`mtx export` and `mtx import`: models for other programs, and models from them."""

from dataclasses import asdict
from pathlib import Path

from mtx.commands.command_line import AS_JSON, MODEL, argument, logger, option, print_result


def export(
    model: str = MODEL,
    to: str = option("NAME", "ctranslate2, huggingface or argos.", default=...),
    precision: str | None = option(
        "NAME", "fp32; also fp16 and int8 (ctranslate2, argos).  [default: fp32, for argos int8]"
    ),
    output: Path | None = option(
        "PATH", "Output directory; for argos, the output file.  [default: next to MODEL]", "-o", "--output"
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Export to CTranslate2, Hugging Face or Argos Translate.

    mtx then checks that the exported model gives the same translations.
    """
    from mtx.interop import export as exchange

    exported = exchange.export(Path(model), to, output, precision or ("int8" if to == "argos" else "fp32"))
    print_result(asdict(exported), [exported.line()], as_json)


def import_(
    directory: Path = argument("DIR", "Directory of a MarianMT model."),
    output: Path = option("MODEL", "Model directory to write.", "-o", "--output", default=...),
) -> None:
    """Import a published MarianMT model, such as OPUS-MT.

    You can then translate with it, evaluate it, or adapt it to your text.
    """
    from mtx.interop.huggingface import import_marian

    import_marian(directory, output)
    logger.info("model: %s", output)
