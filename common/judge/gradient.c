/* gradient.c - see gradient.h. */
#include "gradient.h"

#include "../host/allocation.h"
#include "../host/parallel.h"
#include "rows.h"

#include <stdlib.h>

const char *gradient_name(Gradient which) { return which == GRADIENT_Q ? "dQ" : which == GRADIENT_K ? "dK" : "dV"; }

size_t gradient_elements(const Problem *p, Gradient which) {
    return which == GRADIENT_Q ? query_elements(p) : key_elements(p);
}

/* A problem whose rows are p's keys. */
static Problem keys_as_rows(const Problem *p) {
    Problem keys = *p;
    keys.heads = p->kv_heads, keys.seqlen_q = p->seqlen_k;
    return keys;
}

/* ---- what may differ ---- */

static double largest_magnitude(Dtype dtype, const void *tensor, size_t count) {
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = worse(fabs(dtype_to_double(dtype, tensor, i)), largest);
    return largest;
}

/* As in output_allowance: P is rounded to the dtype, dS is, and the gradient once more, each by at most u and in both of the
 * two compared; and S, summed in fp32, has an error that goes with the size of what is summed. Together 6u + 2^-20 +
 * score_error of the largest element of the row, and sum_error of the n terms of its sum. Beyond that:
 *
 * condition   the rounding errors of a sum's terms go with the terms, not with what is left of the sum. The dS of a row add
 *             up to 0, so what all keys have in common drops out of dQ = scale sum_j dS_ij k_j, but not out of the errors. The
 *             samples measure it: sqrt(sum of squares of the terms) over the largest element of the row, in rows whose largest element
 *             is more than the floor; the largest of these holds for all rows. A sampled row itself takes its own.
 * floor       dS = P (dP - delta) cancels where one key has nearly all of P. dP and delta are fp32 sums of D products: they
 *             leave 2^-20 sqrt(D) max|dO| max|V|, which then meets K or Q. And what is smaller than the dtype's smallest step
 *             vanishes, at random in each of the n terms of the sum: sqrt(n) steps of the other operand. And one step for the
 *             gradient itself, as in output_allowance. */
GradientScale gradient_scale(const Problem *p, const void *q, const void *k, const void *v, const void *d_o) {
    double max_q = largest_magnitude(p->dtype, q, query_elements(p)),
           max_k = largest_magnitude(p->dtype, k, key_elements(p));
    double max_v = largest_magnitude(p->dtype, v, key_elements(p));
    double max_d_o = largest_magnitude(p->dtype, d_o, query_elements(p));
    double ds = 0x1p-20 * sqrt(p->head_dim) * max_d_o * max_v;
    double step = dtype_step(p->dtype);
    double rows = (double)p->seqlen_q * (p->heads / p->kv_heads); /* that a key's gradients are summed over */
    double row_step = step * sqrt(p->seqlen_k), column_step = step * sqrt(rows);
    double relative = 6 * dtype_epsilon(p->dtype) + 0x1p-20 + score_error(p->head_dim, score_size(p, q, k));
    GradientScale scale = {.condition = {1, 1, 1}};
    scale.relative[GRADIENT_Q] = relative + sum_error(p->seqlen_k);
    scale.relative[GRADIENT_K] = scale.relative[GRADIENT_V] = relative + sum_error(rows);
    scale.floor[GRADIENT_Q] = p->scale * max_k * (ds + row_step) + step;
    scale.floor[GRADIENT_K] = p->scale * max_q * (ds + column_step) + step;
    scale.floor[GRADIENT_V] = max_d_o * column_step + step;
    return scale;
}

/* ---- whole tensors ---- */

typedef struct {
    const Problem *p;
    Gradient which;
    const void *got, *want;
    const GradientScale *scale;
} GradientPair;

/* Row `row` of a matrix of head_dim columns, as doubles. */
static void read_row(const Problem *p, const void *matrix, size_t row, double *to) {
    read_doubles(p->dtype, matrix, row * p->head_dim, (size_t)p->head_dim, to);
}

