/* gradient.c - tests of common/judge/gradient.h: its bounds by hand, its samples against the oracle, and what comparing must refuse.
 */
#include "../common/judge/gradient.h"
#include "../common/judge/oracle.h"
#include "../common/judge/rows.h"
#include "../common/host/memory.h"
#include "../common/host/random.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

/* A problem in fp32, so that what is stored is what was meant; its inputs, what the forward pass leaves, and the gradients. */
typedef struct {
    Problem p;
    const int *lengths;
    HostTensors inputs;
    float *o, *lse;
    double *want[GRADIENT_COUNT];
    float *got[GRADIENT_COUNT];
} Example;

static double *doubles(const void *values, size_t count) { return to_doubles(DTYPE_FP32, values, 0, count); }

static float *normal(size_t count, uint32_t stream, double mean) {
    float *values = host_alloc(count, sizeof *values);
    random_normal(DTYPE_FP32, values, count, 9, stream, mean, 1);
    return values;
}

static Example make_example(Problem p, const int *lengths, double mean_of_k) {
    Example e = {.p = p, .lengths = lengths};
    size_t queries = query_elements(&p), keys = key_elements(&p), rows = row_count(&p);
    e.inputs = (HostTensors){normal(queries, 0, 0), normal(keys, 1, mean_of_k), normal(keys, 2, 0), normal(queries, 3, 0)};
    double *q = doubles(e.inputs.q, queries), *k = doubles(e.inputs.k, keys), *v = doubles(e.inputs.v, keys),
           *d_o = doubles(e.inputs.d_o, queries), *o = host_alloc(queries, sizeof *o), *lse = host_alloc(rows, sizeof *lse);
    oracle_forward(&p, lengths, q, k, v, o, lse);
    for (int i = 0; i < GRADIENT_COUNT; i++) {
        e.want[i] = host_alloc(gradient_elements(&p, (Gradient)i), sizeof(double));
        e.got[i] = host_alloc(gradient_elements(&p, (Gradient)i), sizeof(float));
    }
    oracle_backward(&p, lengths, q, k, v, d_o, e.want[0], e.want[1], e.want[2]);
    e.o = host_alloc(queries, sizeof *e.o);
    e.lse = host_alloc(rows, sizeof *e.lse);
    for (size_t i = 0; i < queries; i++)
        e.o[i] = (float)o[i];
    for (size_t i = 0; i < rows; i++)
        e.lse[i] = (float)lse[i];
    free(q), free(k), free(v), free(d_o), free(o), free(lse);
    return e;
}

/* Everything as a perfect stage would leave it. */
static void reset(Example *e) {
    for (int which = 0; which < GRADIENT_COUNT; which++)
        for (size_t i = 0; i < gradient_elements(&e->p, (Gradient)which); i++)
            e->got[which][i] = (float)e->want[which][i];
}

static void free_example(Example *e) {
    free(e->inputs.q), free(e->inputs.k), free(e->inputs.v), free(e->inputs.d_o), free(e->o), free(e->lse);
    for (int i = 0; i < GRADIENT_COUNT; i++)
        free(e->want[i]), free(e->got[i]);
}

static int heads_of(const Problem *p, int which) { return which == GRADIENT_Q ? p->heads : p->kv_heads; }
static int rows_of(const Problem *p, int which) { return which == GRADIENT_Q ? p->seqlen_q : p->seqlen_k; }

static int is_at(const Comparison *c, const Problem *p, int which, size_t element) {
    size_t row = element / p->head_dim, rows = (size_t)rows_of(p, which), heads = (size_t)heads_of(p, which);
    return c->batch == (int)(row / rows / heads) && c->head == (int)(row / rows % heads) && c->row == (int)(row % rows) &&
           c->column == (int)(element % p->head_dim);
}

/* ---- what may differ ---- */

