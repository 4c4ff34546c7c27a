/* samples.c - tests of common/judge/samples.h: that sampled rows are the oracle's, and what comparing with them must refuse.
 */
#include "../common/judge/samples.h"
#include "../common/judge/oracle.h"
#include "../common/judge/rows.h"
#include "../common/host/memory.h"
#include "../common/host/random.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

/* A problem, its inputs, and the whole of what is right. fp32, so that what is stored is what was meant. */
typedef struct {
    Problem p;
    const int *lengths;
    HostTensors inputs;
    double *o, *lse;
    float *got_o, *got_lse;
} Example;

static void *normal(const Problem *p, size_t count, uint32_t stream) {
    void *values = host_alloc(count, dtype_bytes(p->dtype));
    random_normal(p->dtype, values, count, 3, stream, 0, 1);
    return values;
}

static Example make_example(Problem p, const int *lengths) {
    Example e = {.p = p, .lengths = lengths};
    size_t queries = query_elements(&p), keys = key_elements(&p);
    e.inputs = (HostTensors){normal(&p, queries, 0), normal(&p, keys, 1), normal(&p, keys, 2), NULL};
    double *q = to_doubles(p.dtype, e.inputs.q, 0, queries), *k = to_doubles(p.dtype, e.inputs.k, 0, keys),
           *v = to_doubles(p.dtype, e.inputs.v, 0, keys);
    e.o = host_alloc(queries, sizeof *e.o);
    e.lse = host_alloc(row_count(&p), sizeof *e.lse);
    oracle_forward(&p, lengths, q, k, v, e.o, e.lse);
    free(q), free(k), free(v);
    e.got_o = host_alloc(queries, sizeof *e.got_o);
    e.got_lse = host_alloc(row_count(&p), sizeof *e.got_lse);
    return e;
}

/* Everything as a perfect stage would leave it. */
static void reset(Example *e) {
    for (size_t i = 0; i < query_elements(&e->p); i++)
        e->got_o[i] = (float)e->o[i];
    for (size_t i = 0; i < row_count(&e->p); i++)
        e->got_lse[i] = (float)e->lse[i];
}

static void free_example(Example *e) {
    free(e->inputs.q), free(e->inputs.k), free(e->inputs.v);
    free(e->o), free(e->lse), free(e->got_o), free(e->got_lse);
}

static int is_at(const Comparison *c, RowIndex i, int column) {
    return c->batch == i.batch && c->head == i.head && c->row == i.row && c->column == column;
}

/* ---- which rows ---- */

static void test_rows(void) {
    Problem p = {.batch = 2, .heads = 2, .seqlen_q = 16};
    int wrong = 0;
    for (int i = 0; i < 64; i++)
        wrong += flat_row(&p, sampled_row(&p, i, 64)) != (size_t)i;
    ok(!wrong, "64 rows are all taken, in order");

    p = (Problem){.batch = 3, .heads = 5, .seqlen_q = 100};
    int firsts = 0, lasts = 0, seen[15] = {0}, heads = 0;
    for (int i = 0; i < 64; i++) {
        RowIndex row = sampled_row(&p, i, 64), even = row_index(&p, (size_t)i * 1499 / 63);
        seen[row.batch * 5 + row.head] = 1;
        firsts += i % 4 == 0 && row.row == 0;
        lasts += i % 4 == 3 && row.row == 99;
        wrong += row.batch != even.batch || row.head != even.head || (i % 4 % 3 && row.row != even.row);
    }
    for (int i = 0; i < 15; i++)
        heads += seen[i];
    ok(!wrong && heads == 15, "of 1500 rows 64 that are spread evenly over all heads");
    ok(firsts == 16 && lasts == 16, "every fourth moved to the first row of its head, every fourth to the last");
}

/* ---- what is in them ---- */

static void test_against_oracle(Problem p, const int *lengths, int count) {
    Example e = make_example(p, lengths);
    Samples s = samples_compute(&e.p, lengths, &e.inputs);
    int wrong = s.count != count;
    for (int i = 0; i < s.count; i++) {
        size_t row = flat_row(&p, s.rows[i]);
        wrong += s.lse[i] != e.lse[row] || memcmp(s.o + i * p.head_dim, e.o + row * p.head_dim, sizeof(double) * p.head_dim);
    }
    ok(!wrong, "batch %d, heads %d/%d, %d x %d, %s%s: %d rows are the oracle's", p.batch, p.heads, p.kv_heads, p.seqlen_q,
       p.seqlen_k, dtype_name(p.dtype), p.causal ? ", causal" : "", count);
    ok(s.score_size == score_size(&e.p, e.inputs.q, e.inputs.k) && s.score_size > 0,
       "and the scores' size is the problem's");
    free(s.o);
    free_example(&e);
}

/* ---- comparing ---- */

