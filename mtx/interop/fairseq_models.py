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
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import safetensors.torch
from langcodes import Language
from pydantic import BaseModel, Field

from mtx.config.schema import TAG
from mtx.data.readers import reader_of
from mtx.data.sentencepiece_models import BYTE, EOS, PAD, UNK, JointModel, read_model
from mtx.data.sources import holds_pairs
from mtx.data.tokenizer import EOS_ID, UNK_ID, Rule, Tokenizer
from mtx.decoding import model_directory
from mtx.decoding.model_directory import LoadedModel
from mtx.decoding.options import EXTRA_LENGTH
from mtx.errors import DamagedFileError, UsageError
from mtx.interop.cards import imported_card
from mtx.interop.huggingface import (
    GENERATION_CONFIG,
    SIZES,
    TOKENIZER_CONFIG,
    VOCABULARY,
    read_config,
    read_info,
    read_json,
    read_sizes,
    read_weights,
    validate,
)
from mtx.model.parameters import parameters
from mtx.model.transformer import Transformer
from mtx.storage import durable
from mtx.storage.run_files import CARD, FAIRSEQ_PIECES, MODEL_CONFIG, TOKENIZER_JSON, WEIGHTS
from mtx.storage.text_files import read_lines

logger = logging.getLogger(__name__)

BOS, MASK = "<s>", "<mask>"
_SPECIAL = {BOS: 0, PAD: 1, EOS: 2, UNK: 3}
_MAX_TOKENIZER_JSON_BYTES = 1 << 26  # that of NLLB
_MAX_UNUSED = 16  # rows without a piece; NLLB has 4, M2M-100 has 9
_FIXED_BYTES = {1: 8, 5: 4}  # of the kinds of fields in a protocol buffer
_NUM_SHOWN = 20  # characters
# The names of languages: of NLLB, of M2M-100, and of languages that mtx added.
_NAME = re.compile(r"([a-z]{3})_([A-Z][a-z]{3})|__([a-z]{2,3})__|>>(.+)<<")
# What NLLB's names begin with for languages whose code is that of several languages, or has changed.
_INDIVIDUAL = (
    "ar arb, ay ayr, az azj, et est, fa pes, ff fuv, kr knc, ku kmr ckb, lv lvs, mg plt, mn khk, ms zsm, ne npi, "
    "no nob, ns nso, om gaz, or ory, ps pbt, qu quy, sq als, sw swh, uz uzn, yi ydd"
)
_NAMES_OF = {code: names.split() for code, _, names in (entry.partition(" ") for entry in _INDIVIDUAL.split(", "))}

# The languages of M2M-100, and of a model of WMT 2021, in the order of their ids.
_M2M_100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr "
    "ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa "
    "pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
_WMT21 = "en ha is ja cs ru zh de"


class M2M100Config(BaseModel, strict=True, protected_namespaces=()):
    """config.json; a Literal is the value in such models, a default is that of transformers for a missing key."""

    architectures: Any = ["M2M100ForConditionalGeneration"]
    model_type: Literal["m2m_100"]
    is_encoder_decoder: Literal[True] = True
    vocab_size: int = Field(128112, ge=4, le=1 << 21)
    max_position_embeddings: int = Field(1024, ge=8)
    d_model: int = Field(1024, ge=4, le=1 << 16)
    encoder_layers: int = 12
    decoder_layers: int = 12
    encoder_attention_heads: int = 16
    decoder_attention_heads: int = 16
    encoder_ffn_dim: int = 4096
    decoder_ffn_dim: int = 4096
    activation_function: Literal["relu", "swish", "silu", "gelu"] = "relu"
    dropout: Any = 0.1
    scale_embedding: Literal[True] = True
    tie_word_embeddings: Literal[True] = True
    layernorm_embedding: Literal[False, None] = False
    normalize_embedding: Literal[False, None] = False
    bos_token_id: Literal[0] = 0
    pad_token_id: Literal[1] = 1
    eos_token_id: Literal[2] = 2
    decoder_start_token_id: Literal[2] = 2


class _Token(BaseModel):
    id: int = 0
    content: str


class _TokenizerJson(BaseModel):
    """The key of tokenizer.json that mtx reads."""

    added_tokens: list[_Token] = []


class _Settings(BaseModel):
    """The keys of tokenizer_config.json that mtx reads."""

    tokenizer_class: Any = None
    language_codes: Any = None
    languages_rule: Any = None
    legacy_behaviour: Any = None
    added_tokens_decoder: dict[Annotated[int, Field(ge=0)], _Token] = {}


class _Family(NamedTuple):
    """The tokenizer of a directory.

    Attributes:
        model: its SentencePiece model.
        ids: fairseq's id of each piece of it that has one, by the piece.
        languages: fairseq's id of each language, by the model's name for it.
        unused: the other rows, `<s>` and `<mask>` first.
    """

    model: bytes
    ids: dict[str, int]
    languages: dict[str, int]
    unused: list[int]
    rule: Rule
    licence: str


