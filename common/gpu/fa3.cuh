/* fa3.cuh - what the kernels of 08_fa3 share, and 10_block_sparse has, too: what TMA loads, and the softmax of a tile
 * of S in registers. That is 04_fa2's arithmetic on the registers of a warpgroup. Nothing here is asynchronous.
 */
#ifndef FA_FA3_CUH
#define FA_FA3_CUH

#include "../stage.h"
#include "warpgroup.cuh"

/* What TMA loads: Br rows of Q, Bc rows of K or V. */
struct ForwardMaps {
    TensorMap q, k, v;
};
template <typename T, int D> static ForwardMaps forward_maps(const Problem &p, const Tensors &t, int Br, int Bc) {
    const auto keys = [&](const void *rows) {
        return tensor_map<T, 128>(rows, D, p.seqlen_k, p.batch * p.kv_heads, Bc);
    };
    return {tensor_map<T, 128>(t.q, D, p.seqlen_q, p.batch * p.heads, Br), keys(t.k), keys(t.v)};
}

/* S becomes P = 2^(scale_log2 S - m), in place. Updates m (warp.cuh: update_maximum) and this lane's part of l. Returns
 * whether m of any row of the warp may have changed; O must then be multiplied by `alpha`. */
template <int N>
__device__ inline bool softmax(float (&s)[1][N][4], float (&m)[2], Limits &limits, float (&l)[2], float (&alpha)[2],
                               float scale_log2) {
    bool updated = false;
    const auto rescale = [&](int r, float factor) { alpha[r] = factor, updated = true; };
    const float factor = update_maximum(s, m, limits, l, scale_log2, rescale);
    each_summed(s, l, [&](float x, int r) { return exp2_approx(__fmaf_rn(x, factor, -m[r])); });
    return updated;
}

#endif