static void test_comparing(Problem p, const int *lengths) {
    Example e = make_example(p, lengths);
    Samples s = samples_compute(&e.p, lengths, &e.inputs);
    const int d = p.head_dim, last = s.count - 1;
    reset(&e);
    Comparison o = samples_compare_output(&s, e.got_o), lse = samples_compare_lse(&s, e.got_lse);
    ok(o.ok && lse.ok && !o.empty && !lse.empty, "what is right passes, and is checked");
    ok(!strcmp(o.tensor, "O") && !strcmp(lse.tensor, "LSE"), "by its name");

    int missed = 0; /* in each sampled row, first and last column */
    for (int i = 0; i < s.count; i++)
        for (int column = 0; column < d; column += d - 1) {
            size_t row = flat_row(&p, s.rows[i]);
            double allowed = output_allowance(p.dtype, s.o + i * d, d, p.seqlen_k, s.lse[i], s.score_size);
            reset(&e);
            e.got_o[row * d + column] = (float)(e.o[row * d + column] + 0.9 * allowed);
            missed += !samples_compare_output(&s, e.got_o).ok;
            e.got_o[row * d + column] = (float)(e.o[row * d + column] + (allowed > 0 ? 1.1 * allowed : 1e-30));
            o = samples_compare_output(&s, e.got_o);
            missed += o.ok || o.bad != 1 || !is_at(&o, s.rows[i], column);
            e.got_o[row * d + column] = NAN;
            o = samples_compare_output(&s, e.got_o);
            missed += o.ok || o.bad != 1 || !is_at(&o, s.rows[i], column);
        }
    ok(!missed, "O: inside the bound, outside of it, NaN, in each sampled row");
    missed = 0;
    for (int i = 0; i < s.count; i++) {
        size_t row = flat_row(&p, s.rows[i]);
        double allowed = lse_allowance(s.lse[i], s.score_size);
        reset(&e);
        if (allowed > 0) {
            e.got_lse[row] = (float)(e.lse[row] + 0.9 * allowed);
            missed += !samples_compare_lse(&s, e.got_lse).ok;
        }
        e.got_lse[row] = allowed > 0 ? (float)(e.lse[row] + 1.1 * allowed) : -1e30f;
        lse = samples_compare_lse(&s, e.got_lse);
        missed += lse.ok || lse.bad != 1 || !is_at(&lse, s.rows[i], -1);
        e.got_lse[row] = NAN;
        lse = samples_compare_lse(&s, e.got_lse);
        missed += lse.ok || lse.bad != 1 || !is_at(&lse, s.rows[i], -1);
    }
    ok(!missed, "LSE likewise");

    reset(&e);
    size_t row = flat_row(&p, s.rows[last]);
    e.got_o[row * d + 1] += 0.5f;
    SampleErrors errors = samples_errors(&s, e.got_o);
    ok(fabs(errors.worst - 0.5) < 1e-6 && fabs(errors.rms / (0.5 / sqrt((double)s.count * d)) - 1) < 1e-6,
       "one error: worst, RMS");
    e.got_o[flat_row(&p, s.rows[0]) * d] -= 0.25f;
    errors = samples_errors(&s, e.got_o);
    ok(fabs(errors.worst - 0.5) < 1e-6 && fabs(errors.rms / (sqrt(0.3125 / ((double)s.count * d))) - 1) < 1e-6, "two");
    e.got_o[row * d] = NAN;
    errors = samples_errors(&s, e.got_o);
    ok(isnan(errors.worst) && isnan(errors.rms), "NaN");

    s.score_size = 1e9;
    reset(&e);
    ok(samples_compare_output(&s, e.got_o).empty && samples_compare_lse(&s, e.got_lse).empty,
       "where the bound is as wide as the result nothing is checked");
    free(s.o);
    free_example(&e);
}

static void test_unsampled(void) {
    Problem p = {.batch = 1,
                 .heads = 1,
                 .kv_heads = 1,
                 .seqlen_q = 200,
                 .seqlen_k = 3,
                 .head_dim = 8,
                 .dtype = DTYPE_FP32,
                 .scale = 1};
    Example e = make_example(p, NULL);
    Samples s = samples_compute(&e.p, NULL, &e.inputs);
    char sampled[200] = {0};
    for (int i = 0; i < s.count; i++)
        sampled[s.rows[i].row] = 1;
    reset(&e);
    for (int row = 0; row < 200; row++)
        if (!sampled[row])
            e.got_lse[row] = e.got_o[row * 8] = NAN;
    ok(samples_compare_output(&s, e.got_o).ok && samples_compare_lse(&s, e.got_lse).ok, "only sampled rows are looked at");
    free(s.o);
    free_example(&e);
}

int main(void) {
    static const int lengths[] = {7, 0, 3};
    const Problem
        small = {.batch = 1, .heads = 2, .kv_heads = 1, .seqlen_q = 9, .seqlen_k = 7, .head_dim = 8, .scale = 0.4f},
        large = {.batch = 3, .heads = 4, .kv_heads = 2, .seqlen_q = 50, .seqlen_k = 7, .head_dim = 16, .scale = 0.3f};
    Problem causal = large, fp32 = large, whole = small; /* of `whole` each row is a sample, and only once */
    causal.causal = 1;
    fp32.dtype = whole.dtype = DTYPE_FP32;
    whole.batch = 3;
    test_rows();
    test_against_oracle(small, NULL, 18);
    test_against_oracle(large, NULL, 64);
    test_against_oracle(large, lengths, 64);
    test_against_oracle(causal, lengths, 64);
    test_against_oracle(fp32, NULL, 64);
    test_comparing(whole, NULL);
    test_comparing(whole, lengths);
    test_unsampled();
    return tap_done();
}