def import_fairseq(
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
    values = read_config(source, target, "M2M100ForConditionalGeneration")
    path = source / MODEL_CONFIG
    theirs = validate(M2M100Config, path, values)
    config = read_sizes(path, theirs, norm="pre", positions="fairseq", start="eos")
    for key in ("attention_heads", "ffn_dim"):
        expected, actual = (getattr(theirs, f"{stack}_{key}") for stack in ("encoder", "decoder"))
        if actual != expected:
            raise UsageError(f"{path}: decoder_{key} is {actual}, but mtx requires {expected}, as in the encoder")
    family = _read_family(source, theirs.vocab_size)
    logger.info("%s: licence %s", source, family.licence)
    names, tokens, of_languages = list(languages), list[str](), list[list[int]]()
    for name in languages:
        tokens.append(find_language(name, family.languages))
        of_languages.append([family.languages[tokens[-1]]])
    for name, sign, related in (text.partition("=") for text in new_languages):
        if not TAG.fullmatch(name):
            raise UsageError(f"--new-language {name!r}: expected a code, or CODE=RELATED")
        names.append(name)
        tokens.append(f">>{name}<<")  # no text has such a piece
        like = [find_language(related, family.languages)] if sign else [*family.languages]
        of_languages.append([family.languages[language] for language in like])
    for values_of in (names, tokens):
        if twice := [name for name, count in Counter(values_of).items() if count > 1]:
            raise UsageError(f"--languages: {twice[0]} is named twice")
    if len(names) < 2:
        raise UsageError("a model translates between at least two languages", "--languages en,sw")
    info = read_info(source, theirs.max_position_embeddings, values) | {"src": names[0], "tgt": names[1]}
    kept = [*family.ids]
    if keep_pieces_of is not None:
        needed = needed_pieces(JointModel(family.model), _read_text(keep_pieces_of, names), keep_pieces_of)
        kept = [piece for piece in kept if piece in needed]
        logger.info("%s needs %s of %s pieces", keep_pieces_of, f"{len(kept):,}", f"{len(family.ids):,}")
    try:
        joint = JointModel(rewrite(family.model, [EOS, UNK, *kept, *tokens]))
    except (RuntimeError, ValueError, LookupError) as error:
        raise DamagedFileError(f"{source / FAIRSEQ_PIECES}: cannot rewrite it: {error}") from None
    ids = {name: 2 + len(kept) + number for number, name in enumerate(names)}
    tokenizer = Tokenizer(joint, "none", [], False, len(family.unused), ids, family.rule)
    rows = [[_SPECIAL[EOS]], [_SPECIAL[UNK]], *([family.ids[piece]] for piece in kept)]
    rows += [*of_languages, *([row] for row in (*family.unused, _SPECIAL[PAD]))]
    weights = read_weights(source / WEIGHTS, config, rows, theirs.vocab_size)
    model_directory.write(target, weights, config, tokenizer, info)
    scores = {"run": {"licence": family.licence}}
    model_directory.add_scores(target, scores, {CARD: imported_card(config, names, scores, origin or source.name)})


def find_language(name: str, languages: Iterable[str]) -> str:
    """The model's name of a language: `name` itself, or the only one with its code, and script if it has one.

    Codes are those of ISO 639, and of the language that a code of several languages usually denotes.

    Raises:
        UsageError: if there is none, or there are several.
    """
    known = list(languages)
    if name in known:
        return name
    code, _, script = name.replace("-", "_").partition("_")
    found = [token for token in known if _codes(_code_of(token)[0]) & _codes(code)]
    found = [token for token in found if script in ("", _code_of(token)[1])]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"language {name}: the model has {', '.join(found)}", "use one of these names")
    help = f"--new-language {name}=RELATED adds it; the model has {', '.join(known)}"
    raise UsageError(f"language {name}: the model does not have it", help)


def _code_of(token: str) -> tuple[str, str]:
    """The code and the script in a model's name of a language; the script may be empty."""
    match = _NAME.fullmatch(token)
    assert match is not None
    code, script, *others = match.groups()
    return code or others[0] or others[1], script or ""


