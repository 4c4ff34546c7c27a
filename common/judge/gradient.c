/* gradient.c - see gradient.h.
 *
 * Dao et al. 2022, appendix B.2. A loss changes through P_j by dP_j = dO_i . v_j. The softmax's Jacobian is
 * dP_a/dS_b = P_a (1[a = b] - P_b), hence
 *     dS_b = sum_a dP_a P_a (1[a = b] - P_b) = P_b (dP_b - delta_i),   delta_i = sum_a P_a dP_a
 * and because sum_a P_a (dO_i . v_a) = dO_i . sum_a P_a v_a, that last sum needs no P at all: delta_i = dO_i . O_i.
 * S is bilinear in Q and K, and O is linear in P and V, which gives the rest:
 *     dq_i = scale sum_j dS_ij k_j      dk_j = scale sum_i dS_ij q_i      dv_j = sum_i P_ij dO_i
 * the last two summed over all query heads that share the key head.
 *
 * Where S' = f(S) takes the place of S in the softmax, that is dS'_ij, and dS_ij = f'(S_ij) dS'_ij. A head's sink is a score of all its
 * rows without a value, hence dP = 0:  dsink = sum_i P_i,sink (0 - delta_i), over the rows of the head in all batch entries.
 */
#include "gradient.h"

#include "../host/parallel.h"
#include "rows.h"

#include <stdlib.h>
#include <string.h>

const char *gradient_name(Gradient which) { return (const char *[]){"dQ", "dK", "dV", "dsinks"}[which]; }

/* A problem whose queries are the rows of this gradient. */
static Problem rows_of(const Problem *p, Gradient which) {
    Problem rows = which == GRADIENT_K || which == GRADIENT_V ? keys_as_queries(p) : *p;
    if (which == GRADIENT_SINKS)
        rows.batch = rows.seqlen_q = rows.head_dim = 1, rows.dtype = DTYPE_FP32;
    return rows;
}

/* The smallest step of its format. */
static double step_of(const Problem *p, Gradient which) { return dtype_step(which == GRADIENT_SINKS ? DTYPE_FP32 : p->dtype); }

/* ---- what may differ ---- */

static double largest_magnitude(Dtype dtype, const void *tensor, size_t count) {
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = worse(fabs(dtype_to_double(dtype, tensor, i)), largest);
    return largest;
}

/* The largest length of a column of a matrix of `rows` rows, of all matrices of `tensor`. */
static double largest_column(Dtype dtype, const void *tensor, size_t count, size_t rows, int columns) {
    double squares[MAX_HEAD_DIM] = {0}, largest = 0;
    for (size_t i = 0; i < count; i++) {
        double x = dtype_to_double(dtype, tensor, i), *square = &squares[i % columns];
        *square = (i / columns % rows ? *square : 0) + x * x;
        largest = worse(*square, largest);
    }
    return sqrt(largest);
}

/* How far two sums of so many factors times another operand may be apart if each factor is off by half a step: so many steps of
 * the length of the other operand. Rounding to a step has the root mean square step / sqrt(12), two such errors meet, and seven
 * standard deviations are allowed (sum_error): 7 sqrt(2 / 12) = 2.9. Of few terms all errors together are less: a step each, and
 * the sum of |x| is at most sqrt(terms) lengths. */
static double steps_of(double terms) { return fmin(3, sqrt(terms)); }

/* The smallest normal number. Below it a factor is off by half a step, and no longer by a share of itself. */
static double smallest_normal(Dtype dtype) { return dtype_step(dtype) / (2 * dtype_epsilon(dtype)); }

/* The step that P is off by. 2^x of the fast kernels is 0 below 2^-126, where the other two dtypes have their smallest normal
 * number. */
static double probability_step(Dtype dtype) { return fmax(dtype_step(dtype), 0x1p-126); }

