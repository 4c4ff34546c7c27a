/* 04_fa2/tall - split_q with twice as many rows per warp: each piece of K and V read from shared memory is used twice.
 *
 * The idea. In split_q a warp reads the whole tile of K and V from shared memory for 16 rows of queries. Here it owns
 * 32 rows, two 16-row mma tiles, and each fragment of K and V that it has read feeds two products. Nothing else changes
 * but Br.
 *
 *            keys 0-63                          For each key tile a warp reads from shared memory, D = 128:
 *            +--------+
 *     warp 0 | 32 x 64|  tile 1   tile 2                       split_q (16 rows)      tall (32 rows)
 *     warp 1 | 32 x 64|                              K, V       32 KB                  32 KB
 *     warp 2 | 32 x 64|                              Q           4 KB                   8 KB
 *     warp 3 | 32 x 64|                              FLOPs       4 16 64 D              4 32 64 D
 *            +--------+                              a byte      14                     26
 *
 * The tile primitives (add_abt, each, mask, row_max, each_row, add_ab, write_output) are in common/gpu/warp.cuh.
 *
 * What it costs. Registers per lane: D for O, 64 for S: 192 of 255 at D = 128. Shared memory: 32 KB (D = 64) or 64 KB
 * (D = 128). Half as many blocks as split_q, so a short problem fills the chip less.
 *
 * Device memory: as for split_q, with half as many query tiles, so half as many bytes of K and V. Br = 128 FLOPs a
 * byte. No workspace.
 *
 *     make 04_fa2 && ./04_fa2/04_fa2 --variant tall --head-dim 128 --causal
 */
#include "split_q.cuh"

constexpr int Br = 128; /* 32 rows per warp: two mma tiles */

LAUNCHER(fa2_tall) {
    dim3 grid(ceil_div(p->seqlen_q, Br), p->batch * p->heads);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D,
        LAUNCH((split_q_kernel<T, D, Br>), grid, THREADS, sizeof(SplitQShared<T, D, Br>), *p, *t)));
}

PREDICTOR(fa2_tall_traffic) { return queries_outer_traffic(p, key_lengths, "split_q_kernel", Br, ONLY_SEEN, traffic); }
