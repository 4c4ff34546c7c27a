/* 05_fa2_backward/naive_backward - the gradients as their definition says, one thread per output element, everything
 * stored.
 *
 *     probabilities   P_ij = e^(scale q_i . k_j - LSE_i), 0 where query i does not see key j;   dP_ij = dO_i . v_j
 *     softmax         dS_ij = P_ij (dP_ij - delta_i),   delta_i = sum_j P_ij dP_ij = dO_i . O_i
 *     products        dQ = scale dS K     dK = scale dS^T Q     dV = P^T dO     dK and dV summed over a head's group
 *
 * O and LSE come from the forward pass. Who owns what: one thread owns one element of P and dP, one row's delta, or one
 * element of dS or of a gradient, a kernel each. In notes/flash.c these are lines 46 to 51 of standard_backward.
 *
 * What it costs, for each (batch, head) with N queries and N keys: 10 N^2 D FLOPs in the five products, and 6 N^2 bytes
 * (fp32: 8 N^2) for P, and dP or dS. two_pass and atomic are validated against it. 00_naive is its forward half.
 *
 *     make 05_fa2_backward && ./05_fa2_backward/05_fa2_backward --seqlen 512 --variant 00_naive
 */
#include "../common/block_mask.h" /* in_mask, and f: S' = S, and the mask has all, except in 11_score_mod_backward */
#include "../common/gpu/score.cuh"
#include "../common/stage.h"

constexpr int THREADS = 256; /* threads per block; any multiple of 32 would do, blocks do not cooperate */

/* P[flat_row][column] in the dtype, dP[flat_row][column] and, if there is an f, f'(S) in fp32. A thread per element. */
template <typename T> __global__ void naive_probabilities(Problem p, Tensors t, T *P, float *dP, float *derivative) {
    size_t element = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (element >= score_elements(&p))
        return;
    size_t flat_row = element / p.seqlen_k;
    RowIndex i = row_index(&p, flat_row);
    int column = element % p.seqlen_k;
    const HeadTensors<T> head = head_tensors<T>(p, t, flat_row / p.seqlen_q);
    const AnyScore f(p, t.score, i.head);
    bool visible = column < visible_keys(&p, head.keys, i.row) && in_mask(&p, &t, i, column);

    const T *q = (const T *)t.q + flat_row * p.head_dim, *d_o = (const T *)t.d_o + flat_row * p.head_dim;
    const T *k = head.k + (size_t)column * p.head_dim, *v = head.v + (size_t)column * p.head_dim;
    float score = 0, dot = 0;
    for (int d = 0; d < p.head_dim && visible; d++) {
        score += to_float(q[d]) * to_float(k[d]);
        dot += to_float(d_o[d]) * to_float(v[d]);
    }
    float s = p.scale * score;
    float changed = f(s, position_of(&p, head.keys, i.row), column);
    P[element] = from_float<T>(visible ? expf(changed - t.lse[flat_row]) : 0); /* a row without keys: LSE = -inf */
    dP[element] = dot;
    if (derivative)
        derivative[element] = f.derivative(s);
}

/* delta[flat_row]. A thread is one row. */
template <typename T> __global__ void naive_delta(Problem p, Tensors t, float *delta) {
    size_t flat_row = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (flat_row >= row_count(&p))
        return;
    const T *o = (const T *)t.o + flat_row * p.head_dim, *d_o = (const T *)t.d_o + flat_row * p.head_dim;
    float sum = 0;
    for (int d = 0; d < p.head_dim; d++)
        sum += to_float(d_o[d]) * to_float(o[d]);
    delta[flat_row] = sum;
}

/* dS[flat_row][column], in place of dP and like it in fp32: fp16 ends at 65504, and dS need
 * not. A thread is one element. */
template <typename T> __global__ void naive_score_gradient(Problem p, const T *P, const float *delta,
                                                           const float *derivative, float *dP) {
    size_t element = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (element < score_elements(&p))
        dP[element] =
            to_float(P[element]) * (dP[element] - delta[element / p.seqlen_k]) * (derivative ? derivative[element] : 1);
}

/* dQ[flat_row][d]. A thread is one element; it ends where the row's keys end, and adds up in pieces, as 00_naive's
 * output does. */
