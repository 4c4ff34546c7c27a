/* 06_fp8/wgmma - attention in 8 bits on Hopper's own instructions: wgmma multiplies, TMA loads.
 *
 * The idea. mma.sync takes both operands from registers, a warp at a time, and on Hopper has no 8-bit form. wgmma lets four
 * warps multiply straight from shared memory, twice as fast in 8 bits as in 16. It runs by itself, and so does TMA, which
 * brings whole tiles at the word of one thread. What is left to the threads is softmax.
 *
 * Who owns what. A block is one warpgroup: 128 threads, Br = 64 queries of one head. It walks over the keys in tiles of Bc,
 * the last one first.
 *
 *                 keys ->                           shared memory                       registers a thread, D = 128
 *            +--------+--------+--------+           Q    64 x D     from the start       O        D / 2 = 64
 *     warp 0 | 16 x Bc|        |        |           K    Bc x D     one tile             S       Bc / 2 = 64, then
 *     warp 1 | 16 x Bc|        |        | queries   V^T  D x Bc     one tile             P       Bc / 8 = 16 and P V 64
 *     warp 2 | 16 x Bc|        |        |   |
 *     warp 3 | 16 x Bc|        |        |   v       40 KB at D = 128                     168: three blocks a multiprocessor
 *            +--------+--------+--------+
 *
 * The four steps of a tile - Q K^T, softmax, P V, adding to O - come one after the other, and K and V have one place each:
 * the next K is asked for when Q K^T is done, the next V when P V is. Nothing overlaps within a block. Other blocks do that:
 * while one is at its softmax, two others can multiply. No pipeline, no warps with special duties.
 *
 * What it costs, a block and tile: 4 Br Bc D FLOPs on the tensor cores (512 clocks at D = 128, 8 bits), Br Bc exponentials
 * on the special-function units (512 clocks), some 500 instructions a warp (500 clocks of its scheduler). 2 Bc D bytes come
 * from L2: at 900 TFLOP/s some 7 TB/s, which is why heads take turns (HEADS_TOGETHER). What was tried is in notes/06_fp8.md.
 *
 * The workspace is what quantise.cu left: fp8.h. 08_fa3/wgmma does the same in 16 bits, which tells what the instruction
 * brings from what the 8 bits bring.
 *
 *     make 06_fp8 && ./06_fp8/06_fp8 --variant wgmma --head-dim 128 --format e4m3
 */
#include "../common/gpu/hopper.cuh"
#include "../common/gpu/softmax.cuh"
#include "../common/gpu/tile.cuh"
#include "fp8.h"

constexpr int THREADS = 128; /* one warpgroup */
constexpr int Br = BLOCK_Q;  /* the rows of a wgmma; they share a scale */
constexpr int Bc = BLOCK_K;  /* keys a tile: they share a scale, and are one row of a panel of V^T's tile, 128 bytes */

/* What registers leave room for: 65536 / 128 / 3 = 170 a thread; with half of O, 128. */
constexpr int blocks_an_sm(int D) { return D == 64 ? 4 : 3; }

/* Blocks start in the order of their index. Those of 8 heads start together: the some 400 blocks that an H200 runs at once
 * then share their K and V, 50 to a head, and all but the first find a tile in L2. Of the 8 the last query tiles come first:
 * under a causal mask they see the most keys, and a long block that starts late keeps the whole chip waiting. */
[[maybe_unused]] constexpr int HEADS_TOGETHER = 8;

template <typename E, int D> struct WgmmaShared {
    Panels<E, Br, D> q;
    Panels<E, Bc, D> k; /* O on its way out */
    Panels<E, D, Bc> v;
    Mbarrier k_full, v_full; /* the tile is there; the first k_full: Q, too */
};

struct Scales {
    const float *q, *k, *v, *lse_shift; /* fp8.h */
};

