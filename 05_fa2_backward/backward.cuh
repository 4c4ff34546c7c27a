/* backward.cuh - what both variants of 05_fa2_backward share: the pre-pass that turns each query row into two numbers, the
 * products of tiles, P and dS of a warp that owns keys, and the way a finished gradient leaves.
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

#include "../common/gpu/softmax.cuh"
#include "../common/gpu/tile.cuh"

/* The two numbers of a query row, in arrays of their own: [batch x heads][rows padded to whole tiles]. A row that does not
 * exist, or sees no key, has lse = +inf: then P = 2^(s - inf) = 0, and everything made of it is 0 without a branch. */
struct RowStatistics {
    float *lse; /* LSE log2(e), so that P = 2^(scale log2(e) S - lse) */
    float *delta;
};
constexpr int ROW_PADDING = 128;

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

/* Fills in the statistics of all_rows padded rows, and zeros as many rows of D floats at dq_accumulator (unless NULL). D/8
 * neighbouring threads take a row, 8 elements each: 16-byte loads, and a few shuffled additions. */
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
static void launch_prepare_rows(const Problem &p, const Tensors &t, const RowStatistics &statistics, float *dq_accumulator) {
    size_t rows = all_padded_rows(&p);
    LAUNCH((prepare_rows<T, D>), blocks_for(rows * (D / 8), PREPARE_THREADS), PREPARE_THREADS, 0, p, t, statistics,
           dq_accumulator, rows);
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

/* This thread's lane, for addresses in shared memory. At D = 128 no register is free to keep them in: see fresh_lane. */
template <int D> __device__ inline int address_lane() { return D > 64 ? fresh_lane() : (int)(threadIdx.x % 32); }

/* Two neighbouring numbers of a StatisticsTile. */
__device__ inline float2 load_pair(const float *from) { return *reinterpret_cast<const float2 *>(from); }

/* The two products every kernel here is made of, for one warp that owns 16 m_tiles rows of the result.
 *
 * c = A B^T: rows `row` ... of tile A against the 8 n_tiles rows of tile B from `column` on. Both rows are D long. The
 * compiler takes `unroll` steps of 16 at once: the more, the earlier it loads operands, and the more registers these need.
 */
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

/* c += A B for 16 columns of A, given as operands, and rows 16 inner ... of tile B, 8 n_tiles of its columns. */
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

/* ---- dK and dV: what a warp owns, and its P and dS ---- */

/* A warp's S^T is 32 keys x 8 n_tiles queries. At D = 128 (paired) it is 64 queries wide, so that each fragment of K serves
 * eight of Q: reading shared memory, more than multiplying, is what such a kernel waits for. At D = 64 a warp takes its
 * queries in two chunks of 32. Registers a lane: dK and dV 128, S or dP at most 64, P and dS as operands 4 n_tiles each. */
template <int D, int key_groups, int n_tiles_, int chunks> struct Shape {
    static constexpr bool paired = D == 128;
    static constexpr int sharing = paired ? 2 : 1; /* warps that share 32 keys */
    static constexpr int warps = key_groups * sharing, threads = 32 * warps;
    static constexpr int n_tiles = n_tiles_;
    static constexpr int Bc = 32 * key_groups;
    static constexpr int chunk = 8 * n_tiles * sharing; /* queries */
    static constexpr int Br = chunk * chunks;
    static constexpr int blocks = paired ? 1 : 2;              /* a multiprocessor */
    static constexpr int dq_columns = D / (warps / (Br / 32)); /* of the 32 rows of dQ that a warp computes (atomic) */
    static_assert(!paired || chunks == 1, "a pair exchanges P and dS once a step");
};

/* P^T and dS^T of 32 keys x 8 n_tiles queries, as left operands: [16 queries][m16 tile of keys]. The keys lie in tiles k and
 * v from warp_key on, the queries in tiles q and d_o from first_query on; first_key and row are the first of these tiles. */
template <typename S, typename T, int Bc, int Br, int D, int n_steps>
__device__ inline void compute_p_and_ds(uint32_t (&p_a)[n_steps][2][4], uint32_t (&ds_a)[n_steps][2][4], const Problem &p,
                                        int keys, Tile<T, Bc, D> &k, Tile<T, Bc, D> &v, int first_key, int warp_key,
                                        Tile<T, Br, D> &q, Tile<T, Br, D> &d_o, const StatisticsTile<Br> &statistics,
                                        int row, int first_query) {
    constexpr int n_tiles = 2 * n_steps;
    const int lane = threadIdx.x % 32;
    const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */

    /* S^T = K Q^T. P^T = 2^(scale_log2 S^T - lse): 0 in rows that are not there or see no key, whose lse is +inf */
    float s[2][n_tiles][4] = {};
    multiply_transposed<D / 16>(s, k, warp_key, q, first_query);
#pragma unroll
    for (int c = 0; c < n_tiles; c++) {
        const float2 lse = load_pair(&statistics.lse[first_query + 8 * c + 2 * (lane % 4)]);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[i][c][e] = exp2_approx(s[i][c][e] * scale_log2 - (e % 2 == 0 ? lse.x : lse.y));
    }

    /* Mask, only in tiles that the diagonal or the end of the keys cuts */
    if (first_key + Bc > visible_keys(&p, keys, row)) {
        const int key = first_key + warp_key + lane / 4, query = row + first_query + 2 * (lane % 4);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < n_tiles; c++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (key + 16 * i + 8 * (e / 2) >= visible_keys(&p, keys, query + 8 * c + e % 2))
                        s[i][c][e] = 0;
    }

    /* Fragment c is half of operand c / 2: quarters as drawn in instructions.cuh */
#pragma unroll
    for (int c = 0; c < n_tiles; c++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                p_a[c / 2][i][2 * (c % 2) + h] = pack_pair<T>(s[i][c][2 * h], s[i][c][2 * h + 1]);

    /* dP^T = V dO^T, 32 queries at a time; dS^T = P^T (dP^T - delta) */
    constexpr int width = n_tiles < 4 ? n_tiles : 4;
#pragma unroll
    for (int first = 0; first < n_tiles; first += width) {
        float dp[2][width][4] = {};
        multiply_transposed<4>(dp, v, warp_key, d_o, first_query + 8 * first);
#pragma unroll
        for (int n = 0; n < width; n++) {
            const int c = first + n;
            const float2 delta = load_pair(&statistics.delta[first_query + 8 * c + 2 * (lane % 4)]);
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    /* at D = 128 dP needs the registers of S, and P comes back from its rounded form */
                    const float2 p_ij = S::paired ? unpack_pair<T>(p_a[c / 2][i][2 * (c % 2) + h])
                                                  : make_float2(s[i][c][2 * h], s[i][c][2 * h + 1]);
                    ds_a[c / 2][i][2 * (c % 2) + h] =
                        pack_pair<T>(p_ij.x * (dp[i][n][2 * h] - delta.x), p_ij.y * (dp[i][n][2 * h + 1] - delta.y));
                }
        }
    }
}

/* Puts such operands into a tile [key][query] in shared memory, for other warps. */
template <typename T, int Bc, int Br, int n_steps>
__device__ inline void store_operands(Tile<T, Bc, Br> &tile, const uint32_t (&a)[n_steps][2][4], int warp_key,
                                      int first_query) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < n_steps; k++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int key = warp_key + 16 * i + 8 * (j % 2) + lane / 4, chunk = first_query / 8 + 2 * k + j / 2;
                *reinterpret_cast<uint32_t *>(tile.chunk(key, chunk) + 2 * (lane % 4)) = a[k][i][j];
            }
}

