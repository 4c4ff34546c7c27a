/* softmax8.cuh - what the three kernels do alike to a tile of S in registers: its softmax, P as an operand of 8 bits,
 * and the end of a row. The tile primitives are those of common/gpu/warp.cuh and warpgroup.cuh.
 */
#ifndef FA_SOFTMAX8_CUH
#define FA_SOFTMAX8_CUH

#include "../common/gpu/warpgroup.cuh"
#include "fp8.h"

/* What the pre-pass found (fp8.h). */
struct Scales {
    const float *q, *k, *v, *lse_shift;
};
inline Scales scales_in(const Buffer *workspace) {
    const auto floats = [&](int buffer) { return (const float *)workspace[buffer].pointer; };
    return {floats(Q_SCALES), floats(K_SCALES), floats(V_SCALES), floats(LSE_SHIFT)};
}

/* The first half of a tile's softmax: updates m, which is kept times scale_log2. O must be multiplied by `alpha`, as
 * this lane's part of l is here. m starts at LOWEST, and becomes a row's maximum where that is more than FP8_SLACK
 * above it. Returns what to multiply scores by: scale_log2, or 1 where scores are far and have been multiplied. Where
 * no m of the warp is updated, and scores are not far, one vote is all that its lanes exchange. */
template <typename E, int D, int N>
__device__ inline float update_maximum(float (&s)[1][N][4], float (&m)[2], float (&l)[2], float (&alpha)[2],
                                       float scale_log2) {
    const bool far = scale_log2 > far_scale(D, E::largest);
    float largest[2];
    bool updated = far;
    UNROLL for (int r = 0; r < 2; r++) {
        largest[r] = lane_max(s, r) * scale_log2;
        updated |= largest[r] - m[r] > FP8_SLACK;
        alpha[r] = 1;
    }
    if (__any_sync(WHOLE_WARP, updated)) {
        UNROLL for (int r = 0; r < 2; r++) {
            largest[r] = quad_max(largest[r]);
            const float m_new = largest[r] - m[r] > FP8_SLACK ? largest[r] : m[r];
            alpha[r] = exp2_approx(m[r] - m_new);
            l[r] *= alpha[r];
            m[r] = m_new;
        }
        if (far) {
            each(s, [&](float &score, int) { score = __fmul_rn(score, scale_log2); });
            scale_log2 = 1;
        }
    }
    return scale_log2;
}

/* The second half: S becomes P = 2^(factor S - m), times 2^(largest_exponent - FP8_SLACK): so probabilities down to
 * 2^-14 (e4m3) or 2^-28 (e5m2) can be told from 0, not only down to 2^-9 and 2^-16. This lane's part of l is summed
 * from the same P before rounding, so that O / l needs no correction. */
template <typename E, int N>
__device__ inline void exponentials(float (&s)[1][N][4], const float (&m)[2], float (&l)[2], float factor) {
    float exponent[2];
    /* The exponent is rounded down: where floats near m are 8 apart, 12 - m (e5m2), rounded to the nearest, may become
     * 16 - m, and P = 2^16 would be beyond the format's largest number. */
    UNROLL for (int r = 0; r < 2; r++)
        exponent[r] = __fadd_rd(E::largest_exponent - FP8_SLACK, -m[r]);
    each_summed(s, l, [&](float x, int r) { return exp2_approx(__fmaf_rn(x, factor, exponent[r])); });
}

/* P, rounded, as the A operand of P V. A step is 32 keys, four mma tiles of the accumulator. A quarter has rows
 * lane / 4 + 8 (quarter % 2), and four of the step's keys: of the first 16 if quarter < 2, else of the last 16. V's
 * keys have this order (fp8.h: key_at_position). */
template <typename E, int N> __device__ inline void to_operand(uint32_t (&a)[N / 4][4], const float (&p)[1][N][4]) {
    UNROLL for (int step = 0; step < N / 4; step++)
        UNROLL for (int quarter = 0; quarter < 4; quarter++) {
            const float(*piece)[4] = &p[0][4 * step + 2 * (quarter / 2)];
            const int j = 2 * (quarter % 2);
            a[step][quarter] = pack_4<E>(piece[0][j], piece[0][j + 1], piece[1][j], piece[1][j + 1]);
        }
}

/* wgmma and overlapped keep O divided by V's scale of the tile before, so that the next product is added as it is.
 * Where V's scales lie far apart, O would leave fp32's range: so it is divided by no less than 2^-32 of the largest so
 * far, and products are multiplied. With one scale per head there is nothing to do, and the compiler leaves it out. */
template <bool by_block> struct OutputScale {
    float now = 1, largest = 0;

    /* On to a tile whose V has this scale. O must be multiplied by the result, and the tile's product by `share`,
     * mostly 1. */
    __device__ inline float move_to(float v_scale, float &share) {
        const float before = now;
        if (!by_block) {
            now = v_scale, share = 1;
            return 1;
        }
        largest = fmaxf(largest, v_scale);
        now = fmaxf(v_scale, largest * 0x1p-32f);
        share = now > v_scale ? __fdividef(v_scale, now) : 1;
        return __fdividef(before, now); /* a division with `/` would branch */
    }
};

template <int N> __device__ inline void multiply_if_less(float (&product)[1][N][4], float share) {
    if (share < 1)
        each(product, [&](float &x, int) { x *= share; });
}

/* The end: O / l times V's scale `o_scale`, and LSE, of queries `row` .. of a head. A row that saw no key has l = 0: O
 * = 0, LSE = -inf. */
template <typename E, int N>
__device__ inline void write_output(const Problem &p, const Tensors &t, const Scales &scales, int batch_head, int row,
                                    const float (&o)[1][N][4], const float (&m)[2], const float (&l)[2],
                                    float o_scale) {
    const auto has_lse = [&](int r) { return threadIdx.x % 4 == 0 && row + row_of(r) < p.seqlen_q; };
    const size_t lse_row = (size_t)batch_head * p.seqlen_q + row;
    float shift[2], sum[2], to_o[2];
    UNROLL for (int r = 0; r < 2; r++) {
        shift[r] = has_lse(r) ? scales.lse_shift[lse_row + row_of(r)] : 0; /* requested first, needed last */
        sum[r] = quad_sum(l[r]);
        to_o[r] = sum[r] > 0 ? o_scale / sum[r] : 0;
    }
    WITH_HALF_TYPE(p.dtype, T, store_rows<8 * N>(head_tensors<T>(p, t, batch_head).o, row, p.seqlen_q, o, to_o));
    UNROLL for (int r = 0; r < 2; r++)
        if (has_lse(r))
            t.lse[lse_row + row_of(r)] =
                sum[r] > 0 ? (m[r] - (E::largest_exponent - FP8_SLACK)) * LN_2 + logf(sum[r]) + shift[r] : -INFINITY;
}

#endif