/* As in output_allowance: P is rounded to the dtype, dS is, and the gradient once more, each by at most u and in both of the
 * two compared; the scores' errors and those of the sum of n terms are sum_error(n + s^2 + D S^2). Together a share of the
 * largest element of the row. Beyond that:
 *
 * condition   the rounding errors of a sum's terms go with the terms, not with what is left of the sum. The dS of a row add
 *             up to 0, so what all keys have in common drops out of dQ = scale sum_j dS_ij k_j, but not out of the errors. The
 *             samples measure it: sqrt(sum of squares of the terms) over the largest element of the row, in rows whose largest element
 *             is more than the floor; the largest of these holds for all rows. A sampled row itself takes its own.
 * terms       where the columns of Q are alike those of dK are, too, and a row as a whole may happen to be near 0. Its terms are
 *             not: at least the median of what the sampled rows have holds for all.
 * steps       below the dtype's smallest normal number a factor, P or dS, is off by half a step and not by a share u of itself:
 *             steps_of(n) steps of the other operand's length. An error of P is one of its dS, too, |dP - delta| times as large:
 *             where P is 2^-20, in fp16, and dP is 20, that is more than dS itself may be off by. A sampled row knows which of
 *             its factors are so small, and counts only those: nothing where all are normal.
 * least       sum_steps, and one step of the dtype for the gradient itself, as in output_allowance.
 * alike       errors of equal rows are equal, and delta's are those of a whole row of dS: besides adding up at random, as squares,
 *             a sampled row's errors may add up with the signs of the other operand.
 * floor       dS = P (dP - delta) cancels where one key has nearly all of P. dP and delta are fp32 sums of D products: they
 *             leave 2^-20 sqrt(D) max|dO| max|V|, which then meets K or Q. Most rows have many keys, and much less of that: a
 *             sampled row takes its own, from its P, and the sums as large as they are. If that is more, as it can be where many P
 *             are below the smallest normal number, the largest of the samples holds for all rows.
 *
 * Nothing of a sink's gradient is rounded to the dtype, so that of all this the sums in fp32 remain, and the errors of delta. */
