"""Writes a model for CTranslate2: CTranslate2's own files, and the tokenizer and settings needed to translate lines.

The weights go into CTranslate2's documented specification. Its decoder starts from what that of mtx
starts from, so logits and scores are equal. `mtx.decoding.ctranslate2_engine` runs the result.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from mtx.data.sentencepiece_models import EOS, UNK
from mtx.decoding.ctranslate2_engine import COMPUTE_TYPES, library
from mtx.decoding.model_directory import LoadedModel
from mtx.decoding.options import EXTRA_LENGTH, NO_SCORES
from mtx.errors import DamagedFileError, MtxError
from mtx.model.parameter_names import Parameter, parameters, position_tables
from mtx.model.transformer import Transformer, sinusoidal_positions
from mtx.storage import disk, durable
from mtx.storage.run_files import EXPORT_CONFIG

_LARGEST_WEIGHT = 1e19  # the products of larger ones overflow, of which CTranslate2 makes finite scores


def write_ctranslate2(loaded: LoadedModel, directory: Path, precision: str) -> None:
    """Write a directory that CTranslate2 and `CTranslate2Engine` load; an existing one is replaced.

    Raises MtxError if CTranslate2 is not installed.

    Args:
        precision: fp32, fp16 or int8, which quantizes the matrices and leaves the rest in fp32.
    """
    library()
    vocabulary = loaded.tokenizer.vocabulary()
    if len(set(vocabulary)) < len(vocabulary):
        raise DamagedFileError("the tokenizer has two equal subwords, which CTranslate2 does not support")
    num_positions = loaded.model.num_tgt_positions or max(512, 2 * loaded.info["max_tokens"] + EXTRA_LENGTH)
    settings = {
        **loaded.info,
        "model": loaded.model.config.stored(),
        "num_ids": loaded.tokenizer.num_ids,
        "precision": precision,
        "num_positions": num_positions,
    }
    assert isinstance(loaded.model, Transformer)
    spec = model_spec(loaded.model, vocabulary, num_positions)
    spec.validate()
    spec.optimize(quantization=COMPUTE_TYPES[precision])
    with durable.new_directory(directory) as new:
        with disk.name_in_errors(new):
            spec.save(str(new))
        loaded.tokenizer.save(new)
        durable.write_json(new / EXPORT_CONFIG, settings)


def model_spec(model: Transformer, vocabulary: list[str], num_positions: int) -> Any:
    """CTranslate2's `TransformerSpec` with copies of the weights (CTranslate2 quantizes in place).

    Args:
        vocabulary: the piece of each output id.
        num_positions: rows of computed position tables.
    """
    from ctranslate2 import specs

    config = model.config
    spec = specs.transformer_spec.TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=config.norm == "pre",
        activation=specs.common_spec.Activation[config.activation.upper()],
        alignment_heads=config.num_heads,
    )
    sinusoids = sinusoidal_positions(num_positions, config.d_model, config.positions == "fairseq")
    weights = {"src_positions": sinusoids, "tgt_positions": sinusoids, **model.state_dict()}
    arrays = {name: weight.detach().float().cpu().numpy() for name, weight in weights.items()}
    if not all(np.abs(array).max(initial=0) < _LARGEST_WEIGHT for array in arrays.values()):  # NaN is not less
        raise MtxError(NO_SCORES)
    tables = [] if config.positions == "learned" else position_tables(config, num_positions)
    variables = defaultdict[str, list[Parameter]](list)  # the parameters or position tables that each concatenates
    for parameter in (*parameters(config, model.pad_id), *tables):
        for variable in parameter.ctranslate2:
            variables[variable].append(parameter)
    for variable, parts in variables.items():
        layer, _, name = variable.rpartition("/")
        rows = []
        for part in parts:
            num_rows = part.shape[0] - 1 if part.has_pad_row else part.shape[0]
            rows.append(arrays[part.name][:num_rows])
        setattr(specs.model_spec.index_spec(spec, layer), name, np.concatenate(rows))
    spec.decoder.start_from_zero_embedding = model.start_id == model.pad_id
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.add_source_eos = True
    spec.config.unk_token = UNK
    spec.config.eos_token = EOS
    spec.config.bos_token = EOS  # mtx has no bos
    spec.config.decoder_start_token = [*vocabulary, EOS][model.start_id]  # with a zero embedding any token works
    spec.config.layer_norm_epsilon = 1e-5  # torch's default, which mtx uses
    return spec
