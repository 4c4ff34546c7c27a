/* check.c - tests of common/judge/check.h. Mostly of what it must refuse: a comparison is only worth something if wrong results,
 * NaN and unwritten memory above all, cannot get past it.
 */
#include "../common/judge/check.h"
#include "../common/numeric.h"
#include "../common/judge/oracle.h"
#include "../common/host/parallel.h"
#include "../common/host/random.h"
#include "tap.h"

#include <float.h>
#include <stdlib.h>

enum { BATCH = 2, HEADS = 3, ROWS = 40, D = 16, ELEMENTS = BATCH * HEADS * ROWS * D, LSE_ROWS = BATCH * HEADS * ROWS };

/* Causal with 40 queries and 30 keys: the first ten rows of each head see no key. */
static Problem problem = {.batch = BATCH,
                          .heads = HEADS,
                          .kv_heads = HEADS,
                          .seqlen_q = ROWS,
                          .seqlen_k = 30,
                          .head_dim = D,
                          .dtype = DTYPE_FP16,
                          .causal = 1,
                          .scale = 0.25f};

static double want[ELEMENTS], want_lse[LSE_ROWS]; /* the fp64 reference */
static double size;                               /* of its scores */
static float got_lse[LSE_ROWS], reference_lse[LSE_ROWS];
static float got[ELEMENTS], reference[ELEMENTS]; /* large enough for any dtype */

static size_t at(int batch, int head, int row, int column) {
    return (((size_t)batch * HEADS + head) * ROWS + row) * D + column;
}

/* Everything as a perfect stage would leave it. */
static void reset(void) {
    for (size_t i = 0; i < ELEMENTS; i++) {
        dtype_store(problem.dtype, got, i, want[i]);
        dtype_store(problem.dtype, reference, i, want[i]);
    }
    for (size_t i = 0; i < LSE_ROWS; i++)
        got_lse[i] = reference_lse[i] = (float)want_lse[i];
}

static void make_reference(void) {
    static float values[3][ELEMENTS];
    static double q[ELEMENTS], k[ELEMENTS], v[ELEMENTS];
    for (uint32_t stream = 0; stream < 3; stream++)
        random_normal(DTYPE_FP32, values[stream], ELEMENTS, 5, stream, 0, 1);
    for (int i = 0; i < ELEMENTS; i++)
        q[i] = values[0][i], k[i] = values[1][i], v[i] = values[2][i];
    oracle_forward(&problem, NULL, q, k, v, want, want_lse);
    Problem as_drawn = problem;
    as_drawn.dtype = DTYPE_FP32;
    size = score_size(&as_drawn, values[0], values[1]);
}

static void set(int batch, int head, int row, int column, double value) {
    dtype_store(problem.dtype, got, at(batch, head, row, column), value);
}

/* Both kinds of reference must come to the same verdict, and name the same element if it is the only one; gives the one against the dtype's. */
static Comparison output(void) {
    Comparison a = compare_output(&problem, got, reference, reference_lse, size);
    Comparison b = compare_output_double(&problem, got, want, want_lse, size);
    if (a.ok != b.ok || (a.bad == 1 && (a.batch != b.batch || a.head != b.head || a.row != b.row)))
        a.ok = -1;
    return a;
}
static Comparison logsumexp(void) {
    Comparison a = compare_lse(&problem, got_lse, reference_lse, size);
    Comparison b = compare_lse_double(&problem, got_lse, want_lse, size);
    if (a.ok != b.ok || a.bad != b.bad)
        a.ok = -1;
    return a;
}

static int stands_at(const Comparison *c, int batch, int head, int row, int column) {
    return c->batch == batch && c->head == head && c->row == row && c->column == column;
}

