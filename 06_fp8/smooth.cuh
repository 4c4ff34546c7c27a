/* smooth.cuh - --smooth-k: the mean of the keys, and what subtracting it takes from LSE.
 *
 * q . (k - mean) = q . k - q . mean: every score of a row falls by the same number, scale q . mean. Softmax does not
 * see that. LSE falls by the number, too, and the attention kernel adds it again (LSE_SHIFT). get subtracts the
 * mean; this file computes it, in two steps.
 */
#ifndef FA_SMOOTH_CUH
#define FA_SMOOTH_CUH

#include "row_tile.cuh"

/* First step: the sum over each key tile. The sums lie where VT8 will be: D floats per tile, of the 128 D bytes that V
 * needs there. */
template <int D> using Sums = float[THREADS / (D / 8)][D];
template <typename T, int D> __global__ void key_sums(Operand k, float *sums) {
    SHARED_MEMORY(row, Sums<D>);
    const TileIndex index = tile_index(k, blockIdx.x);
    if (index.first_row >= index.row_end)
        return;
    RowTile<T, D, true> tile;
    tile.load(k, index);
    float x[8], next[8];
    tile.get(x, 0);
    UNROLL for (int r = 1; r < tile.count; r++) {
        tile.get(next, r);
        UNROLL for (int i = 0; i < 8; i++)
            x[i] += next[i];
    }
    float *to = &row[tile.row()][8 * tile.chunk()];
    store_4(to, make_float4(x[0], x[1], x[2], x[3])), store_4(to + 4, make_float4(x[4], x[5], x[6], x[7]));
    __syncthreads();
    if (threadIdx.x < D) {
        float sum = 0;
        for (int i = 0; i < tile.down; i++)
            sum += row[i][threadIdx.x];
        sums[(size_t)index.flat * D + threadIdx.x] = sum;
    }
}

/* Second step: one block of D threads per head adds the tiles. */
template <int D> __global__ void key_mean(Problem p, const float *sums, const int *key_lengths, float *k_mean) {
    const int keys = key_length(&p, key_lengths, blockIdx.x / p.kv_heads);
    const float *mine = sums + (size_t)blockIdx.x * k_scale_count(&p) * D + threadIdx.x;
    float sum = 0;
#pragma unroll 16
    for (int tile = 0; tile < ceil_div(keys, BLOCK_K); tile++)
        sum += mine[(size_t)tile * D];
    k_mean[(size_t)blockIdx.x * D + threadIdx.x] = sum / max(keys, 1);
}

/* q . mean for the row that these D/8 lanes hold, divided by q's scale. q is taken as it was rounded, because the
 * scores are made of the rounded q; the mean is rotated where Q is. */
template <typename F, int D> __device__ static float dot_with_mean(uint2 packed_q, const float (&turned_mean)[8]) {
    float q[8], sum = 0;
    spread(q, unpack_4<F>(packed_q.x), unpack_4<F>(packed_q.y));
    UNROLL for (int i = 0; i < 8; i++)
        sum += q[i] * turned_mean[i];
    UNROLL for (int offset = D / 16; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(WHOLE_WARP, sum, offset);
    return sum;
}

#endif
