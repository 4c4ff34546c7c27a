/* 04_fa2/parallel - FlashAttention-2, second change, first half: a head has many blocks, one for each query tile.
 *
 * The idea. With keys outer, the blocks of a head cannot share its key tiles, because all of them would correct the
 * same rows of O. But they can share its queries, since a row of O depends on no other row. So each tile of queries has
 * a block of its own, which walks over all key tiles (Dao 2023, section 3.2). Everything else is as in epilogue. O, l
 * and m even travel to the workspace and back at every key tile, although nobody but their own block ever reads them.
 *
 *                          keys ->
 *                   tile 0   tile 1   tile 2                    epilogue: one block takes all steps of a head, in
 *     queries  0     step 1   step 2   ...  block 0             the order of 03_fa1's picture.
 *        |     1     step 1   step 2   ...  block 1             Here: the blocks take their steps at the same time.
 *        v     2     step 1   step 2   ...  block 2
 *
 * The grid is query tiles x batch x heads instead of batch x heads, so one head alone can fill the chip. `make
 * diff-epilogue-parallel` is one argument of the launch, and any multiple of Br would be right in its place.
 *
 * Device memory: as for epilogue, but K and V are loaded once for each query tile instead of once per head, mostly from
 * L2. Blocks that run together belong to few heads, so their O stays in L2, too.
 *
 *     make 04_fa2 && ./04_fa2/04_fa2 --variant parallel --head-dim 128 --causal
 */
#include "epilogue.cuh"

LAUNCHER(fa2_parallel) { launch_epilogue(p, t, workspace, Br); }

PREDICTOR(fa2_parallel_traffic) {
    const int Bc = key_tile(p->head_dim, device_properties()->capability);
    return keys_outer_traffic(p, key_lengths, "epilogue_kernel", Br, Br, Bc, 1, traffic);
}
