/* lists.cuh - what the kernels of 10_block_sparse know of their lists: which query tile comes next, and which key
 * blocks it has.
 */
#ifndef FA_LISTS_CUH
#define FA_LISTS_CUH

#include "../common/gpu/query_tile.cuh"
#include "lists.h"

/* The lists in the workspace (lists.cu). */
struct Lists {
    int *key_blocks;      /* [batch, query tiles, key blocks]: their numbers, first the full ones, then the partial */
    ListLengths *lengths; /* [batch, query tiles] */
    OrderedTile *order;   /* [batch, query tiles]: a batch entry's query tiles, those with the longest lists first */
};
inline Lists lists_in(const Buffer *workspace) {
    return {(int *)workspace[KEY_BLOCKS].pointer, (ListLengths *)workspace[LIST_LENGTHS].pointer,
            (OrderedTile *)workspace[LONGEST_FIRST].pointer};
}

/* The order of work. Without a block mask that of 08_fa3. With one, several heads together, as under a causal mask:
 * lists are not equally long. */
inline TileOrder listed_order(const Problem &p, const BlockMask &mask) {
    TileOrder order = tile_order(p, MASK_BLOCK, 2);
    if (mask.window || mask.documents || mask.stride || mask.kept)
        order.together = heads_together(p, 2);
    return order;
}

/* MASK_BLOCK queries of one head, and which keys they keep: QueryTile for lists. A key tile is a block on the list, or
 * a piece of one. They are counted along the list, and walked from its end. */
struct ListedTile {
    int batch_head, kv_head, first_row, keys;
    int key_tiles, whole_tiles; /* the first so many need no mask */
    int list; /* its number */
};

/* The first key of one of its key tiles. */
__device__ inline int listed_key(const Problem &p, const Lists &lists, const ListedTile &here, int tile, int Bc) {
    const int tiles = MASK_BLOCK / Bc; /* a block */
    const int *list = lists.key_blocks + (size_t)here.list * ceil_div(p.seqlen_k, MASK_BLOCK);
    return list[tile / tiles] * MASK_BLOCK + tile % tiles * Bc;
}

/* Number i in the order of work: as query_tile, but longest lists first. */
__device__ inline ListedTile listed_tile(const Problem &p, const int *key_lengths, const Lists &lists, int together,
                                         int i, int Bc) {
    const int query_tiles = ceil_div(p.seqlen_q, MASK_BLOCK);
    const HeadTurn at = head_turn(p, together, query_tiles, i);
    const int batch = at.batch_head / p.heads;
    const OrderedTile next = lists.order[batch * query_tiles + at.turn];
    return {at.batch_head, batch * p.kv_heads + kv_head_of(&p, at.batch_head % p.heads), next.tile * MASK_BLOCK,
            key_length(&p, key_lengths, batch), (next.blocks.full + next.blocks.partial) * (MASK_BLOCK / Bc),
            next.blocks.full * (MASK_BLOCK / Bc), batch * query_tiles + next.tile};
}

#endif
