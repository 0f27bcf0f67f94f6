"""M2M-100, NLLB and SMaLL-100 (transformers' M2M100ForConditionalGeneration): import, and export of imported models.

The model is mtx's Transformer with pre-norm, fairseq's positions and a decoder that starts from `</s>`. Its ids change:

    fairseq  <s> | <pad> | </s> | <unk> | pieces | languages and <mask> in some order | unused rows
    mtx      </s> | <unk> | pieces | languages, as control symbols | reserved: <s>, <mask>, unused rows | <pad>

Only the named languages stay, and with a text (`keep_pieces_of`) only the pieces that it needs. They are a shorter
SentencePiece model. It gives that text the same pieces, because BPE makes the best merge first: the merges of a kept
piece are in the shorter model too, in the same order, and it has no others. Other text falls apart into smaller pieces.

The directory is untrusted (see `huggingface`). transformers is not needed.
"""

import contextlib
import io
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, permutations
from pathlib import Path
from typing import Any, Literal, NamedTuple

from langcodes import Language
from pydantic import BaseModel, Field

from mtx.data.readers import find_reader
from mtx.data.sentencepiece_models import EOS, PAD, UNK, JointModel, read_model
from mtx.data.tokenizer import EOS_ID, UNK_ID, Rule, Tokenizer
from mtx.decoding import model_directory
from mtx.decoding.model_directory import LoadedModel
from mtx.errors import DamagedFileError, UsageError
from mtx.interop.cards import write_card
from mtx.interop.huggingface import (
    OUTPUT_BIAS,
    TOKENIZER_CONFIG,
    VOCABULARY,
    MarianConfig,
    model_config,
    read_config,
    read_json,
    read_settings,
    read_weights,
    tensors_of,
    to_json,
    write_directory,
)
from mtx.model.parameter_names import SHARED
from mtx.storage.model_description import language_pairs
from mtx.storage.run_files import CARD, FAIRSEQ_PIECES, MODEL_CONFIG, TOKENIZER_JSON, WEIGHTS
from mtx.storage.text_files import read_lines

logger = logging.getLogger(__name__)

