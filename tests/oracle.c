/* oracle.c - tests of common/judge/oracle.h and of the gradients in fp64 of gradient.h. They are the reference of everything else,
 * so they are held against things that owe them nothing: a direct computation written the other way round, cases with a known
 * answer, and central finite differences.
 */
#define _POSIX_C_SOURCE 200809L

#include "../common/judge/gradient.h"
#include "../common/stage.h"
#include "example.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

extern ScoreReader score_read;

/* Small problems that between them have every kind of mask. Key lengths are used where `lengths` is set. */
typedef struct {
    const char *name;
    int batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim, causal, lengths;
    const char *score; /* a score mod's text, and what it says; NULL: none */
    double cap;
    int alibi, left, right, sink; /* without a window: left, right 99 */
} Case;

static const Case cases[] = {
    {"one query, one key", 1, 1, 1, 1, 1, 2, 0, 0, NULL, 0, 0, 0, 0, 0},
    {"full, 4 x 6", 2, 2, 2, 4, 6, 3, 0, 0, NULL, 0, 0, 0, 0, 0},
    {"causal, 5 x 5", 1, 2, 2, 5, 5, 4, 1, 0, NULL, 0, 0, 0, 0, 0},
    {"causal, more keys than queries", 1, 1, 1, 3, 7, 4, 1, 0, NULL, 0, 0, 0, 0, 0},
    {"causal, more queries than keys: rows without a key", 1, 2, 1, 7, 3, 4, 1, 0, NULL, 0, 0, 0, 0, 0},
    {"four heads share one", 1, 4, 1, 3, 5, 2, 0, 0, NULL, 0, 0, 0, 0, 0},
    {"two pairs of heads, causal", 2, 4, 2, 4, 4, 3, 1, 0, NULL, 0, 0, 0, 0, 0},
    {"key lengths 0, 1 and odd", 3, 2, 1, 4, 6, 3, 0, 1, NULL, 0, 0, 0, 0, 0},
    {"key lengths and causal", 3, 2, 2, 4, 6, 3, 1, 1, NULL, 0, 0, 0, 0, 0},
    {"soft cap", 2, 2, 1, 3, 5, 3, 0, 0, "softcap:0.75", 0.75, 0, 99, 99, 0},
    {"ALiBi, a number of heads that is no power of two", 1, 6, 2, 4, 5, 2, 0, 0, "alibi", 0, 1, 99, 99, 0},
    {"a window, and rows that see nothing", 1, 2, 2, 7, 4, 3, 0, 0, "window:1,1", 0, 0, 1, 1, 0},
    {"sinks", 2, 3, 1, 4, 4, 3, 1, 0, "sink", 0, 0, 99, 99, 1},
    {"all of them, causal, key lengths 0, 1 and odd", 3, 2, 1, 4, 6, 3, 1, 1, "sink+softcap:2+window:2,0+alibi", 2, 1, 2, 0, 1},
};
enum { CASES = sizeof cases / sizeof *cases };
static const int some_lengths[] = {0, 1, 5};

/* fp32, so that what is stored is what was meant. */
typedef struct {
    Problem p;
    const int *lengths;
    float *q, *k, *v, *d_o, *sinks; /* the sinks are the score mod's */
    const Case *of;
} Example;

static Example example(const Case *c) {
    Example e = {.p = FP32_PROBLEM(c->batch, c->heads, c->kv_heads, c->seqlen_q, c->seqlen_k, c->head_dim, c->causal, 0.75f),
                 .lengths = c->lengths ? some_lengths : NULL};
    HostTensors in = draw_inputs(&e.p, 0);
    e.q = in.q, e.k = in.k, e.v = in.v, e.d_o = in.d_o;
    e.of = c;
    if (!c->score)
        return e;
    e.p.score = score_read("score", c->score, &e.p);
    e.sinks = (float *)e.p.score->score.sinks;
    return e;
}

static void example_free(Example *e) { free(e->q), free(e->k), free(e->v), free(e->d_o), free((void *)e->p.score); }

static Samples forward(const Example *e) {
    return samples_compute(&e->p, e->lengths, &(HostTensors){e->q, e->k, e->v, NULL}, row_count(&e->p) + 1);
}

/* ---- forward ---- */

/* What a score mod makes of a score: the distance counts from the query's own key; slopes of 6 heads as ALiBi's authors' code prints
 * them for it, others by their formula. */
