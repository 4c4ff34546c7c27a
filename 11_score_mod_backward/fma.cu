/* 11_score_mod_backward/fma - 05_fa2_backward/fma with a function between the products: the gradients of 11_score_mod.
 *
 * The idea. The softmax now sees S' = f(S), so that P = e^(S' - LSE), and what the backward pass has called dS is dS'.
 * The chain rule leads from there to S, and on to Q and K as before:
 *
 *     dS'_ij = P_ij (dP_ij - delta_i)        dS_ij = dS'_ij f'(S_ij)        softcap:C    f'(S) = 1 - tanh^2(S / C)
 *                                                                           else         f'(S) = 1
 *
 * What is added to a score (ALiBi) has no part in f'. A key that a window drops has P = 0, and with it dS = 0; tiles of
 * queries that see none of a block's keys are skipped.
 *
 * The sink is a score of each of its head's rows, and a parameter. It has no value, so dP_sink = 0,
 * and dS_sink = P_sink (0 - delta). delta stays dO . O, the sum of P dP over all scores of the row, to which the sink
 * adds 0. Every row adds its share:
 *
 *     dsink = -sum_i P_i,sink delta_i        P_i,sink = e^(sink - LSE_i)
 *
 * Who owns what, and the loops: as in 05_fa2_backward/fma. sink_gradient has a warp for each head.
 *
 * What it costs. As 05_fa2_backward/fma, but a softcap adds a tanh and an exponential per score; Q and dO are read only
 * as far as a window reaches. sink_gradient reads LSE, delta and the sink once per row.
 *
 *     make 11_score_mod_backward && ./11_score_mod_backward/11_score_mod_backward --score softcap:30 --score sink
 */
#include "../common/gpu/score.cuh"
#include "../common/gpu/softmax.cuh"
#include "tiles.h"

constexpr int Br = 16, Bc = 32;                               /* a tile of S: rows are queries, columns are keys */
constexpr int DOWN = 8, ACROSS = 16, THREADS = DOWN * ACROSS; /* the arrangement of the threads */
constexpr int ROWS = Br / DOWN, COLUMNS = Bc / ACROSS;        /* of a tile of S that a thread owns */
constexpr int KEYS = Bc / DOWN;                               /* of a tile of dK and dV */

template <int D> struct ScoreBackwardShared {
    float q[Br][D + 1], d_o[Br][D + 1], k[Bc][D + 1], v[Bc][D + 1], p[Br][Bc + ACROSS], ds[Br][Bc + ACROSS];
};

