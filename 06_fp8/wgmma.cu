/* 06_fp8/wgmma - attention in 8 bits on Hopper's own instructions: wgmma multiplies, TMA loads.
 *
 * The idea. mma.sync takes both operands from registers, a warp at a time, and Hopper has no hardware for it in fp8.
 * wgmma lets four warps together multiply straight from shared memory, twice as fast in 8 bits as in 16. TMA copies a
 * whole tile when one thread requests it. What is left to the threads is softmax.
 *
 * Who owns what. A block is one warpgroup: 128 threads, Br = 64 queries of one head. It walks over the keys in tiles of
 * Bc, the last one first.
 *
 *                 keys ->                           shared memory                       registers per thread, D = 128
 *            +--------+--------+--------+           Q    64 x D     from the start       O        D / 2 = 64
 *     warp 0 | 16 x Bc|        |        |           K    Bc x D     one tile             S       Bc / 2 = 64, then
 *     warp 1 | 16 x Bc|        |        | queries   V^T  D x Bc     one tile             P       Bc / 8 = 16 and P V 64
 *     warp 2 | 16 x Bc|        |        |   |
 *     warp 3 | 16 x Bc|        |        |   v       40 KB at D = 128                     168 in all: three blocks fit
 *            +--------+--------+--------+
 *
 * The four steps of a tile - Q K^T, softmax, P V, adding to O - come one after the other. Shared memory has room for
 * one tile of K and one of V: the next K is requested when Q K^T is done, the next V when P V is done. Within a block
 * only copies overlap. The three blocks of a multiprocessor do: while one is at its softmax, the others can multiply.
 *
 * What it costs per block and tile: 4 Br Bc D FLOPs on the tensor cores (512 cycles at D = 128, 8 bits), Br Bc
 * exponentials on the special-function units (512 cycles), some 480 instructions per warp (as many cycles of its
 * scheduler; counted at D = 128 in the loop of cuobjdump --dump-sass, nvcc 13.0, without mask, far scales and new
 * maxima). 2 Bc D bytes come from L2: at 900 TFLOP/s some 7 TB/s, which is why blocks at work share few heads
 * (tile_order). What was tried is in wgmma_log.tsv of notes/results.
 *
 * The workspace is what quantise.cu left there: fp8.h. 08_fa3/wgmma does the same in 16 bits: the difference between
 * the two is what the 8 bits bring, and the difference between 08_fa3/wgmma and 04_fa2/tuned is what the instruction
 * brings.
 *
 *     make 06_fp8 && ./06_fp8/06_fp8 --variant wgmma --head-dim 128 --format e4m3
 */
#include "softmax8.cuh"

constexpr int THREADS = 128; /* one warpgroup */
constexpr int Br = BLOCK_Q;  /* the rows of a wgmma; they share a scale */
constexpr int Bc = BLOCK_K;  /* keys per tile: they share a scale and are a row (128 bytes) of a panel of V^T's tile */

/* Blocks per multiprocessor, by its 65536 registers: three leave each of 128 threads 168 (170, rounded
 * down to a multiple of 8). At D = 64, O and P V take half as many, and 128 per thread are enough: four blocks. */
constexpr int blocks_an_sm(int D) { return D == 64 ? 4 : 3; }

template <typename E, int D> struct WgmmaShared {
    Panels<E, Br, D> q;
    Panels<E, Bc, D> k;
    Panels<E, D, Bc> v;
    Mbarrier k_full, v_full; /* the tile is there; the first k_full: Q, too */
};

