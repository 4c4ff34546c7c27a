/* oracle.c - see oracle.h.
 *
 * Forward (Dao et al. 2022, section 2.2), one row i:
 *     S_j = scale q_i . k_j,   m = max_j S_j,   l = sum_j e^(S_j - m),   P_j = e^(S_j - m) / l,   O_i = sum_j P_j v_j
 *     LSE_i = m + ln l, so that P_j = e^(S_j - LSE_i)
 * Subtracting m changes nothing in P (it cancels in the quotient) and keeps every exponential at or below 1.
 *
 * Backward (ibid., appendix B.2). A loss changes through P_j by dP_j = dO_i . v_j. The softmax's Jacobian is
 * dP_a/dS_b = P_a (1[a = b] - P_b), hence
 *     dS_b = sum_a dP_a P_a (1[a = b] - P_b) = P_b (dP_b - delta_i),   delta_i = sum_a P_a dP_a
 * and because sum_a P_a (dO_i . v_a) = dO_i . sum_a P_a v_a, that last sum needs no P at all: delta_i = dO_i . O_i.
 * S is bilinear in Q and K, and O is linear in P and V, which gives the rest:
 *     dq_i = scale sum_j dS_ij k_j      dk_j = scale sum_i dS_ij q_i      dv_j = sum_i P_ij dO_i
 * the last two summed over all query heads that share the key head.
 */
#include "oracle.h"

#include "../host/memory.h"
#include "../host/parallel.h"
#include "rows.h"

#include <stdlib.h>

/* y += factor * a */
static void add_scaled(double *y, double factor, const double *a, int n) {
    for (int i = 0; i < n; i++)
        y[i] += factor * a[i];
}

static void set_zero(double *y, int n) {
    for (int i = 0; i < n; i++)
        y[i] = 0;
}

void oracle_row(const double *q_row, const double *k, const double *v, int visible, int head_dim, double scale,
                double *o_row, double *lse) {
    set_zero(o_row, head_dim);
    *lse = -INFINITY;
    if (visible == 0)
        return;

    double *s = host_alloc((size_t)visible, sizeof *s);
    double m = -INFINITY;
    for (int j = 0; j < visible; j++) {
        s[j] = scale * dot(q_row, k + (size_t)j * head_dim, head_dim);
        m = fmax(m, s[j]);
    }
    double l = 0;
    for (int j = 0; j < visible; j++)
        l += exp(s[j] - m);
    for (int j = 0; j < visible; j++)
        add_scaled(o_row, exp(s[j] - m) / l, v + (size_t)j * head_dim, head_dim);
    *lse = m + log(l);
    free(s);
}

/* What the parallel loops below share. */
typedef struct {
    const Problem *p;
    const int *key_lengths;
    const double *q, *k, *v, *d_o;
    double *o, *lse, *delta;
    double *dq, *dk, *dv;
} OracleWork;

static int sees(const Problem *p, const int *key_lengths, int batch, int row, int column) {
    int length = key_lengths ? key_lengths[batch] : p->seqlen_k;
    return column < length && (!p->causal || column - length <= row - p->seqlen_q); /* both counted from the end */
}

OracleView oracle_view(const Problem *p, const int *key_lengths, int batch, int head, int row) {
    size_t kv_head = (size_t)head * p->kv_heads / p->heads;
    OracleView view = {(batch * (size_t)p->kv_heads + kv_head) * p->seqlen_k * p->head_dim, 0};
    while (sees(p, key_lengths, batch, row, view.visible))
        view.visible++;
    return view;
}

/* The same for an index into [batch, heads, seqlen_q]. */
static OracleView view_row(const OracleWork *w, size_t index) {
    const Problem *p = w->p;
    int row = (int)(index % p->seqlen_q);
    int head = (int)(index / p->seqlen_q % p->heads);
    int batch = (int)(index / p->seqlen_q / p->heads);
    return oracle_view(p, w->key_lengths, batch, head, row);
}