BOS = "<s>"
MASK = "<mask>"
_SPECIAL = {BOS: 0, PAD: 1, EOS: 2, UNK: 3}
_IDS = {"eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 2}
_MAX_UNUSED = 16  # rows without a piece; NLLB has 4, M2M-100 has 9
_NUM_SHOWN = 20  # of the characters that a model lacks, the most frequent
_NLLB_NAME = re.compile("([a-z]{3})_([A-Z][a-z]{3})")  # of a language: its code and its script
_M2M_100_NAME = re.compile("__([a-z]{2,3})__")
_NEW_NAME = re.compile(">>([A-Za-z0-9_]{1,80})<<")  # of a language that mtx added
# The languages that NLLB has for a code of several languages, or for a code that has changed
_NLLB_CODES = {
    "ar": ["arb"], "ay": ["ayr"], "az": ["azj"], "et": ["est"], "fa": ["pes"], "ff": ["fuv"], "kr": ["knc"],
    "ku": ["kmr", "ckb"], "lv": ["lvs"], "mg": ["plt"], "mn": ["khk"], "ms": ["zsm"], "ne": ["npi"], "no": ["nob"],
    "ns": ["nso"], "om": ["gaz"], "or": ["ory"], "ps": ["pbt"], "qu": ["quy"], "sq": ["als"], "sw": ["swh"],
    "uz": ["uzn"], "yi": ["ydd"],
}  # fmt: skip

# The languages of M2M-100, and of a model of WMT 2021, in the order of their ids.
_M2M_100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr "
    "ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa "
    "pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
_WMT21 = "en ha is ja cs ru zh de"


class M2M100Config(MarianConfig):
    """config.json, which has the keys of MarianMT's."""

    architectures: Any = ["M2M100ForConditionalGeneration"]
    model_type: Literal["m2m_100"]  # type: ignore[assignment]
    normalize_before: Any = True
    add_final_layer_norm: Any = True
    layernorm_embedding: Literal[False, None] = False
    bos_token_id: Any = 0


class _Token(BaseModel):
    token_id: int = Field(0, alias="id")
    content: str


class _Settings(BaseModel):
    """The keys of tokenizer_config.json and tokenizer.json that mtx reads."""

    tokenizer_class: Any = None
    language_codes: Any = None
    languages_rule: Any = None
    legacy_behaviour: Any = None
    added_tokens_decoder: dict[int, _Token] = {}
    added_tokens: list[_Token] = []


class _Family(NamedTuple):
    """The tokenizer of a directory.

    Attributes:
        model: its SentencePiece model.
        ids: fairseq's id of each piece of it that has one, by the piece.
        languages: fairseq's id of each language, by the model's name for it.
        unused_ids: the other rows, `<s>` and `<mask>` first.
    """

    model: JointModel
    ids: dict[str, int]
    languages: dict[str, int]
    unused_ids: list[int]
    rule: Rule
    licence: str


def import_m2m100(
    source: Path,
    target: Path,
    languages: Sequence[str],
    keep_pieces_of: Path | None = None,
    new_languages: Sequence[str] = (),
    origin: str | None = None,
) -> None:
    """Write the model directory `target`, which translates between the languages, from the directory `source`.

    Args:
        languages: names or codes, see `find_language`.
        keep_pieces_of: a text, or a file of pairs; None: all pieces are kept.
        new_languages: languages that the model lacks, such as `fon=yo`: its token begins as a copy of that of `yo`, or
            without `=` as the mean of all.
        origin: where the card says that the model is from; None: the name of `source`.

    Raises:
        UsageError: if `source` is not such a directory, needs a feature that mtx lacks, or lacks a language.
        DamagedFileError: if a file is missing, cannot be read, or does not fit the others.
    """
    fairseq_config, info = read_config(source, target, M2M100Config)
    config = model_config(source / MODEL_CONFIG, fairseq_config, _IDS, norm="pre", positions="fairseq", start="eos")
    family = _read_family(source, fairseq_config.vocab_size)
    logger.info("%s: licence %s", source, family.licence)
    language_ids = family.languages
    names = [name.replace("-", "_").strip("<>") for name in languages]  # parts of directions
    tokens = [find_language(name, language_ids) for name in languages]
    language_rows = [[language_ids[token]] for token in tokens]
    for name, sign, related in (text.partition("=") for text in new_languages):
        names.append(name)
        tokens.append(f">>{name}<<")  # no text has such a piece
        if not _NEW_NAME.fullmatch(tokens[-1]):
            raise UsageError(f"--new-language {name!r}: expected a code, or CODE=RELATED")
        related_languages = [find_language(related, language_ids)] if sign else language_ids
        language_rows.append([language_ids[language] for language in related_languages])
    for unique_names in (names, tokens):
        if duplicates := [name for name in unique_names if unique_names.count(name) > 1]:
            raise UsageError(f"--languages: {duplicates[0]} is named twice")
    if len(names) < 2:
        raise UsageError("a model translates between at least two languages", "--languages en,sw")
    del info["src"], info["tgt"]
    info["directions"] = [f"{src}-{tgt}" for src, tgt in permutations(names, 2)]
    kept_pieces = [*family.ids]
    if keep_pieces_of:
        needed = needed_pieces(family.model, _read_text(keep_pieces_of, names), keep_pieces_of)
        kept_pieces = [piece for piece in kept_pieces if piece in needed]
        logger.info("%s needs %s of %s pieces", keep_pieces_of, f"{len(kept_pieces):,}", f"{len(family.ids):,}")
    try:
        joint = JointModel(rewrite(family.model, [*kept_pieces, *tokens]))
    except (RuntimeError, ValueError) as error:
        raise DamagedFileError(f"{source / FAIRSEQ_PIECES}: cannot rewrite it: {error}") from None
    ids = {name: token for token, name in enumerate(names, len(kept_pieces))}
    tokenizer = Tokenizer(joint, "none", [], False, len(family.unused_ids), ids, family.rule)
    rows = [[family.ids[piece]] for piece in kept_pieces] + language_rows
    rows += ([row] for row in (*family.unused_ids, _SPECIAL[PAD]))
    weights = read_weights(source / WEIGHTS, config, rows, fairseq_config.vocab_size)
    model_directory.write(target, weights, config, tokenizer, info)
    scores = {"run": {"licence": family.licence}}
    card = write_card("imported", [names], scores, config=config, source=origin or source.name)
    model_directory.add_scores(target, scores, {CARD: card})


def find_language(name: str, languages: Collection[str]) -> str:
    """The model's name of a language: `name` itself, or the only one with its code, and script if it has one.

    Codes are those of ISO 639, and of the language that a code of several languages usually denotes.

    Raises:
        UsageError: if there is none, or there are several.
    """
    if name in languages:
        return name
    code, _, script = name.replace("-", "_").partition("_")
    codes = _codes(code)
    matches = list[str]()
    for language in languages:
        model_code, model_script = _code_and_script(language) or ("", "")
        if _codes(model_code) & codes and script in ("", model_script):
            matches.append(language)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"language {name}: the model has {', '.join(matches)}", "use one of these names")
    raise UsageError(
        f"language {name}: the model does not have it",
        f"--new-language {name}=RELATED adds it; the model has {', '.join(languages)}",
    )