/* c += A B over the queries of a chunk, 16 at a time; A is P^T or dS^T and B is dO or Q. First the warp's own queries, whose
 * operands it holds in `own`; then, in a pair, the other warp's, from `tile`. */
template <typename S, typename T, int Bc, int Br, int D, int n_steps, int n_tiles>
__device__ inline void accumulate(float (&c)[2][n_tiles][4], const uint32_t (&own)[n_steps][2][4], Tile<T, Bc, Br> &tile,
                                  int warp_key, Tile<T, Br, D> &b_tile, int chunk, int warp_query, int column) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < S::chunk / 16; n++) {
        const int k = chunk / 16 + (warp_query / 16 + n) % (S::chunk / 16);
        if (n < n_steps) {
            multiply_step(c, own[n % n_steps], b_tile, k, column, lane);
        } else {
            uint32_t other[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++)
                load_a_fragment(other[i], tile, warp_key + 16 * i, k, lane);
            multiply_step(c, other, b_tile, k, column, lane);
        }
    }
}

/* ---- the way out ---- */

/* A warp writes 16 rows of a gradient, 8 n_tiles columns held as accumulators, times `factor`, to rows first_row ... of
 * `matrix` (D columns). The four lanes of a quad hold 16 neighbouring bytes of a row. */
template <typename T, int D, int n_tiles>
__device__ inline void store_gradient(T *matrix, int first_row, int row_end, int column, const float (&c)[n_tiles][4],
                                      float factor) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = first_row + 8 * h + lane / 4;
        if (row >= row_end)
            continue;
#pragma unroll
        for (int n = 0; n < n_tiles; n++) {
            T *to = matrix + (size_t)row * D + column + 8 * n + 2 * (lane % 4);
            *reinterpret_cast<uint32_t *>(to) = pack_pair<T>(factor * c[n][2 * h], factor * c[n][2 * h + 1]);
        }
    }
}

#endif
