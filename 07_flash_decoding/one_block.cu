/* 07_flash_decoding/one_block - one block per head, its keys in order.
 *
 * The idea. This is FlashAttention-2 with one query: the grid is query tiles x K/V heads x batch, and there is one
 * query tile. The queries of grouped heads are the rows of one tile, so that each byte of K and V is read once. The
 * warps of a block divide the keys, line 65 of flash_forward in notes/flash.c, because there are too few rows to
 * divide. The block walks over all keys of its head.
 *
 *                    keys ->
 *     head 0   |======= block 0 =======|          8 K/V heads are 8 blocks, and the other 124 of 132 multiprocessors
 *     head 1   |======= block 1 =======|          have nothing to do.
 *     ...
 *
 * What it costs. Device memory: K and V once, 2 x bytes x D x keys per head. A block has 64 KB of them under way at a
 * time, and they take about 0.7 us: some 90 GB/s per block, where an H200 gives 4.3 TB/s. So the time is that of the
 * longest head, however few heads there are. No workspace.
 *
 *     make 07_flash_decoding && ./07_flash_decoding/07_flash_decoding --variant one_block
 */
#include "fma_rows.cuh"
#include "mma_rows.cuh"

template <typename Rows>
__global__ void __launch_bounds__(32 * MAX_WARPS, 1) one_block(Problem p, Tensors t, Cache cache, Work work) {
    using T = typename Rows::Element;
    constexpr int D = Rows::head_dim;
    SHARED_MEMORY(first_warp, WarpShared<Rows>); /* the others' follow */
    const Head head = head_at(p, t.key_lengths, work, blockIdx.x);
    const size_t head_row = head_row_of(work, head);
    Rows state = walk(&first_warp, p, t, cache, work, head, 0, head.tiles);
    finish(state, &first_warp, 0, head.rows, scale_of(cache.v_scale, head), (T *)t.o + head_row * D, t.lse + head_row);
}

LAUNCHER(decode_one_block) {
    const Work work = work_of(p);
    const Cache cache = cache_of(*p, *t, workspace);
    WITH_ROWS(*p, work, Rows,
              LAUNCH(one_block<Rows>, work.heads, 32 * work.warps, work.warps * sizeof(WarpShared<Rows>), *p, *t, cache,
                     work));
}
