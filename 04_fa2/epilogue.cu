/* 04_fa2/epilogue - FlashAttention-2, first change: O is divided by l once, in the last step.
 *
 * The idea. After every step 03_fa1 divides O by l, and at the next step multiplies it by that l again. Only the O of
 * the last step is wanted. So this kernel keeps O undivided, measures O and l against the new maximum m' in each step,
 *
 *     m' = max(m, m~)      P = e^(S - m')      l' = e^(m - m') l + rowsum(P)      O' = e^(m - m') O + P V
 *
 * where m~ is the maximum of the step's tile, and writes O / l after the last key tile (Dao 2023, section 3.1.1). The
 * loops, the grid, who owns what and the bytes moved are those of 03_fa1; its header has the picture. `make
 * diff-fa1-epilogue` shows these formulas, the division, and a range of queries per block, which parallel needs: here a
 * block has all queries of its head.
 *
 * The tile primitives (add_abt, each, mask, row_max, each_row, add_ab, share_columns) are in common/gpu/warp.cuh.
 *
 * What it saves, for a tile of S: one exponential per row, and one multiplication for each of the Br D elements of O,
 * since in 03_fa1 both terms of O' have a factor. (1 / l is still computed in each step, by one thread per row.) An
 * A100 does 16 times as many FLOPs per second on its tensor cores as elsewhere, so FLOPs outside the products are dear.
 * Here they cost little, because this kernel waits for device memory and for the exchange between warps, as 03_fa1
 * does: expect little before the next variant.
 *
 *     make 04_fa2 && ./04_fa2/04_fa2 --variant epilogue --head-dim 128 --causal
 */
#include "epilogue.cuh"

LAUNCHER(fa2_epilogue) { launch_epilogue(p, t, workspace, p->seqlen_q); }

PREDICTOR(fa2_epilogue_traffic) {
    const int Bc = key_tile(p->head_dim, device_properties()->capability);
    return keys_outer_traffic(p, key_lengths, "epilogue_kernel", p->seqlen_q, Br, Bc, 1, traffic);
}
