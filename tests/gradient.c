/* gradient.c - tests of common/judge/gradient.h: its bounds by hand, its samples, and what comparing must refuse. Whether its
 * gradients in fp64 are right is tests/oracle.c's matter.
 */
#include "../common/judge/gradient.h"
#include "../common/judge/rows.h"
#include "example.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

/* A problem in fp32, so that what is stored is what was meant; its inputs, what the forward pass leaves, and the gradients. */
typedef struct {
    Problem p;
    const int *lengths;
    HostTensors inputs;
    float *o, *lse;
    Gradients exact; /* everywhere */
    float *got[GRADIENT_COUNT];
} Example;

static Example make_example(const Problem *p, const int *lengths, double mean_of_k) {
    Example e = {.p = *p, .lengths = lengths};
    size_t queries = query_elements(p), keys = key_elements(p), rows = row_count(p);
    e.inputs = draw_inputs(p, mean_of_k);
    Samples forward = samples_compute(p, lengths, &e.inputs, rows);
    e.o = host_alloc(queries, sizeof *e.o);
    e.lse = host_alloc(rows, sizeof *e.lse);
    round_samples(&forward, e.o, e.lse);
    free_samples(&forward);
    e.exact = gradients_compute(p, lengths, &e.inputs, e.o, e.lse, queries + keys);
    for (int i = 0; i < GRADIENT_SINKS; i++)
        e.got[i] = host_alloc(gradient_elements(p, (Gradient)i), sizeof(float));
    return e;
}

/* Everything as a perfect stage would leave it. */
static void reset(Example *e) {
    for (int which = 0; which < GRADIENT_SINKS; which++)
        for (size_t i = 0; i < gradient_elements(&e->p, (Gradient)which); i++)
            e->got[which][i] = (float)e->exact.of[which].values[i];
}

static void free_example(Example *e) {
    free_inputs(&e->inputs), free(e->o), free(e->lse);
    for (int i = 0; i < GRADIENT_SINKS; i++)
        free(e->got[i]);
    free_gradients(&e->exact);
}

static int is_at(const Comparison *c, const Problem *p, int which, size_t element) {
    const Problem rows = which == GRADIENT_Q ? *p : keys_as_queries(p);
    const RowIndex at = row_index(&rows, element / p->head_dim);
    return stands_at(c, at.batch, at.head, at.row, (int)(element % p->head_dim));
}

/* ---- what may differ ---- */

