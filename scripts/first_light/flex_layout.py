"""The compiled training step with torch's FlexAttention instead of mtx's block kernels, for `probe_step.py`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from mtx.model.attention import BlockLayout, split_parts

_FLEX_BLOCK = 128  # rows and keys of a block of FlexAttention's tables


@dataclass(frozen=True)
class FlexLayout(BlockLayout):
    """The same layout for torch's FlexAttention.

    Attributes:
        mask: of what each query sees, with the tables of blocks, for all layers.
    """

    mask: BlockMask

    @classmethod
    def of(cls, *arguments: Any, **options: Any) -> "FlexLayout":
        """See `BlockLayout.of`."""
        layout = BlockLayout.of(*arguments, **options)
        starts, stops = layout.key_ranges
        num_queries = len(starts)
        num_keys = layout.query_ranges.shape[1]

        def is_visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            is_seen: Tensor = (key >= starts[query]) & (key < stops[query])
            return is_seen

        keys = _blocks(layout.key_ranges, num_keys)
        queries = _blocks(layout.query_ranges, num_queries)
        sizes = (_FLEX_BLOCK, _FLEX_BLOCK)
        none = (None, None)
        mask = BlockMask((num_queries, num_keys), *keys, *none, *queries, *none, sizes, is_visible)
        return cls(layout.key_ranges, layout.query_ranges, mask)

    def attend_joint(self, queries: Tensor, keys_values: Tensor | None) -> Tensor:
        """See `BlockLayout.attend_joint`."""
        q, k, v = (part.transpose(0, 1)[None] for part in split_parts(queries, keys_values))
        out: Any = flex_attention(q, k, v, block_mask=self.mask)
        rows: Tensor = out[0].transpose(0, 1).contiguous()
        return rows


def _blocks(ranges: Tensor, num_others: int) -> tuple[Tensor, Tensor]:
    """The number of blocks of the other side that each block of rows sees, and their indices, int32.

    Args:
        ranges: what each row sees, see `BlockLayout`; neither row ever decreases, so a block sees neighbouring blocks.
    """
    last_rows = torch.arange(_FLEX_BLOCK - 1, ranges.shape[1] + _FLEX_BLOCK - 1, _FLEX_BLOCK, device=ranges.device)
    starts = ranges[0, ::_FLEX_BLOCK] // _FLEX_BLOCK
    stops = (ranges[1, last_rows.clamp(max=ranges.shape[1] - 1)] + _FLEX_BLOCK - 1) // _FLEX_BLOCK
    size = -(-num_others // _FLEX_BLOCK)
    indices = starts[:, None] + torch.arange(size, dtype=torch.int32, device=ranges.device)
    return (stops - starts)[None, None], indices.clamp(max=size - 1)[None, None]
