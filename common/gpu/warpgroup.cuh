/* warpgroup.cuh - what the kernels of 06_fp8 and 08_fa3 for warpgroups share: which query tile a block works on, the
 * mask, and how O is written.
 *
 * A warpgroup owns 64 rows. S is its accumulator of Bc columns, O one of D columns (hopper.cuh): a warp has 16 rows, and lane
 * 4r + c has columns 8n + 2c and 8n + 2c + 1 of row r in elements 4n and 4n + 1 of its array, and of row r + 8 in 4n + 2
 * and 4n + 3. These 16 rows by 8 columns are a *piece*, and the four lanes that share a row are a *quad*.
 */
#ifndef FA_WARPGROUP_CUH
#define FA_WARPGROUP_CUH

#include "hopper.cuh"
#include "softmax.cuh"

/* Br queries of one head, and how far they see. */
struct QueryTile {
    int batch_head, kv_matrix; /* the head's number in Q and O, the K/V head's in K and V: through the batch */
    int first_row, keys;       /* its first query; the keys that the batch entry has */
    int key_tiles;             /* of Bc keys, up to the last one that its last row sees */
    int whole_tiles;           /* those that its first row sees whole: they need no mask */
};

/* The order in which query tiles are worked on, 0 .. count - 1. Heads come in groups of `together` heads. Within a
 * group the last query tile of every head comes first: under a causal mask it sees the most keys, and a long tile that
 * starts late keeps the whole chip waiting. Few heads make a group, because blocks that work on the same head share its
 * K and V through L2. */
struct TileOrder {
    int together, count;
};

/* Tile number i. */
__device__ inline QueryTile query_tile(const Problem &p, const int *key_lengths, const TileOrder &order, int i, int Br,
                                       int Bc) {
    const int query_tiles = ceil_div(p.seqlen_q, Br), first_head = i / (order.together * query_tiles) * order.together;
    const int heads = min(order.together, p.batch * p.heads - first_head), turn = i - first_head * query_tiles;
    const int batch_head = first_head + turn % heads, first_row = (query_tiles - 1 - turn / heads) * Br;
    const int batch = batch_head / p.heads, keys = key_length(&p, key_lengths, batch);
    return {batch_head, batch * p.kv_heads + kv_head_of(&p, batch_head % p.heads), first_row, keys,
            ceil_div(visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1), Bc),
            visible_keys(&p, keys, first_row) / Bc};
}

/* Scores of keys that a row does not see become -inf. `row`: the first of the lane's two rows; first_column: the tile's
 * first key. */
template <int Bc>
__device__ inline void mask(float (&s)[Bc / 2], const Problem &p, int keys, int row, int first_column) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int visible = visible_keys(&p, keys, row + 8 * h) - first_column - (2 * (lane % 4) + j);
#pragma unroll
            for (int n = 0; n < Bc / 8; n++)
                s[4 * n + 2 * h + j] = 8 * n < visible ? s[4 * n + 2 * h + j] : -INFINITY;
        }
}

/* O := O factor, a factor for each of the lane's two rows. */
template <int Count> __device__ inline void rescale(float (&o)[Count], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < Count; i++)
        o[i] *= factor[i / 2 % 2];
}

/* Writes O times a factor for each of the lane's two rows, of which `row` is the first. Rows from seqlen_q on are not
 * written.
 *
 * A lane has two columns of each piece: 4 bytes. To store 16 bytes at once, the four lanes of a quad exchange parts of
 * four pieces: lane c gives its part of piece d to lane d, and ends up with all eight columns of piece c. That takes two
 * rounds of shuffles, with the lane at distance 1 and at distance 2. */
template <typename T, int D>
__device__ inline void store_rows(T *to, const Problem &p, int batch_head, int row, const float (&o)[D / 2],
                                  const float (&factor)[2]) {
    const int c = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const size_t flat_row = (size_t)batch_head * p.seqlen_q + row + 8 * h;
#pragma unroll
        for (int piece = 0; piece < D / 8; piece += 4) {
            uint32_t x[4]; /* of pieces piece .. piece + 3 */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *columns = o + 4 * (piece + i) + 2 * h;
                x[i] = pack_pair<T>(columns[0] * factor[h], columns[1] * factor[h]);
            }
#pragma unroll
            for (int distance = 1; distance <= 2; distance *= 2)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (!(i & distance)) { /* of the pieces i and i + distance, a lane keeps the one on its own side */
                        const bool upper = c & distance;
                        const uint32_t other = __shfl_xor_sync(WHOLE_WARP, upper ? x[i] : x[i + distance], distance);
                        if (upper)
                            x[i] = other;
                        else
                            x[i + distance] = other;
                    }
            if (row + 8 * h < p.seqlen_q)
                store_16(to + flat_row * D + 8 * (piece + c), uint4{x[0], x[1], x[2], x[3]});
        }
    }
}

#endif
