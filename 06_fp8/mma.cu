/* 06_fp8/mma - 04_fa2/tuned with both products in 8 bits, on every chip.
 *
 * The idea. Halve the bytes of Q, K and V, and double what one instruction multiplies: mma m16n8k32 takes 32 numbers of
 * 8 bits where m16n8k16 takes 16 of 16 bits. The pre-pass (quantise.cu) has made 8-bit copies of the inputs, with V
 * transposed. This kernel multiplies S and O by the scales, and rounds P to 8 bits as well. The rest is as in
 * 04_fa2/tuned.
 *
 * Scales.     S = (scale q_scale k_scale) Q8 K8^T, and k_scale belongs to the key tile: one number, it joins the
 *             softmax scale.
 * P.          A probability is at most 1 and mostly far below. The smallest number of e4m3 is 2^-9, the largest 448. So
 *             P = 1 becomes 2^5 in e4m3 and 2^12 in e5m2. That costs nothing: the power is added to the exponent, where
 *             the maximum is subtracted. l is summed from the same P before rounding, so that O / l needs no
 *             correction; LSE needs one. m may lag behind the maximum, as in tuned, but only until P is 2^8 or 2^15:
 *             SLACK.
 * O.          Tensor cores that multiply 8-bit numbers keep only some 13 bits of the sum. So the product P V8 of a key
 *             tile starts from 0, and is then added to O in fp32, with V's scale: O = alpha O + v_scale (P V8).
 * V.          In P V the sum runs over keys, and mma wants neighboring keys in one register. ldmatrix moves pairs of
 *             bytes and cannot transpose single ones, so the pre-pass has transposed V; and it has put V's keys into
 *             the order in which P lies in the accumulators (fp8.h: key_at_position).
 *
 * Who owns what. As in tuned: a block owns Br queries of one head and walks over the keys in tiles of Bc, the last one
 * first.
 *
 *                 keys ->                            In a warp's 16 x 8 mma tile of S or O
 *            +--------+--------+--------+            lane 4r + c, c = 0..3, holds columns 2c, 2c + 1 of row r
 *     warp 0 | 16 x Bc|        |        |            and of row r + 8. Of P as the A operand, 16 x 32, it brings
 *     warp 1 | 16 x Bc|        |        |  queries   positions 4c .. 4c + 3 and 16 + 4c .. of the same rows.
 *     warp 2 | 16 x Bc|        |        |     |
 *     warp 3 | 16 x Bc|        |        |     v
 *            +--------+--------+--------+
 *
 * What it costs. 4 Br Bc D FLOPs per block and key tile; device memory per block: D x (Br + 2 Sk) bytes for Q, K and V,
 * half of tuned's. Registers per lane: O takes D / 2, S takes Bc / 2. Shared memory: D x (Br + 4 Bc) bytes, 20 or 40
 * KB: less than sm_75 has, so one shape for all chips. On sm_89 the tensor cores multiply 8-bit numbers. On sm_90
 * mma.sync has no fp8 form: the compiler unpacks the operands to fp16, and this kernel is slower than tuned. There it
 * shows what 8 bits lose; for speed see wgmma.cu.
 *
 * The tile primitives (add_abt, mask) are in common/gpu/warp.cuh, all others in softmax8.cuh.
 *
 *     make 06_fp8 && ./06_fp8/06_fp8 --variant mma --format e5m2 --causal
 */
#include "softmax8.cuh"

#include <limits.h>

constexpr int WARPS = 4, THREADS = 32 * WARPS; /* a warp for each scheduler of the multiprocessor */

/* Two neighboring 8-bit numbers, as one element. Tile and ldmatrix handle 16-bit elements, and do not look inside. */
typedef uint16_t Pair;

/* A warp owns 16 rows, half of tuned's, because on sm_90 its registers also hold operands that were unpacked to 16
 * bits. The block's Br queries share a scale, and so do the Bc keys of a tile. */
constexpr int Br = 16 * WARPS, Bc = 64;
static_assert(Br == BLOCK_Q && BLOCK_K % Bc == 0, "one scale for a block's queries, one for a key tile");

/* K and V are double-buffered: the next pair of tiles arrives while this one is used, and
 * one barrier a tile is enough. */
template <int D> struct Fp8Shared {
    Tile<Pair, Br, D / 2> q;
    Tile<Pair, Bc, D / 2> k[2]; /* [key][d] */
    Tile<Pair, D, Bc / 2> v[2]; /* [d][key] */
};

