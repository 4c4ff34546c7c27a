/* gradient.c - see gradient.h. */
#include "gradient.h"

#include "../host/memory.h"
#include "../host/parallel.h"
#include "rows.h"

#include <stdlib.h>
#include <string.h>

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
GradientScale gradient_scale(const Problem *p, const HostTensors *inputs, const float *lse) {
    double max_q = largest_magnitude(p->dtype, inputs->q, query_elements(p)),
           max_k = largest_magnitude(p->dtype, inputs->k, key_elements(p)),
           max_v = largest_magnitude(p->dtype, inputs->v, key_elements(p)),
           max_d_o = largest_magnitude(p->dtype, inputs->d_o, query_elements(p));
    double ds = 0x1p-20 * sqrt(p->head_dim) * max_d_o * max_v, step = dtype_step(p->dtype);
    double rows = (double)p->seqlen_q * (p->heads / p->kv_heads); /* that a key's gradients are summed over */
    double p_step = fmax(step, 0x1p-126), ds_step = fmax(step, 0x1p-126 * p->head_dim * max_d_o * max_v);
    double relative = 6 * dtype_epsilon(p->dtype) + 0x1p-21, scores = pow(score_size(p, inputs->q, inputs->k), 2), score = 0;
    for (size_t row = 0; row < row_count(p); row++)
        score = worse(lse[row] == -INFINITY ? 0 : least_score(lse[row], p->seqlen_k), score);
    scores += p->head_dim * score * score;
    GradientScale scale = {.condition = {1, 1, 1}};
    scale.relative[GRADIENT_Q] = relative + sum_error(p->seqlen_k + scores);
    scale.relative[GRADIENT_K] = scale.relative[GRADIENT_V] = relative + sum_error(rows + scores);
    scale.steps[GRADIENT_Q] = p->scale * max_k * sqrt(p->seqlen_k) * ds_step + step;
    scale.steps[GRADIENT_K] = p->scale * max_q * sqrt(rows) * ds_step + step;
    scale.steps[GRADIENT_V] = max_d_o * sqrt(rows) * p_step + step;
    scale.floor[GRADIENT_Q] = p->scale * max_k * ds + scale.steps[GRADIENT_Q];
    scale.floor[GRADIENT_K] = p->scale * max_q * ds + scale.steps[GRADIENT_K];
    scale.floor[GRADIENT_V] = scale.steps[GRADIENT_V];
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

static void add_squares(double *squares, double factor, const double *a, int n) {
    for (int i = 0; i < n; i++)
        squares[i] += factor * a[i] * factor * a[i];
}

/* What query row `row` and key `key` (counted through all of them) give each other: sample number `query` of dQ gets
 * scale dS_ij k_j, sample number `sampled_key` of dK and dV gets scale dS_ij q_i and P_ij dO_i; -1: not wanted. The
 * equations are in oracle.c. */
static void add_pair(const GradientWork *w, size_t row, size_t key, int query, int sampled_key) {
    const Problem *p = w->samples->p;
    double q[MAX_HEAD_DIM], k[MAX_HEAD_DIM], v[MAX_HEAD_DIM], o[MAX_HEAD_DIM], d_o[MAX_HEAD_DIM];
    int d = p->head_dim;
    read_row(p, w->inputs->q, row, q);
    read_row(p, w->inputs->k, key, k);
    read_row(p, w->inputs->v, key, v);
    read_row(p, w->inputs->d_o, row, d_o);
    read_row(p, w->o, row, o);
    double p_ij = exp(p->scale * dot(q, k, d) - w->lse[row]), dp = dot(d_o, v, d), delta = dot(d_o, o, d);
    double random_signs = dot(d_o, d_o, d) * (dot(v, v, d) + dot(o, o, d));
    double ds_ij = p->scale * p_ij * (dp - delta),
           ds_error = p->scale * p_ij * sum_error(random_signs + d * (dp * dp + delta * delta));
    const double factors[] = {ds_ij, ds_ij, p_ij}, errors[] = {ds_error, ds_error, 0}, *operands[] = {k, q, d_o};
    for (int which = 0; which < GRADIENT_COUNT; which++) {
        int sample = which == GRADIENT_Q ? query : sampled_key;
        if (sample < 0)
            continue;
        for (int i = 0; i < d; i++)
            w->samples->gradients[which][sample * d + i] += factors[which] * operands[which][i];
        add_squares(w->samples->squares[which] + sample * d, factors[which], operands[which], d);
        add_squares(w->samples->noise[which] + sample * d, errors[which], operands[which], d);
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

/* The root of what a sampled row has in `squares`. Of its terms: about what the sum would be if nothing cancelled. */
static double root_of(const GradientSamples *s, double *const *squares, Gradient which, int sample) {
    return sqrt(largest_of(squares[which] + (size_t)sample * s->p->head_dim, s->p->head_dim));
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
        s.noise[which] = host_alloc(count, sizeof(double));
    }
    parallel_for((size_t)s.query_count + s.key_count, compute_samples, &(GradientWork){&s, key_lengths, inputs, o, lse});

    for (int which = 0; which < GRADIENT_COUNT; which++)
        for (int i = 0; i < count_of(&s, (Gradient)which); i++) {
            double largest = largest_of(s.gradients[which] + (size_t)i * p->head_dim, p->head_dim);
            if (largest > scale->floor[which]) /* what is left is not itself rounding */
                scale->condition[which] =
                    worse(root_of(&s, s.squares, (Gradient)which, i) / largest, scale->condition[which]);
        }
    return s;
}

Comparison gradient_samples_compare(const GradientSamples *s, Gradient which, const void *got, const void *want,
                                    const GradientScale *scale) {
    const Problem *p = s->p;
    Comparison c = comparison_start(gradient_name(which));
    for (int i = 0; i < count_of(s, which); i++) {
        RowIndex at = which == GRADIENT_Q ? s->queries[i] : s->keys[i];
        size_t offset =
            which == GRADIENT_Q ? query_head_offset(p, at.batch, at.head) : key_head_offset(p, at.batch, at.head);
        size_t row = offset / p->head_dim + at.row;
        double got_row[MAX_HEAD_DIM], want_row[MAX_HEAD_DIM];
        read_row(p, got, row, got_row);
        memcpy(want_row, s->gradients[which] + (size_t)i * p->head_dim, sizeof(double) * p->head_dim);
        double size = worse(root_of(s, s->squares, which, i), largest_of(want_row, p->head_dim));
        if (want)
            read_row(p, want, row, want_row);
        compare_row(&c, at.batch, at.head, at.row, got_row, want_row, p->head_dim,
                    scale->relative[which] * size + root_of(s, s->noise, which, i) + scale->steps[which]);
    }
    c.empty = comparison_is_empty(&c, scale->floor[which]);
    return c;
}

void free_gradient_samples(GradientSamples *s) {
    for (int which = 0; which < GRADIENT_COUNT; which++) {
        free(s->gradients[which]);
        free(s->squares[which]);
        free(s->noise[which]);
    }
}
