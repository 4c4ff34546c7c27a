/* grid_backward.c - what is right of a backward stage: dQ, dK and dV, by the fp64 oracle (which oracle.c holds against
 * differences of the forward pass).
 *
 * O and LSE of the forward pass are the oracle's, rounded. A gradient passes if its worst error is at most 3 times that of the
 * naive gradients in the same dtype, plus one rounding of the largest element, plus what fp32 sums leave where dS cancels;
 * and if it is exactly 0 where the mask leaves nothing.
 */
#include "../common/judge/rows.h"
#include "example.h"
#include "grid.h"

static const Inputs INPUTS[] = {NORMAL, PEAKED, K_MEAN, EQUAL, V_MEAN};

static float *floats(const Problem *p, const void *tensor, size_t count) {
    float *values = host_alloc(count, sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)dtype_to_double(p->dtype, tensor, i);
    return values;
}

static void solve(Case *c) {
    const Problem *p = &c->p;
    size_t queries = query_elements(p), keys = key_elements(p);
    Problem fp32 = *p; /* so that of O no rounding shows but the kernels' own */
    fp32.dtype = DTYPE_FP32;
    HostTensors in = {floats(p, c->host.q, queries), floats(p, c->host.k, keys), floats(p, c->host.v, keys),
                      floats(p, c->host.d_o, queries)};
    Samples exact = samples_compute(&fp32, c->key_lengths, &in, row_count(p));
    float *o = host_alloc(queries, sizeof *o);
    c->o = host_alloc(queries, dtype_bytes(p->dtype));
    c->lse = host_alloc(row_count(p), sizeof *c->lse);
    for (size_t i = 0; i < queries; i++)
        dtype_store(p->dtype, c->o, i, exact.o[i]);
    round_samples(&exact, o, c->lse);
    Gradients gradients = gradients_compute(&fp32, c->key_lengths, &in, o, c->lse, queries + keys);
    for (int which = 0; which < gradient_count(p); which++) {
        c->want[which] = gradients.of[which].values;
        gradients.of[which].values = NULL;
    }
    /* |dS| <= |dO| |V| <= about D, and it meets K in dQ, Q in dK; of N(0,1) the largest is about 5 */
    c->size[GRADIENT_Q] = p->scale * p->head_dim * exp2(c->v_shift - c->qk_shift);
    c->size[GRADIENT_K] = p->scale * p->head_dim * exp2(c->v_shift + c->qk_shift);
    c->size[GRADIENT_V] = p->scale * p->head_dim;
    /* a row's delta is a sum of D products of random signs, and a head's is one of its rows */
    c->size[GRADIENT_SINKS] = sqrt((double)p->head_dim * p->batch * p->seqlen_q) * exp2(c->v_shift);
    free_inputs(&in), free(o), free_samples(&exact), free_gradients(&gradients);
}

static int outputs(const Case *c, Buffer *o) {
    for (int which = 0; which < gradient_count(&c->p); which++) {
        size_t element = which == GRADIENT_SINKS ? sizeof(float) : dtype_bytes(c->p.dtype);
        o[which] = (Buffer){.purpose = gradient_name(which), .bytes = gradient_elements(&c->p, which) * element};
    }
    return gradient_count(&c->p);
}

/* Whether the mask leaves this row of dQ, or this key, nothing at all. */
static int is_cut_off(const Case *c, Gradient which, int batch, int row) {
    int length = key_length(&c->p, c->key_lengths, batch), is_query = which == GRADIENT_Q;
    if (which == GRADIENT_SINKS)
        return 0;
    if (c->p.score)
        for (int other = 0; other < (is_query ? length : c->p.seqlen_q); other++) {
            int query = is_query ? row : other, key = is_query ? other : row;
            if (oracle_sees(&c->p, c->key_lengths, batch, query, key) && oracle_keeps(&c->p, c->key_lengths, batch, query, key))
                return 0;
        }
    if (c->p.score)
        return 1;
    return which == GRADIENT_Q ? visible_keys(&c->p, length, row) == 0
                               : row >= visible_keys(&c->p, length, c->p.seqlen_q - 1);
}

/* The allowance is one number, except that cut-off rows are exactly 0. */
static Comparison compare(const Case *c, Gradient which, double allowed) {
    const Problem *p = &c->p;
    int is_query = which == GRADIENT_Q || which == GRADIENT_SINKS, is_sink = which == GRADIENT_SINKS;
    int rows = is_sink ? 1 : is_query ? p->seqlen_q : p->seqlen_k, heads = is_query ? p->heads : p->kv_heads;
    int columns = is_sink ? 1 : p->head_dim;
    Comparison result = comparison_start(gradient_name(which));
    for (size_t first = 0; first < gradient_elements(p, which); first += columns) {
        double got[MAX_HEAD_DIM];
        size_t row = first / columns;
        int batch = (int)(row / rows / heads);
        for (int d = 0; d < columns; d++)
            got[d] = dtype_to_double(is_sink ? DTYPE_FP32 : p->dtype, c->got[which], first + d);
        compare_row(&result, (RowIndex){batch, (int)(row / rows % heads), (int)(row % rows)}, got, c->want[which] + first,
                    columns, is_cut_off(c, which, batch, (int)(row % rows)) ? 0 : allowed);
    }
    return result;
}

static int judge(Case *c, const Variant *variant, const Buffer *workspace, void (*about)(const Case *, const Variant *)) {
    const Problem *p = &c->p;
    (void)workspace;
    int good = 1;
    for (int which = 0; which < gradient_count(p); which++) {
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
