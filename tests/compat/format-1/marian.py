"""An untrained MarianMT directory whose two sides have tokenizers of their own, learned from train.tsv."""

import io
import json
from pathlib import Path

import sentencepiece
import torch
import transformers


def sentencepiece_model(lines: list[str]) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=90,
        hard_vocab_limit=False,
        minloglevel=2,
        normalization_rule_name="identity",
    )
    return model.getvalue()


pairs = [line.split("\t") for line in Path("train.tsv").read_text(encoding="utf-8").splitlines()]
source, target = (sentencepiece_model([pair[side] for pair in pairs]) for side in (0, 1))
pieces = {"</s>": 0, "<unk>": 1}
for model in (source, target):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    for token in range(3, processor.get_piece_size()):
        pieces.setdefault(processor.id_to_piece(token), len(pieces))
pad = pieces["<pad>"] = len(pieces)
torch.manual_seed(1)
config = transformers.MarianConfig(
    vocab_size=pad + 1, pad_token_id=pad, decoder_start_token_id=pad, scale_embedding=True,
    activation_function="swish", encoder_layers=1, decoder_layers=1, d_model=16, encoder_ffn_dim=32,
    decoder_ffn_dim=32, encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=64,
    dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, init_std=0.2,
)  # fmt: skip
directory = Path("marian")
transformers.MarianMTModel(config).save_pretrained(directory)
(directory / "source.spm").write_bytes(source)
(directory / "target.spm").write_bytes(target)
(directory / "vocab.json").write_text(json.dumps(pieces), encoding="utf-8")
(directory / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
