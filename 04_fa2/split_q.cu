/* 04_fa2/split_q - FlashAttention-2, third change: warps own query rows, and exchange nothing.
 *
 * The idea. S = Q K^T can be split between warps along the keys or along the queries. loop_swap splits the keys: every
 * warp has a share of every row, so the maximum is exchanged at each tile, and at the end four partial O are added.
 * Here the queries are split: a warp owns its rows from the first score to the final O, and their maximum, sum and O
 * never leave its registers (Dao 2023, section 3.3).
 *
 *            keys 0-63                             Who owns what: a block of 4 warps owns 64 rows of queries, and each
 *            +--------+                            warp 16 of them, with all keys of a tile. mma takes 16 rows at once,
 *     warp 0 | 16 x 64|  tile 1   tile 2   ...     so the tile had to grow: with 32 rows two of the four warps would
 *     warp 1 | 16 x 64|                            have none.
 *     warp 2 | 16 x 64|
 *     warp 3 | 16 x 64|                            An accumulator of mma is a 16 x 8 tile of S or O. Lane 4r + c holds
 *            +--------+                            its columns 2c and 2c + 1 in row r and in row r + 8. So the four
 *                                                  lanes 4r .. 4r + 3 share a row, and two shuffles find its maximum.
 *
 * The tile primitives (add_abt, each, mask, row_max, each_row, add_ab, write_output) are in common/gpu/warp.cuh.
 *
 * The rest is as in loop_swap: the grid, the loads ahead, the order of the tiles, e^x, the mask at every tile, and both
 * barriers of a step, which the loads of K and V need. The shared memory of the exchange is gone.
 *
 * Registers per lane: D / 2 for O, 32 for S. For 16 x 64 scores a warp rescales 16 x D numbers; in loop_swap it is
 * 32 x D numbers for 32 x 32 scores (D = 128). But each warp reads the whole tile of K and V from shared memory, in
 * loop_swap a quarter of it. Shared memory: 24 KB (D = 64) or 48 KB (D = 128).
 *
 * Device memory: as for loop_swap, with query tiles of 64 rows and not 32, so half as many bytes of K and V. K and V of
 * a tile, 4 Bc D bytes, bring 4 Br Bc D FLOPs: Br = 64 FLOPs per byte. No workspace.
 *
 *     make 04_fa2 && ./04_fa2/04_fa2 --variant split_q --head-dim 128 --causal
 */
#include "split_q.cuh"

constexpr int Br = 64; /* 16 rows per warp: one mma tile */

LAUNCHER(fa2_split_q) {
    dim3 grid(ceil_div(p->seqlen_q, Br), p->batch * p->heads);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D,
        LAUNCH((split_q_kernel<T, D, Br>), grid, THREADS, sizeof(SplitQShared<T, D, Br>), *p, *t)));
}

PREDICTOR(fa2_split_q_traffic) {
    return queries_outer_traffic(p, key_lengths, "split_q_kernel", Br, ONLY_SEEN, traffic);
}
