/* lists.h - the workspace of 10_block_sparse: for each query tile the key blocks that it keeps. lists.cu fills it.
 */
#ifndef FA_LISTS_H
#define FA_LISTS_H

#include "../common/block_mask.h"
#include "../common/stage.h"

/* The buffers in the workspace of `skipping` and `overlapped`. The fourth is overlapped's alone. */
enum { KEY_BLOCKS, LIST_LENGTHS, LONGEST_FIRST, NEXT_TILE };

/* How many key blocks of a query tile are full, and how many are partial: tile_kept of block_mask.h. */
typedef struct {
    int full, partial;
} ListLengths;

/* A query tile in the order of work. */
typedef struct {
    int tile; /* which of the head's */
    ListLengths blocks;
} OrderedTile;

static inline int blocks_of(int seqlen) { return (seqlen + MASK_BLOCK - 1) / MASK_BLOCK; }

/* Query tiles of all batch entries. Heads share them: the mask is the same for all. Batch entries do not, since the
 * mask depends on the key length. */
static inline size_t list_count(const Problem *p) { return (size_t)p->batch * blocks_of(p->seqlen_q); }

#endif
