/* prepare_rows.cuh - the pre-pass of the fast backward kernels: the two numbers LSE and delta of each query row, and
 * zeros in the accumulator of dQ. */
#ifndef FA_PREPARE_ROWS_CUH
#define FA_PREPARE_ROWS_CUH

#include "../traffic.h"
#include "eight.cuh"
#include "softmax.cuh"

/* The two numbers of a query row, each in an array [batch x heads][rows padded to a multiple of ROW_PADDING]. A row
 * that does not exist, or sees no key, has lse = +inf. Then P = 2^(s - inf) = 0, and with P its dS and its gradients,
 * without a branch. */
struct RowStatistics {
    float *lse; /* LSE log2(e), so that P = 2^(scale log2(e) S - lse) */
    float *delta;
};
HOST_DEVICE inline int padded_rows(const Problem *p) { return ceil_div(p->seqlen_q, ROW_PADDING) * ROW_PADDING; }
HOST_DEVICE inline size_t all_padded_rows(const Problem *p) { return (size_t)p->batch * p->heads * padded_rows(p); }

/* The first two workspace buffers of a variant. */
inline int plan_statistics(const Problem *p, Buffer *workspace) {
    workspace[0] = Buffer{"LSE in base 2", all_padded_rows(p) * sizeof(float), nullptr, 0};
    workspace[1] = Buffer{"delta", all_padded_rows(p) * sizeof(float), nullptr, 0};
    return 2;
}
inline RowStatistics statistics_in(const Buffer *workspace) {
    return RowStatistics{(float *)workspace[0].pointer, (float *)workspace[1].pointer};
}

/* The next buffers: fp32 accumulators, to which several blocks add. Those of dK and dV, of so many padded rows, are
 * needed only if query heads share a K/V head; who reads them leaves zeros there for the next launch. */
HOST_DEVICE inline int padded_keys(const Problem *p) { return ceil_div(p->seqlen_k, ROW_PADDING) * ROW_PADDING; }
HOST_DEVICE inline size_t all_padded_keys(const Problem *p) { return (size_t)p->batch * p->kv_heads * padded_keys(p); }
inline int plan_accumulators(const Problem *p, Buffer *workspace) {
    int count = plan_statistics(p, workspace);
    workspace[count++] = Buffer{"dQ accumulator", all_padded_rows(p) * p->head_dim * sizeof(float), nullptr, 0};
    if (p->heads > p->kv_heads) {
        workspace[count++] = Buffer{"dK accumulator", all_padded_keys(p) * p->head_dim * sizeof(float), nullptr, 1};
        workspace[count++] = Buffer{"dV accumulator", all_padded_keys(p) * p->head_dim * sizeof(float), nullptr, 1};
    }
    return count;
}

/* The steps of a backward pass, for a caller that has the keys in several pieces (12_context_parallel_backward): LSE
 * and delta of the rows, and zeros in the sum of dQ; what some keys add to the sums of dQ, dK and dV; dQ from its sum;
 * dK and dV from theirs. */
enum { PREPARE_ROWS = 1, ADD_GRADIENTS = 2, WRITE_DQ = 4, WRITE_KEYS = 8, ALL_STEPS = 15 };

constexpr int PREPARE_THREADS = 256;

/* Fills in the statistics of all padded rows, and zeros as many rows of D floats at dq_accumulator (unless NULL).
 * D/8 neighboring threads take a row, 8 elements each: 16-byte loads, and a few shuffled additions. */
template <typename T, int D>
__global__ void __launch_bounds__(PREPARE_THREADS)
    prepare_rows(Problem p, Tensors t, RowStatistics statistics, float *dq_accumulator) {
    constexpr int lanes = D / 8;
    const size_t thread = (size_t)blockIdx.x * PREPARE_THREADS + threadIdx.x, padded_row = thread / lanes;
    if (padded_row >= all_padded_rows(&p)) /* whole warps: it is a multiple of 128 */
        return;
    const size_t batch_head = padded_row / padded_rows(&p);
    const int row = padded_row % padded_rows(&p), chunk = thread % lanes;
    const size_t flat_row = batch_head * p.seqlen_q + row;
    const bool exists = row < p.seqlen_q;

    const float lse = exists ? t.lse[flat_row] : -INFINITY;
    float o[8], d_o[8], delta = 0;
    load_8(o, (const T *)t.o + flat_row * D + 8 * chunk, exists);
    load_8(d_o, (const T *)t.d_o + flat_row * D + 8 * chunk, exists);
    for (int i = 0; i < 8; i++)
        delta += o[i] * d_o[i];
    for (int offset = lanes / 2; offset > 0; offset /= 2)
        delta += __shfl_xor_sync(WHOLE_WARP, delta, offset);
    if (chunk == 0) {
        statistics.lse[padded_row] = lse == -INFINITY ? INFINITY : lse * LOG2_E;
        statistics.delta[padded_row] = delta;
    }
    if (dq_accumulator) {
        store_4(dq_accumulator + 8 * thread, float4{});
        store_4(dq_accumulator + 8 * thread + 4, float4{});
    }
}

template <typename T, int D>
static void launch_prepare_rows(const Problem &p, const Tensors &t, const Buffer *workspace, float *dq_accumulator) {
    LAUNCH((prepare_rows<T, D>), blocks_for(all_padded_rows(&p) * (D / 8), PREPARE_THREADS), PREPARE_THREADS, 0, p, t,
           statistics_in(workspace), dq_accumulator);
}

#endif