template <typename E, int D>
__global__ void __launch_bounds__(THREADS, blocks_an_sm(D))
    wgmma_attention(Problem p, Tensors t, Scales scales, const __grid_constant__ TensorMap q_map,
                    const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map) {
#ifdef HOPPER
    using Shared = WgmmaShared<E, D>;
    SHARED_MEMORY(Shared, shared);
    constexpr int step_elements = 32; /* of k, in one wgmma */
    const int lane = threadIdx.x % 32;
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0); /* of a shuffle the compiler knows: no lane differs */
    const int warp_row = 16 * warp;                                /* the warp's first row in the tile */

    /* Which query tile of which head */
    const int all_heads = p.batch * p.heads, query_tiles = ceil_div(p.seqlen_q, Br);
    const int first_head = blockIdx.x / (HEADS_TOGETHER * query_tiles) * HEADS_TOGETHER;
    const int heads = min(HEADS_TOGETHER, all_heads - first_head), turn = blockIdx.x - first_head * query_tiles;
    const int batch_head = first_head + turn % heads, query_tile = query_tiles - 1 - turn / heads;
    const int batch = batch_head / p.heads, head = batch_head % p.heads, kv_head = kv_head_of(&p, head);
    const int first_row = query_tile * Br, kv_matrix = batch * p.kv_heads + kv_head;

    /* Key tiles up to the last key that the tile's last row sees; those below whole_tiles its first row sees whole. */
    const int keys = key_length(&p, t.key_lengths, batch);
    const int key_tiles = ceil_div(visible_keys(&p, keys, min(first_row + Br, p.seqlen_q) - 1), Bc);
    const int whole_tiles = visible_keys(&p, keys, first_row) / Bc;

    if (warp == 0 && elect_one()) {
        mbarrier_init(&shared.k_full, 1);
        mbarrier_init(&shared.v_full, 1);
        mbarrier_init_fence();
        if (key_tiles > 0) {
            mbarrier_arrive_expect(&shared.k_full, shared.q.bytes + shared.k.bytes);
            shared.q.load(q_map, first_row, 0, batch_head, &shared.k_full);
            shared.k.load(k_map, (key_tiles - 1) * Bc, 0, kv_matrix, &shared.k_full);
            mbarrier_arrive_expect(&shared.v_full, shared.v.bytes);
            shared.v.load(v_map, 0, (key_tiles - 1) * Bc, kv_matrix, &shared.v_full);
        }
    }
    __syncthreads(); /* nobody waits at a barrier that is not there yet */

    const uint64_t q_tile = shared.q.descriptor(), k_tile = shared.k.descriptor(), v_tile = shared.v.descriptor();
    const float q_scale_log2 = p.scale * LOG2_E * scales.q[q_scale_offset(&p, batch, head) + query_tile];
    const float *k_scales = scales.k + k_scale_offset(&p, batch, kv_head),
                *v_scales = scales.v + k_scale_offset(&p, batch, kv_head);

    /* The thread's share of the running state: rows lane / 4 + 8 h of the warp. m is kept times scale_log2, as the exponents
     * are, and starts finite: -inf would make -inf - -inf = NaN of rows that see no key. O is in units of V's scale, o_scale. */
    float o[D / 2] = {}, o_scale = 1;
    float m[2] = {LOWEST, LOWEST}, l[2] = {0, 0};

    for (int tile = key_tiles - 1; tile >= 0; tile--) {
        const int parity = (key_tiles - 1 - tile) % 2; /* each tile is one phase of both barriers */
        const float scale_log2 = positive(q_scale_log2 * k_scales[tile]), v_scale = v_scales[tile];

        /* S = Q K^T */
        mbarrier_wait(&shared.k_full, parity);
        float s[Bc / 2];
        wgmma_fence(s);
#pragma unroll
        for (int step = 0; step < D / step_elements; step++)
            wgmma<E>(s, wgmma_advance(q_tile, shared.q.offset(step)), wgmma_advance(k_tile, shared.k.offset(step)),
                     step > 0);
        wgmma_commit();
        wgmma_wait<0>(s);

        __syncthreads(); /* all four warps are done with K */
        if (warp == 0 && tile > 0 && elect_one()) {
            mbarrier_arrive_expect(&shared.k_full, shared.k.bytes);
            shared.k.load(k_map, (tile - 1) * Bc, 0, kv_matrix, &shared.k_full);
        }

        /* Mask, only in tiles that the diagonal or the end of the keys cuts */
        if (tile >= whole_tiles) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = first_row + warp_row + 8 * (e / 2) + lane / 4;
                const int seen = visible_keys(&p, keys, row) - tile * Bc - (2 * (lane % 4) + e % 2);
#pragma unroll
                for (int c = 0; c < Bc / 8; c++)
                    s[4 * c + e] = 8 * c < seen ? s[4 * c + e] : -INFINITY;
            }
        }

        /* The maximum. `rescale` brings O to the new one, and from the last tile's V scale to this one's. */
        float rescale[2], exponent[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float tile_max = s[2 * h];
#pragma unroll
            for (int c = 0; c < Bc / 8; c++)
                tile_max = fmaxf(tile_max, fmaxf(s[4 * c + 2 * h], s[4 * c + 2 * h + 1]));
            tile_max = quad_max(tile_max);
            const float m_new = fmaxf(m[h], tile_max * scale_log2), factor = exp2_approx(m[h] - m_new);
            l[h] *= factor;
            rescale[h] = factor * (o_scale / v_scale);
            m[h] = m_new;
            exponent[h] = E::largest_exponent - m_new;
        }
        o_scale = v_scale;

        /* P = 2^(scale_log2 S - m), scaled up to E's largest power of two: it then has numbers down to 2^-17 (e4m3) or 2^-31
         * (e5m2), not 2^-9 and 2^-16. l is summed of the same P before it is rounded, so that O / l is as ever. Rounded, it is
         * the A operand: register j has rows lane / 4 + 8 (j % 2) and four of a step's 32 keys, of the left 16 or the right. */
        uint32_t a[Bc / step_elements][4];
