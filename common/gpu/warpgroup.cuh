/* warpgroup.cuh - words for tiles, for a warpgroup: the products, which its four warps start together. All other words are those of
 * warp.cuh: a warp has 16 of the warpgroup's 64 rows, and its part of an accumulator, float c[1][N][4], is as there.
 *
 *     start_abt     C = A B^T      S = Q K^T, both from shared memory; or A from registers
 *     start_ab      C += A B       O += P V, P from registers
 *
 * A product runs on by itself. Until wgmma_wait has waited for it, C and a left operand in registers must be left alone.
 */
#ifndef FA_WARPGROUP_CUH
#define FA_WARPGROUP_CUH

#include "hopper.cuh"
#include "query_tile.cuh"
#include "warp.cuh"

/* An accumulator as wgmma takes it. */
template <int N> __device__ inline float (&flat(float (&c)[1][N][4]))[4 * N] { return reinterpret_cast<float(&)[4 * N]>(c); }

/* C = A B^T. A is the 64 rows of a_tile from `row` on, B the 8 N rows of b_tile. */
template <typename T, int N, int ARows, int BRows, int D>
__device__ inline void start_abt(float (&c)[1][N][4], const Panels<T, ARows, D> &a_tile, int row, const Panels<T, BRows, D> &b_tile) {
    const uint64_t a = a_tile.descriptor(row), b = b_tile.descriptor();
    wgmma_fence(c);
    UNROLL for (int step = 0; step < D * (int)sizeof(T) / 32; step++)
        wgmma<T>(flat(c), wgmma_advance(a, a_tile.offset(step)), wgmma_advance(b, b_tile.offset(step)), step > 0);
    wgmma_commit();
}
template <typename T, int N, int Steps, int BRows, int K>
__device__ inline void start_abt(float (&c)[1][N][4], uint32_t (&a)[Steps][4], const Panels<T, BRows, K> &b_tile) {
    const uint64_t b = b_tile.descriptor();
    wgmma_fence(c, a);
    UNROLL for (int step = 0; step < Steps; step++)
        wgmma<T>(flat(c), a[step], wgmma_advance(b, b_tile.offset(step)), step > 0);
    wgmma_commit();
}

/* C += A B. A is 16 Steps columns, B as many rows of b_tile. */
template <typename T, int N, int Steps, int BRows, int D>
__device__ inline void start_ab(float (&c)[1][N][4], uint32_t (&a)[Steps][4], const Panels<T, BRows, D> &b_tile) {
    const uint64_t b = b_tile.descriptor_mn();
    wgmma_fence(c, a);
    UNROLL for (int step = 0; step < Steps; step++)
        wgmma<T, MN_MAJOR>(flat(c), a[step], wgmma_advance(b, b_tile.offset_mn(step)), true);
    wgmma_commit();
}

#endif