template <typename E, int D>
__global__ void __launch_bounds__(THREADS, blocks_an_sm(D))
    wgmma_attention(Problem p, Tensors t, Scales scales, int together, const __grid_constant__ TensorMap q_map,
                    const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map) {
#ifdef HOPPER
    SHARED_MEMORY(shared, WgmmaShared<E, D>);
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0); /* by a shuffle: no lane differs, and ptxas knows */

    const QueryTile here = query_tile(p, t.key_lengths, together, blockIdx.x, Br, Bc);
    const int row = here.first_row + 16 * warp; /* the warp's first one */

    if (warp == 0 && elect_one()) {
        mbarrier_init(&shared.k_full, 1);
        mbarrier_init(&shared.v_full, 1);
        mbarrier_init_fence();
        if (here.key_tiles > 0) {
            const int last = here.key_tiles - 1;
            mbarrier_arrive_expect(&shared.k_full, shared.q.bytes + shared.k.bytes);
            shared.q.load(q_map, here.first_row, 0, here.batch_head, &shared.k_full);
            shared.k.load(k_map, last * Bc, 0, here.kv_head, &shared.k_full);
            shared.v.expect_and_load(v_map, 0, last * Bc, here.kv_head, &shared.v_full);
        }
    }
    __syncthreads(); /* nobody waits at a barrier that is not there yet */

    const float q_scale = scales.q[(size_t)here.batch_head * q_scale_count(&p) + here.first_row / BLOCK_Q];
    const float *k_scales = scales.k + (size_t)here.kv_head * k_scale_count(&p),
                *v_scales = scales.v + (size_t)here.kv_head * k_scale_count(&p);

    /* m is the maximum times scale_log2, like the exponents. O is kept divided by o_scale. */
    OutputScale<true> o_scale;
    float o[1][D / 8][4] = {}, share, m[2] = {LOWEST, LOWEST}, l[2] = {};

    for (int tile = here.key_tiles - 1; tile >= 0; tile--) {
        const int parity = (here.key_tiles - 1 - tile) % 2; /* each tile is one phase of both barriers */
        const float v_scale = v_scales[tile];
        const float scale_log2 = positive(p.scale * LOG2_E * q_scale * k_scales[tile]); /* e^(scale s) in base 2 */

        /* S = Q K^T */
        mbarrier_wait(&shared.k_full, parity);
        float s[1][Bc / 8][4];
        start_abt(s, shared.q, 0, shared.k);
        const float v_ratio = o_scale.move_to(v_scale, share); /* under Q K^T */
        wgmma_wait<0>(s);

        __syncthreads(); /* all four warps are done with K */
        if (warp == 0 && tile > 0 && elect_one())
            shared.k.expect_and_load(k_map, (tile - 1) * Bc, 0, here.kv_head, &shared.k_full);

        if (tile >= here.whole_tiles) /* the diagonal or the end of the keys cuts it */
            mask(s, p, here.keys, row, tile * Bc);
        /* P, in the place of S. `alpha` rescales O to the new maximum, and from the last
         * tile's scale of V to this tile's. */
        float alpha[2];
        const float factor = update_maximum<E, D>(s, m, l, alpha, scale_log2);
        exponentials<E>(s, m, l, factor);
        alpha[0] *= v_ratio, alpha[1] *= v_ratio;
        uint32_t a[Bc / 32][4];
        to_operand<E>(a, s);

        /* P V, into registers of its own: wgmma adds 8-bit products with only some 13 bits. O is summed in fp32. */
        mbarrier_wait(&shared.v_full, parity);
        float product[1][D / 8][4];
        start_abt(product, a, shared.v);
        wgmma_wait<0>(product);
        multiply_if_less(product, share);

        __syncthreads(); /* all four warps are done with V */
        if (warp == 0 && tile > 0 && elect_one())
            shared.v.expect_and_load(v_map, 0, (tile - 1) * Bc, here.kv_head, &shared.v_full);

        UNROLL for (int n = 0; n < D / 8; n++)
            UNROLL for (int i = 0; i < 4; i++)
                o[0][n][i] = o[0][n][i] * alpha[i / 2] + product[0][n][i];
    }

    write_output<E>(p, t, scales, here.batch_head, row, o, m, l, o_scale.now);
#endif
}

LAUNCHER(fp8_wgmma) {
    const Buffer *w = workspace;
    const int heads = p->batch * p->heads, kv_heads = p->batch * p->kv_heads;
    const TileOrder order = tile_order(*p, Br, 1);
    WITH_FORMAT(p->settings[FORMAT], E, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        using Shared = WgmmaShared<E, D>;
        const TensorMap q_map = tensor_map<E, decltype(Shared::q)::row_bytes>(w[Q8].pointer, D, p->seqlen_q, heads, Br);
        const TensorMap k_map =
            tensor_map<E, decltype(Shared::k)::row_bytes>(w[K8].pointer, D, p->seqlen_k, kv_heads, Bc);
        const TensorMap v_map =
            tensor_map<E, decltype(Shared::v)::row_bytes>(w[VT8].pointer, key_pitch(p), D, kv_heads, D);
        LAUNCH((wgmma_attention<E, D>), order.count, THREADS, sizeof(Shared), *p, *t, scales_in(w), order.together,
               q_map, k_map, v_map);
    }));
}