static int is_close(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

static void test_scale(void) {
    /* 2 queries of 4 heads, 9 keys of 2 heads, D = 4. The largest elements are the last ones, and negative; |q| = 3, |k| = 5 */
    Problem p = {.batch = 1, .heads = 4, .kv_heads = 2, .seqlen_q = 2, .seqlen_k = 9, .head_dim = 4, .scale = 0.5f};
    enum { QUERIES = 32, KEYS = 72 };
    const double size[4] = {3, 5, 7, 11}; /* the largest |element| of Q, K, V, dO */
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        static float tensors[4][KEYS + 1]; /* large enough for any dtype */
        p.dtype = (Dtype)dtype;
        for (int i = 0; i < 4; i++) {
            int count = i == 0 || i == 3 ? QUERIES : KEYS;
            memset(tensors[i], 0, sizeof tensors[i]);
            dtype_store(p.dtype, tensors[i], 0, 1);
            dtype_store(p.dtype, tensors[i], (size_t)count - 1, -size[i]);
            dtype_store(p.dtype, tensors[i], (size_t)count, 1000); /* none of its business */
        }
        const HostTensors inputs = {tensors[0], tensors[1], tensors[2], tensors[3]};
        float lse[9] = {1, 2, -INFINITY, 3, 2, 1, 2, -4, 1000};
        GradientScale s = gradient_scale(&p, &inputs, lse);
        double u = dtype_epsilon(p.dtype), step = dtype_step(p.dtype), ds = 0x1p-20 * 2 * 11 * 7;
        double p_step = dtype == DTYPE_FP16 ? step : 0x1p-126, ds_step = dtype == DTYPE_FP16 ? step : 0x1p-126 * 4 * 11 * 7;
        double relative = 6 * u + 0x1p-21, scores = 7.5 * 7.5 + 4 * 4 * 4; /* scale |q| |k|; D times that of LSE */
        ok(is_close(s.relative[GRADIENT_Q], relative + 3 * sqrt(9 + scores) * 0x1p-24),
           "%s, dQ: 6u, the scores' errors, a sum of 9 keys", dtype_name(p.dtype));
        ok(is_close(s.relative[GRADIENT_K], relative + 3 * sqrt(4 + scores) * 0x1p-24) &&
               s.relative[GRADIENT_V] == s.relative[GRADIENT_K],
           "dK, dV: of 2 queries of 2 heads");
        ok(is_close(s.steps[GRADIENT_Q], 0.5 * 5 * 3 * ds_step + step) &&
               is_close(s.steps[GRADIENT_K], 0.5 * 3 * 2 * ds_step + step) && s.steps[GRADIENT_V] == s.floor[GRADIENT_V],
           "the steps of 9 keys, of 2 queries of 2 heads");
        ok(is_close(s.floor[GRADIENT_Q], 0.5 * 5 * (ds + 3 * ds_step) + step), "dQ: what 9 keys leave");
        ok(is_close(s.floor[GRADIENT_K], 0.5 * 3 * (ds + 2 * ds_step) + step), "dK: what 2 queries of 2 heads leave");
        ok(is_close(s.floor[GRADIENT_V], 11 * 2 * p_step + step), "dV");
        ok(s.condition[0] == 1 && s.condition[1] == 1 && s.condition[2] == 1, "nothing is known to cancel");
        dtype_store(p.dtype, tensors[2], 5, (double)NAN);
        s = gradient_scale(&p, &inputs, lse);
        ok(isnan(s.floor[GRADIENT_Q]) && isnan(s.floor[GRADIENT_K]), "NaN in V: nothing is allowed");
        lse[1] = NAN;
        s = gradient_scale(&p, &inputs, lse);
        ok(isnan(s.relative[GRADIENT_Q]) && isnan(s.relative[GRADIENT_V]), "nor with NaN in LSE");
    }
}

/* ---- whole tensors ---- */