static double changed(const Example *e, double score, int head, int distance) {
    static const double six[] = {1. / 4, 1. / 16, 1. / 64, 1. / 256, 1. / 2, 1. / 8};
    const Case *c = e->of;
    if (!c->score)
        return score;
    double slope = c->heads == 6 ? six[head] : pow(pow(2, -8. / c->heads), head + 1);
    if (c->cap > 0)
        score = c->cap * (1 - 2 / (exp(2 * score / c->cap) + 1));
    return c->alibi ? score - slope * abs(distance) : score;
}

/* The definition once more, but written differently: every index in the open, the mask decided key by key with a test of
 * its own, no maximum subtracted, O's sum taken before the division. True if O and LSE agree to 1e-12. */
static int agrees_with_definition(const Example *e, const Samples *s) {
    const Problem *p = &e->p;
    int D = p->head_dim, Sq = p->seqlen_q, Sk = p->seqlen_k, pass = s->count == row_count(p);
    for (int b = 0; b < p->batch; b++)
        for (int h = 0; h < p->heads; h++)
            for (int i = 0; i < Sq; i++) {
                int shared = h * p->kv_heads / p->heads, length = e->lengths ? e->lengths[b] : Sk;
                const float *q = e->q + ((b * p->heads + h) * Sq + i) * D;
                double l = e->of->sink ? exp(e->sinks[h]) : 0, o[8] = {0};
                for (int j = 0; j < Sk; j++) {
                    const float *k = e->k + ((b * p->kv_heads + shared) * Sk + j) * D;
                    const float *v = e->v + ((b * p->kv_heads + shared) * Sk + j) * D;
                    /* Counted from the end, causal means: query i has Sq-1-i queries after it, and may not see the
                     * keys that belong to those. */
                    if (j >= length || (p->causal && (length - 1 - j) < (Sq - 1 - i)))
                        continue;
                    int ahead = (Sq - 1 - i) - (length - 1 - j); /* keys from the query's own to this one */
                    if (e->of->score && (ahead > e->of->right || -ahead > e->of->left))
                        continue;
                    double score = 0;
                    for (int d = D - 1; d >= 0; d--)
                        score += q[d] * (double)p->scale * k[d];
                    score = changed(e, score, h, ahead);
                    l += exp(score);
                    for (int d = 0; d < D; d++)
                        o[d] += exp(score) * v[d];
                }
                int row = (b * p->heads + h) * Sq + i;
                pass &= l == 0 ? s->lse[row] == -INFINITY : fabs(s->lse[row] - log(l)) <= 1e-12;
                for (int d = 0; d < D; d++)
                    pass &= fabs(s->o[row * D + d] - (l == 0 ? 0 : o[d] / l)) <= 1e-12;
            }
    return pass;
}

static void test_forward(void) {
    for (int i = 0; i < CASES; i++) {
        Example e = example(&cases[i]);
        Samples s = forward(&e);
        ok(agrees_with_definition(&e, &s), "forward: %s", cases[i].name);
        s.o[query_elements(&e.p) - 1] += 1e-9;
        if (i == 0)
            ok(!agrees_with_definition(&e, &s), "a result off by 1e-9 is noticed");
        free_samples(&s);
        example_free(&e);
    }
}

static void test_known(void) {
    static const struct {
        const char *name;
        float scale, q[2];
        int keys;
        double o[2], lse, tolerance;
    } known[] = {
        {"equal scores: the mean of V", 1, {0, 0}, 3, {3, 30}, 1.0986122886681098, 1e-13},
        {"one key: its V, and LSE is the score itself", 2, {0.5, -1}, 1, {1, 10}, -3, 1e-14},
        {"huge scores: the largest takes all, and nothing overflows", 1e4f, {0.5, -1}, 3, {1, 10}, -1.5e4, 0},
        {"a negative scale turns the order round", -1e4f, {0.5, -1}, 3, {2, 20}, 5.5e4, 0},
    };
    float k[] = {1, 2, -3, 4, 5, 6}, v[] = {1, 10, 2, 20, 6, 60};
    for (int i = 0; i < 4; i++) {
        float q[] = {known[i].q[0], known[i].q[1]};
        Example e = {.p = {1, 1, 1, 1, known[i].keys, 2, DTYPE_FP32, 0, known[i].scale, {0}, NULL, NULL}, .q = q, .k = k, .v = v};
        Samples s = forward(&e);
        ok(fabs(s.o[0] - known[i].o[0]) <= known[i].tolerance && fabs(s.o[1] - known[i].o[1]) <= known[i].tolerance &&
               fabs(s.lse[0] - known[i].lse) <= known[i].tolerance,
           "%s", known[i].name);
        free_samples(&s);
    }
}

