/* 07_flash_decoding/one_block - one block a head, its keys in order.
 *
 * The idea. This is FlashAttention-2 with one query: the grid is query tiles x heads x batch, and there is one query tile. The
 * rows of grouped heads are packed into one tile, so that each byte of K and V is read once; and a block's warps divide the
 * keys, because there are no rows to divide. Beyond that nothing can be done for a block: it walks over all keys of its head.
 *
 *                    keys ->
 *     head 0   |======= block 0 =======|          8 K/V heads are 8 blocks, and the other 124 of 132 multiprocessors
 *     head 1   |======= block 1 =======|          have nothing to do.
 *     ...
 *
 * What it costs. Device memory: K and V once, 2 x bytes x D x keys a head. A block has 64 KB of them under way at a time, and
 * memory answers after a bit less than 1 us: some 90 GB/s a block, a fortieth of what the memory of a large chip gives. So the
 * time is that of the longest head, however few heads there are. No workspace.
 *
 *     make 07_flash_decoding && ./07_flash_decoding/07_flash_decoding --variant one_block
 */
#include "fma_rows.cuh"
#include "mma_rows.cuh"

template <typename Rows> __global__ void __launch_bounds__(32 * MAX_WARPS, 1) one_block(Problem p, Tensors t, Work work) {
    using T = typename Rows::Element;
    static_assert(as_planned<Rows>, "decode.h: warp_shared_bytes");
    SHARED_MEMORY(WarpShared<Rows>, shared); /* the first warp's; the others' follow */
    WarpShared<Rows> *warp = &shared, &own = warp[threadIdx.x / 32];
    const Cache cache = {t.k, t.v, nullptr, nullptr};
    const Head head = head_at(p, t.key_lengths, work, blockIdx.x);

    for (int tile = 0; tile < STAGES - 1; tile++)
        load_stage<Rows>(own.stage[tile], p, cache, head, tile, work.tile_keys);

    const size_t row = first_row(work, head);
    Rows state;
    state.begin(p, head, (const T *)t.q + row * Rows::head_dim, p.scale);
    int s = 0;
    for (int tile = 0; tile < head.tiles; tile++) {
        s = tile % STAGES;
        load_stage<Rows>(own.stage[s > 0 ? s - 1 : STAGES - 1], p, cache, head, tile + STAGES - 1, work.tile_keys);
        wait_for_stage();
        state.step(own.stage[s].in.k, own.stage[s].in.v, tile * work.tile_keys + threadIdx.x / 32 * Rows::keys);
        __syncwarp(); /* all lanes are done with the stage */
    }
    finish(state, warp, s, head.rows, 1, (T *)t.o + row * Rows::head_dim, t.lse + row);
    cp_async_wait<0>();
}

extern "C" void decode_one_block(const Problem *p, const Tensors *t, const Buffer *) {
    const Work work = work_of(p);
    WITH_ROWS(*p, work, Rows,
              LAUNCH(one_block<Rows>, work.heads, 32 * work.warps, work.warps * sizeof(WarpShared<Rows>), *p, *t, work));
}

extern "C" const char *decode_one_block_refuses(const Problem *p) {
    return p->settings[SPLITS] || p->settings[SPLIT_SIZE] ? "splits nothing: --splits and --split-size are split_k's"
           : p->settings[KV_CACHE]                        ? "reads K and V as they are: --kv-cache is split_k's"
                                                          : NULL;
}