def _code_and_script(name: str) -> tuple[str, str] | None:
    """The code and the script, or "", in a model's name of a language; None for a token that is not such a name."""
    if match := _NLLB_NAME.fullmatch(name):
        return match[1], match[2]
    if match := _M2M_100_NAME.fullmatch(name) or _NEW_NAME.fullmatch(name):
        return match[1], ""
    return None


def _codes(code: str) -> set[str]:
    """All codes of the language that a code denotes, without a guess for one of several."""
    codes = {code, *_NLLB_CODES.get(code, [])}
    with contextlib.suppress(LookupError, ValueError):
        codes.add(Language.get(code, normalize=False).to_alpha3())
    return codes


def _read_family(source: Path, num_rows: int) -> _Family:
    """Read the tokenizer of a directory.

    Raises:
        UsageError: if it has no SentencePiece model.
        DamagedFileError: if its files are damaged, or `num_rows`, the model's vocabulary size, does not fit them.
    """
    path = source / FAIRSEQ_PIECES
    if not path.is_file():
        raise UsageError(
            f"{path}: missing file",
            "transformers 5 saves only tokenizer.json: copy the file of the model that was adapted",
        )
    model = JointModel(read_model(path)[0])
    pieces = model.pieces
    if pieces[:3] != [UNK, BOS, EOS]:
        raise DamagedFileError(f"{path}: its first pieces are not {UNK}, {BOS} and {EOS}")
    path = source / TOKENIZER_CONFIG
    settings = read_settings(_Settings, path)
    vocabulary = source / VOCABULARY
    ids: dict[str, Any] = {piece: number for number, piece in enumerate([*_SPECIAL, *pieces[3:]])}
    if vocabulary.is_file():
        ids = read_json(vocabulary)
        if any(type(token) is not int for token in ids.values()) or not _SPECIAL.items() <= ids.items():
            raise DamagedFileError(f"{vocabulary}: expected the id of each piece, and {_SPECIAL}")
        codes = _WMT21 if settings.language_codes == "wmt21" else _M2M_100
        languages = {f"__{code}__": len(ids) + number for number, code in enumerate(codes.split())}
    else:
        tokens = {
            token.content: token.token_id for token in read_settings(_Settings, source / TOKENIZER_JSON).added_tokens
        }
        tokens |= {token.content: number for number, token in settings.added_tokens_decoder.items()}
        languages = {name: token for name, token in tokens.items() if _code_and_script(name)}
    if not languages:
        raise DamagedFileError(f"{source}: neither {TOKENIZER_JSON} nor {TOKENIZER_CONFIG} names the languages")
    used_ids = [*ids.values(), *languages.values()]
    unused_ids = sorted({*range(num_rows)} - {*used_ids})
    if len(unused_ids) != num_rows - len(used_ids) or len(unused_ids) > _MAX_UNUSED:  # else each has a row of its own
        raise DamagedFileError(
            f"{source / MODEL_CONFIG}: vocab_size is {num_rows:,}, but there are {len(ids):,} pieces and "
            f"{len(languages)} languages with ids up to {max(used_ids):,}"
        )
    if settings.legacy_behaviour is True:
        logger.warning("%s: legacy_behaviour puts the language of a source last; mtx puts it first", path)
    is_target_only = "small100" in str(settings.tokenizer_class).lower() or settings.languages_rule == "target"
    piece_ids = {piece: ids[piece] for piece in (EOS, UNK, *pieces[3:]) if piece in ids}
    is_nllb = any(map(_NLLB_NAME.fullmatch, languages))
    licence = "CC-BY-NC-4.0" if is_nllb else "MIT"  # M2M-100 and SMaLL-100 have the latter
    return _Family(
        model, piece_ids, languages, [_SPECIAL[BOS], *unused_ids], "target" if is_target_only else "both", licence
    )


def _read_text(path: Path, languages: Sequence[str]) -> Iterator[str]:
    """The lines of a text, or both sides of the pairs of a file."""
    reader = find_reader(path)
    if reader is None:
        yield from read_lines(path)
        return
    for block in reader(path, (languages[0], languages[1])):
        yield from chain(block.src, block.tgt)


