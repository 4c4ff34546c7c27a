/* backward.cuh - what both variants of 05_fa2_backward share: the pre-pass that turns each query row into two numbers, and the
 * way a finished gradient leaves.
 *
 * The gradients (Dao et al. 2022, appendix B.2; Dao 2023, algorithm 2). With dP = dO V^T,
 *
 *     P_ij = e^(scale S_ij - LSE_i)      dS_ij = P_ij (dP_ij - delta_i)      delta_i = sum_j P_ij dP_ij = dO_i . O_i
 *     dV = P^T dO                        dK = scale dS^T Q                   dQ = scale dS K
 *
 * so that of a whole row of P only LSE and delta must be known beforehand; P itself is computed again, tile by tile. */
#ifndef FA_BACKWARD_CUH
#define FA_BACKWARD_CUH

#include <string.h>

#include "../common/gpu/tile.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

/* All the backward pass needs to know about a query row. Rows are padded to whole tiles of ROW_PADDING, and a row that does
 * not exist, or sees no key, has lse_log2 = +inf: then P = 2^(s - inf) = 0, and everything made of it is 0 without a branch. */
struct RowStatistics {
    float lse_log2; /* LSE log2(e): P = 2^(scale log2(e) S - lse_log2) */
    float delta;
};
constexpr int ROW_PADDING = 128;

HOST_DEVICE inline int padded_rows(const Problem *p) { return ceil_div(p->seqlen_q, ROW_PADDING) * ROW_PADDING; }
inline size_t all_padded_rows(const Problem *p) { return (size_t)p->batch * p->heads * padded_rows(p); }

constexpr int PREPARE_THREADS = 256;

/* statistics[batch x heads][padded rows], and zeros in dq_accumulator, as many floats as there are padded rows x D (may be
 * NULL). D/8 neighbouring threads take a row, 8 elements each: 16-byte loads, and D/8 - 1 shuffled additions. */
template <typename T, int D>
__global__ void __launch_bounds__(PREPARE_THREADS)
    prepare_rows(Problem p, Tensors t, RowStatistics *statistics, float *dq_accumulator, size_t all_rows) {
    constexpr int lanes = D / 8;
    size_t thread = (size_t)blockIdx.x * PREPARE_THREADS + threadIdx.x;
    size_t padded_row = thread / lanes;
    if (padded_row >= all_rows) /* whole warps: all_rows is a multiple of 128 */
        return;
    int chunk = thread % lanes;
    size_t matrix = padded_row / padded_rows(&p); /* which (batch, head) */
    int row = padded_row % padded_rows(&p);

    float delta = 0, lse = -INFINITY;
    if (row < p.seqlen_q) {
        size_t flat_row = matrix * p.seqlen_q + row;
        uint4 o_chunk = load_16((const T *)t.o + flat_row * D + 8 * chunk);
        uint4 d_o_chunk = load_16((const T *)t.d_o + flat_row * D + 8 * chunk);
        T o[8], d_o[8];
        memcpy(o, &o_chunk, 16);
        memcpy(d_o, &d_o_chunk, 16);
        for (int i = 0; i < 8; i++)
            delta += to_float(o[i]) * to_float(d_o[i]);
        lse = t.lse[flat_row];
    }
    for (int offset = lanes / 2; offset > 0; offset /= 2)
        delta += __shfl_xor_sync(0xffffffff, delta, offset);
    if (chunk == 0)
        statistics[padded_row] = RowStatistics{lse == -INFINITY ? INFINITY : lse * LOG2_E, delta};
    if (dq_accumulator) {
        store_16(dq_accumulator + 8 * thread, make_uint4(0, 0, 0, 0));
        store_16(dq_accumulator + 8 * thread + 4, make_uint4(0, 0, 0, 0));
    }
}

/* Starts copying the statistics of Br rows, Br / 2 chunks of 16 bytes, into shared memory; joins the caller's cp.async group. */
template <int Br> __device__ inline void load_statistics_async(RowStatistics (&to)[Br], const RowStatistics *from) {
    if (threadIdx.x < Br / 2)
        cp_async_16(&to[2 * threadIdx.x], &from[2 * threadIdx.x]);
}

/* c = A B^T for rows row ... of tile A, 16 a fragment, and the 32 rows from column on of tile B; both rows are D long. */
template <typename T, int Rows, int Columns, int D, int m_tiles>
__device__ inline void multiply_transposed(float (&c)[m_tiles][4][4], Tile<T, Rows, D> &a_tile, int row,
                                           Tile<T, Columns, D> &b_tile, int column) {
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t a[m_tiles][4];
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
            load_a_fragment(a[i], a_tile, row + 16 * i, d);
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            uint32_t b[4];
            load_b_fragments(b, b_tile, column + 8 * n, d);
#pragma unroll
            for (int i = 0; i < m_tiles; i++) {
                mma_m16n8k16<T>(c[i][n], a[i], b[0], b[1]);
                mma_m16n8k16<T>(c[i][n + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* c += A B for a piece A, 32 columns wide, that the warp holds in accumulator fragments (P or dS, rounded here to T), and the 32
 * rows from `row` on of tile B. */
template <typename T, int Rows, int D, int m_tiles>
__device__ inline void accumulate(float (&c)[m_tiles][D / 8][4], const float (&piece)[m_tiles][4][4], Tile<T, Rows, D> &b_tile,
                                  int row) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t a[m_tiles][4];
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) /* the A operand's quarters: j % 2 is 8 rows down, j / 2 is 8 columns right */
                a[i][j] = pack_pair<T>(piece[i][2 * k + j / 2][2 * (j % 2)], piece[i][2 * k + j / 2][2 * (j % 2) + 1]);
#pragma unroll
        for (int d = 0; d < D / 8; d += 2) {
            uint32_t b[4];
            load_b_fragments_trans(b, b_tile, row / 16 + k, 8 * d);
#pragma unroll
            for (int i = 0; i < m_tiles; i++) {
                mma_m16n8k16<T>(c[i][d], a[i], b[0], b[1]);
                mma_m16n8k16<T>(c[i][d + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* A warp writes its 16 x D piece of a gradient, held in accumulator fragments and multiplied by `factor`, to rows first_row ...
 * of `matrix`, by way of its own rows of a tile in shared memory, so that a lane stores 16 bytes and a warp whole rows. */
template <typename T, int Rows, int D>
__device__ inline void store_gradient(T *matrix, int first_row, int row_end, const float (&c)[D / 8][4], float factor,
                                      Tile<T, Rows, D> &tile, int tile_row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t pair = pack_pair<T>(factor * c[d][2 * h], factor * c[d][2 * h + 1]);
            *reinterpret_cast<uint32_t *>(tile.chunk(tile_row + lane / 4 + 8 * h, d) + 2 * (lane % 4)) = pair;
        }
    __syncwarp();
    constexpr int chunks = D / 8;
    for (int i = lane; i < 16 * chunks; i += 32) {
        int row = i / chunks, chunk = i % chunks;
        if (first_row + row < row_end)
            store_16(matrix + (size_t)(first_row + row) * D + 8 * chunk, load_16(tile.chunk(tile_row + row, chunk)));
    }
}

#endif