static int is_close(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

static void test_bounds(void) {
    /* 2 queries of 4 heads, 16 keys of 2 heads, D = 4. The largest elements are the last ones, and negative; |q| = 3, |k| = 5. In
     * the last columns three quarters of that stands above it, so that they are 1.25 times as long */
    Problem p = {.batch = 1, .heads = 4, .kv_heads = 2, .seqlen_q = 2, .seqlen_k = 16, .head_dim = 4, .scale = 0.5f};
    enum { QUERIES = 32, KEYS = 128 };
    const double size[4] = {3, 5, 7, 11}; /* the largest |element| of Q, K, V, dO */
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        static float tensors[4][KEYS + 1]; /* large enough for any dtype */
        p.dtype = (Dtype)dtype;
        for (int i = 0; i < 4; i++) {
            int count = i == 0 || i == 3 ? QUERIES : KEYS;
            memset(tensors[i], 0, sizeof tensors[i]);
            dtype_store(p.dtype, tensors[i], 0, 1);
            dtype_store(p.dtype, tensors[i], (size_t)count - 1, -size[i]);
            dtype_store(p.dtype, tensors[i], (size_t)count - 5, 0.75 * size[i]);
            dtype_store(p.dtype, tensors[i], (size_t)count, 1000); /* none of its business */
        }
        const HostTensors inputs = {tensors[0], tensors[1], tensors[2], tensors[3]};
        float lse[9] = {1, 2, -INFINITY, 3, 2, 1, 2, -4, 1000};
        GradientSamples s[GRADIENT_COUNT] = {{0}};
        gradient_bounds(&p, &inputs, lse, s);
        double u = dtype_epsilon(p.dtype), step = dtype_step(p.dtype), ds = 0x1p-20 * 2 * 11 * 7;
        double p_step = dtype == DTYPE_FP16 ? step : 0x1p-126, ds_step = dtype == DTYPE_FP16 ? step : 0x1p-126 * 4 * 11 * 7;
        double least = 4 * 0x1p-149 + step, least_dq = 16 * 0x1p-149 + step;
        double relative = 6 * u + 0x1p-21, scores = 7.5 * 7.5 + 4 * 4 * 4; /* scale |q| |k|; D times that of LSE */
        ok(is_close(s[GRADIENT_Q].relative, relative + 3 * sqrt(16 + scores) * 0x1p-24),
           "%s, dQ: 6u, the scores' errors, a sum of 16 keys", dtype_name(p.dtype));
        ok(is_close(s[GRADIENT_K].relative, relative + 3 * sqrt(4 + scores) * 0x1p-24) &&
               s[GRADIENT_V].relative == s[GRADIENT_K].relative,
           "dK, dV: of 2 queries of 2 heads");
        ok(is_close(s[GRADIENT_Q].floor, 0.5 * (5 * ds + 1.25 * 5 * 3 * ds_step) + least_dq),
           "dQ: what 16 keys leave, seven standard deviations of them");
        ok(is_close(s[GRADIENT_K].floor, 0.5 * (3 * ds + 1.25 * 3 * 2 * ds_step) + least),
           "dK: what 2 queries of 2 heads leave, all of them");
        ok(is_close(s[GRADIENT_V].floor, 1.25 * 11 * 2 * p_step + least), "dV");
        ok(is_close(s[GRADIENT_Q].least, least_dq) && is_close(s[GRADIENT_K].least, least) &&
               is_close(s[GRADIENT_V].least, least),
           "steps of fp32 in the sums, and one of the dtype");
        Problem scaled = p;
        scaled.scale = 2;
        gradient_bounds(&scaled, &inputs, lse, s);
        ok(is_close(s[GRADIENT_Q].least, 2 * (least_dq - step) + step) && is_close(s[GRADIENT_V].least, least),
           "dQ, dK: the sum's times a scale above 1");
        ok(s[0].condition == 1 && s[1].condition == 1 && s[2].condition == 1, "nothing is known to cancel");
        dtype_store(p.dtype, tensors[2], 5, (double)NAN);
        gradient_bounds(&p, &inputs, lse, s);
        ok(isnan(s[GRADIENT_Q].floor) && isnan(s[GRADIENT_K].floor), "NaN in V: nothing is allowed");
        lse[1] = NAN;
        gradient_bounds(&p, &inputs, lse, s);
        ok(isnan(s[GRADIENT_Q].relative) && isnan(s[GRADIENT_V].relative), "nor with NaN in LSE");
    }
}

/* One query and two keys in fp16, whose P are both 2^-exponent: Q is 0, and LSE says so. dP is 16 and delta 0. */
static void check_steps(int exponent, int is_p_small, int is_ds_small) {
    const Problem p = {.batch = 1, .heads = 1, .kv_heads = 1, .seqlen_q = 1, .seqlen_k = 2, .head_dim = 8, .scale = 0.5f};
    uint16_t q[8] = {0}, k[16], v[16], d_o[8], o[8] = {0};
    float lse = (float)(exponent * log(2));
    for (int i = 0; i < 16; i++)
        dtype_store(DTYPE_FP16, k, i, 2), dtype_store(DTYPE_FP16, v, i, 4), dtype_store(DTYPE_FP16, d_o, i % 8, 0.5);
    const HostTensors inputs = {q, k, v, d_o};
    Gradients g = gradients_compute(&p, NULL, &inputs, o, &lse, 64);
    const double weight = exp2(-exponent), of_dp = weight * 3 * 0x1p-24 * sqrt(2 * 128 + 8 * 16 * 16), few = sqrt(2);
    double of_ds = 0x1p-24 * sqrt(is_p_small * 16 * 16 + is_ds_small);
    /* as squares, of two keys and one query; and with one sign, twice as large */
    const double want[] = {0.5 * 2 *
                               sqrt(2 * (of_dp * of_dp + few * few * of_ds * of_ds) + 4 * (of_dp * of_dp + of_ds * of_ds)),
                           0, is_p_small * 0.5 * 0x1p-24 * sqrt(2)};
    int wrong = 0;
    for (int which = 0; which < GRADIENT_SINKS; which++) {
        double noise = sqrt(g.of[which].noise[0]);
        wrong += !(fabs(noise - want[which]) <= 0.1 * want[which]);
        wrong += !(g.of[which].floor >= noise + 0x1p-24);
    }
    ok(!wrong, "fp16, P = 2^-%d: %s%s", exponent,
       is_p_small ? "its step, and with it |dP - delta| steps of dS" : "no step where all is normal",
       is_ds_small ? ", and dS's own" : "");
    free_gradients(&g);
}