def needed_pieces(model: JointModel, lines: Iterable[str], path: Path) -> set[str]:
    """The pieces that the lines of `path` use, their characters, and all pieces that those are merged from.

    The characters that the model lacks are logged.
    """
    _, ranks = model.merges(False)
    counts = Counter(chain.from_iterable(model.split(list(lines))))
    characters = Counter(chain.from_iterable(counts.elements()))
    lacking = [
        f"{character} ({count:,})" for character, count in characters.most_common() if character not in model.vocabulary
    ]
    if lacking:
        logger.warning(
            "%s: the model lacks %d characters, which it reads as <unk>: %s",
            path,
            len(lacking),
            ", ".join(lacking[:_NUM_SHOWN]),
        )
    needed = {*counts, *characters, EOS, UNK} & {*model.vocabulary}
    return needed.union(*(_merged_from(piece, ranks) for piece in needed))


def _merged_from(piece: str, ranks: Mapping[str, int]) -> Iterator[str]:
    """The pieces that BPE makes on the way from the characters of a piece to it."""
    symbols = list(piece)
    while possible := [(ranks[text], at) for at, text in enumerate(map("".join, pairwise(symbols))) if text in ranks]:
        _, at = min(possible)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        yield symbols[at]


def rewrite(model: JointModel, pieces: Sequence[str]) -> bytes:
    """A SentencePiece model with these pieces in this order; those that `model` lacks become control symbols.

    Raises:
        ValueError: if its protocol buffer has a field without a size, which SentencePiece does not write.
    """
    source = io.BytesIO(model.source)
    entries = list[bytes]()
    other_fields = list[bytes]()
    while (field_start := source.tell()) < len(model.source):
        key = _read_varint(source)
        if key & 7 != 2:
            raise ValueError("a field without a size")
        field_end = source.seek(_read_varint(source), io.SEEK_CUR)
        field = model.source[field_start:field_end]
        number = key >> 3
        if number == 1:
            entries.append(field)
        elif number != 4:  # tests of its segmentation, which may need other pieces
            other_fields.append(field)
    entry_of = dict(zip(model.pieces, entries, strict=True))
    return b"".join([*(entry_of.get(piece) or _control(piece.encode()) for piece in pieces), *other_fields])


def _control(name: bytes) -> bytes:
    """The entry of a control symbol, whose name has less than 100 bytes."""
    body = b"\x0a" + bytes([len(name)]) + name + b"\x18\x03"  # the name, and the type
    return b"\x0a" + bytes([len(body)]) + body


def _read_varint(message: io.BytesIO) -> int:
    """The next number, seven bits a byte, the lowest first."""
    value = 0
    shift = 0
    while (byte := message.read(1)[0]) & 128:
        value |= (byte & 127) << shift
        shift += 7
    return value | byte << shift


def export_m2m100(loaded: LoadedModel, directory: Path) -> None:
    """Write a directory that `M2M100ForConditionalGeneration` and `NllbTokenizer` load, with fairseq's ids.

    Raises:
        UsageError: if the model does not have several languages with a token each.
    """
    tokenizer = loaded.tokenizer
    pad_id = loaded.model.pad_id
    if not tokenizer.languages or tokenizer.normalization != "none":
        raise UsageError("this model cannot be exported to M2M100: its tokenizer was not imported from such a model")
    languages = [*tokenizer.languages.values()]
    text = [token for token in range(2, tokenizer.num_pieces) if token not in languages]
    bos, mask, *unused = range(tokenizer.num_pieces, pad_id + 1)  # of which pad is the last
    order = [bos, pad_id, EOS_ID, UNK_ID, *text, mask, *languages, *unused[:-1]]  # of the ids, by fairseq's
    ids = {name: place for place, name in enumerate(tokenizer.pieces(languages), 5 + len(text))}
    src, tgt = tokenizer.pieces([tokenizer.languages[name] for name in language_pairs(loaded.info)[0]])
    added = {**_SPECIAL, MASK: 4 + len(text), **ids}
    settings = {
        "tokenizer_class": "NllbTokenizer",
        "src_lang": src if tokenizer.rule == "both" else tgt,
        "tgt_lang": tgt,
        "model_max_length": loaded.info["max_tokens"],
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": [*ids],
        "added_tokens_decoder": {str(token): {"content": name, "special": True} for name, token in added.items()},
        "languages_rule": tokenizer.rule,
    }
    pieces = rewrite(tokenizer.models, [UNK, BOS, EOS, *tokenizer.pieces(text)])
    files = {TOKENIZER_CONFIG: to_json(settings), FAIRSEQ_PIECES: pieces}
    tensors = tensors_of(loaded.model)
    del tensors[OUTPUT_BIAS]
    tensors[SHARED] = tensors[SHARED][order]
    forced = ids[tgt] if tokenizer.rule == "both" else None
    special = {"model_type": "m2m_100", **_IDS}
    write_directory(directory, loaded, M2M100Config, special, files, tensors, forced_bos_token_id=forced)