static void test_compare(Example *e) {
    static const char *names[] = {"dQ", "dK", "dV"};
    const Problem *p = &e->p;
    const int d = p->head_dim;
    for (int which = 0; which < GRADIENT_COUNT; which++) {
        Gradient g = (Gradient)which;
        const char *name = gradient_name(g);
        size_t count = gradient_elements(p, g);
        ok(!strcmp(name, names[which]) && count == (size_t)p->batch * heads_of(p, which) * rows_of(p, which) * d, "%s",
           name);
        /* a bound of its own for each, so that one taken for another shows */
        GradientScale scale = {.relative = {1e-3, 2e-3, 3e-3}, .condition = {2, 3, 4}, .floor = {0.02, 0.03, 0.05}};
        float *reference = host_alloc(count, sizeof *reference);
        reset(e);
        memcpy(reference, e->got[which], count * sizeof *reference);
        Comparison c = compare_gradient(p, g, e->got[which], reference, &scale);
        ok(c.ok && !c.empty && c.max_error == 0 && !strcmp(c.tensor, name), "%s: equal", name);
        int missed = 0;
        for (size_t i = 0; i < count; i += i % d ? 1 : (size_t)d - 1) { /* first and last column of each row */
            double allowed =
                1e-3 * (which + 1) * (which + 2) * largest_of(e->want[which] + i / d * d, d) + scale.floor[which];
            for (int sign = -1; sign < 2; sign += 2) {
                e->got[which][i] = (float)(reference[i] + sign * 0.999 * allowed);
                missed += !compare_gradient(p, g, e->got[which], reference, &scale).ok;
                e->got[which][i] = (float)(reference[i] + sign * 1.001 * allowed);
                c = compare_gradient(p, g, e->got[which], reference, &scale);
                missed += c.ok || c.bad != 1 || !is_at(&c, p, which, i);
            }
            e->got[which][i] = NAN;
            c = compare_gradient(p, g, e->got[which], reference, &scale);
            missed += c.ok || c.bad != 1 || !is_at(&c, p, which, i);
            e->got[which][i] = reference[i];
        }
        ok(!missed, "%s: inside the bound, outside of it, NaN, in each row", name);
        reference[count - 1] = NAN;
        c = compare_gradient(p, g, e->got[which], reference, &scale);
        ok(!c.ok && c.bad == (size_t)d, "%s: NaN in the reference: nothing of its row passes", name);
        reset(e);
        memcpy(reference, e->got[which], count * sizeof *reference);
        scale = (GradientScale){.relative = {0.5, 0.5, 0.5}, .condition = {0.99, 0.99, 0.99}, .floor = {9, 9, 9}};
        ok(!compare_gradient(p, g, reference, reference, &scale).empty, "%s: below half of the largest it is checked", name);
        scale = (GradientScale){.relative = {0.5, 0.5, 0.5}, .condition = {1.01, 1.01, 1.01}};
        ok(compare_gradient(p, g, reference, reference, &scale).empty, "%s: above it is not", name);
        free(reference);
    }
}

static void test_difference(void) {
    float a[] = {1, 2, 3}, b[] = {1, 2.5f, 2.75f};
    ok(largest_difference(DTYPE_FP32, a, b, 3) == 0.5 && largest_difference(DTYPE_FP32, b, a, 3) == 0.5,
       "the largest difference");
    ok(largest_difference(DTYPE_FP32, a, a, 3) == 0 && largest_difference(DTYPE_FP32, a, b, 1) == 0, "none");
    a[2] = NAN;
    ok(isnan(largest_difference(DTYPE_FP32, a, b, 3)) && isnan(largest_difference(DTYPE_FP32, b, a, 3)), "NaN in either");
    ok(isnan(largest_difference(DTYPE_FP32, a, a, 3)), "NaN in both");
    a[0] = NAN;
    ok(isnan(largest_difference(DTYPE_FP32, a, b, 2)), "a number after a NaN does not hide it");
}