static void test_output(void) {
    const char *name = dtype_name(problem.dtype);
    reset();
    Comparison c = output();
    Comparison rounded = compare_output_double(&problem, got, want, want_lse, size);
    ok(c.ok == 1 && c.bad == 0 && c.max_error == 0 && rounded.max_error > 0, "%s: the rounded reference passes", name);

    memset(got, 0xff, sizeof got);
    c = output();
    ok(c.ok == 0 && c.bad == ELEMENTS && isnan(c.max_error) && stands_at(&c, 0, 0, 0, 0), "%s: NaN everywhere", name);

    reset();
    set(1, 2, 17, 5, (double)NAN);
    c = output();
    ok(c.ok == 0 && c.bad == 1 && stands_at(&c, 1, 2, 17, 5) && isnan(c.got) && isnan(c.error) && isnan(c.max_error),
       "%s: one NaN", name);

    reset();
    set(0, 1, 3, 15, -INFINITY);
    c = output();
    ok(c.ok == 0 && c.bad == 1 && stands_at(&c, 0, 1, 3, 15) && c.max_error == INFINITY, "%s: one infinity", name);

    reset();
    memset((char *)got + dtype_bytes(problem.dtype) * at(1, 0, 39, 0), 0xff, dtype_bytes(problem.dtype));
    c = output();
    ok(c.ok == 0 && c.bad == 1 && stands_at(&c, 1, 0, 39, 0), "%s: one element left at its poison", name);

    reset();
    set(0, 2, 30, 7, want[at(0, 2, 30, 7)] + 0.1);
    set(0, 2, 31, 7, want[at(0, 2, 31, 7)] + 0.3);
    set(0, 2, 32, 7, want[at(0, 2, 32, 7)] + 0.1);
    c = output();
    ok(c.ok == 0 && c.bad == 3 && stands_at(&c, 0, 2, 31, 7) && fabs(c.error - 0.3) < 0.02 && c.max_error == c.error,
       "%s: of three wrong elements the worst is named", name);
    set(1, 1, 39, 1, (double)NAN);
    c = output();
    ok(c.ok == 0 && c.bad == 4 && stands_at(&c, 1, 1, 39, 1), "%s: NaN is worse than any error", name);

    reset();
    set(0, 0, 4, 2, 1e-3);
    c = output();
    ok(c.ok == 0 && c.bad == 1 && c.allowed == 0 && stands_at(&c, 0, 0, 4, 2), "%s: a row without keys must be 0", name);

    reset();
    size_t head = (size_t)ROWS * D * dtype_bytes(problem.dtype);
    memcpy(got, (char *)reference + head, head);
    memcpy((char *)got + head, reference, head);
    c = output();
    ok(c.ok == 0 && c.bad > ROWS * D && c.batch == 0 && c.head < 2, "%s: two heads swapped", name);

    reset();
    for (int i = 0; i < ELEMENTS; i++)
        dtype_store(problem.dtype, got, i, 0);
    c = output();
    ok(c.ok == 0, "%s: zeros instead of a result", name);

    /* The allowance is exact: half of it passes, half as much again does not. Rounding what is stored moves it
     * by up to u, an eighth of the allowance. */
    reset();
    double allowed = output_allowance(problem.dtype, want + at(1, 1, 35, 0), D, problem.seqlen_k,
                                      want_lse[(1 * HEADS + 1) * ROWS + 35], size);
    set(1, 1, 35, 4, want[at(1, 1, 35, 4)] + 0.5 * allowed);
    c = output();
    ok(c.ok == 1 && c.bad == 0 && stands_at(&c, 1, 1, 35, 4) && c.error > 0 && c.error < c.allowed,
       "%s: an error inside the allowance passes, and is the one named", name);
    set(1, 1, 35, 4, want[at(1, 1, 35, 4)] + 1.5 * allowed);
    c = output();
    ok(c.ok == 0 && c.bad == 1, "%s: an error outside it does not", name);
}

static void test_broken_reference(void) {
    problem.dtype = DTYPE_FP16;
    reset();
    dtype_store(problem.dtype, reference, at(0, 0, 20, 0), (double)NAN);
    Comparison c = compare_output(&problem, got, reference, reference_lse, size);
    ok(c.ok == 0 && c.bad == D && stands_at(&c, 0, 0, 20, 0), "a NaN in the reference: nothing of that row passes");
    dtype_store(problem.dtype, reference, at(0, 0, 20, 0), INFINITY);
    c = compare_output(&problem, got, reference, reference_lse, size);
    ok(c.ok == 0 && c.bad == D, "an infinity in the reference does not allow everything");
    reset();
    reference_lse[20] = (float)NAN;
    ok(compare_output(&problem, got, reference, reference_lse, size).bad == D, "nor does a NaN in its LSE");
    reference_lse[20] = INFINITY;
    ok(compare_output(&problem, got, reference, reference_lse, size).bad == D, "nor an infinity");
    ok(compare_lse(&problem, got_lse, reference_lse, size).bad == 1, "nor for the LSE itself");
}