/* dV of one key, from 16 queries, as fp32 computes it: P and dO are normal numbers, and each product is off by half a step. */
static void test_small_products(void) {
    const Problem p = FP32_PROBLEM(1, 1, 1, 16, 1, 64, 0, 1);
    float q[16 * 64] = {0}, k[64] = {0}, v[64] = {0}, o[16 * 64] = {0}, d_o[16 * 64], lse[16], dv[64] = {0};
    random_normal(DTYPE_FP32, d_o, 16 * 64, 1, 0, 0, 0x1p-38);
    for (int i = 0; i < 16; i++) {
        lse[i] = 76;
        for (int column = 0; column < 64; column++)
            dv[column] += expf(-lse[i]) * d_o[i * 64 + column];
    }
    const HostTensors inputs = {q, k, v, d_o};
    Gradients g = gradients_compute(&p, NULL, &inputs, o, lse, 64);
    Comparison c = compare_gradient(&g, GRADIENT_V, dv, NULL);
    ok(c.ok && c.error > 2 * 0x1p-149, "products below fp32's normal numbers: dV is off by %g of its steps",
       c.error / 0x1p-149);
    free_gradients(&g);
}

/* ---- whole tensors ---- */

/* A bound of its own for each gradient, so that one taken for another shows. */
static Gradients with_bounds(const Problem *p, double relative, double condition, double floor) {
    Gradients g = {.p = p};
    for (int which = 0; which < GRADIENT_SINKS; which++) {
        g.of[which].relative = relative * (which + 1), g.of[which].condition = condition * (which + 1);
        g.of[which].floor = floor * (which + 1);
    }
    return g;
}

/* And two samples, which have bounds of their own; which rows they are matters to no bound. */
static Gradients with_samples(const Example *e, double relative, double condition, double floor) {
    Gradients g = with_bounds(&e->p, relative, condition, floor);
    for (int which = 0; which < GRADIENT_SINKS; which++) {
        g.of[which].count = 2, g.of[which].values = e->exact.of[which].values;
        g.of[which].squares = e->exact.of[which].squares, g.of[which].noise = e->exact.of[which].noise;
    }
    return g;
}

/* How often a wrong verdict comes of an element that is just inside its bound, just outside of it, or NaN. */
static int misses(const Gradients *exact, Gradient which, float *got, const float *want, size_t element, double right,
                  double allowed) {
    const float kept = got[element];
    int missed = 0;
    for (int sign = -1; sign < 2; sign += 2) {
        got[element] = (float)(right + sign * 0.999 * allowed);
        missed += !compare_gradient(exact, which, got, want).ok;
        got[element] = (float)(right + sign * 1.001 * allowed);
        Comparison c = compare_gradient(exact, which, got, want);
        missed += c.ok || c.bad != 1 || !is_at(&c, exact->p, which, element);
    }
    got[element] = NAN;
    Comparison c = compare_gradient(exact, which, got, want);
    missed += c.ok || c.bad != 1 || !is_at(&c, exact->p, which, element);
    got[element] = kept;
    return missed;
}

