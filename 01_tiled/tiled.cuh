/* tiled.cuh - what both variants of 01_tiled share: the stored S and P, and the softmax between the two products.
 *
 * Rows of S and P are padded to whole tiles (`pitch` elements apart): the products then write and read whole tiles,
 * whatever the number of keys, and mma.cu can copy P 16 bytes at a time. The columns that this adds are seen by no
 * query: S = -inf, P = 0. */
#ifndef FA_TILED_CUH
#define FA_TILED_CUH

#include "../common/gpu/kernel.cuh"
#include "../common/stage.h"

constexpr int Br = 64; /* rows of a tile of S: queries */
constexpr int Bc = 64; /* columns of a tile of S: keys */

HOST_DEVICE inline int score_pitch(const Problem *p) { return ceil_div(p->seqlen_k, Bc) * Bc; }

/* P is stored 1024 times as large, and O divided by 1024, as in 00_naive: among N keys P is about 1 / N, where fp16 has
 * fewer digits when N is large. */
constexpr float P_SCALE = 1024;

constexpr int SOFTMAX_WARPS = 8; /* rows per block; they do not cooperate */

/* The same softmax as 00_naive, a warp per row instead of a thread per row: the 32 lanes read 32 neighboring columns,
 * and find the row's max and sum by exchanging registers. It still walks over a stored row three times; the next stage
 * stores none. */
template <typename T> __global__ void tiled_softmax(Problem p, Tensors t, const float *S, T *P) {
    size_t flat_row = (size_t)blockIdx.x * SOFTMAX_WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (flat_row >= row_count(&p))
        return;
    int pitch = score_pitch(&p);
    const float *scores = S + flat_row * pitch;

    float m = -INFINITY;
    for (int column = lane; column < pitch; column += 32)
        m = fmaxf(m, scores[column]);
    for (int offset = 16; offset > 0; offset /= 2)
        m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, offset));

    float shift = m == -INFINITY ? 0 : m;
    float l = 0;
    for (int column = lane; column < pitch; column += 32)
        l += expf(scores[column] - shift);
    for (int offset = 16; offset > 0; offset /= 2)
        l += __shfl_xor_sync(0xffffffff, l, offset);
    if (lane == 0)
        t.lse[flat_row] = shift + logf(l);

    float scale = l > 0 ? P_SCALE / l : 0;
    for (int column = lane; column < pitch; column += 32)
        P[flat_row * pitch + column] = from_float<T>(scale * expf(scores[column] - shift));
}

#endif