static void test_zeros(void) {
    static const double zeros[ELEMENTS];
    static const float nothing[ELEMENTS];
    Comparison c = compare_output_double(&problem, nothing, zeros, want_lse, size);
    ok(c.ok == 1 && c.bad == 0 && c.max_error == 0, "zeros against zeros");
    double g = -0.0, w = 0;
    c = comparison_start("x");
    compare_row(&c, 0, 0, 0, &g, &w, 1, 0);
    ok(c.ok == 1, "-0 equals 0");
}

static void test_lse(void) {
    reset();
    Comparison c = logsumexp();
    ok(c.ok == 1 && c.bad == 0 && want_lse[0] == -INFINITY, "LSE: the reference passes, -infinity included");
    memset(got_lse, 0xff, sizeof got_lse);
    c = logsumexp();
    ok(c.ok == 0 && c.bad == LSE_ROWS && stands_at(&c, 0, 0, 0, -1), "LSE: NaN everywhere");

    struct {
        int row;
        float value;
        const char *name;
    } wrong[] = {
        {2, -1e30f, "finite where -infinity belongs"}, {2, 0, "0 where -infinity belongs"},
        {2, INFINITY, "+infinity for -infinity"},      {2, (float)NAN, "NaN where -infinity belongs"},
        {33, -INFINITY, "-infinity for a number"},     {33, (float)(1.4427 * want_lse[33]), "in base 2"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        reset();
        got_lse[wrong[i].row] = wrong[i].value;
        c = logsumexp();
        ok(c.ok == 0 && c.bad == 1 && stands_at(&c, 0, 0, wrong[i].row, -1), "LSE: %s", wrong[i].name);
    }

    reset();
    double w = want_lse[33];
    got_lse[33] = (float)(w + 0.98 * lse_allowance(w, size));
    ok(logsumexp().ok == 1, "LSE: inside the allowance");
    got_lse[33] = (float)(w + 1.02 * lse_allowance(w, size));
    ok(logsumexp().ok == 0, "LSE: outside of it");
}

static void test_allowance(void) {
    const double row[] = {0.25, -2, 1, 0};
    ok(output_allowance(DTYPE_FP16, row, 3, 1, 0, 0) == (0x1p-9 + 0x1p-21 + 3 * 0x1p-24) * 2 + 0x1p-24,
       "4u of the row's largest, in fp16");
    ok(output_allowance(DTYPE_BF16, row, 4, 9, log(9), 4) == (0x1p-6 + 0x1p-21 + 15 * 0x1p-24) * 2 + 0x1p-133,
       "in bf16, with 9 keys and the scores' size");
    ok(output_allowance(DTYPE_FP32, row, 3, 2500, 1, 0) == (0x1p-22 + 0x1p-21 + 150 * 0x1p-24) * 2 + 0x1p-149,
       "in fp32, and with 2500 keys");
    ok(output_allowance(DTYPE_FP32, row, 4, 1, 20, 0) ==
               (0x1p-22 + 0x1p-21 + 3 * sqrt(1 + 4 * 20 * 20) * 0x1p-24) * 2 + 0x1p-149 &&
           output_allowance(DTYPE_FP32, row, 4, 1, -20, 0) == output_allowance(DTYPE_FP32, row, 4, 1, 20, 0),
       "a large score, of either sign");
    ok(output_allowance(DTYPE_FP32, row, 3, 9, -INFINITY, 9) == 0, "nothing for a row without keys");

    static const float q2[] = {3, 4, 0, 1, 0, 0}, k2[] = {1, 2, 2, 0, 0, 0}; /* |q| at most 5, |k| at most 3 */
    Problem two_rows = {.batch = 1,
                        .heads = 1,
                        .kv_heads = 1,
                        .seqlen_q = 2,
                        .seqlen_k = 2,
                        .head_dim = 3,
                        .dtype = DTYPE_FP32,
                        .scale = 0.5f};
    ok(score_size(&two_rows, q2, k2) == 7.5, "the scores' size is scale |q| |k|");
    ok(lse_allowance(-3, 0) == 0x1p-15 && lse_allowance(-INFINITY, 9) == 0, "LSE");
    ok(lse_allowance(3, 10) == 0x1p-15 + 3 * 0x1p-24 * 10, "LSE, with the scores' size");
}

/* An allowance that is more than half of the largest number is no check. */
static void test_empty(void) {
    const double rows[] = {1, -3, 2}, infinite = -INFINITY;
    Comparison c = comparison_start("x"), other = comparison_start("x");
    ok(!comparison_is_empty(&c, 0), "nothing compared, nothing empty");
    compare_row(&c, 0, 0, 0, rows, rows, 3, 1.5);
    ok(c.loosest == 1.5 && c.largest == 3 && !comparison_is_empty(&c, 0), "half the largest number is a check");
    compare_row(&c, 0, 0, 1, rows, rows, 1, 1.6);
    compare_row(&c, 0, 0, 2, &infinite, &infinite, 0, 0);
    compare_row(&c, 0, 0, 3, rows, rows, 1, (double)NAN);
    ok(c.loosest == 1.6 && c.largest == 3 && comparison_is_empty(&c, 0), "more is none; infinity does not count");
    ok(comparison_is_empty(&c, 0.09) && !comparison_is_empty(&c, 0.11), "what zeros are allowed does not count");
    comparison_merge(&other, &c);
    ok(other.loosest == 1.6 && other.largest == 3, "merging keeps the loosest and the largest");
    compare_row(&c, 0, 0, 4, (double[]){9}, (double[]){9}, 1, 2);
    comparison_merge(&other, &c);
    ok(other.loosest == 2 && other.largest == 9, "whichever comes first");
    Comparison full = other, empty = other;
    full.empty = 0, empty.empty = 1;
    comparison_merge(&full, &empty);
    ok(full.empty, "and that one of the two checks nothing");

    reset();
    const double last = (0.5 - 0x1p-9 - 0x1p-21) / (3 * 0x1p-24); /* fp16: with it the relative bound is 1/2 */
    problem.dtype = DTYPE_FP16;
    reset();
    ok(!compare_output(&problem, got, reference, reference_lse, 0.99 * last).empty &&
           compare_output(&problem, got, reference, reference_lse, 1.01 * last).empty,
       "O is checked as long as its bound is below half of it");
    double most = 0;
    for (int i = 0; i < LSE_ROWS; i++)
        most = isfinite(want_lse[i]) ? fmax(most, fabs(want_lse[i])) : most;
    const double last_lse = (0.5 + 0.5 * most - 0x1p-17 * (1 + most)) / (3 * 0x1p-24);
    ok(!compare_lse(&problem, got_lse, reference_lse, 0.99 * last_lse).empty &&
           compare_lse(&problem, got_lse, reference_lse, 1.01 * last_lse).empty,
       "LSE until it may be off by half of itself and 0.5");
    memset(reference, 0, sizeof reference);
    memset(got, 0, sizeof got);
    ok(!compare_output(&problem, got, reference, reference_lse, size).empty, "zeros are checked to be zeros");
}

static void test_row(void) {
    const double got[] = {1, 2, -3}, want_row[] = {1, 1.5, -1};
    Comparison c = comparison_start("x");
    ok(c.ok == 1 && !c.bad && c.severity == -1 && !c.empty && !c.loosest && !c.largest && !c.max_error,
       "at the start nothing is bad");
    compare_row(&c, 1, 2, 3, got, want_row, 3, 1);
    ok(!c.ok && c.bad == 1 && stands_at(&c, 1, 2, 3, 2) && c.got == -3 && c.want == -1 && c.error == 2 && c.allowed == 1 &&
           c.max_error == 2 && c.severity == 2,
       "a row: the worst element, its error over what is allowed");
    compare_row(&c, 1, 2, 4, got, want_row, 3, 0.2);
    ok(c.bad == 3 && c.row == 4 && c.severity == 10, "a worse one");
    compare_row(&c, 1, 2, 5, got, want_row, 3, 0.2);
    ok(c.bad == 5 && c.row == 4, "of equal ones the first");
    compare_row(&c, 1, 2, 6, got + 1, want_row + 1, 1, 0);
    ok(c.bad == 6 && c.row == 6 && c.severity == DBL_MAX, "worse than all: an error where nothing is allowed");
    compare_row(&c, 1, 2, 7, got, (double[]){INFINITY}, 1, 1);
    ok(c.bad == 7 && c.row == 7 && c.severity == INFINITY, "worse than that: infinity");
    c = comparison_start("x");
    compare_row(&c, 0, 0, 0, got, want_row, 2, 0.5);
    compare_row(&c, 0, 0, 1, got, want_row, 3, DBL_MAX);
    ok(c.ok && !c.bad && c.max_error == 2 && c.loosest == DBL_MAX, "what is exactly allowed passes, as far as numbers go");
    compare_row(&c, 0, 0, 2, got, want_row, 1, INFINITY);
    ok(!c.ok && c.bad == 1 && c.row == 2, "an infinite allowance allows nothing");
    c = comparison_start("x");
    compare_row(&c, 0, 0, 0, got, got, 3, 0);
    ok(c.ok && c.severity == 0 && c.column == 0, "no error where none is allowed");
    compare_row(&c, 0, 0, 1, got + 1, want_row + 1, 0, 9);
    ok(c.column == -1 && c.got == 2, "one number without a column");
}

static void test_merge(void) {
    const double want_rows[4] = {0, 0, 0, 0}, rows[4] = {0.1, (double)NAN, 0.5, (double)NAN};
    Comparison parts[4], all = comparison_start("x"), backwards = comparison_start("x");
    for (int i = 0; i < 4; i++) {
        parts[i] = comparison_start("x");
        compare_row(&parts[i], 0, 0, i, &rows[i], &want_rows[i], 1, 0.2);
    }
    for (int i = 0; i < 4; i++) {
        comparison_merge(&all, &parts[i]);
        comparison_merge(&backwards, &parts[3 - i]);
    }
    ok(!all.ok && all.bad == 3 && all.row == 1 && isnan(all.max_error), "merging keeps the first NaN and counts all");
    for (int place = 0; place < 4; place++) { /* batch, head, row, column */
        int at[2][4] = {{2, 2, 2, 2}, {2, 2, 2, 2}};
        for (int i = place; i < 4; i++)
            at[0][i] = i == place ? 1 : 3; /* the first in memory, by this place; behind it by those after */
        Comparison two[2] = {comparison_start("x"), comparison_start("x")};
        for (int i = 0; i < 2; i++) {
            compare_row(&two[i], at[i][0], at[i][1], at[i][2], &rows[0], &want_rows[0], 1, 0.2);
            two[i].column = at[i][3];
        }
        Comparison a = two[0], b = two[1];
        comparison_merge(&a, &two[1]);
        comparison_merge(&b, &two[0]);
        ok(stands_at(&a, at[0][0], at[0][1], at[0][2], at[0][3]) && stands_at(&b, at[0][0], at[0][1], at[0][2], at[0][3]) &&
               a.ok && b.ok,
           "of two equally bad the first in memory (%d)", place);
    }
    ok(!backwards.ok && backwards.bad == 3 && backwards.row == 1 && isnan(backwards.max_error), "in any order");
}

static void test_print(void) {
    char text[256] = "";
    FILE *file = tmpfile();
    Comparison c = {.tensor = "O",
                    .head = 3,
                    .row = 17,
                    .column = 5,
                    .got = -(double)NAN,
                    .want = 0.0123,
                    .error = (double)NAN,
                    .allowed = 2.1e-05,
                    .bad = 1234};
    comparison_print(file, &c);
    rewind(file);
    ok(fgets(text, sizeof text, file) && !strcmp(text, "O[batch 0, head 3, row 17, column 5] = nan, want 0.0123, error nan, "
                                                       "allowed 2.1e-05 (1234 elements out of bounds)\n"),
       "the line about the worst element");
    fclose(file);
    file = tmpfile();
    c = (Comparison){
        .tensor = "LSE", .batch = 1, .row = 2, .column = -1, .got = 0.5, .want = -INFINITY, .error = INFINITY, .bad = 1};
    comparison_print(file, &c);
    rewind(file);
    ok(fgets(text, sizeof text, file) && !strcmp(text, "LSE[batch 1, head 0, row 2] = 0.5, want -inf, error inf, allowed 0 "
                                                       "(1 element out of bounds)\n"),
       "and for LSE, which has no columns");
    fclose(file);
}

int main(void) {
    make_reference();
    const Dtype dtypes[] = {DTYPE_FP16, DTYPE_BF16, DTYPE_FP32};
    for (int i = 0; i < 3; i++) {
        problem.dtype = dtypes[i];
        test_output();
    }
    test_broken_reference();
    test_zeros();
    test_lse();
    test_allowance();
    test_row();
    test_empty();
    test_merge();
    test_print();
    return tap_done();
}
