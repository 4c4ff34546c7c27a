/* oracle.c - tests of common/judge/oracle.h, the reference of everything else, so it is held against things that owe it nothing:
 * a direct computation written the other way round, cases with a known answer, and central finite differences.
 */
#define _POSIX_C_SOURCE 200809L

#include "../common/judge/oracle.h"
#include "../common/host/memory.h"
#include "../common/host/random.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

/* Small problems that between them have every kind of mask. Key lengths are used where `lengths` is set. */
typedef struct {
    const char *name;
    int batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim, causal, lengths;
} Case;

static const Case cases[] = {
    {"one query, one key", 1, 1, 1, 1, 1, 2, 0, 0},
    {"full, 4 x 6", 2, 2, 2, 4, 6, 3, 0, 0},
    {"causal, 5 x 5", 1, 2, 2, 5, 5, 4, 1, 0},
    {"causal, more keys than queries", 1, 1, 1, 3, 7, 4, 1, 0},
    {"causal, more queries than keys: rows without a key", 1, 2, 1, 7, 3, 4, 1, 0},
    {"four heads share one", 1, 4, 1, 3, 5, 2, 0, 0},
    {"two pairs of heads, causal", 2, 4, 2, 4, 4, 3, 1, 0},
    {"key lengths 0, 1 and odd", 3, 2, 1, 4, 6, 3, 0, 1},
    {"key lengths and causal", 3, 2, 2, 4, 6, 3, 1, 1},
};
enum { CASES = sizeof cases / sizeof *cases };
static const int some_lengths[] = {0, 1, 5};

typedef struct {
    Problem p;
    const int *lengths;
    double *q, *k, *v, *d_o, *o, *lse, *dq, *dk, *dv;
} Example;

static double *normal(size_t count, uint32_t stream) {
    float *rounded = host_alloc(count, sizeof *rounded);
    double *values = host_alloc(count, sizeof *values);
    random_normal(DTYPE_FP32, rounded, count, 11, stream, 0, 1);
    for (size_t i = 0; i < count; i++)
        values[i] = rounded[i];
    free(rounded);
    return values;
}

static Example example(const Case *c) {
    Example e = {.p = {.batch = c->batch,
                       .heads = c->heads,
                       .kv_heads = c->kv_heads,
                       .seqlen_q = c->seqlen_q,
                       .seqlen_k = c->seqlen_k,
                       .head_dim = c->head_dim,
                       .causal = c->causal,
                       .scale = 0.75f},
                 .lengths = c->lengths ? some_lengths : NULL};
    size_t queries = query_elements(&e.p), keys = key_elements(&e.p);
    e.q = normal(queries, 0), e.k = normal(keys, 1), e.v = normal(keys, 2), e.d_o = normal(queries, 3);
    e.o = host_alloc(queries, sizeof(double)), e.lse = host_alloc(row_count(&e.p), sizeof(double));
    e.dq = host_alloc(queries, sizeof(double));
    e.dk = host_alloc(keys, sizeof(double)), e.dv = host_alloc(keys, sizeof(double));
    return e;
}

