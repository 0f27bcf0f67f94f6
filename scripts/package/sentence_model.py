"""Makes `mtx/interop/sentences.onnx`: the sentence splitter that `mtx export --to argos` packs.

    python -m scripts.package.sentence_model mtx/interop

Argos Translate splits text with a small network that says of each character whether a sentence ends there (MiniSBD's
format), and downloads one where a package has none. This one needs no training and knows no language: a sentence ends
at `.`, `!`, `?` and their like before a space and no lower-case letter, but not after an initial (`J.`), an ordinal
number (`19.`) or an abbreviation of two letters (`Dr.`). The first convolution finds what is at and next to a
character, the second decides. The script needs onnx.
"""

import argparse
import json
import unicodedata
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

ENDS = ".!?…؟।።"
WIDE_ENDS = "。！？"
CLOSERS = "\"'”’»)]}」』"
LOWER = "".join(c for c in map(chr, range(0x10000)) if unicodedata.category(c) == "Ll")
CLASSES = [".", ENDS, WIDE_ENDS, CLOSERS, " ", LOWER]  # what a character can be, several at once
FEATURES = ["capitalized", "numeric", "end_of_para"]  # what MiniSBD computes in addition
DOT, END, WIDE, CLOSER, SPACE, LOWER_CASE, UPPER, DIGIT, LAST = range(len(CLASSES) + len(FEATURES))
BEFORE = 3  # characters that the network sees before each one
AFTER = 2  # and after it

# Each rule holds where all of its conditions do: (place next to the character, what may be there, whether it is).
_NEW = [(1, SPACE, True), (2, LOWER_CASE, False)]
SENTENCE_ENDS = [
    [(0, END, True), *_NEW],
    [(-1, END, True), (0, CLOSER, True), *_NEW],
    [(0, WIDE, True), (1, CLOSER, False), (1, WIDE, False)],
    [(-1, WIDE, True), (0, CLOSER, True)],
]
ABBREVIATIONS = [
    [(-2, LOWER_CASE, False), (-2, UPPER, False), (-1, UPPER, True), (0, DOT, True)],
    [(-3, LOWER_CASE, False), (-3, UPPER, False), (-2, UPPER, True), (-1, LOWER_CASE, True), (0, DOT, True)],
    [(-3, DIGIT, False), (-1, DIGIT, True), (0, DOT, True)],
]
LAST_CHARACTER = [[(0, LAST, True)]]
_NEVER = 10.0
_ALWAYS = 100.0


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("directory", type=Path)
    (parser.parse_args().directory / "sentences.onnx").write_bytes(model())


def model() -> bytes:
    """The file of the network: units [B, T] and features [B, T, 3] -> scores of 5 labels [B, T, 5]; 2 is an end."""
    units = ["<PAD>", "<UNK>", *dict.fromkeys("".join(CLASSES))]
    table = np.array([[float(unit in members) for members in CLASSES] for unit in units], np.float32)
    rules = [*SENTENCE_ENDS, *ABBREVIATIONS, *LAST_CHARACTER]
    weight = np.zeros((len(rules), LAST + 1, BEFORE + 1 + AFTER), np.float32)
    bias = np.ones(len(rules), np.float32)
    for row, rule in enumerate(rules):
        for place, kind, is_there in rule:
            weight[row, kind, BEFORE + place] = 1.0 if is_there else -1.0
            if is_there:
                bias[row] -= 1
    num_ends = len(SENTENCE_ENDS)
    num_never = len(ABBREVIATIONS)
    decision = np.array([1.0] * num_ends + [-_NEVER] * num_never + [_ALWAYS], np.float32)
    scores = np.zeros((5, len(rules), 1), np.float32)
    scores[2, :, 0] = decision
    offsets = np.array([0.0, -1.0, -0.5, -1.0, -1.0], np.float32)
    constants = {"table": table, "weight": weight, "bias": bias, "scores": scores, "offsets": offsets}
    nodes = [
        helper.make_node("Gather", ["table", "units"], ["classes"]),
        helper.make_node("Concat", ["classes", "features"], ["known"], axis=2),
        helper.make_node("Transpose", ["known"], ["channels"], perm=[0, 2, 1]),
        helper.make_node("Conv", ["channels", "weight", "bias"], ["matches"], pads=[BEFORE, AFTER]),
        helper.make_node("Relu", ["matches"], ["rules"]),
        helper.make_node("Conv", ["rules", "scores", "offsets"], ["labels"]),
        helper.make_node("Transpose", ["labels"], ["predictions"], perm=[0, 2, 1]),
    ]
    inputs = [
        helper.make_tensor_value_info("units", onnx.TensorProto.INT64, ["B", "T"]),
        helper.make_tensor_value_info("features", onnx.TensorProto.FLOAT, ["B", "T", len(FEATURES)]),
    ]
    outputs = [helper.make_tensor_value_info("predictions", onnx.TensorProto.FLOAT, ["B", "T", 5])]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "sentences", inputs, outputs, weights)
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="mtx")
    numbers = {unit: number for number, unit in enumerate(units)}
    vocabulary = {"lang": "", "idx": 0, "cutoff": 0, "lower": False, "_unit2id": numbers, "_id2unit": units}
    config = {"max_seqlen": 1_000_000, "batch_size": 32, "feat_funcs": FEATURES, "no_ssplit": False}
    helper.set_model_props(network, {
        "lang_code": "mul", "config": json.dumps(config), "vocab": json.dumps(vocabulary), "lexicon": "null",
    })  # fmt: skip
    onnx.checker.check_model(network)
    return network.SerializeToString(deterministic=True)


if __name__ == "__main__":
    main()