static void compare_gradient_rows(const void *context, size_t begin, size_t end, Comparison *part) {
    const GradientPair *x = context;
    const Problem *p = x->p, keys = keys_as_rows(p);
    double got[MAX_HEAD_DIM], want[MAX_HEAD_DIM], relative = x->scale->relative[x->which] * x->scale->condition[x->which];
    for (size_t row = begin; row < end; row++) {
        RowIndex at = row_index(x->which == GRADIENT_Q ? p : &keys, row);
        read_row(p, x->got, row, got);
        read_row(p, x->want, row, want);
        compare_row(part, at.batch, at.head, at.row, got, want, p->head_dim,
                    relative * largest_of(want, p->head_dim) + x->scale->floor[x->which]);
    }
}

Comparison compare_gradient(const Problem *p, Gradient which, const void *got, const void *want,
                            const GradientScale *scale) {
    GradientPair pair = {p, which, got, want, scale};
    return compare_rows(gradient_name(which), scale->floor[which], gradient_elements(p, which) / p->head_dim,
                        compare_gradient_rows, &pair);
}

double largest_difference(Dtype dtype, const void *a, const void *b, size_t count) {
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = worse(fabs(dtype_to_double(dtype, a, i) - dtype_to_double(dtype, b, i)), largest);
    return largest;
}

/* ---- samples ---- */

typedef struct {
    GradientSamples *samples;
    const int *key_lengths;
    const HostTensors *inputs;
    const void *o;
    const float *lse;
} GradientWork;

/* sum += factor a, and the squares of those terms likewise. */
static void add_scaled(double *sum, double *squares, double factor, const double *a, int n) {
    for (int i = 0; i < n; i++) {
        sum[i] += factor * a[i];
        squares[i] += factor * a[i] * factor * a[i];
    }
}

/* What query row `row` and key `key` (counted through all of them) give each other: sample number `query` of dQ gets
 * scale dS_ij k_j, sample number `sampled_key` of dK and dV gets scale dS_ij q_i and P_ij dO_i; -1: not wanted. The
 * equations are in oracle.c. */
static void add_pair(const GradientWork *w, size_t row, size_t key, int query, int sampled_key) {
    const Problem *p = w->samples->p;
    double *const *gradients = w->samples->gradients, *const *squares = w->samples->squares;
    double q[MAX_HEAD_DIM], k[MAX_HEAD_DIM], v[MAX_HEAD_DIM], o[MAX_HEAD_DIM], d_o[MAX_HEAD_DIM];
    int d = p->head_dim;
    read_row(p, w->inputs->q, row, q);
    read_row(p, w->inputs->k, key, k);
    read_row(p, w->inputs->v, key, v);
    read_row(p, w->inputs->d_o, row, d_o);
    read_row(p, w->o, row, o);
    double p_ij = exp(p->scale * dot(q, k, d) - w->lse[row]);
    double ds_ij = p_ij * (dot(d_o, v, d) - dot(d_o, o, d));
    if (query >= 0)
        add_scaled(gradients[GRADIENT_Q] + query * d, squares[GRADIENT_Q] + query * d, p->scale * ds_ij, k, d);
    if (sampled_key >= 0) {
        add_scaled(gradients[GRADIENT_K] + sampled_key * d, squares[GRADIENT_K] + sampled_key * d, p->scale * ds_ij, q, d);
        add_scaled(gradients[GRADIENT_V] + sampled_key * d, squares[GRADIENT_V] + sampled_key * d, p_ij, d_o, d);
    }
}

static void sample_query(const GradientWork *w, int sample) {
    const Problem *p = w->samples->p;
    RowIndex i = w->samples->queries[sample];
    size_t row = query_head_offset(p, i.batch, i.head) / p->head_dim + i.row;
    size_t first_key = key_head_offset(p, i.batch, kv_head_of(p, i.head)) / p->head_dim;
    int visible = visible_keys(p, key_length(p, w->key_lengths, i.batch), i.row);
    for (int j = 0; j < visible; j++)
        add_pair(w, row, first_key + j, sample, -1);
}

