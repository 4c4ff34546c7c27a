/* grid_backward.c - what is right of a backward stage: dQ, dK and dV, by the fp64 oracle (which oracle.c holds against
 * differences of the forward pass).
 *
 * O and LSE of the forward pass are the oracle's, rounded. A gradient passes if its worst error is at most 3 times that of the
 * naive gradients in the same dtype, plus one rounding of the largest element, plus what fp32 sums leave where dS cancels;
 * and if it is exactly 0 where the mask leaves nothing.
 */
#include "../common/judge/check.h"
#include "../common/judge/gradient.h"
#include "../common/judge/oracle.h"
#include "../common/judge/rows.h"
#include "../common/host/memory.h"
#include "grid.h"

#include <stdlib.h>

static const Inputs INPUTS[] = {NORMAL, PEAKED, K_MEAN, EQUAL, V_MEAN};

static void solve(Case *c) {
    const Problem *p = &c->p;
    double *q = to_doubles(p->dtype, c->host.q, 0, query_elements(p)),
           *k = to_doubles(p->dtype, c->host.k, 0, key_elements(p)),
           *v = to_doubles(p->dtype, c->host.v, 0, key_elements(p)),
           *d_o = to_doubles(p->dtype, c->host.d_o, 0, query_elements(p));
    double *o = host_alloc(query_elements(p), sizeof *o), *lse = host_alloc(row_count(p), sizeof *lse);
    oracle_forward(p, c->key_lengths, q, k, v, o, lse);
    c->o = host_alloc(query_elements(p), dtype_bytes(p->dtype));
    c->lse = host_alloc(row_count(p), sizeof *c->lse);
    for (size_t i = 0; i < query_elements(p); i++)
        dtype_store(p->dtype, c->o, i, o[i]);
    for (size_t i = 0; i < row_count(p); i++)
        c->lse[i] = (float)lse[i];
    for (int which = 0; which < GRADIENT_COUNT; which++)
        c->want[which] = host_alloc(gradient_elements(p, which), sizeof(double));
    oracle_backward(p, c->key_lengths, q, k, v, d_o, c->want[GRADIENT_Q], c->want[GRADIENT_K], c->want[GRADIENT_V]);
    /* |dS| <= |dO| |V| <= about D, and it meets K in dQ, Q in dK; of N(0,1) the largest is about 5 */
    c->size[GRADIENT_Q] = p->scale * p->head_dim * exp2(c->v_shift - c->qk_shift);
    c->size[GRADIENT_K] = p->scale * p->head_dim * exp2(c->v_shift + c->qk_shift);
    c->size[GRADIENT_V] = p->scale * p->head_dim;
    free(q), free(k), free(v), free(d_o), free(o), free(lse);
}

static int outputs(const Case *c, Buffer *o) {
    for (int which = 0; which < GRADIENT_COUNT; which++)
        o[which] =
            (Buffer){.purpose = gradient_name(which), .bytes = gradient_elements(&c->p, which) * dtype_bytes(c->p.dtype)};
    return GRADIENT_COUNT;
}

/* Whether the mask leaves this row of dQ, or this key, nothing at all. */
static int is_cut_off(const Case *c, Gradient which, int batch, int row) {
    int length = key_length(&c->p, c->key_lengths, batch);
    return which == GRADIENT_Q ? visible_keys(&c->p, length, row) == 0
                               : row >= visible_keys(&c->p, length, c->p.seqlen_q - 1);
}

/* The allowance is one number, except that cut-off rows are exactly 0. */
static Comparison compare(const Case *c, Gradient which, double allowed) {
    const Problem *p = &c->p;
    int rows = which == GRADIENT_Q ? p->seqlen_q : p->seqlen_k, heads = which == GRADIENT_Q ? p->heads : p->kv_heads;
    Comparison result = comparison_start(gradient_name(which));
    for (size_t first = 0; first < gradient_elements(p, which); first += p->head_dim) {
        double got[MAX_HEAD_DIM];
        size_t row = first / p->head_dim;
        int batch = (int)(row / rows / heads);
        for (int d = 0; d < p->head_dim; d++)
            got[d] = dtype_to_double(p->dtype, c->got[which], first + d);
        compare_row(&result, batch, (int)(row / rows % heads), (int)(row % rows), got, c->want[which] + first, p->head_dim,
                    is_cut_off(c, which, batch, (int)(row % rows)) ? 0 : allowed);
    }
    return result;
}

static int judge(Case *c, const Variant *variant, const Buffer *workspace, void (*about)(const Case *, const Variant *)) {
    const Problem *p = &c->p;
    (void)workspace;
    int good = 1;
    for (int which = 0; which < GRADIENT_COUNT; which++) {
        double u = dtype_epsilon(p->dtype), largest = 0, floor = 0x1p-20 * 25 * c->size[which] + dtype_step(p->dtype);
        for (size_t i = 0; i < gradient_elements(p, which); i++)
            largest = fmax(largest, fabs(c->want[which][i]));
        /* the naive gradients, which have nobody to be measured by: a few roundings of the largest element. P = 1 in single
         * keys leaves dO . O of a rounded O, hence the second term */
        double allowed = variant == reference() ? 4 * u * largest + 4 * u * c->size[which] + floor
                                                : 3 * c->naive_error[which] + u * largest + floor;
        Comparison comparison = compare(c, which, allowed);
        if (variant == reference())
            c->naive_error[which] = comparison.max_error;
        if (!comparison.ok && good)
            about(c, variant);
        if (!comparison.ok)
            comparison_print(stderr, &comparison);
        good = good && comparison.ok;
    }
    return good;
}

const GridKind grid_kind = {
    .inputs = INPUTS,
    .input_count = sizeof INPUTS / sizeof *INPUTS,
    .peak = 4,
    .solve = solve,
    .outputs = outputs,
    .judge = judge,
};