#pragma unroll
        for (int i = 0; i < Bc / 2; i++) {
            s[i] = exp2_approx(s[i] * scale_log2 + exponent[i / 2 % 2]);
            l[i / 2 % 2] += s[i];
        }
#pragma unroll
        for (int step = 0; step < Bc / step_elements; step++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float *x = s + 8 * (2 * step + j / 2) + 2 * (j % 2);
                a[step][j] = pack_4<E>(x[0], x[1], x[4], x[5]); /* two accumulator atoms: V's keys are in this order */
            }

        /* P V, into registers of its own: wgmma adds 8-bit products with fewer bits than fp32 has. O is summed in fp32. */
        mbarrier_wait(&shared.v_full, parity);
        float product[D / 2];
        wgmma_fence(product, a);
#pragma unroll
        for (int step = 0; step < Bc / step_elements; step++)
            wgmma<E>(product, a[step], wgmma_advance(v_tile, shared.v.offset(step)), step > 0);
        wgmma_commit();
        wgmma_wait<0>(product);

        __syncthreads(); /* all four warps are done with V */
        if (warp == 0 && tile > 0 && elect_one()) {
            mbarrier_arrive_expect(&shared.v_full, shared.v.bytes);
            shared.v.load(v_map, 0, (tile - 1) * Bc, kv_matrix, &shared.v_full);
        }

#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i] = o[i] * rescale[i / 2 % 2] + product[i];
    }

    /* Divide by l, once; write LSE. A row that saw no key has l = 0: O = 0, LSE = -inf. O goes out through K's place, which
     * nobody reads any more, so that a lane stores 16 bytes and a warp whole rows; each warp its own rows. */
    using OutTile = Tile<uint16_t, Br, D>;
    static_assert(sizeof(OutTile) <= sizeof shared.k, "O fits where K was");
    OutTile &out_tile = reinterpret_cast<OutTile &>(shared.k);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float sum = quad_sum(l[h]);
        const float factor = sum > 0 ? o_scale / sum : 0;
        const int tile_row = warp_row + 8 * h + lane / 4, row = first_row + tile_row;
        const size_t flat_row = (size_t)batch_head * p.seqlen_q + row;
        if (lane % 4 == 0 && row < p.seqlen_q)
            t.lse[flat_row] = sum > 0 ? (m[h] - E::largest_exponent) * LN_2 + logf(sum) + scales.lse_shift[flat_row] : -INFINITY;
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            const float low = o[4 * d + 2 * h] * factor, high = o[4 * d + 2 * h + 1] * factor;
            const uint32_t pair = p.dtype == DTYPE_FP16 ? pack_pair<__half>(low, high) : pack_pair<__nv_bfloat16>(low, high);
            *reinterpret_cast<uint32_t *>(out_tile.chunk(tile_row, d) + 2 * (lane % 4)) = pair;
        }
    }
    __syncwarp(); /* the warp's rows are complete */
    uint16_t *out = (uint16_t *)t.o + query_head_offset(&p, batch, head);
    store_rows<16>(out, first_row, p.seqlen_q, out_tile, warp_row);
#endif
}

template <typename E, int D> static void launch_wgmma(const Problem &p, const Tensors &t, const Buffer *workspace) {
    using Shared = WgmmaShared<E, D>;
    constexpr int q_row = decltype(Shared::q)::row_bytes, k_row = decltype(Shared::k)::row_bytes,
                  v_row = decltype(Shared::v)::row_bytes;
    const Scales scales = {(const float *)workspace[Q_SCALES].pointer, (const float *)workspace[K_SCALES].pointer,
                           (const float *)workspace[V_SCALES].pointer, (const float *)workspace[LSE_SHIFT].pointer};
    const TensorMap q_map = tensor_map<E, q_row>(workspace[Q8].pointer, D, p.seqlen_q, p.batch * p.heads, Br);
    const TensorMap k_map = tensor_map<E, k_row>(workspace[K8].pointer, D, p.seqlen_k, p.batch * p.kv_heads, Bc);
    const TensorMap v_map = tensor_map<E, v_row>(workspace[VT8].pointer, key_pitch(&p), D, p.batch * p.kv_heads, D);
    const int blocks = p.batch * p.heads * ceil_div(p.seqlen_q, Br);
    LAUNCH((wgmma_attention<E, D>), blocks, THREADS, sizeof(Shared), p, t, scales, q_map, k_map, v_map);
}

extern "C" void fp8_wgmma(const Problem *p, const Tensors *t, const Buffer *workspace) {
    WITH_HEAD_DIM_64_128(p->head_dim, D, {
        if (p->settings[FORMAT] == FORMAT_E4M3)
            launch_wgmma<E4m3, D>(*p, *t, workspace);
        else
            launch_wgmma<E5m2, D>(*p, *t, workspace);
    });
}
