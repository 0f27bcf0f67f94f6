"""Lists of sentences become packed batches of tensors."""

from mtx.decoding.batches import pack_sentences


def test_a_batch_holds_exactly_these_sentences() -> None:
    batch = pack_sentences([[5, 6, 0], [0]], [[0], [7, 0]], pad_id=9)
    assert batch.src_ids.tolist() == [5, 6, 0, 0]
    assert batch.src_offsets.tolist() == [0, 3, 4]
    assert batch.tgt_in_ids.tolist() == [9, 9, 7]
    assert (batch.num_sentences, batch.max_tokens) == (2, 3)