/* ---- samples ---- */

static size_t flat(const Problem *p, int which, RowIndex i) {
    return ((size_t)i.batch * heads_of(p, which) + i.head) * rows_of(p, which) + i.row;
}

/* The squares of the terms of a row, or of the errors that dP and delta bring into them, added up over all pairs of a query and a
 * key; the root of the largest of them. */
static double term_size(const Example *e, int which, RowIndex at, int of_errors) {
    const Problem *p = &e->p;
    const int d = p->head_dim;
    double squares[MAX_HEAD_DIM] = {0};
    for (int head = 0; head < p->heads; head++)
        for (int i = 0; i < p->seqlen_q; i++) {
            OracleView view = oracle_view(p, e->lengths, at.batch, head, i);
            for (int j = 0; j < view.visible; j++) {
                int is_its = which == GRADIENT_Q ? head == at.head && i == at.row
                                                 : head / (p->heads / p->kv_heads) == at.head && j == at.row;
                size_t row = flat(p, GRADIENT_Q, (RowIndex){at.batch, head, i}), query = row * d,
                       key = view.keys + (size_t)j * d;
                const float *q = (float *)e->inputs.q + query, *d_o = (float *)e->inputs.d_o + query, *o = e->o + query,
                            *k = (float *)e->inputs.k + key, *v = (float *)e->inputs.v + key;
                double s_ij = 0, dp = 0, delta = 0, dodo = 0, vv = 0, oo = 0;
                for (int c = 0; c < d && is_its; c++) {
                    s_ij += (double)q[c] * k[c], dp += (double)d_o[c] * v[c], delta += (double)d_o[c] * o[c];
                    dodo += (double)d_o[c] * d_o[c], vv += (double)v[c] * v[c], oo += (double)o[c] * o[c];
                }
                double p_ij = exp(p->scale * s_ij - e->lse[row]), ds = p->scale * p_ij * (dp - delta);
                if (of_errors)
                    ds = p->scale * p_ij * 3 * 0x1p-24 * sqrt(dodo * vv + dodo * oo + d * dp * dp + d * delta * delta);
                for (int c = 0; c < d && is_its; c++) {
                    double term = which == GRADIENT_Q   ? ds * k[c]
                                  : which == GRADIENT_K ? ds * q[c]
                                                        : !of_errors * p_ij * d_o[c];
                    squares[c] += term * term;
                }
            }
        }
    return sqrt(largest_of(squares, d));
}

static void test_samples(Problem p, const int *lengths, int queries, int keys) {
    Example e = make_example(p, lengths, 0);
    const int d = p.head_dim;
    GradientScale scale = gradient_scale(&e.p, &e.inputs, e.lse);
    GradientSamples s = gradient_samples_compute(&e.p, lengths, &e.inputs, e.o, e.lse, &scale);
    ok(s.query_count == queries && s.key_count == keys, "%d queries and %d keys are sampled", queries, keys);
    Problem as_keys = p;
    as_keys.heads = p.kv_heads, as_keys.seqlen_q = p.seqlen_k;
    int wrong = 0;
    double condition[] = {1, 1, 1};
    for (int which = 0; which < GRADIENT_COUNT; which++)
        for (int i = 0; i < (which == GRADIENT_Q ? queries : keys); i++) {
            RowIndex at = which == GRADIENT_Q ? s.queries[i] : s.keys[i],
                     expected = which == GRADIENT_Q ? sampled_row(&p, i, queries) : sampled_row(&as_keys, i, keys);
            wrong += at.batch != expected.batch || at.head != expected.head || at.row != expected.row;
            const double *want = e.want[which] + flat(&p, which, at) * d, *got = s.gradients[which] + (size_t)i * d;
            for (int c = 0; c < d; c++) /* O and LSE are floats */
                wrong += !(fabs(got[c] - want[c]) <= 1e-5);
            double terms = sqrt(largest_of(s.squares[which] + (size_t)i * d, d)), largest = largest_of(got, d);
            double noise = sqrt(largest_of(s.noise[which] + (size_t)i * d, d));
            wrong += !(fabs(terms - term_size(&e, which, at, 0)) <= 1e-9 * terms);
            wrong += !(fabs(noise - term_size(&e, which, at, 1)) <= 1e-9 * noise);
            if (largest > scale.floor[which])
                condition[which] = fmax(condition[which], terms / largest);
        }
    ok(!wrong, "%d/%d heads, %d x %d%s%s: they are the oracle's", p.heads, p.kv_heads, p.seqlen_q, p.seqlen_k,
       p.causal ? ", causal" : "", lengths ? ", key lengths" : "");
    ok(!memcmp(scale.condition, condition, sizeof condition), "and say how much cancels");
    free_gradient_samples(&s);
    free_example(&e);
}

