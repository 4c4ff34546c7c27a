/* 09_fa3_backward/wgmma - the five products of the backward pass on Hopper's own instructions. Every product is waited
 * for as soon as it is started.
 *
 * The idea. 05_fa2_backward/atomic spends most of its time on loading operands from shared memory into registers, for
 * mma.sync. wgmma reads them from shared memory itself. Of the five products three have an operand that lies transposed
 * in shared memory, and none needs a copy: wgmma takes either order of 16-bit operands.
 *
 *     product                      left operand                   right operand, as it lies       wgmma's names
 *     S^T  = K Q^T                 K, shared                      Q  [query][d]                   both K-major
 *     dP^T = V dO^T                V, shared                      dO [query][d]                   both K-major
 *     dV  += P^T dO                P^T, registers                 dO [query][d]                   B MN-major
 *     dK  += dS^T Q                dS^T, registers                Q  [query][d]                   B MN-major
 *     dQ   = dS K                  dS, shared, as dS^T lies       K  [key][d]                     both MN-major
 *
 * P^T and dS^T are in the registers that they must be in, since S and dP are computed transposed. Only dQ, a sum over
 * keys, needs the dS of all four warps, so dS^T goes through shared memory, once.
 *
 * Who owns what. A block is one warpgroup: 128 threads, Bc = 64 keys, and one query head. It walks over the queries
 * that see them, Br = 64 at a time. dQ is added to an fp32 accumulator in device memory, by atomics, as in
 * 05_fa2_backward/atomic. So are dK and dV at the end, if several query heads share the K/V head.
 *
 *              queries ->                             shared memory, D = 128            registers per thread, D = 128
 *            +--------+--------+--------+             K, V    Bc x D    32 KB           dK, dV   D / 2 each   128
 *     warp 0 | 16 x Br|        |        |             Q, dO   Br x D    32 KB           S, dP    Br / 2 each   64
 *     warp 1 | 16 x Br|        |        | keys        dS      Bc x Br    8 KB           dQ       D / 2         64
 *     warp 2 | 16 x Br|        |        |   |                           72 KB           P, dS as operands      32
 *     warp 3 | 16 x Br|        |        |   v
 *            +--------+--------+--------+             two blocks per multiprocessor
 *
 * No arithmetic overlaps within a block. The blocks of a multiprocessor do: while one computes P, another can multiply.
 *
 * What a step, one query tile, costs: 10 Br Bc D FLOPs, 1280 cycles of the tensor cores at D = 128; Br Bc exponentials,
 * 256 cycles of the special-function units; 4 Br D bytes of atomics, 32 KB, and 4 Br D bytes of Q and dO, from L2.
 *
 * The tile primitives: start_abt, start_ab, start_atb, to_operand, store_operand and zero_rows are in
 * common/gpu/warpgroup.cuh, store_rows in warp.cuh beside it. mask_transposed, probabilities and score_gradients are in
 * fa3_backward.cuh.
 *
 *     make 09_fa3_backward && ./09_fa3_backward/09_fa3_backward --variant wgmma --head-dim 128
 */
#include "fa3_backward.cuh"

constexpr int THREADS = 128, Br = 64, Bc = 64;

