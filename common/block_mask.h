/* block_mask.h - which keys a row of a block mask keeps, and what it keeps of a tile: the same for kernels and formulas.
 *
 * The query in row i stands at pos = i + L - Sq, where L is its batch entry's key length: the last query stands at the last key,
 * causal or not. A query with pos < 0 has no window, sink, document or block of its own. Rows and columns come in blocks of
 * MASK_BLOCK, from 0; those at the edge are smaller.
 */
#ifndef FA_BLOCK_MASK_H
#define FA_BLOCK_MASK_H

#include "problem.h"
#include "score.h"

HOST_DEVICE static inline int smaller_of(int a, int b) { return a < b ? a : b; }
HOST_DEVICE static inline int larger_of(int a, int b) { return a > b ? a : b; }

/* The size of the mask's tables: bytes of `documents`, and of `kept`. */
static inline size_t document_bytes(const Problem *p) { return 2 * sizeof(int) * (size_t)p->seqlen_k; }
static inline size_t mask_blocks(const Problem *p) {
    return (size_t)((p->seqlen_q + MASK_BLOCK - 1) / MASK_BLOCK) * ((p->seqlen_k + MASK_BLOCK - 1) / MASK_BLOCK);
}

/* Whether block (row_block, key_block) is kept by the mask's table, if it has one. */
HOST_DEVICE static inline int block_is_kept(const BlockMask *mask, const Problem *p, int row_block, int key_block) {
    const int key_blocks = (p->seqlen_k + MASK_BLOCK - 1) / MASK_BLOCK;
    return !mask->kept || mask->kept[(size_t)row_block * key_blocks + key_block];
}

/* The keys of a row, with causal mask and key length: from <= j < to, its own; and j < limit that every row has, a sink or a key
 * block of strides. Of both only those in blocks that are kept. None of the three falls from a row to the next; to <= limit.
 * A row that does not exist has those of the last, or more. */
typedef struct {
    int from, to, limit;
} RowKeys;

HOST_DEVICE static inline RowKeys row_keys(const BlockMask *mask, const Problem *p, int key_length, int row) {
    const int visible = visible_keys(p, key_length, row), pos = smaller_of(row, p->seqlen_q - 1) + key_length - p->seqlen_q;
    RowKeys keys = {0, visible, visible};
    if (mask->window) {
        keys.from = pos - mask->window + 1;
        keys.to = keys.limit = smaller_of(visible, larger_of(pos + 1, 0));
    } else if (mask->documents) {
        keys.from = pos < 0 ? 0 : mask->documents[2 * pos];
        keys.to = pos < 0 ? 0 : smaller_of(visible, mask->documents[2 * pos + 1]);
    } else if (mask->stride) {
        keys.from = pos < 0 ? 0 : pos / MASK_BLOCK * MASK_BLOCK;
        keys.to = pos < 0 ? 0 : smaller_of(visible, keys.from + MASK_BLOCK);
    }
    return keys;
}

/* Whether the row, whose keys are `keys`, keeps this column. */
HOST_DEVICE static inline int row_keeps(const BlockMask *mask, const Problem *p, RowKeys keys, int row, int column) {
    const int key_block = column / MASK_BLOCK;
    const int of_every_row = column < mask->sink || (mask->stride && key_block % mask->stride == 0);
    return column < keys.limit && (of_every_row || (column >= keys.from && column < keys.to)) &&
           block_is_kept(mask, p, row / MASK_BLOCK, key_block);
}

HOST_DEVICE static inline int pair_is_kept(const BlockMask *mask, const Problem *p, int key_length, int row, int column) {
    return row_keeps(mask, p, row_keys(mask, p, key_length, row), row, column);
}
/* The same as the reference kernels ask it, of a block mask or a window; without either every pair is in the mask. */
HOST_DEVICE static inline int in_mask(const Problem *p, const Tensors *t, RowIndex at, int column) {
    const int keys = key_length(p, t->key_lengths, at.batch);
    const Range seen = seen_keys(&t->score, p, keys, at.row);
    return (!t->score.window || (column >= seen.begin && column < seen.end)) &&
           (!p->blocks || pair_is_kept(&t->mask, p, keys, at.row, column));
}

/* What is kept of a tile of S: no pair; some; every one, so that no mask need be evaluated. */
typedef enum { TILE_NONE, TILE_PARTIAL, TILE_FULL } TileKept;

/* Exact for tiles of any size: rows first_row .. end_row - 1, of which those do not count that are not there; keys first_key ..
 * end_key - 1, of which those that are not there are not kept. */
HOST_DEVICE static inline TileKept tile_kept(const BlockMask *mask, const Problem *p, int key_length, int first_row, int end_row,
                                             int first_key, int end_key) {
    const int last_key = smaller_of(end_key, key_length);
    int any = 0, full = last_key == end_key;
    end_row = smaller_of(end_row, p->seqlen_q);
    for (int a = first_row / MASK_BLOCK; a * MASK_BLOCK < end_row; a++)
        for (int b = first_key / MASK_BLOCK; b * MASK_BLOCK < last_key; b++) { /* the part of the tile in block (a, b) */
            const RowKeys first = row_keys(mask, p, key_length, larger_of(first_row, a * MASK_BLOCK));
            const RowKeys last = row_keys(mask, p, key_length, smaller_of(end_row, (a + 1) * MASK_BLOCK) - 1);
            const int begin = larger_of(first_key, b * MASK_BLOCK), end = smaller_of(last_key, (b + 1) * MASK_BLOCK);
            const int is_kept = block_is_kept(mask, p, a, b);
            /* every row has begin .. rest - 1, up to its limit. The rows' own keys are together all from first.from to last.to */
            const int rest = mask->stride && b % mask->stride == 0 ? end : smaller_of(larger_of(begin, mask->sink), end);
            any |= is_kept && begin < last.limit && (rest > begin || (end > first.from && begin < last.to));
            full &= is_kept && end <= first.limit && (rest == end || (rest >= last.from && end <= first.to));
        }
    return !any ? TILE_NONE : full ? TILE_FULL : TILE_PARTIAL;
}

#endif
