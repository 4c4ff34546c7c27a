/* 08_fa3/wgmma - FlashAttention-2 on Hopper's own instructions: TMA loads, wgmma multiplies. Every product is waited
 * for as soon as it is started.
 *
 * The idea. mma.sync, which 04_fa2 uses, takes both operands from registers: each warp loads fragments. On Hopper its
 * rate, also without any loads, is below two thirds of what the tensor cores can do. wgmma lets four warps, a
 * warpgroup, multiply from shared memory. TMA copies a whole tile when one thread requests it. Both are *asynchronous*:
 * they are started, run by themselves and are waited for. This kernel waits for each product right after starting it.
 * The next two kernels do something else before they wait.
 *
 * Who owns what. A block is one warpgroup: 128 threads, Br = 64 queries of one head. It walks over the keys in tiles of
 * Bc, the last one first.
 *
 *                 keys ->                           shared memory              registers per thread, D = 128
 *            +--------+--------+--------+           Q    64 x D     16 KB      O   D / 2   64
 *     warp 0 | 16 x Bc|        |        |           K    Bc x D     16 KB      S   Bc / 2  32
 *     warp 1 | 16 x Bc|        |        | queries   V    Bc x D     16 KB      P   Bc / 4  16
 *     warp 2 | 16 x Bc|        |        |   |
 *     warp 3 | 16 x Bc|        |        |   v       48 KB: four blocks fit     125: four blocks fit (D = 64: 93, five)
 *            +--------+--------+--------+
 *
 * The steps of a tile - Q K^T, softmax, P V - come one after the other. Shared memory has room for one tile of K and
 * one of V: the next K is requested when Q K^T is done, the next V when P V is done. Within a block loads
 * overlap computing, products and softmax nothing. The blocks of a multiprocessor do: while one is at its softmax,
 * three others can multiply.
 *
 * What one key tile costs in one block: 4 Br Bc D FLOPs, 512 cycles of the tensor cores at D = 128; Br Bc exponentials,
 * 256 cycles of the special-function units; 4 Bc D bytes from L2. Device memory as in 04_fa2; from L2, K and V come
 * once for every 64 queries.
 *
 * The tile primitives: start_abt, start_ab, to_operand and zero_rows are in common/gpu/warpgroup.cuh, mask, each and
 * write_output in warp.cuh beside it. softmax, a whole step, is in fa3.cuh beside them.
 *
 *     make 08_fa3 && ./08_fa3/08_fa3 --variant wgmma --head-dim 128
 */
#include "../common/gpu/fa3.cuh"

constexpr int THREADS = 128, Br = 64;
[[maybe_unused]] constexpr int Bc = 64;

template <typename T, int D> struct WgmmaShared {
    Panels<T, Br, D> q;
    Panels<T, Bc, D> k, v;
    Mbarrier k_full, v_full; /* the tile is there; the first phase of k_full: Q is, too */
};

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 3)
    wgmma_attention(Problem p, Tensors t, TileOrder order, const __grid_constant__ ForwardMaps maps) {
#ifdef HOPPER
    SHARED_MEMORY(shared, WgmmaShared<T, D>);
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0); /* by a shuffle: no lane differs, and ptxas knows */

    const QueryTile here = query_tile(p, t.key_lengths, order.together, blockIdx.x, Br, Bc);
    const int row = here.first_row + 16 * warp; /* the warp's first one */

    if (warp == 0 && elect_one()) {
        mbarrier_init(&shared.k_full, 1);
        mbarrier_init(&shared.v_full, 1);
        mbarrier_init_fence();
        if (here.key_tiles > 0) {
            const int first_key = (here.key_tiles - 1) * Bc;
            mbarrier_arrive_expect(&shared.k_full, shared.q.bytes + shared.k.bytes);
            shared.q.load(maps.q, here.first_row, 0, here.batch_head, &shared.k_full);
            shared.k.load(maps.k, first_key, 0, here.kv_head, &shared.k_full);
            shared.v.expect_and_load(maps.v, first_key, 0, here.kv_head, &shared.v_full);
        }
    }
    __syncthreads(); /* no thread waits before the mbarriers are initialized */

    const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */
    float o[1][D / 8][4] = {}, m[2] = {LOWEST, LOWEST}, l[2] = {0, 0};
    Limits limits = Limits::NOT_YET;
    for (int tile = here.key_tiles - 1; tile >= 0; tile--) {
        const int parity = (here.key_tiles - 1 - tile) % 2; /* each tile is one phase of both barriers */

        /* S = Q K^T */
        mbarrier_wait(&shared.k_full, parity);
        float s[1][Bc / 8][4];
        start_abt(s, shared.q, 0, shared.k);
        wgmma_wait<0>(s);

        __syncthreads(); /* all four warps are done with K */
        if (warp == 0 && tile > 0 && elect_one())
            shared.k.expect_and_load(maps.k, (tile - 1) * Bc, 0, here.kv_head, &shared.k_full);

        /* Mask, softmax, P as an operand */
        if (tile >= here.whole_tiles)
            mask(s, p, here.keys, row, tile * Bc);
        float alpha[2];
        if (softmax(s, m, limits, l, alpha, scale_log2)) /* fa3.cuh. S becomes P; true: m has changed, O must follow */
            each(o, [&](float &x, int r) { x *= alpha[r]; });
        uint32_t a[Bc / 16][4];
        to_operand<T>(a, s);

        /* O += P V */
        mbarrier_wait(&shared.v_full, parity);
        if (t.key_lengths && here.keys < (tile + 1) * Bc) {
            zero_rows(shared.v, here.keys - tile * Bc, Bc, threadIdx.x, THREADS);
            __syncthreads();
        }
        start_ab(o, a, shared.v);
        wgmma_wait<0>(o);

        __syncthreads(); /* all four warps are done with V */
        if (warp == 0 && tile > 0 && elect_one())
            shared.v.expect_and_load(maps.v, (tile - 1) * Bc, 0, here.kv_head, &shared.v_full);
    }
    write_output(head_tensors<T>(p, t, here.batch_head), row, o, m, l, LN_2);
#endif
}

LAUNCHER(fa3_wgmma) {
    const TileOrder order = tile_order(*p, Br, 2);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const ForwardMaps maps = forward_maps<T, D>(*p, *t, Br, Bc);
        LAUNCH((wgmma_attention<T, D>), order.count, THREADS, sizeof(WgmmaShared<T, D>), *p, *t, order, maps);
    }));
}
