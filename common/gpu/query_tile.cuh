/* query_tile.cuh - which query tile of which head a block works on, and how far it sees: the order of work of the fast
 * kernels. */
#ifndef FA_QUERY_TILE_CUH
#define FA_QUERY_TILE_CUH

#include "kernel.cuh"

/* Where number i in the order of work belongs: which head, and the how-manieth of the head's `tiles` tiles. Heads come
 * in groups of `together` heads. Within a group every head's first tile comes first, then every head's second.
 *
 *     i                     0  1  2  3  4  5 | 6  7 ...        two heads together, three tiles per head
 *     head                  0  1  0  1  0  1 | 2  3
 *     turn                  0  0  1  1  2  2 | 0  0                                                                  */
struct HeadTurn {
    int batch_head, turn; /* the head's number, counted through the batch */
};
__device__ inline HeadTurn head_turn(const Problem &p, int together, int tiles, int i) {
    const int first_head = i / (together * tiles) * together, heads = min(together, p.batch * p.heads - first_head);
    const int in_group = i - first_head * tiles;
    return {first_head + in_group % heads, in_group / heads};
}

/* Br queries of one head, and how far they see. */
struct QueryTile {
    int batch_head, kv_head; /* the head's number in Q and O, the K/V head's in K and V, counted through the batch */
    int first_row, keys;       /* its first query; the keys that the batch entry has */
    int key_tiles;             /* of Bc keys, up to the last one that its last row sees */
    int whole_tiles;           /* those that its first row sees whole: they need no mask */
};

/* Query tile number i in the order of work. The last query tile of a head comes first: under a causal mask it sees the
 * most keys, and a long tile that starts late keeps the whole chip waiting. A group of few heads is good for L2: blocks
 * that work on the same head share its K and V there. */
__device__ inline QueryTile query_tile(const Problem &p, const int *key_lengths, int together, int i, int Br, int Bc) {
    const int query_tiles = ceil_div(p.seqlen_q, Br);
    const HeadTurn at = head_turn(p, together, query_tiles, i);
    const int first_row = (query_tiles - 1 - at.turn) * Br;
    const int batch = at.batch_head / p.heads, keys = key_length(&p, key_lengths, batch);
    return {at.batch_head, batch * p.kv_heads + kv_head_of(&p, at.batch_head % p.heads), first_row, keys,
            ceil_div(visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1), Bc),
            visible_keys(&p, keys, first_row) / Bc};
}

/* The order of work of a kernel: how many heads together, and how many tiles there are. */
struct TileOrder {
    int together, count;
};

/* So many heads together, where tiles are not equally long, that there are long ones to start with and short ones to
 * fill the end: one head more than have their K and V in a quarter of L2. All groups are about equally large. */
inline int heads_together(const Problem &p, int element_bytes) {
    const size_t head_bytes = (size_t)2 * element_bytes * p.seqlen_k * p.head_dim;
    const size_t fit = device_properties()->l2_bytes / 4 / head_bytes + 1;
    const int heads = p.batch * p.heads, most = fit < (size_t)heads ? (int)fit : heads;
    return ceil_div(heads, ceil_div(heads, most));
}

/* Without a causal mask all query tiles see equally many keys: one head at a time. */
inline TileOrder tile_order(const Problem &p, int Br, int element_bytes) {
    return {p.causal ? heads_together(p, element_bytes) : 1, p.batch * p.heads * ceil_div(p.seqlen_q, Br)};
}

/* The dynamic tile scheduler, for persistent kernels: the number of the next tile of `count`. Each of the `drawers`
 * (blocks, or parts of them) begins with the tile of its own number, so the counter `next` says how many were drawn
 * after those. Draw as late as possible: who draws early keeps a tile waiting. */
__device__ inline int draw_tile(uint32_t *next, int count, int drawers) {
    const uint32_t drawn = atomicAdd(next, 1u);
    if (drawn == (uint32_t)count - 1)
        *next = 0; /* each tile draws once, so this was the launch's last draw; the next launch begins at 0 */
    return drawers + drawn;
}

#endif