static void test_compare(Example *e) {
    static const char *names[] = {"dQ", "dK", "dV"};
    const Problem *p = &e->p;
    const int d = p->head_dim;
    const Gradients g = with_bounds(p, 1e-3, 2, 0.02), narrow = with_samples(e, 0.01, 3, 9),
                    wide = with_samples(e, 0.6, 1, 0), unknown = with_samples(e, (double)NAN, 1, 0);
    for (Gradient which = 0; which < GRADIENT_SINKS; which++) {
        const char *name = gradient_name(which);
        const size_t count = gradient_elements(p, which);
        ok(!strcmp(name, names[which]), "%s", name);
        float *reference = host_alloc(count, sizeof *reference);
        reset(e);
        memcpy(reference, e->got[which], count * sizeof *reference);
        Comparison c = compare_gradient(&g, which, e->got[which], reference);
        ok(c.ok && !c.empty && c.max_error == 0 && !strcmp(c.tensor, name), "%s: equal", name);
        int missed = 0;
        for (size_t i = 0; i < count; i += i % d ? 1 : (size_t)d - 1) { /* first and last column of each row */
            double largest = largest_of(e->exact.of[which].values + i / d * d, d);
            missed += misses(&g, which, e->got[which], reference, i, reference[i],
                             g.of[which].relative * g.of[which].condition * largest + g.of[which].floor);
        }
        ok(!missed, "%s: inside the bound, outside of it, NaN, in each row", name);
        Gradients wide_terms = g;
        wide_terms.of[which].terms = 2000; /* more than a row's largest element times the condition */
        missed = misses(&wide_terms, which, e->got[which], reference, 0, reference[0],
                        g.of[which].relative * 2000 + g.of[which].floor);
        ok(!missed, "%s: a row that is near 0 is allowed a share of what sums have for terms", name);
        const float kept = reference[count - 1];
        reference[count - 1] = e->got[which][count - 1] = INFINITY;
        c = compare_gradient(&g, which, e->got[which], reference);
        ok(c.ok && !c.empty && c.largest == dtype_beyond(DTYPE_FP32), "%s: infinity in both is right, and no infinite bound",
           name);
        e->got[which][count - 1] = kept;
        ok(!compare_gradient(&g, which, e->got[which], reference).ok, "%s: in one of them it is not", name);
        reference[count - 1] = NAN;
        c = compare_gradient(&g, which, e->got[which], reference);
        ok(!c.ok && c.bad == 1, "%s: NaN in the reference is wrong", name);
        reset(e);
        c = compare_gradient(&narrow, which, e->got[which], e->got[which]);
        ok(c.ok && !c.empty && c.loosest > c.largest / 2, "%s: it is checked if only the samples' bounds are narrow", name);
        c = compare_gradient(&wide, which, e->got[which], e->got[which]);
        ok(c.ok && c.empty, "%s: if these, too, are more than half of the largest it is not", name);
        c = compare_gradient(&unknown, which, e->got[which], e->got[which]);
        ok(c.ok && c.empty, "%s: nor if a bound is not a number", name);

        memcpy(reference, e->got[which], count * sizeof *reference);
        c = compare_runs(p, which, e->got[which], reference);
        ok(c.ok && c.max_error == 0, "%s: two runs that are equal", name);
        reference[count - 1] += 0.25f, reference[0] += 0.125f;
        c = compare_runs(p, which, e->got[which], reference);
        ok(!c.ok && c.bad == 2 && is_at(&c, p, which, 0) && fabs(c.max_error - 0.25) < 1e-6, "%s: two that are not", name);
        reference[1] = NAN;
        ok(isnan(compare_runs(p, which, e->got[which], reference).max_error), "%s: NaN in one of them", name);
        free(reference);
    }
}

/* ---- samples ---- */

/* The squares of the terms of a row, or of the errors that dP and delta bring into them, added up over all pairs of a query and a
 * key; the root of the largest of them. */
