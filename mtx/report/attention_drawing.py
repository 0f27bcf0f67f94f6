"""Attention maps as PNG pictures: an overview of all heads, or one map with its pieces.

Flow: `AttentionMaps` -> bytes of a PNG; the same maps and the same matplotlib give the same bytes. The interactive
viewer is in attention_page.py.
"""

import io
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mtx.decoding.attention_maps import AttentionMaps
from mtx.errors import UsageError
from mtx.model.recorded_weights import Weights
from mtx.report.attention_page import piece_labels, text_of

_AXES = {  # kind of attention: label of the columns, label of the rows
    "cross": ("source piece attended to", "piece being written"),
    "encoder": ("source piece attended to", "source piece"),
    "decoder": ("earlier piece attended to", "piece being written"),
}
_COLOURS: dict[str, Any] = {"cmap": "Blues", "vmin": 0.0, "vmax": 1.0}
_DPI, _MAX_PIXELS = 150, 8000


def draw_overview(maps: AttentionMaps) -> bytes:
    """All layers and heads of each kind of attention, without pieces, under the sentence and its translation."""
    with style.context("default"):  # a matplotlibrc in the current directory has no effect
        width = min(1.6 * maps.cross.shape[1], 24.0)
        heights = [width * _height(getattr(maps, kind)) for kind in maps.kinds]
        sentences = [fill(text_of(pieces), int(9 * (width + 2.5))) for pieces in (maps.src_tokens, maps.tgt_tokens)]
        title = "\n".join(sentences)
        figure = _figure(width + 2.5, sum(heights) + 3 + 0.25 * title.count("\n"))
        figure.suptitle(title, parse_math=False)
        parts: Any = figure.subfigures(len(heights), height_ratios=[height + 0.8 for height in heights], squeeze=False)
        for part, kind in zip(parts.flat, maps.kinds, strict=True):
            axes = part.subplots()
            image = _draw_heads(axes, getattr(maps, kind))
            part.suptitle(f"{kind.capitalize()} attention", fontweight="bold")
            axes.set_xlabel(f"{_AXES[kind][0]} \N{RIGHTWARDS ARROW}")
            axes.set_ylabel(f"\N{LEFTWARDS ARROW} {_AXES[kind][1]}")
            part.colorbar(image, ax=axes, shrink=0.8, label="weight")
        return _png(figure)


def draw_map(maps: AttentionMaps, kind: str, layer: int, head: int) -> bytes:
    """One map with its pieces on both axes.

    Args:
        kind: cross, encoder or decoder.
        layer, head: counted from 1.

    Raises:
        UsageError: if the model has no such layer or head.
    """
    weights: Weights = getattr(maps, kind)
    if kind not in maps.kinds:
        raise UsageError(f"--kind {kind}: this model has no such attention", f"--kind {maps.kinds[0]}")
    for name, number, count in (("layer", layer, weights.shape[0]), ("head", head, weights.shape[1])):
        if not 1 <= number <= count:
            raise UsageError(f"--{name} {number}: {kind} attention has {name}s 1 to {count}")
    columns = {"cross": maps.src_tokens, "encoder": maps.src_tokens, "decoder": maps.tgt_inputs}[kind]
    rows = maps.src_tokens if kind == "encoder" else maps.tgt_tokens
    with style.context("default"):
        figure = _figure(0.25 * len(columns) + 3, 0.25 * len(rows) + 2.5)
        axes = figure.add_subplot()
        image = axes.imshow(weights[layer - 1, head - 1], **_COLOURS)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set_xticks(range(len(columns)), piece_labels(columns), rotation=90, parse_math=False)
        axes.set_yticks(range(len(rows)), piece_labels(rows), parse_math=False)
        axes.set_xlabel(_AXES[kind][0])
        axes.set_ylabel(_AXES[kind][1])
        axes.set_title(f"{kind.capitalize()} attention, layer {layer}, head {head}")
        figure.colorbar(image, shrink=0.8, label="weight")
        return _png(figure)


def _height(weights: Weights) -> float:
    """Height divided by width of the overview of maps [L, H, T, S].

    Cells are square unless one text is far longer than the other.
    """
    num_layers, num_heads, num_rows, num_columns = weights.shape
    return float(min(max(num_rows / num_columns, 0.25), 4.0) * num_layers / num_heads)


def _draw_heads(axes: Any, weights: Weights) -> Any:
    """Draw the maps [L, H, T, S] as one image with gaps, one row for each layer; many images would be much slower.

    Returns:
        matplotlib's image, for a colour scale.
    """
    num_layers, num_heads, num_rows, num_columns = weights.shape
    down, across = (
        num_rows + 1 + num_rows // 12,
        num_columns + 1 + num_columns // 12,
    )  # from map to map
    padded = np.pad(weights, ((0, 0), (0, 0), (0, down - num_rows), (0, across - num_columns)), constant_values=np.nan)
    mosaic = padded.transpose(0, 2, 1, 3).reshape(num_layers * down, num_heads * across)
    image = axes.imshow(mosaic[: num_rows - down, : num_columns - across], aspect="auto", **_COLOURS)
    axes.set_xticks([across * n + (num_columns - 1) / 2 for n in range(num_heads)])
    axes.set_xticklabels([f"head {n + 1}" for n in range(num_heads)])
    axes.set_yticks([down * n + (num_rows - 1) / 2 for n in range(num_layers)])
    axes.set_yticklabels([f"layer {n + 1}" for n in range(num_layers)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def _figure(width: float, height: float) -> Figure:
    """A figure with a size in inches; a very large one gets a lower resolution, so that it fits into memory."""
    return Figure((width, height), dpi=min(_DPI, _MAX_PIXELS / max(width, height)), layout="constrained")


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    FigureCanvasAgg(figure).print_png(file, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return file.getvalue()