def _codes(code: str) -> set[str]:
    """All codes of the language that a code denotes, without a guess for one of several."""
    codes = {code, *_NAMES_OF.get(code, ())}
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
        help = "transformers 5 saves only tokenizer.json: copy the file of the model that was adapted"
        raise UsageError(f"{path}: missing file", help)
    model, processor = read_model(path)
    pieces = processor.id_to_piece(list(range(len(processor))))
    if pieces[:3] != [UNK, BOS, EOS]:
        raise DamagedFileError(f"{path}: its first pieces are not {UNK}, {BOS} and {EOS}")
    path = source / TOKENIZER_CONFIG
    settings = _read(_Settings, path)
    vocabulary = source / VOCABULARY
    ids: dict[str, Any] = {piece: number for number, piece in enumerate([*_SPECIAL, *pieces[3:]])}
    if vocabulary.is_file():
        ids = read_json(vocabulary)
        if any(type(token) is not int for token in ids.values()) or not _SPECIAL.items() <= ids.items():
            raise DamagedFileError(f"{vocabulary}: expected the id of each piece, and {_SPECIAL}")
        codes = _WMT21 if settings.language_codes == "wmt21" else _M2M_100
        languages = {f"__{code}__": len(ids) + number for number, code in enumerate(codes.split())}
    else:
        tokens = {token.content: number for number, token in settings.added_tokens_decoder.items()}
        for token in _read(_TokenizerJson, source / TOKENIZER_JSON).added_tokens:
            tokens.setdefault(token.content, token.id)
        languages = {name: token for name, token in tokens.items() if _NAME.fullmatch(name)}
    if not languages:
        raise DamagedFileError(f"{source}: neither {TOKENIZER_JSON} nor {TOKENIZER_CONFIG} names the languages")
    used = [*ids.values(), *languages.values()]
    unused = sorted({*range(num_rows)} - {*used}) if max(used) < num_rows else []
    if len({*used}) < len(used) or min(used) < 0 or max(used) >= num_rows or len(unused) > _MAX_UNUSED:
        text = f"{len(ids):,} pieces and {len(languages)} languages with ids up to {max(used):,}"
        raise DamagedFileError(f"{source / MODEL_CONFIG}: vocab_size is {num_rows:,}, but there are {text}")
    if settings.legacy_behaviour is True:
        logger.warning("%s: legacy_behaviour puts the language of a source last; mtx puts it first", path)
    is_nllb = any(_code_of(name)[1] for name in languages)
    rule: Rule = "both"
    if "small100" in str(settings.tokenizer_class).lower() or settings.languages_rule == "target":
        rule = "target"
    unused = [_SPECIAL[BOS], *unused]
    of_text = {piece: ids[piece] for piece in pieces[3:] if piece in ids}
    return _Family(model, of_text, languages, unused, rule, "CC-BY-NC-4.0" if is_nllb else "MIT")


def _read(kind: Any, path: Path) -> Any:
    """The values of a file of the tokenizer, which may be missing."""
    return validate(kind, path, read_json(path, _MAX_TOKENIZER_JSON_BYTES) if path.is_file() else {})


def _read_text(path: Path, languages: Sequence[str]) -> Iterator[str]:
    """The lines of a text, or both sides of the pairs of a file."""
    if not path.is_file():
        raise UsageError(f"--keep-pieces-of {path}: no such file")
    if not holds_pairs(str(path)):
        yield from read_lines(path)
        return
    for block in reader_of(path)(path, (languages[0], languages[1])):
        yield from block.src
        yield from block.tgt


def needed_pieces(model: JointModel, lines: Iterable[str], path: Path) -> set[str]:
    """The pieces that the lines of `path` use, their characters, and all pieces that those are merged from.

    The characters that the model lacks are logged.
    """
    _, ranks = model.merges(False)
    counts = Counter(piece for line in model.split(list(lines)) for piece in line)
    characters = Counter[str]()
    for piece, count in counts.items():
        for character in piece:
            characters[character] += count
    lacking = [f"{c} ({count:,})" for c, count in characters.most_common() if c not in model.vocabulary]
    if lacking:
        shown = ", ".join([*lacking[:_NUM_SHOWN], *["..."][: len(lacking) - _NUM_SHOWN]])
        logger.warning("%s: the model lacks %d characters, which it reads as <unk>: %s", path, len(lacking), shown)
    needed = {*counts, *characters} & {*model.vocabulary}
    merged = {part for piece in needed for part in _merged_from(piece, ranks)}
    return needed | merged | {*filter(BYTE.fullmatch, model.vocabulary)}  # SentencePiece refuses a part of the bytes


def _merged_from(piece: str, ranks: Mapping[str, int]) -> Iterator[str]:
    """The pieces that BPE makes on the way from the characters of a piece to it."""
    symbols = list(piece)
    while possible := [(ranks[text], at) for at, text in enumerate(map("".join, pairwise(symbols))) if text in ranks]:
        _, at = min(possible)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        yield symbols[at]


