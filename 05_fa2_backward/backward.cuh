/* backward.cuh - what both two_pass and atomic use: the pre-pass, which makes the two numbers LSE and delta of each query
 * row, the products of tiles, and the store of a finished gradient. Their common kernel, for dK and dV, is in
 * key_half.cuh.
 *
 * The gradients (Dao et al. 2022, appendix B.2; Dao 2023, algorithm 2). With dP = dO V^T,
 *
 *     P_ij = e^(scale S_ij - LSE_i)      dS_ij = P_ij (dP_ij - delta_i)      delta_i = sum_j P_ij dP_ij = dO_i . O_i
 *     dV = P^T dO                        dK = scale dS^T Q                   dQ = scale dS K
 *
 * where S_ij = q_i . k_j here. Of a whole row of P only LSE and delta must be known beforehand. P itself is computed
 * again, tile by tile. */
#ifndef FA_BACKWARD_CUH
#define FA_BACKWARD_CUH

#include <string.h>

#include "../common/gpu/softmax.cuh"
#include "../common/gpu/tile.cuh"
#include "../common/host/errors.h"
#include "backward.h"

/* The two numbers of a query row, each in an array [batch x heads][rows padded to a multiple of ROW_PADDING]. A row that
 * does not exist, or sees no key, has lse = +inf. Then P = 2^(s - inf) = 0, and with P its dS and its gradients, without
 * a branch. */
struct RowStatistics {
    float *lse; /* LSE log2(e), so that P = 2^(scale log2(e) S - lse) */
    float *delta;
};
HOST_DEVICE inline int padded_rows(const Problem *p) { return ceil_div(p->seqlen_q, ROW_PADDING) * ROW_PADDING; }
inline size_t all_padded_rows(const Problem *p) { return (size_t)p->batch * p->heads * padded_rows(p); }

/* The first two workspace buffers of both variants. */
inline int plan_statistics(const Problem *p, Buffer *workspace) {
    workspace[0] = Buffer{"LSE in base 2", all_padded_rows(p) * sizeof(float), nullptr, 0};
    workspace[1] = Buffer{"delta", all_padded_rows(p) * sizeof(float), nullptr, 0};
    return 2;
}
inline RowStatistics statistics_in(const Buffer *workspace) {
    return RowStatistics{(float *)workspace[0].pointer, (float *)workspace[1].pointer};
}

constexpr int PREPARE_THREADS = 256;

/* Fills in the statistics of all_rows padded rows, and zeros as many rows of D floats at dq_accumulator (unless NULL).
 * D/8 neighbouring threads take a row, 8 elements each: 16-byte loads, and a few shuffled additions. */
template <typename T, int D>
__global__ void __launch_bounds__(PREPARE_THREADS)
    prepare_rows(Problem p, Tensors t, RowStatistics statistics, float *dq_accumulator, size_t all_rows) {
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
        delta += __shfl_xor_sync(WHOLE_WARP, delta, offset);
    if (chunk == 0) {
        statistics.lse[padded_row] = lse == -INFINITY ? INFINITY : lse * LOG2_E;
        statistics.delta[padded_row] = delta;
    }
    if (dq_accumulator) {
        store_16(dq_accumulator + 8 * thread, make_uint4(0, 0, 0, 0));
        store_16(dq_accumulator + 8 * thread + 4, make_uint4(0, 0, 0, 0));
    }
}

template <typename T, int D>
static void launch_prepare_rows(const Problem &p, const Tensors &t, const Buffer *workspace, float *dq_accumulator) {
    size_t rows = all_padded_rows(&p);
    LAUNCH((prepare_rows<T, D>), blocks_for(rows * (D / 8), PREPARE_THREADS), PREPARE_THREADS, 0, p, t,
           statistics_in(workspace), dq_accumulator, rows);
}

/* The statistics of a tile's rows in shared memory. */
template <int Rows> struct StatisticsTile { alignas(16) float lse[Rows], delta[Rows]; };

/* Starts copying those of `Rows` padded rows from `first` on; joins the caller's cp.async group. */
template <int Rows>
__device__ inline void load_statistics_async(StatisticsTile<Rows> &tile, const RowStatistics &statistics, size_t first) {
    const int i = 4 * threadIdx.x;
    if (i < Rows)
        cp_async_16(&tile.lse[i], statistics.lse + first + i);
    else if (i < 2 * Rows)
        cp_async_16(&tile.delta[i - Rows], statistics.delta + first + i - Rows);
}

