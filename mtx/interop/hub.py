"""Models of the Hugging Face hub: `hf:USER/MODEL[@REVISION]` -> a directory in the hub's cache for `mtx import`.

mtx downloads only the files that an import reads. The weights are the safetensors of the revision, or of the hub's own
conversion of it: a pull request of the hub's bot with one commit. Pickled weights are never downloaded.

huggingface_hub discards what a killed process has downloaded, so mtx itself puts large files into the cache and resumes
them. The ref `mtx/REVISION` in the cache is the commit that was downloaded, so that the same command works offline.
"""

import logging
import re
from pathlib import Path
from typing import Any

import requests
from filelock import FileLock
from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import build_hf_headers, disable_progress_bars

from mtx.data.sources import unreachable
from mtx.errors import MtxError, UsageError, first_line
from mtx.formatting import format_size
from mtx.interop.download import download
from mtx.interop.huggingface import (
    GENERATION_CONFIG,
    TARGET_MODEL,
    TOKENIZER_CONFIG,
    VOCABULARY,
    MarianConfig,
    model_type,
    read_json,
    validate,
)
from mtx.interop.m2m100 import M2M100Config
from mtx.storage import durable
from mtx.storage.run_files import FAIRSEQ_PIECES, MARIAN_SOURCE_MODEL, MODEL_CONFIG, TOKENIZER_JSON, WEIGHTS
from mtx.storage.streams import shows_progress

logger = logging.getLogger(__name__)

_NAME = re.compile(r"hf:(\w[\w.-]*/\w[\w.-]*)(?:@(\w[\w.-]*(?:/\w[\w.-]*)*))?", re.ASCII)
_FILES = (
    MODEL_CONFIG,
    GENERATION_CONFIG,
    TOKENIZER_CONFIG,
    TOKENIZER_JSON,
    VOCABULARY,
    MARIAN_SOURCE_MODEL,
    TARGET_MODEL,
    FAIRSEQ_PIECES,
    WEIGHTS,  # the last: a directory with weights is complete
)
_CONVERSION = ("SFconvertbot", "Adding `safetensors` variant of this model", "open")  # as in transformers
_REASONS = {  # what the hub itself says is misleading
    "GatedRepoError": "it is only for users who accept its conditions",
    "RepositoryNotFoundError": "there is no such model, or it is private",
    "RevisionNotFoundError": "there is no such revision",
}


def fetch(name: str) -> tuple[Path, str]:
    """Download what `mtx import` reads of a model, or find it in the cache.

    Returns:
        The directory, and the model as hf:USER/MODEL@COMMIT.

    Raises:
        UsageError: if `name` is not such a name, or mtx cannot import the model.
        MtxError: if the model cannot be downloaded.
    """
    match = _NAME.fullmatch(name)
    if not match:
        raise UsageError(f"{name}: expected hf:USER/MODEL or hf:USER/MODEL@REVISION")
    repo = match[1]
    revision = match[2] or "main"
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # it also raises the errors that it logs
    if not shows_progress():
        disable_progress_bars()
    hint = "HF_HOME=DIR sets the cache, HTTPS_PROXY=URL a proxy"
    if problem := unreachable():
        weights = try_to_load_from_cache(repo, WEIGHTS, revision=f"mtx/{revision}")
        weights = weights or try_to_load_from_cache(repo, WEIGHTS, revision=revision)  # by another program
        if not isinstance(weights, str):
            raise MtxError(f"{name}: {problem}, and it is not in the cache", hint)
        directory = Path(weights).parent
        logger.info("%s: %s; using commit %s of the cache", name, problem, directory.name)
    else:
        try:
            directory = _download(name, repo, revision)
        except MtxError:
            raise
        except Exception as error:  # of requests or httpx, or of the disk
            raise MtxError(
                f"{name} cannot be downloaded: {_REASONS.get(type(error).__name__) or first_line(error)}",
                f"{constants.ENDPOINT}/{repo} is its page; hf auth login opens what is private; "
                f"the same command resumes a download; {hint}",
            ) from error
    return directory, f"hf:{repo}@{directory.name}"


def _download(name: str, repo: str, revision: str) -> Path:
    info = _describe(repo, revision)
    files = {file.rfilename: file for file in info.siblings}
    if WEIGHTS not in files:
        raise UsageError(
            f"{name}: no {WEIGHTS}; mtx reads neither pickle files, which are unsafe, nor weights in several files",
            f"hf download {repo} --local-dir DIR; with transformers: AutoModelForSeq2SeqLM.from_pretrained('DIR')"
            ".save_pretrained('DIR', max_shard_size='20GB'); then mtx import DIR",
        )
    needed_files = [files[file] for file in _FILES if file in files]
    size = format_size(sum(file.size for file in needed_files))
    licence = ", ".join(tag[8:] for tag in info.tags if tag.startswith("license:")) or "not given"
    logger.info("%s: %s, licence %s, commit %s, in %s", name, size, licence, info.sha, constants.HF_HUB_CACHE)
    for file in needed_files:
        if file.lfs:
            _fetch_large(repo, info.sha, file)
        path = Path(hf_hub_download(repo, file.rfilename, revision=info.sha))
        if file.rfilename == MODEL_CONFIG:  # what mtx cannot import is refused before its weights are downloaded
            validate(M2M100Config if model_type(path.parent) == "m2m_100" else MarianConfig, path, read_json(path))
    ref = path.parents[2] / "refs" / "mtx" / revision
    durable.make_directories(ref.parent)
    durable.write_text(ref, path.parent.name)
    return path.parent


def _describe(repo: str, revision: str) -> Any:
    """The `ModelInfo` of a revision, or of its conversion if it has no safetensors; only that of the bot is trusted."""
    api = HfApi()
    info = api.model_info(repo, revision=revision, files_metadata=True)
    if any(file.rfilename == WEIGHTS for file in info.siblings):
        return info
    for pull_request in api.get_repo_discussions(repo):
        if (pull_request.author, pull_request.title, pull_request.status) == _CONVERSION:
            head, *earlier = [
                commit.commit_id for commit in api.list_repo_commits(repo, revision=pull_request.git_reference)
            ]
            if earlier[:1] == [info.sha]:
                logger.info("%s: the weights are the hub's own conversion, %s", repo, pull_request.git_reference)
                return _describe(repo, head)
    return info


def _fetch_large(repo: str, commit: str, sibling: Any) -> None:
    """Put a file into the cache, where `hf_hub_download` finds it; continues the download of an earlier process.

    Args:
        sibling: its `RepoSibling`.

    Raises:
        DamagedFileError: if its sha256 is another one.
    """
    sha256 = sibling.lfs.sha256
    url = hf_hub_url(repo, sibling.rfilename, revision=commit)
    blobs = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repo, repo_type="model"), "blobs")
    blob = blobs / sha256
    durable.make_directories(blobs)
    with FileLock(blobs / f"{sha256}.lock"):
        if blob.is_file() and not blob.is_symlink():  # a link leads to a store that several caches share
            return
        get_hf_file_metadata(url)  # raises the hub's own reason to refuse it
        download(url, blob, build_hf_headers(), sha256, requests.Session())  # the hub may be a mirror without https
