/* fa3.cuh - what the three kernels of 08_fa3 share: the order of the query tiles, the softmax of a tile of S in registers, and
 * what 16-bit operands need. It is 04_fa2's arithmetic on the registers of a warpgroup, and nothing here is asynchronous.
 */
#ifndef FA_FA3_CUH
#define FA_FA3_CUH

#include "../common/gpu/warpgroup.cuh"
#include "../common/stage.h"

/* How far, in powers of two, the maximum may pass m before O is rescaled (04_fa2: P is then at most 2^8). [[maybe_unused]],
 * here and in the kernels: for chips without wgmma these are empty. */
[[maybe_unused]] constexpr float SLACK = 8;

/* Without a causal mask all tiles are equally long: one head at a time. With a causal mask as many heads as have their K and
 * V in a quarter of L2, so that there are long tiles to start with and short ones to fill up with; groups of equal size. */
inline TileOrder tile_order(const Problem &p, int Br) {
    const size_t head_bytes = 2 * dtype_bytes(p.dtype) * p.seqlen_k * p.head_dim;
    const size_t fit = device_properties()->l2_bytes / 4 / head_bytes + 1;
    const int heads = p.batch * p.heads, most = !p.causal ? 1 : fit < (size_t)heads ? (int)fit : heads;
    return {ceil_div(heads, ceil_div(heads, most)), heads * ceil_div(p.seqlen_q, Br)};
}

/* TMA stops at the tensor's last key, not at the last one that this batch entry has. The rows between may hold NaN, and P V
 * would have 0 · NaN = NaN: so those rows of V's tile, from `first` on, become zeros. Called by `threads` threads, `thread`
 * from 0 on; they must meet at a barrier before wgmma reads V. K needs no zeros: the mask replaces those scores. */
template <typename V> __device__ inline void zero_rows(V &v, int first, int rows, int thread, int threads) {
    const int chunks = V::bytes / 16 / rows;
    for (int i = first * chunks + thread; i < rows * chunks; i += threads)
        store_16(v.chunk(i / chunks, i % chunks), uint4{0, 0, 0, 0});
    proxy_fence();
}

/* S becomes P = 2^(scale_log2 S - m), in place. Updates m, which is stored times scale_log2, and this lane's part of l.
 * Returns whether any row's m has changed; O must then be multiplied by `alpha`. m starts at -inf: a row that has seen no key
 * yet keeps it, and its P are 2^-inf = 0. */
template <int Bc>
__device__ inline bool softmax(float (&s)[Bc / 2], float (&m)[2], float (&l)[2], float (&alpha)[2], float scale_log2) {
    bool moved = false;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float row_max = s[2 * h];
#pragma unroll
        for (int n = 0; n < Bc / 8; n++)
            row_max = fmaxf(row_max, fmaxf(s[4 * n + 2 * h], s[4 * n + 2 * h + 1]));
        row_max = quad_max(row_max);
        const float m_new = row_max * scale_log2 > m[h] + SLACK ? row_max * scale_log2 : m[h];
        alpha[h] = m_new == m[h] ? 1 : exp2_approx(m[h] - m_new); /* avoids -inf - (-inf) */
        moved |= m_new != m[h];
        l[h] *= alpha[h];
        m[h] = m_new;
        const float shift = shift_of(m_new);
        float factor = scale_log2;
        if (fabsf(shift) > FAR) { /* softmax.cuh: why */
#pragma unroll
            for (int n = 0; n < Bc / 8; n++)
#pragma unroll
                for (int j = 4 * n + 2 * h; j < 4 * n + 2 * h + 2; j++)
                    s[j] = __fmul_rn(s[j], scale_log2);
            factor = 1;
        }
        float tile_l = 0; /* a tile's sum as one: beside a large l a single P loses its last bits */
#pragma unroll
        for (int n = 0; n < Bc / 8; n++)
#pragma unroll
            for (int j = 4 * n + 2 * h; j < 4 * n + 2 * h + 2; j++) {
                s[j] = exp2_approx(s[j] * factor - shift);
                tile_l += s[j];
            }
        l[h] += tile_l;
    }
    return __any_sync(WHOLE_WARP, moved);
}

/* P, rounded, as the A operand of P V: a step is 16 keys, two atoms of the accumulator, and no lane needs another's. */
template <typename T, int Steps> __device__ inline void to_operand(uint32_t (&a)[Steps][4], const float (&p)[8 * Steps]) {
#pragma unroll
    for (int step = 0; step < Steps; step++)
#pragma unroll
        for (int j = 0; j < 4; j++) /* j % 2 is 8 rows down, j / 2 is 8 keys right */
            a[step][j] = pack_pair<T>(p[8 * step + 2 * j], p[8 * step + 2 * j + 1]);
}

/* Divides O by l and writes it and LSE. `row` is the lane's first one. A row that saw no key has l = 0: O = 0, LSE = -inf. */
template <typename T, int D>
__device__ inline void write_output(const Problem &p, const Tensors &t, int batch_head, int row, const float (&o)[D / 2],
                                    const float (&m)[2], const float (&l)[2]) {
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float l_row = quad_sum(l[h]);
        inverse[h] = l_row > 0 ? 1 / l_row : 0;
        if (threadIdx.x % 4 == 0 && row + 8 * h < p.seqlen_q)
            t.lse[(size_t)batch_head * p.seqlen_q + row + 8 * h] = l_row > 0 ? m[h] * LN_2 + logf(l_row) : -INFINITY;
    }
    store_rows<T, D>((T *)t.o, p, batch_head, row, o, inverse);
}

#endif