/* ---- backward ---- */

/* A number that depends on all of O: its gradient with respect to O is d_o. */
static double loss(const Example *e) {
    Samples s = forward(e);
    double sum = 0;
    for (size_t i = 0; i < query_elements(&e->p); i++)
        sum += s.o[i] * e->d_o[i];
    free_samples(&s);
    return sum;
}

/* The largest difference between `gradient` and central differences over every entry of `input`, relative to the largest
 * entry of the gradient (or to 1 if all of them are small). */
static double gradient_error(const Example *e, float *input, const double *gradient, size_t count) {
    const float h = 0x1p-11f; /* error of the quotient: about h^2 / 6 */
    double error = 0, size = 1;
    for (size_t i = 0; i < count; i++) {
        const float kept = input[i], more = kept + h, less = kept - h;
        input[i] = more;
        double above = loss(e);
        input[i] = less;
        double below = loss(e);
        input[i] = kept;
        double difference = fabs((above - below) / ((double)more - less) - gradient[i]);
        error = difference > error || difference != difference ? difference : error;
        size = fmax(size, fabs(gradient[i]));
    }
    return error / size;
}

/* From the O and LSE of the forward pass, which are floats. */
static Gradients backward(const Example *e) {
    Samples s = forward(e);
    float *o = host_alloc(query_elements(&e->p), sizeof *o), *lse = host_alloc(row_count(&e->p), sizeof *lse);
    round_samples(&s, o, lse);
    Gradients g = gradients_compute(&e->p, e->lengths, &(HostTensors){e->q, e->k, e->v, e->d_o}, o, lse,
                                    query_elements(&e->p) + key_elements(&e->p));
    free(o), free(lse), free_samples(&s);
    return g;
}

static void test_backward(void) {
    setenv("HOST_THREADS", "1", 1); /* thousands of tiny problems: starting threads would be most of the work */
    for (int i = 0; i < CASES; i++) {
        Example e = example(&cases[i]);
        Gradients g = backward(&e);
        float *inputs[] = {e.q, e.k, e.v, e.sinks};
        for (int which = 0; which < gradient_count(&e.p); which++) {
            int is_sink = which == GRADIENT_SINKS;
            size_t count = is_sink ? (size_t)e.p.heads : which == GRADIENT_Q ? query_elements(&e.p) : key_elements(&e.p);
            double *values = g.of[which].values, error = gradient_error(&e, inputs[which], values, count);
            ok(g.of[which].count == count / (is_sink ? 1 : e.p.head_dim) && error < 1e-6, "%s equals finite differences to %.1e: %s",
               gradient_name((Gradient)which), error, cases[i].name);
            if (i > 1)
                continue;
            values[count - 1] += 1e-4;
            int is_noticed = gradient_error(&e, inputs[which], values, count) > 1e-5;
            values[count - 1] = (double)NAN;
            ok(is_noticed && isnan(gradient_error(&e, inputs[which], values, count)),
               "what is off by 1e-4 is noticed, and NaN");
        }
        free_gradients(&g);
        example_free(&e);
    }
    unsetenv("HOST_THREADS");
}

/* ---- samples ---- */

static void test_rows(void) {
    Problem p = {.batch = 2, .heads = 2, .seqlen_q = 16};
    int wrong = 0;
    for (size_t i = 0; i < 64; i++)
        wrong += sampled_row(&p, i, 64) != i;
    ok(!wrong, "64 rows are all taken, in order");

    p = (Problem){.batch = 3, .heads = 5, .seqlen_q = 100};
    int firsts = 0, lasts = 0, seen[15] = {0}, heads = 0;
    for (size_t i = 0; i < 64; i++) {
        size_t row = sampled_row(&p, i, 64), even = i * 1499 / 63;
        seen[row / 100] = 1;
        firsts += i % 4 == 0 && row % 100 == 0;
        lasts += i % 4 == 3 && row % 100 == 99;
        wrong += row / 100 != even / 100 || (i % 4 % 3 && row != even);
    }
    for (int i = 0; i < 15; i++)
        heads += seen[i];
    ok(!wrong && heads == 15, "of 1500 rows 64 that are spread evenly over all heads");
    ok(firsts == 16 && lasts == 16, "every fourth moved to the first row of its head, every fourth to the last");
}

