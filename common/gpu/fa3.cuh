/* fa3.cuh - what the kernels of 08_fa3 share, and 10_block_sparse has, too: what TMA loads, and the softmax of a tile of S in registers. That is
 * 04_fa2's arithmetic on the registers of a warpgroup. Nothing here is asynchronous.
 */
#ifndef FA_FA3_CUH
#define FA_FA3_CUH

#include "../stage.h"
#include "warpgroup.cuh"

/* What TMA loads: Br rows of Q, Bc rows of K or V. */
struct TensorMaps {
    TensorMap q, k, v;
};
template <typename T, int D> static TensorMaps tensor_maps(const Problem &p, const Tensors &t, int Br, int Bc) {
    const auto keys = [&](const void *rows) { return tensor_map<T, 128>(rows, D, p.seqlen_k, p.batch * p.kv_heads, Bc); };
    return {tensor_map<T, 128>(t.q, D, p.seqlen_q, p.batch * p.heads, Br), keys(t.k), keys(t.v)};
}

/* O is rescaled only when a row's maximum exceeds m by more than this many powers of two; until then P is at most 2^8
 * (04_fa2/tuned explains it). [[maybe_unused]], here and in the kernels: for chips without wgmma they are empty. */
[[maybe_unused]] constexpr float SLACK = 8;

/* S becomes P = 2^(scale_log2 S - m), in place. Updates m, which is kept times scale_log2, and this lane's part of l.
 * Returns whether m of any row of the warp may have changed; O must then be multiplied by `alpha`. m starts at -inf: it
 * stays -inf in a row that has seen no key yet, and the row's P are 2^-inf = 0.
 * In most tiles no m changes, and none is far out: then one vote of the warp is all that its lanes exchange. */
template <int N>
__device__ inline bool softmax(float (&s)[1][N][4], float (&m)[2], float (&l)[2], float (&alpha)[2], float scale_log2) {
    float shift[2] = {m[0], m[1]};
    bool moved = false;
    UNROLL for (int r = 0; r < 2; r++) /* -inf is far, too: else m is finite */
        moved |= positive_max(s, r) * scale_log2 > m[r] + SLACK || fabsf(m[r]) > FAR;
    moved = __any_sync(WHOLE_WARP, moved);
    if (moved) {
        UNROLL for (int r = 0; r < 2; r++) {
            /* Not > m + SLACK: beyond 2^27, where floats are 16 apart, that sum may be 16 above m, and P 2^16. */
            const float largest = row_max(s, r) * scale_log2, m_new = largest - m[r] > SLACK ? largest : m[r];
            alpha[r] = m_new == m[r] ? 1 : exp2_approx(m[r] - m_new); /* avoids -inf - (-inf) */
            l[r] *= alpha[r];
            m[r] = m_new;
            shift[r] = shift_of(m_new);
        }
        /* Beyond FAR the products are rounded before m is subtracted (softmax.cuh explains why). */
        if (__any_sync(WHOLE_WARP, fmaxf(fabsf(shift[0]), fabsf(shift[1])) > FAR)) {
            each(s, [&](float &score, int) { score = __fmul_rn(score, scale_log2); });
            scale_log2 = 1;
        }
    }
    each_summed(s, l, [&](float x, int r) { return exp2_approx(__fmaf_rn(x, scale_log2, -shift[r])); });
    return moved;
}

#endif
