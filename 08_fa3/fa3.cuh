/* fa3.cuh - what the three kernels of 08_fa3 share: the order of the query tiles, the softmax of a tile of S in
 * registers, P as an operand, and the output. This is 04_fa2's arithmetic on the registers of a warpgroup. Nothing here
 * is asynchronous.
 */
#ifndef FA_FA3_CUH
#define FA_FA3_CUH

#include "../common/gpu/warpgroup.cuh"
#include "../common/stage.h"

/* O is rescaled only when a row's maximum exceeds m by more than this many powers of two; until then P is at most 2^8
 * (04_fa2/tuned explains it). [[maybe_unused]], here and in the kernels: for chips without wgmma they are empty. */
[[maybe_unused]] constexpr float SLACK = 8;

/* Without a causal mask all query tiles see equally many keys: one head at a time. With a causal mask heads are worked
 * on in groups, so that there are long query tiles to start with and short ones to fill the end: one head more than
 * have their K and V in a quarter of L2. All groups are about equally large. */
inline TileOrder tile_order(const Problem &p, int Br) {
    const size_t head_bytes = 2 * dtype_bytes(p.dtype) * p.seqlen_k * p.head_dim;
    const size_t fit = device_properties()->l2_bytes / 4 / head_bytes + 1;
    const int heads = p.batch * p.heads, most = !p.causal ? 1 : fit < (size_t)heads ? (int)fit : heads;
    return {ceil_div(heads, ceil_div(heads, most)), heads * ceil_div(p.seqlen_q, Br)};
}

/* TMA writes zeros behind the tensor's last key, but not behind the last key that this batch entry has. The rows
 * between may hold NaN, and P V would have 0 * NaN = NaN. So these rows of V's tile, from `first` on, are set to zero
 * here. To be called by `threads` threads, numbered `thread` = 0, 1, ...; they must meet at a barrier before wgmma
 * reads V. K needs no zeros, because the mask replaces the scores of these keys. */
template <typename V> __device__ inline void zero_rows(V &v, int first, int rows, int thread, int threads) {
    const int chunks = V::bytes / 16 / rows;
    for (int i = first * chunks + thread; i < rows * chunks; i += threads)
        store_16(v.chunk(i / chunks, i % chunks), uint4{0, 0, 0, 0});
    proxy_fence();
}

/* S becomes P = 2^(scale_log2 S - m), in place. Updates m, which is kept times scale_log2, and this lane's part of l.
 * Returns whether m of any row of the warp has changed; O must then be multiplied by `alpha`. m starts at -inf: it
 * stays -inf in a row that has seen no key yet, and the row's P are 2^-inf = 0. */
template <int Bc>
__device__ inline bool softmax(float (&s)[Bc / 2], float (&m)[2], float (&l)[2], float (&alpha)[2], float scale_log2) {
    bool moved = false;
    float shift[2];
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
        shift[h] = shift_of(m_new);
    }
    /* Beyond FAR the products are rounded before m is subtracted (softmax.cuh explains why). One branch for the whole
     * warp: with one for each row the compiler did not interleave the maxima of one row with the exponentials of the
     * other. */
    if (__any_sync(WHOLE_WARP, fmaxf(fabsf(shift[0]), fabsf(shift[1])) > FAR)) {
#pragma unroll
        for (int i = 0; i < Bc / 2; i++)
            s[i] = __fmul_rn(s[i], scale_log2);
        scale_log2 = 1;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float tile_l = 0; /* a tile's sum as one: beside a large l a single P loses its last bits */
#pragma unroll
        for (int n = 0; n < Bc / 8; n++)
#pragma unroll
            for (int j = 4 * n + 2 * h; j < 4 * n + 2 * h + 2; j++) {
                s[j] = exp2_approx(s[j] * scale_log2 - shift[h]);
                tile_l += s[j];
            }
        l[h] += tile_l;
    }
    return __any_sync(WHOLE_WARP, moved);
}

/* P, rounded, as the A operand of P V. A step is 16 keys, two pieces of the accumulator; each lane already has what it
 * must bring. */
template <typename T, int Steps> __device__ inline void to_operand(uint32_t (&a)[Steps][4], const float (&p)[8 * Steps]) {
#pragma unroll
    for (int step = 0; step < Steps; step++)
#pragma unroll
        for (int j = 0; j < 4; j++) /* j % 2 is 8 rows down, j / 2 is 8 keys right */
            a[step][j] = pack_pair<T>(p[8 * step + 2 * j], p[8 * step + 2 * j + 1]);
}

/* Divides O by l and writes O and LSE. `row` is the first of the lane's two rows. A row that saw no key has l = 0: O =
 * 0, LSE = -inf. */
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