static void forward_rows(size_t begin, size_t end, void *context) {
    const OracleWork *w = context;
    int d = w->p->head_dim;
    for (size_t row = begin; row < end; row++) {
        OracleView view = view_row(w, row);
        oracle_row(w->q + row * d, w->k + view.keys, w->v + view.keys, view.visible, d, w->p->scale, w->o + row * d,
                   &w->lse[row]);
    }
}

void oracle_forward(const Problem *p, const int *key_lengths, const double *q, const double *k, const double *v, double *o,
                    double *lse) {
    OracleWork work = {.p = p, .key_lengths = key_lengths, .q = q, .k = k, .v = v, .o = o, .lse = lse};
    parallel_for(row_count(p), forward_rows, &work);
}

/* P_ij and dS_ij of query row i and key j, from LSE and delta. */
static void score_gradient(const OracleWork *w, size_t row, const double *k_row, const double *v_row, double *p_ij,
                           double *ds_ij) {
    int d = w->p->head_dim;
    double s = w->p->scale * dot(w->q + row * d, k_row, d);
    *p_ij = exp(s - w->lse[row]);
    *ds_ij = *p_ij * (dot(w->d_o + row * d, v_row, d) - w->delta[row]);
}

static void query_gradients(size_t begin, size_t end, void *context) {
    const OracleWork *w = context;
    int d = w->p->head_dim;
    for (size_t row = begin; row < end; row++) {
        OracleView view = view_row(w, row);
        w->delta[row] = dot(w->d_o + row * d, w->o + row * d, d);
        set_zero(w->dq + row * d, d);
        for (int j = 0; j < view.visible; j++) {
            const double *k_row = w->k + view.keys + (size_t)j * d, *v_row = w->v + view.keys + (size_t)j * d;
            double p_ij, ds_ij;
            score_gradient(w, row, k_row, v_row, &p_ij, &ds_ij);
            add_scaled(w->dq + row * d, w->p->scale * ds_ij, k_row, d);
        }
    }
}

/* One index is one key row of [batch, kv_heads, seqlen_k]: it collects from every query, of every head of its group, that
 * sees it. Gathering, instead of letting each query add to dK and dV, needs no locks and always adds in the same order. */
static void key_gradients(size_t begin, size_t end, void *context) {
    const OracleWork *w = context;
    const Problem *p = w->p;
    int d = p->head_dim, group = p->heads / p->kv_heads;
    for (size_t key = begin; key < end; key++) {
        int column = (int)(key % p->seqlen_k);
        int kv_head = (int)(key / p->seqlen_k % p->kv_heads);
        int batch = (int)(key / p->seqlen_k / p->kv_heads);
        set_zero(w->dk + key * d, d);
        set_zero(w->dv + key * d, d);
        for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
            for (int i = 0; i < p->seqlen_q; i++) {
                if (!sees(p, w->key_lengths, batch, i, column))
                    continue;
                size_t row = ((size_t)batch * p->heads + head) * p->seqlen_q + i;
                double p_ij, ds_ij;
                score_gradient(w, row, w->k + key * d, w->v + key * d, &p_ij, &ds_ij);
                add_scaled(w->dk + key * d, p->scale * ds_ij, w->q + row * d, d);
                add_scaled(w->dv + key * d, p_ij, w->d_o + row * d, d);
            }
        }
    }
}

void oracle_backward(const Problem *p, const int *key_lengths, const double *q, const double *k, const double *v,
                     const double *d_o, double *dq, double *dk, double *dv) {
    OracleWork work = {.p = p, .key_lengths = key_lengths, .q = q, .k = k, .v = v, .d_o = d_o, .dq = dq, .dk = dk, .dv = dv};
    work.o = host_alloc(query_elements(p), sizeof(double));
    work.lse = host_alloc(row_count(p), sizeof(double));
    work.delta = host_alloc(row_count(p), sizeof(double));
    oracle_forward(p, key_lengths, q, k, v, work.o, work.lse);
    parallel_for(row_count(p), query_gradients, &work); /* also fills delta, which key_gradients reads */
    parallel_for((size_t)p->batch * p->kv_heads * p->seqlen_k, key_gradients, &work);
    free(work.o);
    free(work.lse);
    free(work.delta);
}