static void example_free(Example *e) {
    double *all[] = {e->q, e->k, e->v, e->d_o, e->o, e->lse, e->dq, e->dk, e->dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void forward(Example *e) { oracle_forward(&e->p, e->lengths, e->q, e->k, e->v, e->o, e->lse); }

/* ---- forward ---- */

/* The definition once more, but written differently: every index in the open, the mask decided key by key with a test of
 * its own, no maximum subtracted, O's sum taken before the division. True if O and LSE agree to 1e-12. */
static int agrees_with_definition(const Example *e) {
    const Problem *p = &e->p;
    int D = p->head_dim, Sq = p->seqlen_q, Sk = p->seqlen_k, pass = 1;
    for (int b = 0; b < p->batch; b++)
        for (int h = 0; h < p->heads; h++)
            for (int i = 0; i < Sq; i++) {
                int shared = h * p->kv_heads / p->heads, length = e->lengths ? e->lengths[b] : Sk;
                const double *q = e->q + ((b * p->heads + h) * Sq + i) * D;
                double l = 0, o[8] = {0};
                for (int j = 0; j < Sk; j++) {
                    const double *k = e->k + ((b * p->kv_heads + shared) * Sk + j) * D;
                    const double *v = e->v + ((b * p->kv_heads + shared) * Sk + j) * D;
                    /* Counted from the end, causal means: query i has Sq-1-i queries after it, and may not see the
                     * keys that belong to those. */
                    if (j >= length || (p->causal && (length - 1 - j) < (Sq - 1 - i)))
                        continue;
                    double s = 0;
                    for (int d = D - 1; d >= 0; d--)
                        s += q[d] * (double)p->scale * k[d];
                    l += exp(s);
                    for (int d = 0; d < D; d++)
                        o[d] += exp(s) * v[d];
                }
                int row = (b * p->heads + h) * Sq + i;
                pass &= l == 0 ? e->lse[row] == -INFINITY : fabs(e->lse[row] - log(l)) <= 1e-12;
                for (int d = 0; d < D; d++)
                    pass &= fabs(e->o[row * D + d] - (l == 0 ? 0 : o[d] / l)) <= 1e-12;
            }
    return pass;
}

static void test_forward(void) {
    for (int i = 0; i < CASES; i++) {
        Example e = example(&cases[i]);
        forward(&e);
        ok(agrees_with_definition(&e), "forward: %s", cases[i].name);
        e.o[query_elements(&e.p) - 1] += 1e-9;
        if (i == 0)
            ok(!agrees_with_definition(&e), "a result off by 1e-9 is noticed");
        example_free(&e);
    }
}

static void test_rows(void) {
    const double k[] = {1, 2, -3, 4, 5, 6}, v[] = {1, 10, 2, 20, 6, 60}, q[] = {0.5, -1}, zero[] = {0, 0};
    double o[2], lse;
    oracle_row(zero, k, v, 3, 2, 1, o, &lse);
    ok(fabs(o[0] - 3) < 1e-14 && fabs(o[1] - 30) < 1e-13 && fabs(lse - log(3)) < 1e-14, "equal scores: the mean of V");
    oracle_row(q, k, v, 1, 2, 2, o, &lse);
    ok(o[0] == 1 && o[1] == 10 && fabs(lse + 3) < 1e-14, "one key: its V, and LSE is the score itself");
    oracle_row(q, k, v, 0, 2, 2, o, &lse);
    ok(o[0] == 0 && o[1] == 0 && lse == -INFINITY, "no key: O = 0 and LSE = -infinity");
    oracle_row(q, k, v, 3, 2, 1e4, o, &lse);
    ok(o[0] == 1 && o[1] == 10 && lse == -1.5e4, "huge scores: the largest takes all, and nothing overflows");
    oracle_row(q, k, v, 3, 2, -1e4, o, &lse);
    ok(o[0] == 2 && o[1] == 20 && lse == 5.5e4, "a negative scale turns the order round");
    const double ln2[] = {0, 0.6931471805599453};
    oracle_row((double[]){1}, ln2, v, 2, 1, 1, o, &lse);
    ok(fabs(o[0] - (1 + 2 * 10) / 3.0) < 1e-14 && fabs(lse - log(3)) < 1e-15, "scores 0 and ln 2: weights 1/3 and 2/3");
}

/* ---- backward ---- */

/* A number that depends on all of O: its gradient with respect to O is d_o. */
static double loss(Example *e) {
    forward(e);
    double sum = 0;
    for (size_t i = 0; i < query_elements(&e->p); i++)
        sum += e->o[i] * e->d_o[i];
    return sum;
}

/* The largest difference between `gradient` and central differences over every entry of `input`, relative to the largest
 * entry of the gradient (or to 1 if all of them are small). */
static double gradient_error(Example *e, double *input, const double *gradient, size_t count) {
    const double h = 1e-5; /* error of the quotient about h^2 + 1e-16 / h = 1e-10 */
    double error = 0, size = 1;
    for (size_t i = 0; i < count; i++) {
        double kept = input[i];
        input[i] = kept + h;
        double above = loss(e);
        input[i] = kept - h;
        double below = loss(e);
        input[i] = kept;
        double difference = fabs((above - below) / (2 * h) - gradient[i]);
        error = difference > error || difference != difference ? difference : error;
        size = fmax(size, fabs(gradient[i]));
    }
    return error / size;
}

static double all_gradients_error(Example *e) {
    size_t queries = query_elements(&e->p), keys = key_elements(&e->p);
    double dq = gradient_error(e, e->q, e->dq, queries), dk = gradient_error(e, e->k, e->dk, keys);
    double dv = gradient_error(e, e->v, e->dv, keys);
    return dq + dk + dv; /* NaN if any of them is; fmax would drop it */
}

static void test_backward(void) {
    setenv("HOST_THREADS", "1", 1); /* thousands of tiny problems: starting threads would be most of the work */
    for (int i = 0; i < CASES; i++) {
        Example e = example(&cases[i]);
        memset(e.dq, 0xff, query_elements(&e.p) * sizeof(double)); /* NaN: every entry must be written */
        memset(e.dk, 0xff, key_elements(&e.p) * sizeof(double));
        memset(e.dv, 0xff, key_elements(&e.p) * sizeof(double));
        oracle_backward(&e.p, e.lengths, e.q, e.k, e.v, e.d_o, e.dq, e.dk, e.dv);
        double error = all_gradients_error(&e);
        if (!ok(error < 1e-8, "backward equals finite differences: %s", cases[i].name))
            diag("relative error %g", error);
        example_free(&e);
    }
    unsetenv("HOST_THREADS");
}

/* The check itself must be able to fail: gradients with the usual mistakes in them. */
static void test_wrong_gradients(void) {
    setenv("HOST_THREADS", "1", 1);
    Example e = example(&cases[6]);
    size_t queries = query_elements(&e.p), keys = key_elements(&e.p);
    oracle_backward(&e.p, e.lengths, e.q, e.k, e.v, e.d_o, e.dq, e.dk, e.dv);
    ok(gradient_error(&e, e.q, e.dq, queries) < 1e-8, "the right dQ passes");

    /* dQ without delta: what is left out is scale * sum_j P_ij delta_i k_j. Put it back in, as that mistake would. */
    double *wrong = host_alloc(queries, sizeof *wrong), *o = host_alloc(queries, sizeof *o), unused;
    const Problem *p = &e.p;
    int d = p->head_dim;
    forward(&e);
    for (size_t row = 0; row < row_count(p); row++) {
        int batch = (int)(row / p->seqlen_q / p->heads), head = (int)(row / p->seqlen_q % p->heads);
        size_t key = key_head_offset(p, batch, kv_head_of(p, head));
        double delta = 0;
        for (int c = 0; c < d; c++)
            delta += e.d_o[row * d + c] * e.o[row * d + c];
        /* sum_j P_ij k_j is attention with K in the place of V. */
        int visible = visible_keys(p, p->seqlen_k, (int)(row % p->seqlen_q));
        oracle_row(e.q + row * d, e.k + key, e.k + key, visible, d, p->scale, o, &unused);
        for (int c = 0; c < d; c++)
            wrong[row * d + c] = e.dq[row * d + c] + p->scale * delta * o[c];
    }
    ok(gradient_error(&e, e.q, wrong, queries) > 1e-2, "dQ without delta is caught");
    for (size_t i = 0; i < queries; i++)
        wrong[i] = e.dq[i] / p->scale;
    ok(gradient_error(&e, e.q, wrong, queries) > 1e-2, "dQ without scale is caught");
    e.dk[0] += 1e-4;
    ok(gradient_error(&e, e.k, e.dk, keys) > 1e-6, "one entry of dK off by 1e-4 is caught");
    e.dv[keys - 1] = (double)NAN;
    double error = gradient_error(&e, e.v, e.dv, keys);
    ok(!(error < 1e-8), "a NaN in dV is caught");
    free(wrong), free(o);
    example_free(&e);
    unsetenv("HOST_THREADS");
}

static void test_threads(void) {
    Example e = example(&cases[8]), f = example(&cases[8]);
    setenv("HOST_THREADS", "1", 1);
    oracle_backward(&e.p, e.lengths, e.q, e.k, e.v, e.d_o, e.dq, e.dk, e.dv);
    setenv("HOST_THREADS", "5", 1);
    oracle_backward(&f.p, f.lengths, f.q, f.k, f.v, f.d_o, f.dq, f.dk, f.dv);
    unsetenv("HOST_THREADS");
    size_t queries = query_elements(&e.p) * sizeof(double), keys = key_elements(&e.p) * sizeof(double);
    ok(!memcmp(e.dq, f.dq, queries) && !memcmp(e.dk, f.dk, keys) && !memcmp(e.dv, f.dv, keys),
       "the same gradients, bit for bit, from one thread and from five");
    example_free(&e);
    example_free(&f);
}

int main(void) {
    test_rows();
    test_forward();
    test_backward();
    test_wrong_gradients();
    test_threads();
    return tap_done();
}