void gradient_bounds(const Problem *p, const HostTensors *inputs, const float *lse, GradientSamples of[GRADIENT_COUNT]) {
    const int d = p->head_dim;
    const size_t queries = query_elements(p), keys = key_elements(p), rows = (size_t)p->seqlen_q * (p->heads / p->kv_heads);
    double max_q = largest_magnitude(p->dtype, inputs->q, queries), max_k = largest_magnitude(p->dtype, inputs->k, keys),
           max_v = largest_magnitude(p->dtype, inputs->v, keys), max_d_o = largest_magnitude(p->dtype, inputs->d_o, queries);
    double ds = 0x1p-20 * sqrt(d) * max_d_o * max_v, step = dtype_step(p->dtype);
    double p_step = probability_step(p->dtype), ds_step = fmax(step, 0x1p-126 * d * max_d_o * max_v);
    double scores = pow(score_size(p, inputs->q, inputs->k), 2), score = 0;
    for (size_t row = 0; row < row_count(p); row++)
        score = worse(lse[row] == -INFINITY ? 0 : least_score(lse[row], p->seqlen_k), score);
    scores += d * score * score;

    /* of dQ, dK, dV, dsinks: the terms of the sum; the other operand, its largest element and the length of its columns; the step
     * of the factor, and its error */
    const double head_rows = (double)p->batch * p->seqlen_q, terms[] = {p->seqlen_k, rows, rows, head_rows};
    const double steps[] = {ds_step, ds_step, p_step, 0}, errors[] = {ds, ds, 0, sqrt(head_rows) * ds};
    const double operand[] = {p->scale * max_k, p->scale * max_q, max_d_o, 1};
    const double length[] = {p->scale * largest_column(p->dtype, inputs->k, keys, p->seqlen_k, d),
                             p->scale * largest_column(p->dtype, inputs->q, queries, rows, d),
                             largest_column(p->dtype, inputs->d_o, queries, rows, d), 0};
    for (int i = 0; i < GRADIENT_COUNT; i++) {
        of[i].relative = (i == GRADIENT_SINKS ? 0 : 6 * dtype_epsilon(p->dtype)) + 0x1p-21 + sum_error(terms[i] + scores);
        of[i].condition = 1;
        const double factor = i == GRADIENT_V || i == GRADIENT_SINKS ? 1 : fmax(p->scale, 1);
        of[i].least = step_of(p, (Gradient)i) + factor * sum_steps(terms[i]);
        of[i].floor = operand[i] * errors[i] + steps_of(terms[i]) * length[i] * steps[i] + of[i].least;
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
    RowIndex at;
    double q[MAX_HEAD_DIM], d_o[MAX_HEAD_DIM], lse, delta, square_d_o, square_o;
} Query;
typedef struct {
    int at; /* its number in its head */
    double k[MAX_HEAD_DIM], v[MAX_HEAD_DIM], square_v;
} Key;

static void read_query(const GradientWork *w, size_t row, Query *query) {
    const Problem *p = w->exact->p;
    double o[MAX_HEAD_DIM];
    int d = p->head_dim;
    read_row(p, w->inputs->q, row, query->q);
    read_row(p, w->inputs->d_o, row, query->d_o);
    read_row(p, w->o, row, o);
    query->at = row_index(p, row);
    query->lse = w->lse[row];
    query->delta = dot(query->d_o, o, d);
    query->square_d_o = dot(query->d_o, query->d_o, d);
    query->square_o = dot(o, o, d);
}

static void read_key(const GradientWork *w, size_t row, Key *key) {
    const Problem *p = w->exact->p;
    key->at = (int)(row % (size_t)p->seqlen_k);
    read_row(p, w->inputs->k, row, key->k);
    read_row(p, w->inputs->v, row, key->v);
    key->square_v = dot(key->v, key->v, p->head_dim);
}

/* What query and key give each other: P_ij, f'(S_ij) (dP_ij - delta_i) and dS_ij, without the scale; and the error of dS_ij that dP_ij and
 * delta_i bring. */
typedef struct {
    double p, dp_delta, ds, ds_error;
} Pair;

static Pair pair_of(const GradientWork *w, const Query *i, const Key *j) {
    const Problem *p = w->exact->p;
    const int d = p->head_dim;
    DefinedScore score = oracle_score(p, w->key_lengths, i->at, j->at, p->scale * dot(i->q, j->k, d));
    double p_ij = exp(score.value - i->lse), dp = dot(i->d_o, j->v, d), dp_delta = score.derivative * (dp - i->delta);
    double random_signs = i->square_d_o * (j->square_v + i->square_o);
    return (Pair){p_ij, dp_delta, p_ij * dp_delta,
                  score.derivative * p_ij * sum_error(random_signs + d * (dp * dp + i->delta * i->delta))};
}

/* What a factor may be off by: dP's and delta's errors in dS, the step of P and the step of dS. */
enum { OF_DP, OF_P_STEP, OF_DS_STEP, ERRORS };

/* A sample while its pairs are added up. Where rows of the inputs are equal, so are the errors of their pairs, and then they add
 * up with the signs of the other operand. */
typedef struct {
    size_t sample;
    double alike[GRADIENT_COUNT][ERRORS][MAX_HEAD_DIM];
} SampleSums;

/* A sample of dQ gets scale dS_ij k_j, those of dK and dV get scale dS_ij q_i and P_ij dO_i. */
static void add_pair(const GradientWork *w, const Query *i, const Key *j, Gradient first, Gradient last, SampleSums *sums) {
    const Problem *p = w->exact->p;
    const double normal = smallest_normal(p->dtype), scale = p->scale;
    const Pair pair = pair_of(w, i, j);
    const double step = pair.p < normal ? probability_step(p->dtype) : 0,
                 ds_step = fabs(pair.ds) < normal ? dtype_step(p->dtype) : 0,
                 steps = steps_of(last == GRADIENT_Q ? p->seqlen_k : (double)p->seqlen_q * (p->heads / p->kv_heads));
    const double ds[ERRORS] = {scale * pair.ds_error, scale * step * pair.dp_delta, scale * ds_step},
                 of_p[ERRORS] = {0, step, 0};
    const double factors[] = {scale * pair.ds, scale * pair.ds, pair.p}, *errors[] = {ds, ds, of_p};
    const double *operands[] = {j->k, i->q, i->d_o};
    for (Gradient which = first; which <= last; which++) {
        const GradientSamples *s = &w->exact->of[which];
        const double *error = errors[which],
                     size = error[OF_P_STEP] * error[OF_P_STEP] + error[OF_DS_STEP] * error[OF_DS_STEP];
        const double squares = error[OF_DP] * error[OF_DP] + steps * steps * size;
        for (int c = 0; c < p->head_dim; c++) {
            double x = operands[which][c];
            size_t at = sums->sample * p->head_dim + c;
            s->values[at] += factors[which] * x;
            s->squares[at] += factors[which] * x * factors[which] * x;
            s->noise[at] += squares * x * x;
            for (int e = 0; e < ERRORS; e++)
                sums->alike[which][e][c] += error[e] * x;
        }
    }
}

static void add_alike(const GradientWork *w, Gradient first, Gradient last, const SampleSums *sums) {
    const int d = w->exact->p->head_dim;
    for (Gradient which = first; which <= last; which++)
        for (int e = 0; e < ERRORS; e++)
            for (int c = 0; c < d; c++)
                w->exact->of[which].noise[sums->sample * d + c] += sums->alike[which][e][c] * sums->alike[which][e][c];
}

/* Every pair of a query with the keys that it sees; of a key with the queries that see it. */
typedef void PairVisitor(const GradientWork *w, const Query *query, const Key *key, void *context);

static void visit_keys(const GradientWork *w, size_t row, PairVisitor *visit, void *context) {
    const Problem *p = w->exact->p;
    OracleView view = oracle_view(p, w->key_lengths, row_index(p, row));
    Query query;
    Key key;
    read_query(w, row, &query);
    for (int j = 0; j < view.visible; j++) {
        if (!oracle_keeps(p, w->key_lengths, query.at.batch, query.at.row, j))
            continue;
        read_key(w, view.first_key + j, &key);
        visit(w, &query, &key, context);
    }
}

static void visit_queries(const GradientWork *w, size_t row, PairVisitor *visit, void *context) {
    const Problem *p = w->exact->p, keys = keys_as_queries(p);
    RowIndex at = row_index(&keys, row);
    int group = p->heads / p->kv_heads;
    Query query;
    Key key;
    read_key(w, row, &key);
    for (int head = at.head * group; head < (at.head + 1) * group; head++)
        for (int i = 0; i < p->seqlen_q; i++)
            if (oracle_sees(p, w->key_lengths, at.batch, i, at.row) && oracle_keeps(p, w->key_lengths, at.batch, i, at.row)) {
                read_query(w, flat_row(p, (RowIndex){at.batch, head, i}), &query);
                visit(w, &query, &key, context);
            }
}

static void add_to_dq(const GradientWork *w, const Query *query, const Key *key, void *sums) {
    add_pair(w, query, key, GRADIENT_Q, GRADIENT_Q, sums);
}
static void add_to_dk_dv(const GradientWork *w, const Query *query, const Key *key, void *sums) {
    add_pair(w, query, key, GRADIENT_K, GRADIENT_V, sums);
}

static void sample_query(const GradientWork *w, size_t sample) {
    SampleSums sums = {.sample = sample};
    visit_keys(w, sampled_row(w->exact->p, sample, w->exact->of[GRADIENT_Q].count), add_to_dq, &sums);
    add_alike(w, GRADIENT_Q, GRADIENT_Q, &sums);
}
static void sample_key(const GradientWork *w, size_t sample) {
    const Problem keys = keys_as_queries(w->exact->p);
    SampleSums sums = {.sample = sample};
    visit_queries(w, sampled_row(&keys, sample, w->exact->of[GRADIENT_K].count), add_to_dk_dv, &sums);
    add_alike(w, GRADIENT_K, GRADIENT_V, &sums);
}

static void keep_largest(const GradientWork *w, const Query *query, const Key *key, void *largest) {
    *(double *)largest = worse(fabs(pair_of(w, query, key).ds), *(double *)largest);
}

double largest_score_gradient(const Gradients *exact, const int *key_lengths, const HostTensors *inputs, const void *o,
                              const float *lse, Gradient which, const Comparison *c) {
    const GradientWork work = {(Gradients *)exact, key_lengths, inputs, o, lse};
    const Problem rows = rows_of(exact->p, which);
    const size_t row = flat_row(&rows, (RowIndex){c->batch, c->head, c->row}), count = exact->of[GRADIENT_Q].count;
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        visit_keys(&work, sampled_row(exact->p, i, count), keep_largest, &largest);
    (which == GRADIENT_Q ? visit_keys : visit_queries)(&work, row, keep_largest, &largest);
    return largest;
}

/* A head's sink, in all its rows. */
static void sample_sink(const GradientWork *w, int head) {
    const Problem *p = w->exact->p;
    const GradientSamples *s = &w->exact->of[GRADIENT_SINKS];
    Query query;
    for (int row = 0; row < p->batch * p->seqlen_q; row++) {
        read_query(w, flat_row(p, (RowIndex){row / p->seqlen_q, head, row % p->seqlen_q}), &query);
        double p_sink = exp(oracle_sink(p, head) - query.lse), term = -p_sink * query.delta;
        double error = p_sink * sum_error(query.square_d_o * query.square_o + p->head_dim * query.delta * query.delta);
        s->values[head] += term;
        s->squares[head] += term * term;
        s->noise[head] += error * error;
    }
}

static void compute_samples(size_t begin, size_t end, void *context) {
    const GradientWork *w = context;
    size_t queries = w->exact->of[GRADIENT_Q].count, keys = w->exact->of[GRADIENT_K].count;
    for (size_t i = begin; i < end; i++)
        if (i < queries)
            sample_query(w, i);
        else if (i < queries + keys)
            sample_key(w, i - queries);
        else
            sample_sink(w, (int)(i - queries - keys));
}

/* The root of the largest of a row of squares. Of its terms': about what the sum would be if nothing cancelled. */
static double root_of(const double *squares, size_t sample, int columns) {
    return sqrt(largest_of(squares + sample * columns, columns));
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of_terms(const GradientSamples *s, int columns) {
    double *roots = host_alloc(s->count, sizeof *roots), median;
    for (size_t i = 0; i < s->count; i++)
        roots[i] = root_of(s->squares, i, columns);
    qsort(roots, s->count, sizeof *roots, by_size);
    median = roots[s->count / 2];
    free(roots);
    return median;
}

static int columns_of(const Gradients *exact, const GradientSamples *s) {
    return rows_of(exact->p, (Gradient)(s - exact->of)).head_dim;
}

Gradients gradients_compute(const Problem *p, const int *key_lengths, const HostTensors *inputs, const void *o,
                            const float *lse, size_t limit) {
    Gradients exact = {.p = p};
    gradient_bounds(p, inputs, lse, exact.of);
    for (int which = 0; which < gradient_count(p); which++) {
        Problem rows = rows_of(p, (Gradient)which);
        GradientSamples *s = &exact.of[which];
        size_t d = (size_t)rows.head_dim;
        s->count = row_count(&rows) < limit || which == GRADIENT_SINKS ? row_count(&rows) : limit;
        s->values = host_alloc(3 * s->count * d, sizeof(double));
        s->squares = s->values + s->count * d;
        s->noise = s->squares + s->count * d;
    }
    parallel_for(exact.of[GRADIENT_Q].count + exact.of[GRADIENT_K].count + exact.of[GRADIENT_SINKS].count, compute_samples,
                 &(GradientWork){&exact, key_lengths, inputs, o, lse});

    for (GradientSamples *s = exact.of; s < exact.of + gradient_count(p); s++)
        for (size_t i = 0; i < s->count; i++)
            s->floor = worse(root_of(s->noise, i, columns_of(&exact, s)) + s->least, s->floor);
    for (GradientSamples *s = exact.of; s < exact.of + gradient_count(p); s++) {
        const int d = columns_of(&exact, s);
        s->terms = median_of_terms(s, d);
        for (size_t i = 0; i < s->count; i++) {
            double largest = largest_of(s->values + i * d, d);
            if (largest > s->floor) /* what is left is not itself rounding */
                s->condition = worse(root_of(s->squares, i, d) / largest, s->condition);
        }
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
    double got[MAX_HEAD_DIM], want[MAX_HEAD_DIM], allowed = 0, beyond = part->beyond = dtype_beyond(x->rows.dtype);
    size_t row = x->sampled ? sampled_row(&x->rows, i, s->count) : i;
    if (x->sampled) {
        memcpy(want, s->values + i * d, d * sizeof *want);
        allowed = s->relative * worse(root_of(s->squares, i, d), largest_of(want, d)) + root_of(s->noise, i, d) +
                  s->least;
    }
    if (x->want)
        read_row(&x->rows, x->want, row, want);
    if (!x->sampled) {
        double largest = largest_of(want, d);
        allowed = s->relative * worse(s->condition * (largest > beyond ? beyond : largest), s->terms) + s->floor;
    }
    read_row(&x->rows, x->got, row, got);
    compare_row(part, row_index(&x->rows, row), got, want, d, allowed);
}

static Comparison compare_pair(const GradientPair *x, Gradient which) {
    return compare_rows(gradient_name(which), 0, x->sampled ? x->exact->count : row_count(&x->rows), compare_gradient_row,
                        x);
}

Comparison compare_gradient(const Gradients *exact, Gradient which, const void *got, const void *want) {
    GradientPair pair = {rows_of(exact->p, which), &exact->of[which], got, want, .sampled = 1};
    Comparison sampled = compare_pair(&pair, which);
    if (!want || exact->of[which].count == row_count(&pair.rows))
        return sampled;
    pair.sampled = 0;
    Comparison all = compare_pair(&pair, which);
    int empty = all.empty && sampled.empty; /* what is wrong everywhere shows in the samples */
    if (all.ok)                             /* sampled rows have narrower bounds of their own */
        comparison_merge(&all, &sampled);
    all.empty = empty;
    return all;
}

Comparison compare_runs(const Problem *p, Gradient which, const void *got, const void *want) {
    const GradientSamples nothing = {.relative = 0};
    return compare_pair(&(GradientPair){rows_of(p, which), &nothing, got, want, .sampled = 0}, which);
}