static void test_condition(void) {
    const Problem p = {.batch = 1,
                       .heads = 1,
                       .kv_heads = 1,
                       .seqlen_q = 6,
                       .seqlen_k = 8,
                       .head_dim = 8,
                       .dtype = DTYPE_FP32,
                       .scale = 0.3f};
    Example e = make_example(p, NULL, 20); /* what all keys have in common drops out of dQ, not out of its terms */
    GradientScale scale = gradient_scale(&p, &e.inputs, e.lse);
    GradientSamples s = gradient_samples_compute(&p, NULL, &e.inputs, e.o, e.lse, &scale);
    ok(scale.condition[GRADIENT_Q] > 5, "a mean of 20 in K: dQ cancels, %g", scale.condition[GRADIENT_Q]);
    ok(scale.condition[GRADIENT_K] >= 1 && scale.condition[GRADIENT_K] < 5 && scale.condition[GRADIENT_V] >= 1 &&
           scale.condition[GRADIENT_V] < 5,
       "dK and dV do not");
    free_gradient_samples(&s);
    const double high = 1e30;
    scale = (GradientScale){.condition = {1, 1, 1}, .floor = {high, high, high}};
    s = gradient_samples_compute(&p, NULL, &e.inputs, e.o, e.lse, &scale);
    ok(scale.condition[0] == 1 && scale.condition[1] == 1 && scale.condition[2] == 1,
       "gradients below the floor say nothing");
    free_gradient_samples(&s);
    free_example(&e);
}