static double term_size(const Example *e, int which, RowIndex at, int of_errors) {
    const Problem *p = &e->p;
    const int d = p->head_dim;
    double squares[MAX_HEAD_DIM] = {0}, alike[MAX_HEAD_DIM] = {0};
    for (int head = 0; head < p->heads; head++)
        for (int i = 0; i < p->seqlen_q; i++) {
            OracleView view = oracle_view(p, e->lengths, (RowIndex){at.batch, head, i});
            for (int j = 0; j < view.visible; j++) {
                if (which == GRADIENT_Q ? head != at.head || i != at.row
                                        : head / (p->heads / p->kv_heads) != at.head || j != at.row)
                    continue;
                size_t row = flat_row(p, (RowIndex){at.batch, head, i}), query = row * d, key = (view.first_key + j) * d;
                const float *q = (float *)e->inputs.q + query, *d_o = (float *)e->inputs.d_o + query, *o = e->o + query,
                            *k = (float *)e->inputs.k + key, *v = (float *)e->inputs.v + key;
                double s_ij = 0, dp = 0, delta = 0, dodo = 0, vv = 0, oo = 0;
                for (int c = 0; c < d; c++) {
                    s_ij += (double)q[c] * k[c], dp += (double)d_o[c] * v[c], delta += (double)d_o[c] * o[c];
                    dodo += (double)d_o[c] * d_o[c], vv += (double)v[c] * v[c], oo += (double)o[c] * o[c];
                }
                double p_ij = exp(p->scale * s_ij - e->lse[row]), ds = p->scale * p_ij * (dp - delta);
                if (of_errors)
                    ds = p->scale * p_ij * 3 * 0x1p-24 * sqrt(dodo * vv + dodo * oo + d * dp * dp + d * delta * delta);
                for (int c = 0; c < d; c++) {
                    double term = which == GRADIENT_Q   ? ds * k[c]
                                  : which == GRADIENT_K ? ds * q[c]
                                                        : !of_errors * p_ij * d_o[c];
                    squares[c] += term * term, alike[c] += term;
                }
            }
        }
    for (int c = 0; c < d && of_errors; c++) /* errors of one sign */
        squares[c] += alike[c] * alike[c];
    return sqrt(largest_of(squares, d));
}

static double root_of(const double *squares, size_t sample, int d) { return sqrt(largest_of(squares + sample * d, d)); }

static void test_samples(Problem p, const int *lengths, size_t queries, size_t keys) {
    Example e = make_example(&p, lengths, 0);
    const int d = p.head_dim;
    Gradients g = gradients_compute(&e.p, lengths, &e.inputs, e.o, e.lse, MAX_SAMPLES);
    int wrong = g.of[GRADIENT_Q].count != queries || g.of[GRADIENT_K].count != keys || g.of[GRADIENT_V].count != keys;
    for (Gradient which = 0; which < GRADIENT_SINKS; which++) {
        const GradientSamples *s = &g.of[which];
        Problem rows = which == GRADIENT_Q ? p : keys_as_queries(&p);
        double condition = 1, roots[200];
        for (size_t i = 0; i < s->count; i++) {
            const size_t row = sampled_row(&rows, i, s->count);
            RowIndex at = row_index(&rows, row);
            double terms = root_of(s->squares, i, d), noise = root_of(s->noise, i, d),
                   largest = largest_of(s->values + i * d, d);
            wrong += memcmp(s->values + i * d, e.exact.of[which].values + row * d, d * sizeof(double)) != 0;
            wrong += !(fabs(terms - term_size(&e, which, at, 0)) <= 1e-9 * terms);
            wrong += !(fabs(noise - term_size(&e, which, at, 1)) <= 1e-9 * noise);
            if (largest > s->floor)
                condition = fmax(condition, terms / largest);
            roots[i] = terms;
        }
        wrong += s->condition != condition;
        size_t below = 0, above = 0; /* the median is one of them, with half of them on either side */
        for (size_t i = 0; i < s->count; i++)
            below += roots[i]<s->terms, above += roots[i]> s->terms;
        wrong += below > s->count / 2 || above > s->count / 2 || below + above == s->count;
    }
    ok(!wrong, "%d/%d heads, %d x %d%s%s: %zu queries and %zu keys, their terms, and how much cancels", p.heads, p.kv_heads,
       p.seqlen_q, p.seqlen_k, p.causal ? ", causal" : "", lengths ? ", key lengths" : "", queries, keys);
    free_gradients(&g);
    free_example(&e);
}

