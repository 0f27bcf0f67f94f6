"""`mtx corpora`: what text there is in two languages, and text from outside as plain files."""

from pathlib import Path
from typing import TYPE_CHECKING

from mtx.commands.command_line import argument, flag, logger, option, table
from mtx.errors import UsageError
from mtx.formatting import mtx_command
from mtx.storage.streams import print_lines
from mtx.storage.text_files import printable

if TYPE_CHECKING:
    from mtx.data.languages import Languages


def corpora(
    pair: str = argument("SRC-TGT", "Two languages, by the codes of OPUS, such as en-sw."),
    names: list[str] | None = argument("[NAME[@VERSION]]...", "Corpora to download. Without any, list what there is."),
    output: Path | None = option("FOLDER", "Folder for the text; each corpus gets a folder in it.", "-o", "--output"),
    testset: str | None = option("NAME", "Download a test set of sacreBLEU, such as wmt14/full."),
    hub: str | None = option("USER/NAME", "Download a dataset of the Hugging Face hub. NAME is then its subset."),
    yes: bool = flag("--yes", "Download more than 1 GB."),
) -> None:
    """List the parallel text of OPUS in two languages, or download text to train on.

    Each corpus becomes a folder of plain files with its terms. The same command resumes an interrupted download.
    """
    from mtx.config.schema import DIRECTION

    match = DIRECTION.fullmatch(pair)
    if not match:
        raise UsageError(f"{pair}: expected two different languages, such as en-sw or en-zh_CN")
    languages = match[1], match[2]
    names = names or []
    if testset and (hub or names):
        raise UsageError("--testset does not go with --hub or names of corpora", "use a command for each")
    if hub and len(names) > 1:
        raise UsageError(f"--hub: expected one subset, got {' and '.join(names)}", "use a command for each")
    if not (testset or hub or names):
        if output or yes:
            raise UsageError("-o and --yes need the names of corpora", f"{mtx_command('corpora', pair)} lists them")
        _list_corpora(languages)
        return
    if not output:
        raise UsageError("-o FOLDER is missing: where to put the text", "-o sets" if testset else "-o text")
    from mtx.interop.corpora import fetch_dataset, fetch_test_set, hold_folder

    settings = [f"data.src={languages[0]}", f"data.tgt={languages[1]}"]
    text = "text/" if testset else f"{output}/"
    with hold_folder(output):
        if testset:
            directory = fetch_test_set(testset, languages, output)
            settings.append(f"data.test={directory}")
        elif hub:
            directory = fetch_dataset(hub, names[0] if names else "", languages, output, yes)
            settings += _evaluation_settings(directory, languages[0])
        else:
            _download_corpora(languages, names, output, yes)
    logger.info("to train: %s", mtx_command("train", text, *settings))


def _evaluation_settings(directory: Path, language: str) -> list[str]:
    """The settings that name the splits of a dataset that are not for training, by their files in one language."""
    from mtx.config.schema import write_list
    from mtx.data.sources import VALID_NAMES

    settings = list[str]()
    tests = list[str]()
    for path in sorted(directory.glob(f"*.{language}")):
        if path.stem in VALID_NAMES:
            settings.append(f"data.valid={path.with_suffix('')}")
        elif not path.stem.startswith("train"):
            tests.append(str(path.with_suffix("")))
    if tests:
        settings.append(f"data.test={write_list(tests)}")
    return settings


def _list_corpora(languages: "Languages") -> None:
    """Print what OPUS has, the largest corpus first."""
    from mtx.interop.opus import list_corpora, nothing_found, show_number, show_size

    found = list_corpora(languages)
    if not found:
        raise nothing_found(languages)
    rows = (
        [
            printable(corpus.corpus),
            printable(corpus.version),
            show_number(corpus.alignment_pairs),
            show_size(corpus.num_bytes),
            printable(corpus.page),
        ]
        for corpus in found
    )
    print_lines(table(["name", "version", "pairs", "download", "terms"], *rows))
    logger.info("to download: %s", mtx_command("corpora", "-".join(languages), "NAME", "-o", "text"))


def _download_corpora(languages: "Languages", names: list[str], folder: Path, is_confirmed: bool) -> None:
    """Download corpora of OPUS, after their sizes and the places of their terms are shown."""
    from mtx.interop.corpora import announce, fetch_opus, require_confirmation
    from mtx.interop.opus import find_corpus

    found = []
    for name in names:
        corpus_name, _, version = name.partition("@")
        found.append(find_corpus(languages, corpus_name, version))
    for corpus in found:
        announce(f"{corpus.corpus} {corpus.version}", corpus.alignment_pairs, corpus.num_bytes, corpus.page)
    require_confirmation([corpus.num_bytes for corpus in found], is_confirmed)
    for corpus in found:
        fetch_opus(corpus, languages, folder)
