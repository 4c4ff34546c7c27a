/* 05_fa2_backward/fma - the backward pass of FlashAttention-2 (Dao 2023, Algorithm 2) in
 * plain CUDA: P from LSE, by tiles.
 *
 * The idea. The gradients need P, N x N numbers that the forward pass never stored. It left LSE, one
 * number per row, and from it any tile of P can be computed again, with no maximum and no sum to carry
 * along. With S_ij = scale q_i . k_j,
 *
 *     P_ij = e^(S_ij - LSE_i)     dP_ij = dO_i . v_j     dS_ij = P_ij (dP_ij - delta_i)     delta_i = dO_i . O_i
 *     dV = P^T dO                 dK = scale dS^T Q      dQ = scale dS K
 *
 * The loops, as published, are those of flash_backward in notes/flash.c, and its line 87 is now the grid: a block owns
 * a tile of keys of a K/V head, keeps K and V in shared memory and dK and dV in registers, and visits the queries of
 * all heads of the group. dK and dV are sums over queries, so one block makes them. dQ is a sum over keys, and so over
 * blocks: each adds its share to an fp32 array in device memory, the accumulator, by atomic additions.
 *
 *                          keys ->                    Each step, by its lines in Algorithm 2:
 *                   block 0  block 1  block 2
 *     queries  0     step 1   step 1   ...            9        Q and dO of the query tile are loaded, LSE and delta
 *        |     1     step 2   step 2                  10, 11   S, P
 *        v     2     step 3   step 3                  13, 14   dP, dS
 *              3     step 4   step 4                  12, 16   dV += P^T dO, dK += dS^T Q
 *                                                     15       dQ += dS K, the atomics
 *
 * Before it prepare_rows makes delta and zeros the accumulator (lines 3 and 4), after it convert_dq makes dQ of that.
 *
 * Who owns what in a step, as in 04_fa2/fma: 128 threads, thread (r, c) of 8 x 16, and tiles of 16 queries by 32 keys.
 * It owns of S, P, dP and dS the rows r and r+8 and the columns c and c+16; of dQ the same rows, of dK and dV the rows
 * r, r+8, r+16 and r+24, keys now; and of these three the columns c, c+16, c+32, ... P and dS go through shared memory:
 * dV and dK read them by columns, dQ reads dS by rows. All tiles there are fp32: 30.4 KB at D = 64, 54.4 KB at D = 128.
 * With 32 queries they would not fit into the 64 KB that a block can have on sm_75.
 *
 * What it costs. For each (batch, head) with N queries and N keys 10 N^2 D FLOPs in five products, N^2
 * exponentials, a workspace of 4 N (D + 1) bytes; and the order of the atomics, and with it the last bits
 * of dQ, differ from run to run.
 *
 * Device memory, bytes per (batch, head), e bytes per element. Full attention, whole tiles, blocks = Sk / 32:
 *
 *     prepare_rows    O, dO      Sq D e each                    delta, dQ accumulator    Sq 4 and Sq D 4 written
 *     backward_fma    Q, dO      blocks Sq D e each             LSE, delta               blocks Sq 4 each, 16 times, by
 *                     K, V       Sk D e each per K/V head                                the 16 threads of a row
 *                     dK, dV     the same, written              dQ accumulator           blocks Sq D 4 read and written
 *     convert_dq      dQ         Sq D e written                 dQ accumulator           Sq D 4
 *
 * In general: the key length instead of Sk; and a block begins with the first query tile that sees any of its keys.
 *
 *     make 05_fa2_backward && ./05_fa2_backward/05_fa2_backward --variant fma
 */
#include "../common/gpu/softmax.cuh"
#include "backward.h"

constexpr int Br = 16, Bc = 32;                               /* a tile of S: rows are queries, columns are keys */
constexpr int DOWN = 8, ACROSS = 16, THREADS = DOWN * ACROSS; /* the arrangement of the threads */
constexpr int ROWS = Br / DOWN, COLUMNS = Bc / ACROSS;        /* of a tile of S that a thread owns */
constexpr int KEYS = Bc / DOWN;                               /* of a tile of dK and dV */

