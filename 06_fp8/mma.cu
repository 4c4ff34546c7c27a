/* 06_fp8/mma - 04_fa2/tuned with both products in 8 bits, on every chip.
 *
 * The idea. Halve the bytes of Q, K and V, and double what one instruction multiplies: mma m16n8k32 takes 32 numbers of
 * 8 bits where m16n8k16 takes 16 of 16 bits. The pre-pass (quantise.cu) has made 8-bit copies of the inputs, with V
 * transposed. This kernel multiplies S and O by the scales, and rounds P to 8 bits as well. The rest is as in
 * 04_fa2/tuned.
 *
 * Scales.     S = (scale q_scale k_scale) Q8 K8^T, and k_scale belongs to the key tile: one number, it joins the softmax
 *             scale.
 * P.          A probability is at most 1 and mostly far below. The smallest number of e4m3 is 2^-9, the largest 448. So
 *             P = 1 becomes 2^8 in e4m3 and 2^15 in e5m2. That costs nothing: the power is added to the exponent, where
 *             the maximum is subtracted. l is summed from the same P before rounding, so that O / l needs no correction;
 *             LSE needs one. No P may be larger, so m must follow every new maximum.
 * O.          Tensor cores that multiply 8-bit numbers keep only some 13 bits of the sum. So the product P V8 of a key
 *             tile starts from 0, and is then added to O in fp32, with V's scale: O = alpha O + v_scale (P V8).
 * V.          In P V the sum runs over keys, and mma wants neighbouring keys in one register. ldmatrix moves pairs of
 *             bytes and cannot transpose single ones, so the pre-pass has transposed V; and it has put V's keys into
 *             the order in which P lies in the accumulators (fp8.h: key_at_place).
 *
 * Who owns what. As in tuned: a block owns Br queries of one head and walks over the keys in tiles of Bc, the last one
 * first.
 *
 *                 keys ->                            In a warp's 16 x 8 piece of S or O (one mma accumulator)
 *            +--------+--------+--------+            lane 4r + c, c = 0..3, holds columns 2c, 2c + 1 of row r
 *     warp 0 | 16 x Bc|        |        |            and of row r + 8. Of P as the A operand, 16 x 32, it brings
 *     warp 1 | 16 x Bc|        |        |  queries   places 4c .. 4c + 3 and 16 + 4c .. of the same rows.
 *     warp 2 | 16 x Bc|        |        |     |
 *     warp 3 | 16 x Bc|        |        |     v
 *            +--------+--------+--------+
 *
 * What it costs. 4 Br Bc D FLOPs a block and key tile; device memory, a block: D x (Br + 2 Sk) bytes for Q, K and V,
 * half of tuned's. Registers a lane: O takes D / 2, S takes Bc / 2. Shared memory: D x (Br + 4 Bc) bytes, 20 or 40 KB:
 * less than sm_75 has, so one shape for all chips. On sm_89 the tensor cores multiply 8-bit numbers. On sm_90 mma.sync
 * has no fp8 form: the compiler unpacks the operands to fp16, and this kernel is slower than tuned. There it shows
 * what 8 bits lose; for speed see wgmma.cu.
 *
 *     make 06_fp8 && ./06_fp8/06_fp8 --variant mma --format e5m2 --causal
 */
#include "../common/gpu/query_tile.cuh"
#include "../common/gpu/warp.cuh"

#include "fp8.h"

#include <limits.h>

constexpr int WARPS = 4, THREADS = 32 * WARPS; /* a warp for each scheduler of the multiprocessor */

/* Two neighbouring 8-bit numbers, as one element. Tile and ldmatrix handle 16-bit elements, and do not look inside. */
typedef uint16_t Pair;

/* A warp owns 16 rows, half of tuned's, because on sm_90 its registers also hold operands that were unpacked to 16
 * bits. The block's Br queries share a scale, and so do the Bc keys of a tile. */
constexpr int Br = 16 * WARPS, Bc = 64;
static_assert(Br == BLOCK_Q && BLOCK_K % Bc == 0, "one scale for a block's queries, one for a key tile");

/* K and V are double-buffered: the next pair of tiles arrives while this one is used, and one barrier a tile is enough. */
template <int D> struct Fp8Shared {
    Tile<Pair, Br, D / 2> q;
    Tile<Pair, Bc, D / 2> k[2]; /* [key][d] */
    Tile<Pair, D, Bc / 2> v[2]; /* [d][key] */
};

/* The workspace of fp8.h; codes in pairs. */
struct Quantised {
    const Pair *q8, *k8, *vt8;
    const float *q_scales, *k_scales, *v_scales, *lse_shift;
};

