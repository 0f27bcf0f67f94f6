"""`mtx export` and `mtx import`: models for other programs, and models from them."""

from dataclasses import asdict
from pathlib import Path

from mtx.commands.command_line import AS_JSON, MODEL, argument, logger, option, print_result
from mtx.errors import UsageError
from mtx.storage.run_files import MODEL_CONFIG, WEIGHTS


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
    model: str = argument("DIR", "A MarianMT, M2M-100 or NLLB model: a directory, or hf:USER/MODEL[@REVISION]."),
    output: Path = option("MODEL", "Model directory to write.", "-o", "--output", default=...),
    languages: str | None = option("LANGUAGES", "M2M-100, NLLB: the languages to keep, such as en,sw,yo."),
    keep_pieces_of: Path | None = option(
        "FILE", "M2M-100, NLLB: keep only the subwords that this text or file of pairs needs."
    ),
    new_language: list[str] = option(
        "CODE=RELATED", "M2M-100, NLLB: add a language that starts as a related one (fon=yo).", default=[]
    ),
) -> None:
    """Import a published MarianMT model, such as OPUS-MT, or M2M-100 or NLLB.

    You can then translate with it, evaluate it, or adapt it to your text. With hf:USER/MODEL, mtx shows the size and
    the licence of the model, then downloads it from the Hugging Face hub. Later the same command works offline.
    """
    from mtx.interop.huggingface import check_replaceable, import_marian, model_type
    from mtx.interop.m2m100 import import_m2m100

    directory = Path(model)
    origin = None
    if model.startswith("hf:"):
        from mtx.interop.hub import fetch

        check_replaceable(output, {MODEL_CONFIG, WEIGHTS})
        directory, origin = fetch(model)
    if model_type(directory) != "m2m_100":
        if languages or keep_pieces_of or new_language:
            raise UsageError(f"{model}: --languages, --keep-pieces-of and --new-language need an M2M-100 or NLLB model")
        import_marian(directory, output)
    else:
        names = [*map(str.strip, languages.split(","))] if languages else []
        import_m2m100(directory, output, names, keep_pieces_of, new_language, origin)
    logger.info("model: %s", output)