static void test_samples(void) {
    static const Case larger = {"", 3, 4, 2, 50, 7, 16, 1, 1, NULL, 0, 0, 0, 0, 0};
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        Example e = example(&larger);
        Problem *p = &e.p;
        p->dtype = (Dtype)dtype;
        random_normal(p->dtype, e.q, query_elements(p), 3, 0, 0, 1);
        random_normal(p->dtype, e.k, key_elements(p), 3, 1, 0, 1);
        random_normal(p->dtype, e.v, key_elements(p), 3, 2, 0, 1);
        Samples all = forward(&e), s = samples_compute(p, e.lengths, &(HostTensors){e.q, e.k, e.v, NULL}, 64);
        int wrong = s.count != 64 || s.score_size != score_size(p, e.q, e.k);
        for (size_t i = 0; i < s.count; i++) {
            size_t row = sampled_row(p, i, 64);
            wrong += s.lse[i] != all.lse[row] || memcmp(s.o + i * 16, all.o + row * 16, 16 * sizeof *s.o);
        }
        ok(!wrong, "%s: 64 rows of all", dtype_name(p->dtype));
        free_samples(&all), free_samples(&s);
        example_free(&e);
    }
}

static void test_score_size(void) {
    static const float q[] = {3, 4, 0, 1, 0, 0}, k[] = {0, 0, 0, 1, 2, 2}; /* |q| at most 5, |k| at most 3 */
    const Problem p = {1, 2, 1, 1, 2, 3, DTYPE_FP32, 0, 0.5f, {0}, NULL, NULL};
    ok(score_size(&p, q, k) == 7.5, "the scores' size is scale |q| |k|");
}

/* Sinks of 100 above scores of 0: every P is e^-100, which the chip's 2^x may take for 0. Then O is 0 instead of 4 e^-100 (1 - 3), and off
 * by less than `underflow`; without sinks that is 0. */
static void test_underflow(void) {
    float q[] = {0}, k[8] = {0}, v[] = {1, 1, 1, 1, -3, -3, -3, -3};
    Example e = {.p = {1, 1, 1, 1, 8, 1, DTYPE_FP32, 0, 1, {0}, NULL, NULL}, .q = q, .k = k, .v = v};
    const ScoreMod *mod = e.p.score = score_read("score", "sink", &e.p);
    *(float *)mod->score.sinks = 100;
    Samples with = forward(&e);
    e.p.score = NULL;
    Samples without = forward(&e);
    ok(with.underflow == 0x1p-126 * 8 * 3 && without.underflow == 0, "what may be lost beside a sink: the keys times the largest V");
    ok(fabs(with.o[0] + 8 * exp(-100)) < 1e-56 && fabs(with.o[0]) < with.underflow && with.lse[0] == 100, "all of O, if the sink is far above");
    free_samples(&with), free_samples(&without);
    free((void *)mod);
}

static void test_errors(void) {
    double o[8] = {1, 2, 3, 4, 5, 6, 7, 8}, lse[4] = {0};
    float got[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const Problem p = {1, 1, 1, 4, 1, 2, DTYPE_FP32, 0, 1, {0}, NULL, NULL};
    const Samples s = {&p, 4, o, lse, 1, 0};
    got[7] += 0.5f;
    SampleErrors errors = samples_errors(&s, got);
    ok(errors.worst == 0.5 && fabs(errors.rms - sqrt(0.25 / 8)) < 1e-15, "one error: worst, root mean square");
    got[0] -= 0.25f;
    errors = samples_errors(&s, got);
    ok(errors.worst == 0.5 && fabs(errors.rms - sqrt(0.3125 / 8)) < 1e-15, "two");
    got[3] = NAN;
    errors = samples_errors(&s, got);
    ok(isnan(errors.worst) && isnan(errors.rms), "NaN");
}

int main(void) {
    test_known();
    test_forward();
    test_backward();
    test_rows();
    test_samples();
    test_score_size();
    test_underflow();
    test_errors();
    return tap_done();
}
