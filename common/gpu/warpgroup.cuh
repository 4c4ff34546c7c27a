/* warpgroup.cuh - tile primitives, for a warpgroup: the products, which its four warps start together, and what
 * they need. The other words are those of warp.cuh: a warp has 16 of the warpgroup's 64 rows, and its part of an
 * accumulator, float c[1][N][4], is as there.
 *
 *     start_abt     C = A B^T      S = Q K^T, both from shared memory; or A from registers
 *     start_ab      C += A B       O += P V, P from registers
 *     start_atb     C = A^T B      dQ = dS K, where dS^T is in shared memory
 *     to_operand    an accumulator as the left operand of the next product
 *     store_operand such an operand to shared memory
 *     zero_rows     rows of a tile that TMA has brought and that do not exist
 *
 * A product runs on by itself. Until wgmma_wait has waited for it, C, the tiles and an operand in registers must be
 * left alone.
 */
#ifndef FA_WARPGROUP_CUH
#define FA_WARPGROUP_CUH

#include "hopper.cuh"
#include "query_tile.cuh"
#include "warp.cuh"

/* One lane arrives for its warp, after which the producer may overwrite what the warp has read. It needs no __syncwarp
 * for the other lanes: all of them have waited for the wgmma that reads a tile, and what they load themselves (LSE and
 * delta in 09_fa3_backward) has gone into an operand of a wgmma before. A load of another kind would need the
 * __syncwarp. */
__device__ inline void warp_arrive(Mbarrier *barrier) {
    if (elect_one())
        mbarrier_arrive(barrier);
}

/* C = A B^T. A is the 64 rows of a_tile from `row` on, B the 8 N rows of b_tile. A step takes 32 bytes of every row;
 * the first one overwrites C. */
template <typename T, int N, int ARows, int BRows, int D>
__device__ inline void start_abt(float (&c)[1][N][4], const Panels<T, ARows, D> &a_tile, int row,
                                 const Panels<T, BRows, D> &b_tile) {
    const uint64_t a = a_tile.descriptor(row), b = b_tile.descriptor();
    wgmma_fence(c);
    UNROLL for (int step = 0; step < D * (int)sizeof(T) / 32; step++)
        wgmma<T>(c[0], wgmma_advance(a, a_tile.offset(step)), wgmma_advance(b, b_tile.offset(step)), step > 0);
    wgmma_commit();
}
template <typename T, int N, int Steps, int BRows, int K>
__device__ inline void start_abt(float (&c)[1][N][4], uint32_t (&a)[Steps][4], const Panels<T, BRows, K> &b_tile) {
    const uint64_t b = b_tile.descriptor();
    wgmma_fence(c, a);
    UNROLL for (int step = 0; step < Steps; step++)
        wgmma<T>(c[0], a[step], wgmma_advance(b, b_tile.offset(step)), step > 0);
    wgmma_commit();
}

/* C += A B. A is 16 Steps columns, B as many rows of b_tile. */
template <typename T, int N, int Steps, int BRows, int D>
__device__ inline void start_ab(float (&c)[1][N][4], uint32_t (&a)[Steps][4], const Panels<T, BRows, D> &b_tile) {
    const uint64_t b = b_tile.descriptor_mn();
    wgmma_fence(c, a);
    UNROLL for (int step = 0; step < Steps; step++)
        wgmma<T, MN_MAJOR>(c[0], a[step], wgmma_advance(b, b_tile.offset_mn(step)), true);
    wgmma_commit();
}

/* C = A^T B. A is the 64 columns of a_tile that are its panel number a_panel, B the 8 N columns of b_tile from panel
 * b_panel on. */
template <typename T, int N, int K, int AColumns, int D>
__device__ inline void start_atb(float (&c)[1][N][4], const Panels<T, K, AColumns> &a_tile, int a_panel,
                                 const Panels<T, K, D> &b_tile, int b_panel = 0) {
    const uint64_t a = a_tile.descriptor_mn(a_panel), b = b_tile.descriptor_mn(b_panel);
    wgmma_fence(c);
    UNROLL for (int step = 0; step < K / 16; step++)
        wgmma<T, MN_MAJOR, MN_MAJOR>(c[0], wgmma_advance(a, a_tile.offset_mn(step)),
                                     wgmma_advance(b, b_tile.offset_mn(step)), step > 0);
    wgmma_commit();
}

/* P, an accumulator, rounded, as the A operand of P V. A step is 16 columns, two mma tiles of the accumulator; each
 * lane already has what it must bring. */
template <typename T, int N> __device__ inline void to_operand(uint32_t (&a)[N / 2][4], const float (&p)[1][N][4]) {
    UNROLL for (int step = 0; step < N / 2; step++)
        UNROLL for (int j = 0; j < 4; j++) { /* j % 2 is 8 rows down, j / 2 is 8 keys right */
            const float *pair = &p[0][2 * step + j / 2][2 * (j % 2)];
            a[step][j] = pack_pair<T>(pair[0], pair[1]);
        }
}

/* The warp's 16 rows of an operand to rows `row` .. of a tile. Eight rows of a chunk lie in different banks. What the
 * threads have stored needs a proxy_fence and a barrier before wgmma reads it. */
template <typename T, int Steps, int Rows, int Columns>
__device__ inline void store_operand(Panels<T, Rows, Columns> &tile, const uint32_t (&a)[Steps][4], int row) {
    UNROLL for (int step = 0; step < Steps; step++)
        UNROLL for (int j = 0; j < 4; j++) {
            unsigned char *chunk = tile.chunk(row + row_of(j % 2), 2 * step + j / 2);
            reinterpret_cast<uint32_t *>(chunk)[threadIdx.x % 4] = a[step][j];
        }
}

/* TMA writes zeros behind the tensor's last key, but not behind the last key that this batch entry has. The rows
 * between may hold NaN, and P V would have 0 * NaN = NaN. So these rows of V's tile, from `first` on, are set to zero
 * here. To be called by `threads` threads, numbered `thread` = 0, 1, ...; they must meet at a barrier before wgmma
 * reads V. In a forward pass K needs no zeros, because the mask replaces the scores of these keys; in a backward pass
 * it does, for dS K. */
template <typename V> __device__ inline void zero_rows(V &v, int first, int rows, int thread, int threads) {
    const int chunks = V::bytes / 16 / rows;
    for (int i = first * chunks + thread; i < rows * chunks; i += threads)
        store_16(v.chunk(i / chunks, i % chunks), uint4{0, 0, 0, 0});
    proxy_fence();
}

#endif