/* This thread's lane, for addresses in shared memory. At D = 128 no registers are free to keep such addresses in, and
 * they are computed again each time: see fresh_lane. */
template <int D> __device__ inline int address_lane() { return D > 64 ? fresh_lane() : (int)(threadIdx.x % 32); }

/* Two neighbouring numbers of a StatisticsTile. */
__device__ inline float2 load_pair(const float *from) { return *reinterpret_cast<const float2 *>(from); }

/* The two kinds of products that the kernels here are made of, for a warp that owns 16 m_tiles rows of the result.
 *
 * c = A B^T: 16 m_tiles rows of tile A from `row` on, times 8 n_tiles rows of tile B from `column` on; rows of both are D
 * long. `unroll` steps of 16 columns are unrolled: the more, the earlier the compiler loads operands, and the more
 * registers it needs for them. */
template <int unroll, typename T, int Rows, int Columns, int D, int m_tiles, int n_tiles>
__device__ inline void multiply_transposed(float (&c)[m_tiles][n_tiles][4], Tile<T, Rows, D> &a_tile, int row,
                                           Tile<T, Columns, D> &b_tile, int column) {
    const int lane = address_lane<D>();
#pragma unroll unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t a[m_tiles][4];
#pragma unroll
        for (int i = 0; i < m_tiles; i++)
            load_a_fragment(a[i], a_tile, row + 16 * i, d, lane);
#pragma unroll
        for (int n = 0; n < n_tiles; n += 2) {
            uint32_t b[4];
            load_b_fragments(b, b_tile, column + 8 * n, d, lane);
#pragma unroll
            for (int i = 0; i < m_tiles; i++) {
                mma_m16n8k16<T>(c[i][n], a[i], b[0], b[1]);
                mma_m16n8k16<T>(c[i][n + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* c += A B for 16 columns of A, given as left operands, the 16 rows of tile B from 16 inner on, and 8 n_tiles columns of
 * B from `column` on. */
template <typename T, int Rows, int D, int m_tiles, int n_tiles>
__device__ inline void multiply_step(float (&c)[m_tiles][n_tiles][4], const uint32_t (&a)[m_tiles][4],
                                     Tile<T, Rows, D> &b_tile, int inner, int column, int lane) {
#pragma unroll
    for (int n = 0; n < n_tiles; n += 2) {
        uint32_t b[4];
        load_b_fragments_trans(b, b_tile, inner, column + 8 * n, lane);
#pragma unroll
        for (int i = 0; i < m_tiles; i++) {
            mma_m16n8k16<T>(c[i][n], a[i], b[0], b[1]);
            mma_m16n8k16<T>(c[i][n + 1], a[i], b[2], b[3]);
        }
    }
}

/* ---- tiles that fit ---- */

/* Whether a block can have that much shared memory. */
inline bool fits(size_t bytes) { return bytes <= device_properties()->shared_bytes; }

/* Called when no tile size fits: says so and ends the program. */
__attribute__((noreturn)) inline void nothing_fits(const char *gradients, int head_dim) {
    cannot_run("%s, head dim %d: the smallest tiles need more shared memory than the %zu bytes of a block here",
               gradients, head_dim, device_properties()->shared_bytes);
}

/* ---- storing a gradient ---- */

/* A warp writes 16 m_tiles rows of a gradient, 8 n_tiles columns held as accumulators, times `factor`, to rows first_row
 * ... of `matrix` (D columns). The four lanes of a quad hold 16 neighbouring bytes of a row. */
template <typename T, int D, int m_tiles, int n_tiles>
__device__ inline void store_gradient(T *matrix, int first_row, int row_end, int column,
                                      const float (&c)[m_tiles][n_tiles][4], float factor) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < m_tiles; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = first_row + 16 * i + 8 * h + lane / 4;
            if (row >= row_end)
                continue;
#pragma unroll
            for (int n = 0; n < n_tiles; n++) {
                T *to = matrix + (size_t)row * D + column + 8 * n + 2 * (lane % 4);
                *reinterpret_cast<uint32_t *>(to) = pack_pair<T>(factor * c[i][n][2 * h], factor * c[i][n][2 * h + 1]);
            }
        }
}

#endif