template <typename T, int D> struct WgmmaShared {
    Panels<T, Bc, D> k, v;
    Panels<T, Br, D> q, d_o;
    Panels<T, Bc, Br> ds; /* dS^T: [key][query] */
    Statistics<Br> statistics;
    Mbarrier kv_full, q_full, d_o_full; /* with Q comes LSE, with dO delta */
};

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 2)
    wgmma_backward(Problem p, Tensors t, KeyTileOrder order, RowStatistics statistics, Accumulators sums,
                   const __grid_constant__ TensorMaps maps) {
#ifdef HOPPER
    using Shared = WgmmaShared<T, D>;
    SHARED_MEMORY(shared, Shared);
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0); /* by a shuffle: no lane differs, and ptxas knows */
    const KeyTile here = key_tile(p, t.key_lengths, order, blockIdx.x, Br, Bc);

    /* A step is one query tile. */
    auto load_q = [&](int step) {
        load_rows(shared.q, shared.statistics.lse, maps.q, statistics.lse, p, here, here.first_query + step * Br,
                  &shared.q_full);
    };
    auto load_d_o = [&](int step) {
        load_rows(shared.d_o, shared.statistics.delta, maps.d_o, statistics.delta, p, here,
                  here.first_query + step * Br, &shared.d_o_full);
    };
    if (warp == 0 && elect_one()) {
        mbarrier_init(&shared.kv_full, 1);
        mbarrier_init(&shared.q_full, 1);
        mbarrier_init(&shared.d_o_full, 1);
        mbarrier_init_fence();
        if (here.steps > 0) {
            mbarrier_arrive_expect(&shared.kv_full, shared.k.bytes + shared.v.bytes);
            shared.k.load(maps.k, here.first_key, 0, here.kv_head, &shared.kv_full);
            shared.v.load(maps.v, here.first_key, 0, here.kv_head, &shared.kv_full);
            load_q(0);
            load_d_o(0);
        }
    }
    __syncthreads(); /* no thread waits before the mbarriers are initialized */

    if (here.steps > 0)
        mbarrier_wait(&shared.kv_full, 0);
    if (here.steps > 0 && here.keys < here.first_key + Bc) {
        zero_rows(shared.k, here.keys - here.first_key, Bc, threadIdx.x, THREADS);
        zero_rows(shared.v, here.keys - here.first_key, Bc, threadIdx.x, THREADS);
        __syncthreads();
    }

    const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */
    float dk[1][D / 8][4] = {}, dv[1][D / 8][4] = {};
    for (int step = 0; step < here.steps; step++) {
        const int row = here.first_query + step * Br;
        const bool next = step + 1 < here.steps;

        /* S^T = K Q^T; P */
        mbarrier_wait(&shared.q_full, step % 2); /* each step is one phase of both barriers */
        float s[1][Br / 8][4];
        start_abt(s, shared.k, 0, shared.q);
        wgmma_wait<0>(s);
        if (here.first_key + Bc > visible_keys(&p, here.keys, row))
            mask_transposed(s, p, here.keys, here.first_key + 16 * warp, row);
        probabilities(s, shared.statistics.lse, scale_log2);
        uint32_t p_a[Br / 16][4], ds_a[Br / 16][4];
        to_operand<T>(p_a, s);

        /* dP^T = V dO^T; dS */
        mbarrier_wait(&shared.d_o_full, step % 2);
        float dp[1][Br / 8][4];
        start_abt(dp, shared.v, 0, shared.d_o);
        wgmma_wait<0>(dp);
        score_gradients<T>(dp, p_a, shared.statistics.delta);

        /* dV += P^T dO */
        start_ab(dv, p_a, shared.d_o);
        wgmma_wait<0>(dv);

        to_operand<T>(ds_a, dp);
        store_operand(shared.ds, ds_a, 16 * warp);
        proxy_fence();
        __syncthreads(); /* the dS of all four warps is there, and all are done with dO */
        if (warp == 0 && next && elect_one())
            load_d_o(step + 1);

        /* dK += dS^T Q */
        start_ab(dk, ds_a, shared.q);
        wgmma_wait<0>(dk);

        /* dQ = dS K */
        float dq[1][D / 8][4];
        start_atb(dq, shared.ds, 0, shared.k);
        wgmma_wait<0>(dq);
        __syncthreads(); /* all four warps are done with Q and dS */
        if (warp == 0 && next && elect_one())
            load_q(step + 1);
        add_to(sums.dq + accumulator_offset(here.padded_row(p, row), D, 0), dq);
    }

    finish_keys<T, D>(p, t, sums, here, here.first_key, dk, dv);
#endif
}

PLANNER(fa3_backward_wgmma_plan) { return plan_accumulators(p, workspace); }

LAUNCHER(fa3_backward_wgmma) {
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const TensorMaps maps = tensor_maps<T, D>(*p, *t, Br, Bc);
        const KeyTileOrder order = key_tile_order(p, Bc);
        launch_backward<T, D>(*p, *t, workspace, [&](const RowStatistics &statistics, const Accumulators &sums) {
            LAUNCH((wgmma_backward<T, D>), order.count, THREADS, sizeof(WgmmaShared<T, D>), *p, *t, order, statistics,
                   sums, maps);
        });
    }));
}
