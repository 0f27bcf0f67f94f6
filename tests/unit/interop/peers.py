"""The same sentences through mtx's model and through transformers' MarianMT."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mtx.data.tokenizer import EOS_ID
from mtx.model.transformer import Transformer
from tests.models import batch_of


def marian(path: Path) -> tuple[Any, Any]:
    """transformers' model and tokenizer of a directory."""
    from transformers import MarianMTModel, MarianTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    return MarianMTModel.from_pretrained(path).eval(), MarianTokenizer.from_pretrained(path)


@torch.no_grad()
def our_logits(model: Transformer, src: list[list[int]], tgt: list[list[int]]) -> Tensor:
    """The logits of every target position, sentences end to end, [N, V]."""
    model.prepare_positions(64)
    batch = batch_of(src, tgt, model.pad_id)
    logits = model.decode(batch, model.encode(batch)) @ model.output_weight.T
    return logits if model.output_bias is None else logits + model.output_bias


@torch.no_grad()
def their_logits(model: Any, src: list[list[int]], tgt: list[list[int]]) -> Tensor:
    """The same of MarianMT, which pads; without its logit of pad."""
    pad = model.config.pad_token_id
    src_ids, tgt_ids = (_padded(side, pad) for side in (src, [[pad, *sentence[:-1]] for sentence in tgt]))
    lengths = torch.tensor([len(sentence) for sentence in src])
    mask = (torch.arange(src_ids.shape[1]) < lengths[:, None]).long()
    logits = model(input_ids=src_ids, attention_mask=mask, decoder_input_ids=tgt_ids).logits
    return torch.cat([row[: len(sentence), :-1] for row, sentence in zip(logits, tgt, strict=True)])


def _padded(sentences: list[list[int]], pad: int) -> Tensor:
    width = max(map(len, sentences))
    return torch.tensor([sentence + [pad] * (width - len(sentence)) for sentence in sentences])


def our_greedy(model: Transformer, src: list[int], max_length: int) -> list[int]:
    """The most probable token at each step; at the last one `</s>`."""
    tokens: list[int] = []
    while len(tokens) < max_length - 1 and (not tokens or tokens[-1] != EOS_ID):
        tokens.append(int(our_logits(model, [src], [[*tokens, EOS_ID]])[-1].argmax()))
    return tokens if tokens[-1] == EOS_ID else [*tokens, EOS_ID]