template <typename T, typename E, int D>
__global__ void __launch_bounds__(THREADS) fp8_mma_kernel(Problem p, Tensors t, Quantised x) {
    using Shared = Fp8Shared<D>;
    SHARED_MEMORY(Shared, shared);
    const int warp_row = threadIdx.x / 32 * 16; /* the warp's first row in the tile */

    /* Which query tile of which head: see query_tile.cuh. Full attention: head by head. Causal: all heads together. */
    const QueryTile here = query_tile(p, t.key_lengths, p.causal ? p.batch * p.heads : 1, blockIdx.x, Br, Bc);
    const int batch = here.batch_head / p.heads, head = here.batch_head % p.heads, kv_head = kv_head_of(&p, head);

    /* Offsets in pairs, two elements each */
    const Pair *q = x.q8 + query_head_offset(&p, batch, head) / 2;
    const Pair *k = x.k8 + key_head_offset(&p, batch, kv_head) / 2;
    const Pair *v = x.vt8 + vt_head_offset(&p, batch, kv_head) / 2;
    const int pitch = key_pitch(&p) / 2;
    const float q_scale = x.q_scales[q_scale_offset(&p, batch, head) + here.first_row / Br];
    const size_t first_k_scale = k_scale_offset(&p, batch, kv_head);

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
        const float k_scale = x.k_scales[first_k_scale + tile * Bc / BLOCK_K];
        const float v_scale = x.v_scales[first_k_scale + tile * Bc / BLOCK_K];
        float scale_log2 = positive(p.scale * LOG2_E * q_scale * k_scale); /* e^(scale s) = 2^(scale_log2 s) */
        cp_async_wait<0>();
        __syncthreads(); /* this tile is there, and every warp is done with the one before, whose place the next one takes */
        if (tile > 0)
            load_keys(tile - 1, INT_MAX); /* a whole tile: only the first one visited can reach past the keys */

        /* S = Q K^T, 32 components at a time; the mask only in tiles that the diagonal or the end of the keys cuts */
        float s[1][Bc / 8][4] = {};
        add_abt<E>(s, shared.q, warp_row, shared.k[tile % 2], 0);
        if (tile >= here.whole_tiles)
            mask(s, p, here.keys, here.first_row + warp_row, tile * Bc);
        if (scale_log2 > far_scale(D, E::largest)) {
            each(s, [&](float &score, int) { score = __fmul_rn(score, scale_log2); });
            scale_log2 = 1;
        }

        /* The maximum. m follows each new one: e4m3 has no room for a P above 2^8. */
        float alpha[2]; /* factor of what was summed with the old maximum */
        UNROLL for (int r = 0; r < 2; r++) {
            const float m_new = fmaxf(m[r], row_max(s, r) * scale_log2);
            alpha[r] = exp2_approx(m[r] - m_new);
            m[r] = m_new;
            l[r] *= alpha[r];
        }

        /* P = 2^(scale_log2 S + shift), shift = largest_exponent - m: one fused multiply-add and one ex2 an element.
         * The shift is rounded down: where floats near m are 2 apart, 15 - m (e5m2), rounded to the nearest, may become
         * 16 - m, and P = 2^16 would be beyond the format's largest number. l gets a tile's sum as one, because beside
         * a large l a single P loses its last bits. Rounded, 32 keys make an A operand: quarter % 2 is 8 rows down,
         * quarter / 2 is 16 keys right, and 16 keys are two pieces of S. */
        uint32_t rounded_p[1][Bc / 32][4];
        float tile_l[2] = {};
        UNROLL for (int n = 0; n < Bc / 8; n += 4)
            UNROLL for (int quarter = 0; quarter < 4; quarter++) {
                const int r = quarter % 2;
                const float shift = __fadd_rd(E::largest_exponent, -m[r]); /* down: the nearest may be 16 - m, and P 2^16 */
                float four[4];
                UNROLL for (int j = 0; j < 4; j++) {
                    four[j] = exp2_approx(s[0][n + 2 * (quarter / 2) + j / 2][2 * r + j % 2] * scale_log2 + shift);
                    tile_l[r] += four[j];
                }
                rounded_p[0][n / 4][quarter] = pack_4<E>(four[0], four[1], four[2], four[3]);
            }
        l[0] += tile_l[0], l[1] += tile_l[1];

        /* O = alpha O + v_scale P V, 16 components at a time: the product of a tile starts from 0 and joins O in fp32 */
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

    /* Divide by l, once; write O and LSE. A row that saw no key has l = 0: O = 0, LSE = -inf */
    const HeadTensors<T> out = head_tensors<T>(p, t, here.batch_head);
    float inverse[2];
    UNROLL for (int r = 0; r < 2; r++) {
        const int row = here.first_row + warp_row + row_of(r);
        const float l_row = quad_sum(l[r]);
        inverse[r] = l_row > 0 ? 1 / l_row : 0;
        if (threadIdx.x % 4 == 0 && row < p.seqlen_q)
            out.lse[row] = l_row > 0 ? (m[r] - E::largest_exponent) * LN_2 + logf(l_row) + x.lse_shift[out.first_row + row]
                                     : -INFINITY;
    }
    store_rows<D>(out.o, here.first_row + warp_row, p.seqlen_q, o, inverse);
}

LAUNCHER(fp8_mma) {
    const Buffer *w = workspace;
    const Quantised x = {(const Pair *)w[Q8].pointer,          (const Pair *)w[K8].pointer,
                         (const Pair *)w[VT8].pointer,         (const float *)w[Q_SCALES].pointer,
                         (const float *)w[K_SCALES].pointer,   (const float *)w[V_SCALES].pointer,
                         (const float *)w[LSE_SHIFT].pointer};
    const int blocks = p->batch * p->heads * ceil_div(p->seqlen_q, Br);
    WITH_HALF_TYPE(p->dtype, T, WITH_FORMAT(p->settings[FORMAT], E, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        LAUNCH((fp8_mma_kernel<T, E, D>), blocks, THREADS, sizeof(Fp8Shared<D>), *p, *t, x);
    })));
}