static void sample_key(const GradientWork *w, int sample) {
    const Problem *p = w->samples->p;
    RowIndex j = w->samples->keys[sample];
    int group = p->heads / p->kv_heads, length = key_length(p, w->key_lengths, j.batch);
    size_t key = key_head_offset(p, j.batch, j.head) / p->head_dim + j.row;
    for (int head = j.head * group; head < (j.head + 1) * group; head++)
        for (int i = 0; i < p->seqlen_q; i++)
            if (j.row < visible_keys(p, length, i))
                add_pair(w, query_head_offset(p, j.batch, head) / p->head_dim + i, key, -1, sample);
}

static void compute_samples(size_t begin, size_t end, void *context) {
    const GradientWork *w = context;
    for (size_t i = begin; i < end; i++) {
        if (i < (size_t)w->samples->query_count)
            sample_query(w, (int)i);
        else
            sample_key(w, (int)i - w->samples->query_count);
    }
}

static int count_of(const GradientSamples *s, Gradient which) { return which == GRADIENT_Q ? s->query_count : s->key_count; }

/* sqrt(sum of squares of the terms) of a sampled row: about what the sum would be if nothing cancelled. */
static double term_size(const GradientSamples *s, Gradient which, int sample) {
    return sqrt(largest_of(s->squares[which] + (size_t)sample * s->p->head_dim, s->p->head_dim));
}

static int sample_count(size_t rows) { return rows < MAX_SAMPLES ? (int)rows : MAX_SAMPLES; }

GradientSamples gradient_samples_compute(const Problem *p, const int *key_lengths, const HostTensors *inputs, const void *o,
                                         const float *lse, GradientScale *scale) {
    Problem keys = keys_as_rows(p);
    GradientSamples s = {.p = p, .query_count = sample_count(row_count(p)), .key_count = sample_count(row_count(&keys))};
    for (int i = 0; i < s.query_count; i++)
        s.queries[i] = sampled_row(p, i, s.query_count);
    for (int i = 0; i < s.key_count; i++)
        s.keys[i] = sampled_row(&keys, i, s.key_count);
    for (int which = 0; which < GRADIENT_COUNT; which++) {
        size_t count = (size_t)count_of(&s, (Gradient)which) * p->head_dim;
        s.gradients[which] = host_alloc(count, sizeof(double));
        s.squares[which] = host_alloc(count, sizeof(double));
    }
    parallel_for((size_t)s.query_count + s.key_count, compute_samples, &(GradientWork){&s, key_lengths, inputs, o, lse});

    for (int which = 0; which < GRADIENT_COUNT; which++)
        for (int i = 0; i < count_of(&s, (Gradient)which); i++) {
            double largest = largest_of(s.gradients[which] + (size_t)i * p->head_dim, p->head_dim);
            if (largest > scale->floor[which]) /* what is left is not itself rounding */
                scale->condition[which] = worse(term_size(&s, (Gradient)which, i) / largest, scale->condition[which]);
        }
    return s;
}

Comparison gradient_samples_compare(const GradientSamples *s, Gradient which, const void *got, const GradientScale *scale) {
    const Problem *p = s->p;
    Comparison c = comparison_start(gradient_name(which));
    for (int i = 0; i < count_of(s, which); i++) {
        RowIndex at = which == GRADIENT_Q ? s->queries[i] : s->keys[i];
        size_t offset =
            which == GRADIENT_Q ? query_head_offset(p, at.batch, at.head) : key_head_offset(p, at.batch, at.head);
        const double *want = s->gradients[which] + (size_t)i * p->head_dim;
        double row[MAX_HEAD_DIM], size = worse(term_size(s, which, i), largest_of(want, p->head_dim));
        read_row(p, got, offset / p->head_dim + at.row, row);
        compare_row(&c, at.batch, at.head, at.row, row, want, p->head_dim,
                    scale->relative[which] * size + scale->floor[which]);
    }
    c.empty = comparison_is_empty(&c, scale->floor[which]);
    return c;
}

void free_gradient_samples(GradientSamples *s) {
    for (int which = 0; which < GRADIENT_COUNT; which++) {
        free(s->gradients[which]);
        free(s->squares[which]);
    }
}
