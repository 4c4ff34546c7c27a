/* 00_naive - attention as its definition says, one thread per output element, everything through device memory.
 *
 *     scores        S_ij = scale * q_i . k_j, or -inf where query i does not see key j
 *     softmax       P_ij = e^(S_ij - m_i) / l_i,  m_i = max_j S_ij,  l_i = sum_j e^(S_ij - m_i),  LSE_i = m_i + ln l_i
 *     output        O_id = sum_j P_ij V_jd
 *
 * Who owns what: a thread owns one element of S, one row of P or one element of O, and threads share nothing. These are
 * the loops of standard_forward in notes/flash.c, lines 34 to 38, with all their iterations at the same time.
 *
 * What it costs, for each (batch, head) with N queries and N keys: 4 N^2 D FLOPs in the two products; N^2 scores of 4
 * bytes and N^2 probabilities of 2 bytes (fp32: 4) live in device memory, where a kernel that never stored them would
 * keep 4 N D elements. Each element of S reads 2 D inputs to do 2 D FLOPs: one FLOP per load. Caches answer most of
 * these loads, and nothing here makes them fewer.
 *
 * Why it matters all the same: it is short enough to be checked by eye, it fixes what the others must compute (masks,
 * grouped heads, rows without keys, rounding), and every later stage is validated against it.
 *
 *     make 00_naive && ./00_naive/00_naive --seqlen 512
 */
#include "../common/block_mask.h" /* in_mask: always true except in 10_block_sparse and 11_score_mod */
#include "../common/gpu/score.cuh"
#include "../common/stage.h"

constexpr int THREADS = 256; /* threads per block; any multiple of 32 would do, blocks do not cooperate */

/* P is stored 1024 times as large, and O divided by 1024. Among N keys an element of P is about 1 / N, and below 2^-14,
 * so beyond 16,384 keys, an fp16 number has fewer digits. Multiplying by a power of two changes no digit. */
constexpr float P_SCALE = 1024;

/* S[flat_row][column], fp32. A thread is one element: neighboring threads are neighboring keys of one query. */
template <typename T> __global__ void naive_scores(Problem p, Tensors t, float *S) {
    size_t element = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (element >= score_elements(&p))
        return;
    RowIndex i = row_index(&p, element / p.seqlen_k);
    int column = element % p.seqlen_k;

    const T *q = (const T *)t.q + query_head_offset(&p, i.batch, i.head) + (size_t)i.row * p.head_dim;
    const T *k = (const T *)t.k + key_head_offset(&p, i.batch, kv_head_of(&p, i.head)) + (size_t)column * p.head_dim;
    float dot = 0;
    for (int d = 0; d < p.head_dim; d++)
        dot += to_float(q[d]) * to_float(k[d]);

    bool visible =
        column < visible_keys(&p, key_length(&p, t.key_lengths, i.batch), i.row) && in_mask(&p, &t, i, column);
    S[element] = visible ? p.scale * dot : -INFINITY;
    if (p.score && visible) /* S' = f(S), in 11_score_mod alone */
        S[element] = AnyScore(p, t.score, i.head)(
            p.scale * dot, position_of(&p, key_length(&p, t.key_lengths, i.batch), i.row), column);
}

/* P[flat_row][column] times P_SCALE in the problem's dtype, and LSE. A thread is one row and walks it three times. */
template <typename T> __global__ void naive_softmax(Problem p, Tensors t, const float *S, T *P) {
    size_t flat_row = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (flat_row >= row_count(&p))
        return;
    const float *scores = S + flat_row * p.seqlen_k;

    float sink = sink_of(t.score, row_index(&p, flat_row).head), m = sink; /* -inf except in 11_score_mod */
    for (int column = 0; column < p.seqlen_k; column++)
        m = fmaxf(m, scores[column]);

    /* m stays -inf in a row that sees no key, and -inf - -inf is NaN: such a row subtracts
     * 0, so that its e^-inf are 0. */
    float shift = m == -INFINITY ? 0 : m;
    double l = 0; /* in a float, 200,000 additions of 0.99 would mostly be rounded down: l would be 0.14 % too small */
    if (t.score.sinks) /* in 11_score_mod alone */
        l = expf(sink - shift);
    for (int column = 0; column < p.seqlen_k; column++)
        l += expf(scores[column] - shift);
    t.lse[flat_row] = shift + logf(l); /* ln 0 = -inf: the LSE of a row without keys */

    float scale = l > 0 ? P_SCALE / l : 0;
    for (int column = 0; column < p.seqlen_k; column++)
        P[flat_row * p.seqlen_k + column] = from_float<T>(scale * expf(scores[column] - shift));
}

/* O[flat_row][d]. A thread is one element: neighboring threads are neighboring columns of V. The sum over the keys is
 * made in pieces (kernel.cuh says why): there are D such sums for each l, too many for doubles on most GPUs. */
template <typename T> __global__ void naive_output(Problem p, Tensors t, const T *P) {
    size_t element = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (element >= query_elements(&p))
        return;
    size_t flat_row = element / p.head_dim;
    RowIndex i = row_index(&p, flat_row);
    int d = element % p.head_dim;

    /* The loop ends where the row's visible keys end. Behind them P is 0, but V may hold
     * NaN there, and 0 * NaN is NaN. */
    const T *v = (const T *)t.v + key_head_offset(&p, i.batch, kv_head_of(&p, i.head)) + d;
    int visible = visible_keys(&p, key_length(&p, t.key_lengths, i.batch), i.row);
    const T *weights = P + flat_row * p.seqlen_k;
    const int piece = piece_of(visible);
    /* Only 10_block_sparse and 11_score_mod can mask single pairs. Elsewhere the first loop takes all columns. Since it
     * asks nothing about them, the loads of eight columns are under way at the same time. */
    const bool masked = t.score.window || p.blocks;
    auto product = [&](int column) { return to_float(weights[column]) * to_float(v[(size_t)column * p.head_dim]); };
    float sum = 0;
    for (int column = 0; column < visible;) {
        const int end = min(column + piece, visible);
        float part = 0;
#pragma unroll 8 /* by default nvcc unrolls by 4, and then short pieces are slower than one sum */
        for (; column < end && !masked; column++)
            part += product(column);
        for (; column < end; column++)
            if (in_mask(&p, &t, i, column))
                part += product(column);
        sum += part;
    }
    ((T *)t.o)[element] = from_float<T>(sum / P_SCALE);
}

PLANNER(naive_plan) {
    workspace[0] = Buffer{"S", score_elements(p) * sizeof(float), nullptr, 0};
    workspace[1] = Buffer{"P", score_elements(p) * dtype_bytes(p->dtype), nullptr, 0};
    return 2;
}

LAUNCHER(naive_forward) {
    float *S = (float *)workspace[0].pointer;
    WITH_ANY_TYPE(p->dtype, T, {
        T *P = (T *)workspace[1].pointer;
        LAUNCH(naive_scores<T>, blocks_for(score_elements(p), THREADS), THREADS, 0, *p, *t, S);
        LAUNCH(naive_softmax<T>, blocks_for(row_count(p), THREADS), THREADS, 0, *p, *t, S, P);
        LAUNCH(naive_output<T>, blocks_for(query_elements(p), THREADS), THREADS, 0, *p, *t, P);
    });
}