static void test_compare_samples(void) {
    static const int lengths[] = {5, 7};
    const Problem p = {.batch = 2,
                       .heads = 2,
                       .kv_heads = 1,
                       .seqlen_q = 6,
                       .seqlen_k = 7,
                       .head_dim = 8,
                       .dtype = DTYPE_FP32,
                       .causal = 1,
                       .scale = 0.3f};
    Example e = make_example(p, lengths, 0);
    const int d = p.head_dim;
    GradientScale scale = {.condition = {1, 1, 1}};
    GradientSamples s = gradient_samples_compute(&p, lengths, &e.inputs, e.o, e.lse, &scale);
    scale = (GradientScale){.relative = {1e-2, 2e-2, 3e-2}, .steps = {0.02, 0.03, 0.05}, .floor = {9, 9, 9}};
    for (int which = 0; which < GRADIENT_COUNT; which++) {
        Gradient g = (Gradient)which;
        for (int i = 0; i < (which == GRADIENT_Q ? s.query_count : s.key_count) * d; i++)
            s.noise[which][i] *= 1e8; /* so that it shows */
        reset(&e);
        Comparison c = gradient_samples_compare(&s, g, e.got[which], NULL, &scale);
        ok(c.ok && !c.empty && c.max_error < 1e-5 && !strcmp(c.tensor, gradient_name(g)),
           "samples of %s: what is right passes", c.tensor);
        int missed = 0;
        for (int i = 0; i < (which == GRADIENT_Q ? s.query_count : s.key_count); i++)
            for (int column = 0; column < d; column += d - 1) {
                const double *want = s.gradients[which] + (size_t)i * d;
                double terms = sqrt(largest_of(s.squares[which] + (size_t)i * d, d));
                double allowed = 1e-2 * (which + 1) * fmax(terms, largest_of(want, d)) + scale.steps[which] +
                                 sqrt(largest_of(s.noise[which] + (size_t)i * d, d));
                size_t element = flat(&p, which, which == GRADIENT_Q ? s.queries[i] : s.keys[i]) * d + column;
                for (int sign = -1; sign < 2; sign += 2) {
                    e.got[which][element] = (float)(want[column] + sign * 0.999 * allowed);
                    missed += !gradient_samples_compare(&s, g, e.got[which], NULL, &scale).ok;
                    e.got[which][element] = (float)(want[column] + sign * 1.001 * allowed);
                    c = gradient_samples_compare(&s, g, e.got[which], NULL, &scale);
                    missed += c.ok || c.bad != 1 || !is_at(&c, &p, which, element);
                }
                e.got[which][element] = NAN;
                c = gradient_samples_compare(&s, g, e.got[which], NULL, &scale);
                missed += c.ok || c.bad != 1 || !is_at(&c, &p, which, element);
                e.got[which][element] = (float)e.want[which][element];
            }
        ok(!missed, "samples of %s: inside the bound, outside of it, NaN, in each row", c.tensor);
        float *other = host_alloc(gradient_elements(&p, g), sizeof *other);
        memcpy(other, e.got[which], gradient_elements(&p, g) * sizeof *other);
        other[0] += 100, e.got[which][0] += 100;
        ok(gradient_samples_compare(&s, g, e.got[which], other, &scale).max_error == 0 &&
               !gradient_samples_compare(&s, g, e.got[which], NULL, &scale).ok,
           "samples of %s: against another gradient", c.tensor);
        free(other);
        GradientScale wide = {.relative = {0.6, 0.6, 0.6}, .steps = {9, 9, 9}, .floor = {9, 9, 9}},
                      narrow = {.relative = {0.1, 0.1, 0.1}, .steps = {9, 9, 9}, .floor = {9, 9, 9}};
        reset(&e);
        ok(gradient_samples_compare(&s, g, e.got[which], NULL, &wide).empty &&
               !gradient_samples_compare(&s, g, e.got[which], NULL, &narrow).empty,
           "samples of %s: a wide bound is no check", c.tensor);
    }
    free_gradient_samples(&s);
    free_example(&e);
}

int main(void) {
    ok(strcmp(gradient_name(GRADIENT_Q), "dQ") == 0 && strcmp(gradient_name(GRADIENT_K), "dK") == 0 &&
           strcmp(gradient_name(GRADIENT_V), "dV") == 0,
       "names");
    static const int lengths[] = {7, 0, 3};
    const Problem small = {.batch = 3,
                           .heads = 2,
                           .kv_heads = 1,
                           .seqlen_q = 4,
                           .seqlen_k = 7,
                           .head_dim = 8,
                           .dtype = DTYPE_FP32,
                           .scale = 0.4f};
    Problem causal = small, large = small;
    causal.causal = 1, causal.kv_heads = 2;
    large.seqlen_q = 30, large.seqlen_k = 50, large.heads = 4, large.kv_heads = 2, large.causal = 1;
    const int long_lengths[] = {50, 20, 41};
    test_scale();
    Example e = make_example(small, NULL, 0);
    test_compare(&e);
    free_example(&e);
    test_difference();
    test_samples(small, NULL, 24, 21);
    test_samples(small, lengths, 24, 21);
    test_samples(causal, lengths, 24, 42);
    test_samples(large, long_lengths, 64, 64);
    test_condition();
    test_compare_samples();
    return tap_done();
}