def rewrite(model: bytes, pieces: Sequence[str]) -> bytes:
    """A SentencePiece model with these pieces in this order; those that `model` lacks become control symbols.

    Raises:
        ValueError, LookupError: if the bytes are not those of a protocol buffer.
    """
    entries, others = dict[str, bytes](), list[bytes]()
    for number, content, whole in _fields(model):
        if number == 1:
            entries[next(text for key, text, _ in _fields(content) if key == 1).decode()] = whole
        elif number != 4:  # tests of its segmentation, which may need other pieces
            others.append(whole)
    for piece in pieces:
        if piece not in entries:
            body = b"\x0a" + _varint(len(piece.encode())) + piece.encode() + b"\x18\x03"  # the type of a control symbol
            entries[piece] = b"\x0a" + _varint(len(body)) + body
    return b"".join([*map(entries.__getitem__, pieces), *others])


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yields the fields of a protocol buffer: the number, the content, and the bytes of the whole field.

    Raises:
        ValueError, LookupError: if the bytes are not one.
    """
    at = 0
    while at < len(message):
        key, begin = _read_varint(message, at)
        value = end = 0
        if key & 7 in (0, 2):
            value, end = _read_varint(message, begin)
        begin, end = (end, end + value) if key & 7 == 2 else (begin, end or begin + _FIXED_BYTES[key & 7])
        if end > len(message):
            raise ValueError("a field is cut off")
        yield key >> 3, message[begin:end], message[at:end]
        at = end


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at a place, seven bits a byte, the lowest first, and the place after it."""
    value = shift = 0
    while message[at] & 128:
        value |= (message[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def export_fairseq(loaded: LoadedModel, directory: Path) -> None:
    """Write a directory that `M2M100ForConditionalGeneration` and `NllbTokenizer` load, with fairseq's ids.

    Raises:
        UsageError: if the model does not have several languages with a token each.
    """
    tokenizer, info, model = loaded.tokenizer, loaded.info, loaded.model
    assert isinstance(model, Transformer)
    if not tokenizer.languages or tokenizer.normalization != "none":
        raise UsageError("this model cannot be exported to M2M100: its tokenizer was not imported from such a model")
    config, languages = model.config, [*tokenizer.languages.values()]
    text = [token for token in range(2, tokenizer.num_pieces) if token not in {*languages}]
    bos, mask, *unused = [*range(tokenizer.num_pieces, model.pad_id), model.pad_id, model.pad_id]
    unused = [token for token in unused if token != model.pad_id]
    order = [bos, model.pad_id, EOS_ID, UNK_ID, *text, mask, *languages, *unused]
    names = tokenizer.vocabulary()
    ids = {names[token]: place for place, token in enumerate(order) if token in {*languages}}
    frame = tokenizer.frame(info["src"], info["tgt"])
    forced = [ids[names[token]] for token in frame.before_tgt]
    sizes: dict[str, Any] = {key: getattr(config, name) for key, name in SIZES.items()}
    theirs = M2M100Config(
        model_type="m2m_100",
        vocab_size=len(order),
        max_position_embeddings=max(1024, info["max_tokens"]),
        activation_function=config.activation,
        dropout=config.dropout,
        **sizes,
    )
    generation = {
        **{key: value for key, value in theirs.model_dump().items() if key.endswith("token_id")},
        "forced_bos_token_id": forced[0] if forced else None,  # that of tgt_lang
        "bad_words_ids": [[_SPECIAL[PAD]]],
        "max_length": info["max_tokens"] + EXTRA_LENGTH + 1,
        "num_beams": info["beam_size"],
        "early_stopping": info["beam_size"] > 1,
        "length_penalty": info["length_penalty"],
    }
    src, tgt = (names[tokenizer.languages[info[side]]] for side in ("src", "tgt"))
    added = {**_SPECIAL, MASK: 4 + len(text), **ids}
    settings = {
        "tokenizer_class": "NllbTokenizer",
        "src_lang": src if tokenizer.rule == "both" else tgt,
        "tgt_lang": tgt,
        "model_max_length": info["max_tokens"],
        "legacy_behaviour": False,
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": [*ids],
        "added_tokens_decoder": {str(token): {"content": name, "special": True} for name, token in added.items()},
        "languages_rule": tokenizer.rule,
    }
    objects = {MODEL_CONFIG: theirs.model_dump(), GENERATION_CONFIG: generation, TOKENIZER_CONFIG: settings}
    weights = {name: tensor.cpu().float().contiguous() for name, tensor in model.state_dict().items()}
    weights["embedding"] = weights["embedding"][order]
    tensors = {p.huggingface[0]: weights[p.name] for p in parameters(config, model.pad_id)}
    with durable.new_directory(directory) as new:
        for name, value in objects.items():
            durable.write_text(new / name, json.dumps(value, ensure_ascii=False, indent=2) + "\n")
        pieces = [UNK, BOS, EOS, *(names[token] for token in text)]
        durable.write_bytes(new / FAIRSEQ_PIECES, rewrite(tokenizer.models.source, pieces))
        durable.write_bytes(new / WEIGHTS, safetensors.torch.save(tensors, metadata={"format": "pt"}))