template <typename T> __global__ void naive_dq(Problem p, Tensors t, const float *dS) {
    size_t element = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (element >= query_elements(&p))
        return;
    size_t flat_row = element / p.head_dim;
    RowIndex i = row_index(&p, flat_row);
    int d = element % p.head_dim;
    const HeadTensors<T> head = head_tensors<T>(p, t, flat_row / p.seqlen_q);
    const int visible = visible_keys(&p, head.keys, i.row), piece = piece_of(visible);
    float sum = 0;
    for (int first = 0; first < visible; first += piece) {
        float part = 0;
        for (int column = first; column < min(first + piece, visible); column++)
            if (in_mask(&p, &t, i, column))
                part += dS[flat_row * p.seqlen_k + column] * to_float(head.k[(size_t)column * p.head_dim + d]);
        sum += part;
    }
    ((T *)t.dq)[element] = from_float<T>(p.scale * sum);
}

/* dK and dV [key][d]. A thread is one element of each; it walks over the queries of every head of its group. A key that
 * does not exist has P = dS = 0 in every row, so its gradients come out as 0. */
template <typename T> __global__ void naive_dk_dv(Problem p, Tensors t, const T *P, const float *dS) {
    size_t element = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (element >= key_elements(&p))
        return;
    size_t key = element / p.head_dim;
    int d = element % p.head_dim, column = key % p.seqlen_k;
    size_t rows = (size_t)(p.heads / p.kv_heads) * p.seqlen_q; /* of the group, whose heads are neighbors */
    size_t first_row = key / p.seqlen_k * rows;                /* key / p.seqlen_k: which (batch, K/V head) */
    size_t last_row = first_row + rows, piece = piece_of(rows);
    float dk = 0, dv = 0;
    for (size_t first = first_row; first < last_row; first += piece) {
        float dk_part = 0, dv_part = 0;
        for (size_t row = first; row < min(first + piece, last_row); row++) {
            dk_part += dS[row * p.seqlen_k + column] * to_float(((const T *)t.q)[row * p.head_dim + d]);
            dv_part += to_float(P[row * p.seqlen_k + column]) * to_float(((const T *)t.d_o)[row * p.head_dim + d]);
        }
        dk += dk_part, dv += dv_part;
    }
    ((T *)t.dk)[element] = from_float<T>(p.scale * dk);
    ((T *)t.dv)[element] = from_float<T>(dv);
}

/* The gradient of a head's sink, which has no value, so that its dP is 0: the sum of P_sink (0 - delta) over the rows
 * of the head, in every batch entry. A thread is one head. */
__global__ void naive_sink_gradient(Problem p, Tensors t, const float *delta) {
    int head = blockIdx.x * THREADS + threadIdx.x;
    if (head >= p.heads)
        return;
    double sum = 0;
    for (int row = 0; row < p.batch * p.seqlen_q; row++) {
        size_t at = flat_row(&p, RowIndex{row / p.seqlen_q, head, row % p.seqlen_q});
        sum -= expf(t.score.sinks[head] - t.lse[at]) * delta[at];
    }
    t.d_sinks[head] = sum;
}

PLANNER(naive_backward_plan) {
    workspace[0] = Buffer{"P", score_elements(p) * dtype_bytes(p->dtype), nullptr, 0};
    workspace[1] = Buffer{"dP and dS", score_elements(p) * sizeof(float), nullptr, 0};
    workspace[2] = Buffer{"delta", row_count(p) * sizeof(float), nullptr, 0};
    workspace[3] = Buffer{"f'(S)", score_elements(p) * sizeof(float), nullptr, 0};
    return p->score ? 4 : 3;
}

LAUNCHER(naive_backward) {
    float *dP = (float *)workspace[1].pointer, *dS = dP, *delta = (float *)workspace[2].pointer;
    float *derivative = p->score ? (float *)workspace[3].pointer : nullptr;
    WITH_ANY_TYPE(p->dtype, T, {
        T *P = (T *)workspace[0].pointer;
        LAUNCH(naive_probabilities<T>, blocks_for(score_elements(p), THREADS), THREADS, 0, *p, *t, P, dP, derivative);
        LAUNCH(naive_delta<T>, blocks_for(row_count(p), THREADS), THREADS, 0, *p, *t, delta);
        LAUNCH(naive_score_gradient<T>, blocks_for(score_elements(p), THREADS), THREADS, 0, *p, P, delta, derivative,
               dP);
        LAUNCH(naive_dq<T>, blocks_for(query_elements(p), THREADS), THREADS, 0, *p, *t, dS);
        LAUNCH(naive_dk_dv<T>, blocks_for(key_elements(p), THREADS), THREADS, 0, *p, *t, P, dS);
        if (t->d_sinks) {
            LAUNCH(naive_sink_gradient, blocks_for(p->heads, THREADS), THREADS, 0, *p, *t, delta);
        }
    });
}