/* delta, [batch, heads, seqlen_q], and zeros in the accumulator of dQ, which is as large as dQ. 16 threads per row. */
template <typename T, int D>
__global__ void __launch_bounds__(THREADS) prepare_rows(Problem p, Tensors t, float *delta, float *dq_accumulator) {
    size_t row = (size_t)blockIdx.x * DOWN + threadIdx.x / ACROSS;
    int c = threadIdx.x % ACROSS;
    float sum = 0;
    for (int d = c; d < D && row < row_count(&p); d += ACROSS) {
        sum += to_float(((const T *)t.d_o)[row * D + d]) * to_float(((const T *)t.o)[row * D + d]);
        dq_accumulator[row * D + d] = 0;
    }
    for (int offset = ACROSS / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(WHOLE_WARP, sum, offset);
    if (c == 0 && row < row_count(&p))
        delta[row] = sum;
}

/* c += a^T b: the elements of dV, or of dK, that this thread owns. The product of the two tiles is summed by itself
 * first, so that c, which may be a sum over a million queries, is rounded once per tile. */
template <int N>
__device__ inline void add_product(float (&c)[KEYS][N], const float (&a)[Br][Bc + ACROSS],
                                   const float (&b)[Br][N * ACROSS + 1], int r, int column) {
    float part[KEYS][N] = {};
    for (int row = 0; row < Br; row++)
        for (int i = 0; i < KEYS; i++)
            for (int n = 0; n < N; n++)
                part[i][n] += a[row][r + DOWN * i] * b[row][column + ACROSS * n];
    for (int i = 0; i < KEYS; i++)
        for (int n = 0; n < N; n++)
            c[i][n] += part[i][n];
}

/* Block: (tile of keys, batch x K/V head). Shared memory has room for 4 blocks per multiprocessor, as in 04_fa2/fma. */
template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 4)
    score_backward(Problem p, Tensors t, const float *delta, float *dq_accumulator) {
    SHARED_MEMORY(shared, ScoreBackwardShared<D>);
    int batch = blockIdx.y / p.kv_heads, kv_head = blockIdx.y % p.kv_heads, group = p.heads / p.kv_heads;
    int keys = key_length(&p, t.key_lengths, batch), first_column = blockIdx.x * Bc;
    int r = threadIdx.x / ACROSS, c = threadIdx.x % ACROSS;
    size_t kv_offset = key_head_offset(&p, batch, kv_head) + (size_t)first_column * D;
    Range rows = seeing_queries(&t.score, &p, keys, first_column, min(first_column + Bc, keys)); /* of any key here */

    load_tile<THREADS>(shared.k, (const T *)t.k + kv_offset, keys - first_column); /* line 6 */
    load_tile<THREADS>(shared.v, (const T *)t.v + kv_offset, keys - first_column);
    float dk[KEYS][D / ACROSS] = {}, dv[KEYS][D / ACROSS] = {};

    for (int head = kv_head * group; head < (kv_head + 1) * group && first_column < keys; head++) {
        const AnyScore f(p, t.score, head);
        size_t head_row = ((size_t)batch * p.heads + head) * p.seqlen_q; /* the head's first row in LSE and delta */
        for (int first_row = rows.begin / Br * Br; first_row < rows.end; first_row += Br) {
            /* line 9 */
            load_tile<THREADS>(shared.q, (const T *)t.q + (head_row + first_row) * D, p.seqlen_q - first_row);
            load_tile<THREADS>(shared.d_o, (const T *)t.d_o + (head_row + first_row) * D, p.seqlen_q - first_row);
            __syncthreads(); /* the tiles are there */

            float s[ROWS][COLUMNS] = {}, dp[ROWS][COLUMNS] = {}, dq[ROWS][D / ACROSS] = {};
            for (int d = 0; d < D; d++) /* lines 10 and 13 */
                for (int i = 0; i < ROWS; i++)
                    for (int n = 0; n < COLUMNS; n++) {
                        s[i][n] += shared.q[r + DOWN * i][d] * shared.k[c + ACROSS * n][d];
                        dp[i][n] += shared.d_o[r + DOWN * i][d] * shared.v[c + ACROSS * n][d];
                    }

            for (int i = 0; i < ROWS; i++) { /* lines 11 and 14 */
                int row = first_row + r + DOWN * i, pos = position_of(&p, keys, row);
                Range seen = seen_keys(&t.score, &p, keys, row);
                bool exists = row < p.seqlen_q; /* if not, its Q and dO are 0, and it adds nothing */
                float lse = exists ? t.lse[head_row + row] : 0, delta_row = exists ? delta[head_row + row] : 0;
                for (int n = 0; n < COLUMNS; n++) {
                    int key = first_column + c + ACROSS * n;
                    float s_ij = p.scale * s[i][n],
                          p_ij = key >= seen.begin && key < seen.end ? expf(f(s_ij, pos, key) - lse) : 0;
                    shared.p[r + DOWN * i][c + ACROSS * n] = p_ij;
                    shared.ds[r + DOWN * i][c + ACROSS * n] = p_ij * (dp[i][n] - delta_row) * f.derivative(s_ij);
                }
            }
            __syncthreads(); /* P and dS are there */

            add_product(dv, shared.p, shared.d_o, r, c); /* line 12 */
            add_product(dk, shared.ds, shared.q, r, c);  /* line 16 */
            for (int key = 0; key < Bc; key++) /* line 15 */
                for (int i = 0; i < ROWS; i++)
                    for (int d = 0; d < D / ACROSS; d++)
                        dq[i][d] += shared.ds[r + DOWN * i][key] * shared.k[key][c + ACROSS * d];
            for (int i = 0; i < ROWS && first_row + r + DOWN * i < p.seqlen_q; i++)
                for (int d = 0; d < D / ACROSS; d++)
                    atomicAdd(&dq_accumulator[(head_row + first_row + r + DOWN * i) * D + c + ACROSS * d], dq[i][d]);
            __syncthreads(); /* Q, dO, P and dS are done with, before the next overwrite them */
        }
    }
    for (int i = 0; i < KEYS && first_column + r + DOWN * i < p.seqlen_k; i++) /* line 18 */
        for (int d = 0; d < D / ACROSS; d++) {
            size_t element = kv_offset + (r + DOWN * i) * D + c + ACROSS * d;
            ((T *)t.dk)[element] = from_float<T>(p.scale * dk[i][d]);
            ((T *)t.dv)[element] = from_float<T>(dv[i][d]);
        }
}

/* dQ = scale x accumulator, in the problem's dtype. A thread is one element. */
template <typename T> __global__ void convert_dq(Problem p, Tensors t, const float *dq_accumulator) {
    size_t element = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (element < query_elements(&p))
        ((T *)t.dq)[element] = from_float<T>(p.scale * dq_accumulator[element]);
}

/* dsink = -sum of P_sink delta over the head's rows, P_sink = e^(sink - LSE). A warp is one head. */
__global__ void __launch_bounds__(32) sink_gradient(Problem p, Tensors t, const float *delta) {
    float sum = 0;
    for (int row = threadIdx.x; row < p.batch * p.seqlen_q; row += 32) {
        size_t at = flat_row(&p, RowIndex{row / p.seqlen_q, (int)blockIdx.x, row % p.seqlen_q});
        sum -= expf(t.score.sinks[blockIdx.x] - t.lse[at]) * delta[at];
    }
    for (int offset = 16; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(WHOLE_WARP, sum, offset);
    if (threadIdx.x == 0)
        t.d_sinks[blockIdx.x] = sum;
}

PLANNER(score_backward_plan) {
    workspace[0] = Buffer{"delta", row_count(p) * sizeof(float), nullptr, 0};
    workspace[1] = Buffer{"dQ accumulator", query_elements(p) * sizeof(float), nullptr, 0};
    return 2;
}

LAUNCHER(score_backward) {
    float *delta = (float *)workspace[0].pointer, *dq_accumulator = (float *)workspace[1].pointer;
    dim3 blocks(ceil_div(p->seqlen_k, Bc), p->batch * p->kv_heads);
    WITH_ANY_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        LAUNCH((prepare_rows<T, D>), blocks_for(row_count(p) * ACROSS, THREADS), THREADS, 0, *p, *t, delta,
               dq_accumulator);
        LAUNCH((score_backward<T, D>), blocks, THREADS, sizeof(ScoreBackwardShared<D>), *p, *t, delta, dq_accumulator);
        LAUNCH(convert_dq<T>, blocks_for(query_elements(p), THREADS), THREADS, 0, *p, *t, dq_accumulator);
    }));
    if (t->d_sinks) {
        LAUNCH(sink_gradient, p->heads, 32, 0, *p, *t, delta);
    }
}

extern "C" TileShape score_backward_tile(const Problem *) { return {Br, Bc}; }
