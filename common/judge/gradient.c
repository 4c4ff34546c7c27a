/* gradient.c - see gradient.h.
 *
 * Dao et al. 2022, appendix B.2. A loss changes through P_j by dP_j = dO_i . v_j. The softmax's Jacobian is
 * dP_a/dS_b = P_a (1[a = b] - P_b), hence
 *     dS_b = sum_a dP_a P_a (1[a = b] - P_b) = P_b (dP_b - delta_i),   delta_i = sum_a P_a dP_a
 * and because sum_a P_a (dO_i . v_a) = dO_i . sum_a P_a v_a, that last sum needs no P at all: delta_i = dO_i . O_i.
 * S is bilinear in Q and K, and O is linear in P and V, which gives the rest:
 *     dq_i = scale sum_j dS_ij k_j      dk_j = scale sum_i dS_ij q_i      dv_j = sum_i P_ij dO_i
 * the last two summed over all query heads that share the key head.
 */
#include "gradient.h"

#include "../host/parallel.h"
#include "rows.h"

#include <stdlib.h>
#include <string.h>

const char *gradient_name(Gradient which) { return (const char *[]){"dQ", "dK", "dV"}[which]; }

/* A problem whose queries are the rows of this gradient. */
static Problem rows_of(const Problem *p, Gradient which) { return which == GRADIENT_Q ? *p : keys_as_queries(p); }

/* ---- what may differ ---- */

static double largest_magnitude(Dtype dtype, const void *tensor, size_t count) {
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = worse(fabs(dtype_to_double(dtype, tensor, i)), largest);
    return largest;
}

/* As in output_allowance: P is rounded to the dtype, dS is, and the gradient once more, each by at most u and in both of the
 * two compared; the scores' errors and those of the sum of n terms are sum_error(n + s^2 + D S^2). Together a share of the
 * largest element of the row. Beyond that:
 *
 * condition   the rounding errors of a sum's terms go with the terms, not with what is left of the sum. The dS of a row add
 *             up to 0, so what all keys have in common drops out of dQ = scale sum_j dS_ij k_j, but not out of the errors. The
 *             samples measure it: sqrt(sum of squares of the terms) over the largest element of the row, in rows whose largest element
 *             is more than the floor; the largest of these holds for all rows. A sampled row itself takes its own.
 * steps       what is smaller than the dtype's smallest step vanishes, at random in each of the n terms of the sum: sqrt(n)
 *             steps of the other operand. 2^x is 0 below 2^-126, and with this P goes its dS, however large dP is. And one step for
 *             the gradient itself, as in output_allowance.
 * floor       dS = P (dP - delta) cancels where one key has nearly all of P. dP and delta are fp32 sums of D products: they
 *             leave 2^-20 sqrt(D) max|dO| max|V|, which then meets K or Q. Most rows have many keys, and much less of that: a
 *             sampled row takes its own, from its P, and the sums as large as they are. */
void gradient_bounds(const Problem *p, const HostTensors *inputs, const float *lse, GradientSamples of[GRADIENT_COUNT]) {
    double max_q = largest_magnitude(p->dtype, inputs->q, query_elements(p)),
           max_k = largest_magnitude(p->dtype, inputs->k, key_elements(p)),
           max_v = largest_magnitude(p->dtype, inputs->v, key_elements(p)),
           max_d_o = largest_magnitude(p->dtype, inputs->d_o, query_elements(p));
    double ds = 0x1p-20 * sqrt(p->head_dim) * max_d_o * max_v, step = dtype_step(p->dtype);
    double p_step = fmax(step, 0x1p-126), ds_step = fmax(step, 0x1p-126 * p->head_dim * max_d_o * max_v);
    double scores = pow(score_size(p, inputs->q, inputs->k), 2), score = 0;
    for (size_t row = 0; row < row_count(p); row++)
        score = worse(lse[row] == -INFINITY ? 0 : least_score(lse[row], p->seqlen_k), score);
    scores += p->head_dim * score * score;

    /* of dQ, dK, dV: the terms of the sum; the other operand, its factor's smallest step, and the error of that factor */
    const double rows = (double)p->seqlen_q * (p->heads / p->kv_heads), terms[] = {p->seqlen_k, rows, rows};
    const double operand[] = {p->scale * max_k, p->scale * max_q, max_d_o}, steps[] = {ds_step, ds_step, p_step};
    const double errors[] = {ds, ds, 0};
    for (int i = 0; i < GRADIENT_COUNT; i++) {
        of[i].relative = 6 * dtype_epsilon(p->dtype) + 0x1p-21 + sum_error(terms[i] + scores);
        of[i].condition = 1;
        of[i].steps = operand[i] * sqrt(terms[i]) * steps[i] + step;
        of[i].floor = operand[i] * errors[i] + of[i].steps;
    }
}