static void test_condition(void) {
    const Problem p = FP32_PROBLEM(1, 1, 1, 6, 8, 8, 0, 0.3f);
    Example e = make_example(&p, NULL, 20); /* what all keys have in common drops out of dQ, not out of its terms */
    const GradientSamples *of = e.exact.of;
    ok(of[GRADIENT_Q].condition > 5, "a mean of 20 in K: dQ cancels, %g", of[GRADIENT_Q].condition);
    ok(of[GRADIENT_K].condition >= 1 && of[GRADIENT_K].condition < 5 && of[GRADIENT_V].condition >= 1 &&
           of[GRADIENT_V].condition < 5,
       "dK and dV do not");
    for (size_t i = 0; i < key_elements(&p); i++)
        ((float *)e.inputs.v)[i] = 1;
    for (size_t i = 0; i < query_elements(&p); i++)
        e.o[i] = 1; /* so that dP is delta, and dQ and dK are 0 */
    Gradients g = gradients_compute(&p, NULL, &e.inputs, e.o, e.lse, MAX_SAMPLES);
    ok(g.of[GRADIENT_Q].condition == 1 && g.of[GRADIENT_K].condition == 1, "gradients below the floor say nothing");
    free_gradients(&g);
    free_example(&e);
}

/* Every row is a sample, with a bound of its own. */
static void test_compare_samples(void) {
    static const int lengths[] = {5, 7};
    const Problem p = FP32_PROBLEM(2, 2, 1, 6, 7, 8, 1, 0.3f);
    Example e = make_example(&p, lengths, 0);
    const int d = p.head_dim;
    Gradients *g = &e.exact;
    reset(&e);
    for (Gradient which = 0; which < GRADIENT_SINKS; which++) {
        const char *name = gradient_name(which);
        GradientSamples *s = &g->of[which];
        const size_t count = gradient_elements(&p, which);
        s->relative = 1e-2 * (which + 1), s->floor = 9;
        for (size_t i = 0; i < count; i++)
            s->noise[i] = 1e8 * s->noise[i] + 4e-4 * (which + 1); /* so that it shows */
        Comparison c = compare_gradient(g, which, e.got[which], NULL);
        ok(c.ok && !c.empty && c.max_error < 1e-5 && !strcmp(c.tensor, name), "samples of %s: what is right passes", name);
        float *other = host_alloc(count, sizeof *other);
        memcpy(other, e.got[which], count * sizeof *other);
        int missed = 0, missed_other = 0;
        for (size_t i = 0; i < s->count; i++)
            for (int column = 0; column < d; column += d - 1) {
                double largest = fmax(root_of(s->squares, i, d), largest_of(s->values + i * d, d));
                double allowed = s->relative * largest + root_of(s->noise, i, d);
                missed += misses(g, which, e.got[which], NULL, i * d + column, s->values[i * d + column], allowed);
                missed_other += misses(g, which, e.got[which], other, i * d + column, other[i * d + column], allowed);
            }
        ok(!missed && !missed_other, "samples of %s: inside the bound, outside of it, NaN, in each row", name);
        other[0] += 100, e.got[which][0] += 100;
        ok(compare_gradient(g, which, e.got[which], other).max_error == 0 &&
               !compare_gradient(g, which, e.got[which], NULL).ok,
           "samples of %s: against another gradient", name);
        e.got[which][0] = (float)s->values[0];
        s->relative = 0.6;
        int wide = compare_gradient(g, which, e.got[which], NULL).empty;
        s->relative = 0.1;
        ok(wide && !compare_gradient(g, which, e.got[which], NULL).empty, "samples of %s: a wide bound is no check", name);
        free(other);
    }
    free_example(&e);
}

int main(void) {
    static const int lengths[] = {7, 0, 3}, long_lengths[] = {50, 20, 41};
    const Problem small = FP32_PROBLEM(3, 2, 1, 4, 7, 8, 0, 0.4f);
    Problem causal = small, large = small;
    causal.causal = 1, causal.kv_heads = 2;
    large.seqlen_q = 30, large.seqlen_k = 50, large.heads = 4, large.kv_heads = 2, large.causal = 1;
    test_bounds();
    test_small_products();
    check_steps(20, 1, 1);
    check_steps(16, 1, 0);
    check_steps(13, 0, 0);
    Example e = make_example(&small, NULL, 0);
    test_compare(&e);
    free_example(&e);
    test_samples(small, NULL, 24, 21);
    test_samples(small, lengths, 24, 21);
    test_samples(causal, lengths, 24, 42);
    test_samples(large, long_lengths, 64, 64);
    test_condition();
    test_compare_samples();
    return tap_done();
}