template <int D> struct BackwardShared {
    float q[Br][D + 1], d_o[Br][D + 1], k[Bc][D + 1], v[Bc][D + 1], p[Br][Bc + ACROSS], ds[Br][Bc + ACROSS];
};

/* delta, [batch, heads, seqlen_q], and zeros in the accumulator of dQ, which is as large
 * as dQ. 16 threads take a row. */
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

/* Block: (tile of keys, batch x K/V head). Shared memory has room for 4 blocks on a multiprocessor, as in
 * 04_fa2/fma. */
template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 4)
    backward_fma(Problem p, Tensors t, const float *delta, float *dq_accumulator) {
    SHARED_MEMORY(shared, BackwardShared<D>);
    int batch = blockIdx.y / p.kv_heads, kv_head = blockIdx.y % p.kv_heads, group = p.heads / p.kv_heads;
    int keys = key_length(&p, t.key_lengths, batch), first_column = blockIdx.x * Bc;
    int r = threadIdx.x / ACROSS, c = threadIdx.x % ACROSS;
    size_t kv_offset = key_head_offset(&p, batch, kv_head) + (size_t)first_column * D;
    int blind = p.causal ? max(first_column - (keys - p.seqlen_q), 0) : 0; /* first rows that see no key of the tile */

    load_tile<THREADS>(shared.k, (const T *)t.k + kv_offset, keys - first_column); /* line 6 */
    load_tile<THREADS>(shared.v, (const T *)t.v + kv_offset, keys - first_column);
    float dk[KEYS][D / ACROSS] = {}, dv[KEYS][D / ACROSS] = {};

    for (int head = kv_head * group; head < (kv_head + 1) * group && first_column < keys; head++) {
        size_t head_row = ((size_t)batch * p.heads + head) * p.seqlen_q; /* the head's first row in LSE and delta */
        for (int first_row = blind / Br * Br; first_row < p.seqlen_q; first_row += Br) {
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
                int row = first_row + r + DOWN * i, visible = visible_keys(&p, keys, row);
                bool exists = row < p.seqlen_q; /* if not, its Q and dO are 0, and it adds nothing */
                float lse = exists ? t.lse[head_row + row] : 0, delta_row = exists ? delta[head_row + row] : 0;
                for (int n = 0; n < COLUMNS; n++) {
                    bool sees = first_column + c + ACROSS * n < visible;
                    float p_ij = sees ? expf(p.scale * s[i][n] - lse) : 0;
                    shared.p[r + DOWN * i][c + ACROSS * n] = p_ij;
                    shared.ds[r + DOWN * i][c + ACROSS * n] = p_ij * (dp[i][n] - delta_row);
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

PLANNER(backward_fma_plan) {
    workspace[0] = Buffer{"delta", row_count(p) * sizeof(float), nullptr, 0};
    workspace[1] = Buffer{"dQ accumulator", query_elements(p) * sizeof(float), nullptr, 0};
    return 2;
}

LAUNCHER(backward_fma) {
    float *delta = (float *)workspace[0].pointer, *dq_accumulator = (float *)workspace[1].pointer;
    dim3 blocks(ceil_div(p->seqlen_k, Bc), p->batch * p->kv_heads);
    WITH_ANY_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        LAUNCH((prepare_rows<T, D>), blocks_for(row_count(p) * ACROSS, THREADS), THREADS, 0, *p, *t, delta,
               dq_accumulator);
        LAUNCH((backward_fma<T, D>), blocks, THREADS, sizeof(BackwardShared<D>), *p, *t, delta, dq_accumulator);
        LAUNCH(convert_dq<T>, blocks_for(query_elements(p), THREADS), THREADS, 0, *p, *t, dq_accumulator);
    }));
}

extern "C" TileShape fma_tile(const Problem *) { return {Br, Bc}; }