/* ---- samples ---- */

typedef struct {
    Gradients *exact;
    const int *key_lengths;
    const HostTensors *inputs;
    const void *o;
    const float *lse;
} GradientWork;

/* What a query brings into each of its pairs with a key; and a key. */
typedef struct {
    double q[MAX_HEAD_DIM], d_o[MAX_HEAD_DIM], lse, delta, square_d_o, square_o;
} Query;
typedef struct {
    double k[MAX_HEAD_DIM], v[MAX_HEAD_DIM], square_v;
} Key;

static void read_query(const GradientWork *w, size_t row, Query *query) {
    const Problem *p = w->exact->p;
    double o[MAX_HEAD_DIM];
    int d = p->head_dim;
    read_row(p, w->inputs->q, row, query->q);
    read_row(p, w->inputs->d_o, row, query->d_o);
    read_row(p, w->o, row, o);
    query->lse = w->lse[row];
    query->delta = dot(query->d_o, o, d);
    query->square_d_o = dot(query->d_o, query->d_o, d);
    query->square_o = dot(o, o, d);
}

static void read_key(const GradientWork *w, size_t row, Key *key) {
    const Problem *p = w->exact->p;
    read_row(p, w->inputs->k, row, key->k);
    read_row(p, w->inputs->v, row, key->v);
    key->square_v = dot(key->v, key->v, p->head_dim);
}

/* What query and key give each other: a sample of dQ gets scale dS_ij k_j, those of dK and dV get scale dS_ij q_i and P_ij dO_i. */
static void add_pair(const GradientWork *w, const Query *i, const Key *j, Gradient first, Gradient last, size_t sample) {
    const Problem *p = w->exact->p;
    int d = p->head_dim;
    double p_ij = exp(p->scale * dot(i->q, j->k, d) - i->lse), dp = dot(i->d_o, j->v, d);
    double random_signs = i->square_d_o * (j->square_v + i->square_o);
    double ds_ij = p->scale * p_ij * (dp - i->delta),
           ds_error = p->scale * p_ij * sum_error(random_signs + d * (dp * dp + i->delta * i->delta));
    const double factors[] = {ds_ij, ds_ij, p_ij}, errors[] = {ds_error, ds_error, 0}, *operands[] = {j->k, i->q, i->d_o};
    for (Gradient which = first; which <= last; which++) {
        const GradientSamples *s = &w->exact->of[which];
        double factor = factors[which], error = errors[which];
        for (int c = 0; c < d; c++) {
            double x = operands[which][c];
            s->values[sample * d + c] += factor * x;
            s->squares[sample * d + c] += factor * x * factor * x;
            s->noise[sample * d + c] += error * x * error * x;
        }
    }
}

static void sample_query(const GradientWork *w, size_t sample) {
    const Problem *p = w->exact->p;
    size_t row = sampled_row(p, sample, w->exact->of[GRADIENT_Q].count);
    OracleView view = oracle_view(p, w->key_lengths, row_index(p, row));
    Query query;
    Key key;
    read_query(w, row, &query);
    for (int j = 0; j < view.visible; j++) {
        read_key(w, view.first_key + j, &key);
        add_pair(w, &query, &key, GRADIENT_Q, GRADIENT_Q, sample);
    }
}

static void sample_key(const GradientWork *w, size_t sample) {
    const Problem *p = w->exact->p, keys = keys_as_queries(p);
    size_t row = sampled_row(&keys, sample, w->exact->of[GRADIENT_K].count);
    RowIndex at = row_index(&keys, row);
    int group = p->heads / p->kv_heads;
    Query query;
    Key key;
    read_key(w, row, &key);
    for (int head = at.head * group; head < (at.head + 1) * group; head++)
        for (int i = 0; i < p->seqlen_q; i++)
            if (oracle_sees(p, w->key_lengths, at.batch, i, at.row)) {
                read_query(w, flat_row(p, (RowIndex){at.batch, head, i}), &query);
                add_pair(w, &query, &key, GRADIENT_K, GRADIENT_V, sample);
            }
}