/* Block: a query tile of a head. The codes of fp8.h come in pairs. */
template <typename E, int D>
__global__ void __launch_bounds__(THREADS)
    fp8_mma_kernel(Problem p, Tensors t, Scales scales, const Pair *q8, const Pair *k8, const Pair *vt8) {
    SHARED_MEMORY(shared, Fp8Shared<D>);
    const int warp_row = threadIdx.x / 32 * 16; /* the warp's first row in the tile */

    /* Which query tile of which head: see query_tile.cuh. Full attention: head by head. Causal: all heads together. */
    const QueryTile here = query_tile(p, t.key_lengths, p.causal ? p.batch * p.heads : 1, blockIdx.x, Br, Bc);
    const int pitch = key_pitch(&p) / 2; /* in pairs, two elements each, as all offsets */
    const Pair *q = q8 + (size_t)here.batch_head * p.seqlen_q * (D / 2),
               *k = k8 + (size_t)here.kv_head * p.seqlen_k * (D / 2);
    const Pair *v = vt8 + (size_t)here.kv_head * D * pitch;
    const float q_scale = scales.q[(size_t)here.batch_head * q_scale_count(&p) + here.first_row / BLOCK_Q];
    const float *k_scales = scales.k + (size_t)here.kv_head * k_scale_count(&p),
                *v_scales = scales.v + (size_t)here.kv_head * k_scale_count(&p);

    const auto load_keys = [&](int tile, int row_end) {
        load_tile_async<THREADS>(shared.k[tile % 2], k, tile * Bc, row_end, D / 2);
        load_tile_async<THREADS>(shared.v[tile % 2], v + tile * Bc / 2, 0, D, pitch); /* rows end with a whole tile */
    };
    load_tile_async<THREADS>(shared.q, q, here.first_row, p.seqlen_q, D / 2);
    if (here.key_tiles > 0)
        load_keys(here.key_tiles - 1, here.keys);

    /* O, m and l of the key tiles so far. m is kept times scale_log2, as the exponents are. */
    float o[1][D / 8][4] = {}, m[2] = {LOWEST, LOWEST}, l[2] = {};

    for (int tile = here.key_tiles - 1; tile >= 0; tile--) {
        const float k_scale = k_scales[tile * Bc / BLOCK_K], v_scale = v_scales[tile * Bc / BLOCK_K];
        const float scale_log2 = positive(p.scale * LOG2_E * q_scale * k_scale); /* e^(scale s) = 2^(scale_log2 s) */
        cp_async_wait<0>();
        __syncthreads(); /* this tile is there; all warps are done with the one before, which the next overwrites */
        if (tile > 0)
            load_keys(tile - 1, INT_MAX); /* a whole tile: only the first one visited can reach past the keys */

        /* S = Q K^T, 32 components at a time; the mask only in tiles that the diagonal or the end of the keys cuts */
        float s[1][Bc / 8][4] = {};
        add_abt<E>(s, shared.q, warp_row, shared.k[tile % 2], 0);
        if (tile >= here.whole_tiles)
            mask(s, p, here.keys, here.first_row + warp_row, tile * Bc);

        /* P, in the place of S, and rounded */
        float alpha[2]; /* factor of what was summed with the old maximum */
        const float factor = update_maximum<E, D>(s, m, l, alpha, scale_log2);
        exponentials<E>(s, m, l, factor);
        uint32_t rounded_p[1][Bc / 32][4];
        to_operand<E>(rounded_p[0], s);

        /* O = alpha O + v_scale P V, 16 components at a time: the product of a tile
         * starts from 0 and joins O in fp32 */
        UNROLL for (int d = 0; d < D / 8; d += 2) {
            float product[1][2][4] = {};
            add_abt<E>(product, rounded_p, shared.v[tile % 2], 8 * d);
            UNROLL for (int i = 0; i < 8; i++) {
                float &x = o[0][d + i / 4][i % 4];
                x = alpha[i % 4 / 2] * x + v_scale * product[0][i / 4][i % 4];
            }
        }
    }
    cp_async_wait<0>(); /* without a key tile nothing has waited for Q yet */
    write_output<E>(p, t, scales, here.batch_head, here.first_row + warp_row, o, m, l, 1);
}

LAUNCHER(fp8_mma) {
    const auto codes = [&](int buffer) { return (const Pair *)workspace[buffer].pointer; };
    const int blocks = p->batch * p->heads * ceil_div(p->seqlen_q, Br);
    WITH_FORMAT(p->settings[FORMAT], E, WITH_HEAD_DIM_64_128(p->head_dim, D,
        LAUNCH((fp8_mma_kernel<E, D>), blocks, THREADS, sizeof(Fp8Shared<D>), *p, *t, scales_in(workspace), codes(Q8),
               codes(K8), codes(VT8))));
}