static void compute_samples(size_t begin, size_t end, void *context) {
    const GradientWork *w = context;
    size_t queries = w->exact->of[GRADIENT_Q].count;
    for (size_t i = begin; i < end; i++)
        if (i < queries)
            sample_query(w, i);
        else
            sample_key(w, i - queries);
}

/* The root of the largest of a row of squares. Of its terms': about what the sum would be if nothing cancelled. */
static double root_of(const double *squares, size_t sample, int columns) {
    return sqrt(largest_of(squares + sample * columns, columns));
}

Gradients gradients_compute(const Problem *p, const int *key_lengths, const HostTensors *inputs, const void *o,
                            const float *lse, size_t limit) {
    Gradients exact = {.p = p};
    int d = p->head_dim;
    gradient_bounds(p, inputs, lse, exact.of);
    for (Gradient which = 0; which < GRADIENT_COUNT; which++) {
        Problem rows = rows_of(p, which);
        GradientSamples *s = &exact.of[which];
        s->count = row_count(&rows) < limit ? row_count(&rows) : limit;
        s->values = host_alloc(3 * s->count * d, sizeof(double));
        s->squares = s->values + s->count * d;
        s->noise = s->squares + s->count * d;
    }
    parallel_for(exact.of[GRADIENT_Q].count + exact.of[GRADIENT_K].count, compute_samples,
                 &(GradientWork){&exact, key_lengths, inputs, o, lse});

    for (GradientSamples *s = exact.of; s < exact.of + GRADIENT_COUNT; s++)
        for (size_t i = 0; i < s->count; i++) {
            double largest = largest_of(s->values + i * d, d);
            if (largest > s->floor) /* what is left is not itself rounding */
                s->condition = worse(root_of(s->squares, i, d) / largest, s->condition);
        }
    return exact;
}

void free_gradients(Gradients *exact) {
    for (GradientSamples *s = exact->of; s < exact->of + GRADIENT_COUNT; s++)
        free(s->values); /* and what lies behind them */
}

/* ---- comparing ---- */

typedef struct {
    Problem rows;
    const GradientSamples *exact;
    const void *got, *want; /* want NULL: the samples */
    int sampled;            /* 1: the samples' rows; 0: all */
} GradientPair;

static void compare_gradient_row(const void *context, size_t i, Comparison *part) {
    const GradientPair *x = context;
    const GradientSamples *s = x->exact;
    int d = x->rows.head_dim;
    double got[MAX_HEAD_DIM], want[MAX_HEAD_DIM], allowed = 0;
    size_t row = x->sampled ? sampled_row(&x->rows, i, s->count) : i;
    if (x->sampled) {
        memcpy(want, s->values + i * d, d * sizeof *want);
        allowed = s->relative * worse(root_of(s->squares, i, d), largest_of(want, d)) + root_of(s->noise, i, d) + s->steps;
    }
    if (x->want)
        read_row(&x->rows, x->want, row, want);
    if (!x->sampled)
        allowed = s->relative * s->condition * largest_of(want, d) + s->floor;
    read_row(&x->rows, x->got, row, got);
    compare_row(part, row_index(&x->rows, row), got, want, d, allowed);
}

static Comparison compare_pair(const GradientPair *x, Gradient which) {
    return compare_rows(gradient_name(which), x->exact->floor, x->sampled ? x->exact->count : row_count(&x->rows),
                        compare_gradient_row, x);
}

Comparison compare_gradient(const Gradients *exact, Gradient which, const void *got, const void *want) {
    GradientPair pair = {rows_of(exact->p, which), &exact->of[which], got, want, .sampled = 1};
    Comparison sampled = compare_pair(&pair, which);
    if (!want)
        return sampled;
    pair.sampled = 0;
    Comparison all = compare_pair(&pair, which);
    if (all.ok) /* sampled rows have narrower bounds of their own */
        comparison_merge(&all, &sampled);
    return all;
}

Comparison compare_runs(const Problem *p, Gradient which, const void *got, const void *want) {
    const GradientSamples nothing = {.relative = 0};
    return compare_pair(&(GradientPair){rows_of(p, which), &nothing, got, want, .sampled = 0}, which);
}
