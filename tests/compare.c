/* compare.c - tests of common/judge/compare.h. Mostly of what it must refuse: a comparison is only worth something if wrong results,
 * NaN and unwritten memory above all, cannot get past it.
 */
#include "../common/judge/compare.h"
#include "../common/numeric.h"
#include "capture.h"
#include "example.h"
#include "tap.h"

#include <float.h>
#include <stdlib.h>

enum { BATCH = 2, HEADS = 3, ROWS = 40, D = 16, ELEMENTS = BATCH * HEADS * ROWS * D, LSE_ROWS = BATCH * HEADS * ROWS };

/* Causal with 40 queries and 30 keys: the first ten rows of each head see no key. */
static Problem problem = FP32_PROBLEM(BATCH, HEADS, HEADS, ROWS, 30, D, 1, 0.25f);

static Samples exact;           /* all rows */
static double *want, *want_lse; /* of it */
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
    HostTensors inputs = draw_inputs(&problem, 0);
    exact = samples_compute(&problem, NULL, &inputs, LSE_ROWS);
    want = exact.o, want_lse = exact.lse;
    free_inputs(&inputs);
}

static void set(int batch, int head, int row, int column, double value) {
    dtype_store(problem.dtype, got, at(batch, head, row, column), value);
}

/* Both kinds of reference must come to the same verdict, and name the same element if it is the only one. */
static Comparison output(void) {
    Comparison a = compare_output(&exact, got, reference, reference_lse), b = compare_output(&exact, got, NULL, NULL);
    if (a.ok != b.ok || (a.bad == 1 && (a.batch != b.batch || a.head != b.head || a.row != b.row)))
        a.ok = -1;
    return a;
}
static Comparison logsumexp(void) {
    Comparison a = compare_lse(&exact, got_lse, reference_lse), b = compare_lse(&exact, got_lse, NULL);
    if (a.ok != b.ok || a.bad != b.bad)
        a.ok = -1;
    return a;
}

static void test_output(void) {
    const char *name = dtype_name(problem.dtype);
    reset();
    Comparison c = output();
    Comparison rounded = compare_output(&exact, got, NULL, NULL);
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
    double allowed =
        output_allowance(&problem, want + at(1, 1, 35, 0), want_lse[(1 * HEADS + 1) * ROWS + 35], exact.score_size);
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
    Comparison c = compare_output(&exact, got, reference, reference_lse);
    ok(c.ok == 0 && c.bad == 1 && c.empty && stands_at(&c, 0, 0, 20, 0),
       "a NaN in the reference: it is wrong, its row unknown");
    dtype_store(problem.dtype, reference, at(0, 0, 20, 0), INFINITY);
    c = compare_output(&exact, got, reference, reference_lse);
    ok(c.ok == 0 && c.bad == 1 && c.empty, "an infinity in the reference does not allow everything");
    reset();
    for (int i = 0; i < 2; i++) {
        reference_lse[20] = i ? INFINITY : (float)NAN;
        c = compare_output(&exact, got, reference, reference_lse);
        ok(c.ok && c.empty && c.loosest == INFINITY, "nor does %g in its LSE: O is not checked", (double)reference_lse[20]);
        dtype_store(problem.dtype, got, at(0, 0, 20, 1), (double)NAN);
        ok(compare_output(&exact, got, reference, reference_lse).bad == 1, "but NaN is wrong there, too");
        dtype_store(problem.dtype, got, at(0, 0, 20, 1), want[at(0, 0, 20, 1)]);
        ok(compare_lse(&exact, got_lse, reference_lse).bad == 1, "and so is the LSE itself");
    }
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
    got_lse[33] = (float)(w + 0.98 * lse_allowance(w, exact.score_size));
    ok(logsumexp().ok == 1, "LSE: inside the allowance");
    got_lse[33] = (float)(w + 1.02 * lse_allowance(w, exact.score_size));
    ok(logsumexp().ok == 0, "LSE: outside of it");

    const Dtype dtype = problem.dtype;
    const ScoreMod mod = {.text = "softcap:1000", .score = {.softcap = 1000}};
    problem.score = &mod;
    for (int is_16_bits = 0; is_16_bits < 2; is_16_bits++) { /* with a soft cap of 1000: 2^-21 of that on top, in 16 bits alone */
        problem.dtype = is_16_bits ? DTYPE_FP16 : DTYPE_FP32;
        got_lse[33] = (float)(w + lse_allowance(w, exact.score_size) + 0.98 * 1000 * 0x1p-21);
        int inside = logsumexp().ok;
        got_lse[33] = (float)(w + lse_allowance(w, exact.score_size) + 1.02 * 1000 * 0x1p-21);
        ok(inside == is_16_bits && logsumexp().ok == 0, "LSE under a soft cap: what is allowed in %s", dtype_name(problem.dtype));
    }
    problem.dtype = dtype, problem.score = NULL;
}

static void test_allowance(void) {
    const double row[] = {0.25, -2, 1, 0};
    Problem p = {.dtype = DTYPE_FP16, .seqlen_k = 1, .head_dim = 3};
    ok(output_allowance(&p, row, 0, 0) == (0x1p-9 + 0x1p-21 + 3 * 0x1p-24) * 2 + 0x1p-24,
       "4u of the row's largest, in fp16");
    p = (Problem){.dtype = DTYPE_BF16, .seqlen_k = 9, .head_dim = 4};
    ok(output_allowance(&p, row, log(9), 4) == (0x1p-6 + 0x1p-21 + 15 * 0x1p-24) * 2 + 0x1p-133,
       "in bf16, with 9 keys and the scores' size");
    p = (Problem){.dtype = DTYPE_FP32, .seqlen_k = 2500, .head_dim = 3};
    ok(output_allowance(&p, row, 1, 0) == (0x1p-22 + 0x1p-21 + 150 * 0x1p-24) * 2 + 0x1p-149, "in fp32, and with 2500 keys");
    p = (Problem){.dtype = DTYPE_FP32, .seqlen_k = 1, .head_dim = 4};
    ok(output_allowance(&p, row, 20, 0) == (0x1p-22 + 0x1p-21 + 3 * sqrt(1 + 4 * 20 * 20) * 0x1p-24) * 2 + 0x1p-149 &&
           output_allowance(&p, row, -20, 0) == output_allowance(&p, row, 20, 0),
       "a large score, of either sign");
    const double small[64] = {7 * 0x1p-149};
    ok(fabs(output_allowance(&p, small, 1, 0) / 0x1p-149 - 1 - p.seqlen_k) < 1e-3, "steps where products are below normal numbers: a key's, each");
    ok(output_allowance(&p, row, -INFINITY, 9) == 0, "nothing for a row without keys");
    ok(lse_allowance(-3, 0) == 0x1p-15 && lse_allowance(-INFINITY, 9) == 0, "LSE");
    ok(lse_allowance(3, 10) == 0x1p-15 + 3 * 0x1p-24 * 10, "LSE, with the scores' size");
}

/* A bound that is more than half of the largest number is no check. */
static void test_empty(void) {
    ok(!bound_is_empty(1.5, 0, 3) && bound_is_empty(1.6, 0, 3), "half the largest number is a check, more is none");
    ok(bound_is_empty(1.6, 0.09, 3) && !bound_is_empty(1.6, 0.11, 3), "beside what checks zeros, too");
    ok(!bound_is_empty(0, 0, 0) && bound_is_empty(1e-30, 0, 0), "zeros are checked if they must be exact");
    ok(bound_is_empty(INFINITY, 0, 3) && bound_is_empty(INFINITY, 0.5, 3), "an infinite bound checks nothing");

    Samples samples = exact;
    const double last = (0.5 - 0x1p-9 - 0x1p-21) / (3 * 0x1p-24); /* fp16: with it the relative bound is 1/2 */
    double most = 0, size[] = {0.99, 1.01};
    for (int i = 0; i < LSE_ROWS; i++)
        most = isfinite(want_lse[i]) ? fmax(most, fabs(want_lse[i])) : most;
    const double last_lse = (0.5 + 0.5 * most - 0x1p-17 * (1 + most)) / (3 * 0x1p-24);
    problem.dtype = DTYPE_FP16;
    reset();
    for (int i = 0; i < 2; i++) {
        samples.score_size = size[i] * last;
        ok(compare_output(&samples, got, reference, reference_lse).empty == i &&
               compare_output(&samples, got, NULL, NULL).empty == i,
           "O is checked as long as its bound is below half of it: %g", size[i]);
        samples.score_size = size[i] * last_lse;
        ok(compare_lse(&samples, got_lse, reference_lse).empty == i && compare_lse(&samples, got_lse, NULL).empty == i,
           "LSE until it may be off by half of itself and 0.5: %g", size[i]);
    }
    memset(reference, 0, sizeof reference);
    memset(got, 0, sizeof got);
    Comparison c = compare_output(&exact, got, reference, reference_lse);
    ok(c.ok && c.empty && c.largest == 0 && c.loosest == 0x1p-24,
       "where zeros are right, a kernel that only writes zeros is, too");
    for (int i = 0; i < LSE_ROWS; i++)
        reference_lse[i] = -INFINITY;
    c = compare_output(&exact, got, reference, reference_lse);
    ok(c.ok && !c.empty, "unless every row sees no key: then nothing but 0 is right");
    reset();
}

static void test_row(void) {
    const double got[] = {1, 2, -3, -0.0}, want_row[] = {1, 1.5, -1, 0}, infinite = -INFINITY;
    Comparison c = comparison_start("x");
    ok(c.ok == 1 && !c.bad && c.severity == -1 && !c.empty && !c.loosest && !c.largest && !c.max_error,
       "at the start nothing is bad");
    compare_row(&c, (RowIndex){1, 2, 3}, got, want_row, 3, 1);
    ok(!c.ok && c.bad == 1 && stands_at(&c, 1, 2, 3, 2) && c.got == -3 && c.want == -1 && c.error == 2 && c.allowed == 1 &&
           c.max_error == 2 && c.severity == 2 && c.loosest == 1 && c.largest == 1.5,
       "a row: the worst element, its error over what is allowed");
    compare_row(&c, (RowIndex){1, 2, 4}, got, want_row, 3, 0.2);
    ok(c.bad == 3 && c.row == 4 && c.severity == 10, "a worse one");
    compare_row(&c, (RowIndex){1, 2, 5}, got, want_row, 3, 0.2);
    ok(c.bad == 5 && c.row == 4, "of equal ones the first");
    compare_row(&c, (RowIndex){1, 2, 6}, got + 1, want_row + 1, 1, 0);
    ok(c.bad == 6 && c.row == 6 && c.severity == DBL_MAX, "worse than all: an error where nothing is allowed");
    compare_element(&c, (RowIndex){1, 2, 7}, -1, 1, infinite, 1);
    ok(c.bad == 7 && stands_at(&c, 1, 2, 7, -1) && c.severity == INFINITY && c.loosest == 1 && c.largest == 1.5,
       "worse than that: infinity, which is no largest number");
    c = comparison_start("x");
    compare_row(&c, (RowIndex){0, 0, 0}, got, want_row, 2, 0.5);
    compare_row(&c, (RowIndex){0, 0, 1}, got, want_row, 3, DBL_MAX);
    ok(c.ok && !c.bad && c.max_error == 2 && c.loosest == DBL_MAX, "what is exactly allowed passes, as far as numbers go");
    compare_row(&c, (RowIndex){0, 0, 2}, got, want_row, 3, INFINITY);
    ok(c.ok && !c.bad && c.loosest == INFINITY, "an infinite allowance: nothing is known to be wrong");
    compare_element(&c, (RowIndex){0, 0, 2}, 0, infinite, 1, INFINITY);
    compare_element(&c, (RowIndex){0, 0, 2}, 0, (double)NAN, 1, (double)NAN);
    ok(!c.ok && c.bad == 2 && c.row == 2, "but infinity and NaN");
    c = comparison_start("x");
    compare_element(&c, (RowIndex){0, 0, 0}, 0, 1, 2, copysign((double)NAN, -1));
    ok(c.ok && c.loosest == INFINITY, "an allowance of NaN is an infinite one");
    c = comparison_start("x");
    compare_row(&c, (RowIndex){0, 0, 0}, got, got, 3, 0);
    compare_element(&c, (RowIndex){0, 0, 0}, 3, got[3], want_row[3], 0);
    compare_element(&c, (RowIndex){0, 0, 0}, 4, infinite, infinite, 0);
    ok(c.ok && c.severity == 0 && c.column == 0, "no error where none is allowed; -0 equals 0, an infinity itself");
}

/* What is too large for the dtype is infinite, of the same sign; how large it is, rounding may decide. */
static void test_overflow(void) {
    static const struct {
        double got, want, allowed;
        int good;
    } cases[] = {{INFINITY, 65520, 0, 1},    {INFINITY, 65519, 0, 0},    {INFINITY, 65500, 20, 1},
                 {INFINITY, 1e9, 1, 1},      {65504, INFINITY, 16, 1},   {65504, INFINITY, 15, 0},
                 {-INFINITY, 1e9, 1, 0},     {-INFINITY, -1e9, 1, 1},    {-65504, INFINITY, 100, 0},
                 {INFINITY, 1, INFINITY, 0}, {1, INFINITY, INFINITY, 0}, {INFINITY, INFINITY, 1, 1},
                 {(double)NAN, 1e9, 1e9, 0}, {65504, 1e9, 1, 0},         {INFINITY, -INFINITY, 1, 0}};
    ok(dtype_beyond(DTYPE_FP16) == 65520 && dtype_beyond(DTYPE_FP32) == 0x1.ffffffp127 &&
           dtype_beyond(DTYPE_BF16) == 0x1.ffp127,
       "half a step above the largest number of each dtype");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Comparison c = comparison_start("x");
        c.beyond = 65520;
        compare_element(&c, (RowIndex){0, 0, 0}, 0, cases[i].got, cases[i].want, cases[i].allowed);
        ok(c.ok == cases[i].good, "fp16: %g for %g, allowed %g", cases[i].got, cases[i].want, cases[i].allowed);
    }
    Comparison c = comparison_start("x");
    compare_element(&c, (RowIndex){0, 0, 0}, 0, INFINITY, 1e9, 1);
    ok(!c.ok, "a tensor that is not told its dtype has no such number");
}

static void test_merge(void) {
    const double rows[4] = {0.1, (double)NAN, 0.5, (double)NAN};
    Comparison parts[4], all = comparison_start("x"), backwards = comparison_start("x");
    for (int i = 0; i < 4; i++) {
        parts[i] = comparison_start("x");
        compare_element(&parts[i], (RowIndex){0, 0, i}, 0, rows[i], i, 0.2 + i);
        parts[i].empty = i == 2; /* not the worst */
    }
    for (int i = 0; i < 4; i++) {
        comparison_merge(&all, &parts[i]);
        comparison_merge(&backwards, &parts[3 - i]);
    }
    const Comparison *either[] = {&all, &backwards};
    for (int i = 0; i < 2; i++)
        ok(!either[i]->ok && either[i]->bad == 2 && either[i]->row == 1 && isnan(either[i]->max_error) &&
               either[i]->loosest == 3.2 && either[i]->largest == 3 && either[i]->empty,
           "merging, in either order, keeps the first NaN, counts all, and knows the widest bound");
    for (int place = 0; place < 4; place++) { /* batch, head, row, column */
        int at[2][4] = {{2, 2, 2, 2}, {2, 2, 2, 2}};
        for (int i = place; i < 4; i++)
            at[0][i] = i == place ? 1 : 3; /* the first in memory, by this place; behind it by those after */
        Comparison two[2] = {comparison_start("x"), comparison_start("x")};
        for (int i = 0; i < 2; i++)
            compare_element(&two[i], (RowIndex){at[i][0], at[i][1], at[i][2]}, at[i][3], 0.1, 0, 0.2);
        Comparison a = two[0], b = two[1];
        comparison_merge(&a, &two[1]);
        comparison_merge(&b, &two[0]);
        ok(stands_at(&a, at[0][0], at[0][1], at[0][2], at[0][3]) && stands_at(&b, at[0][0], at[0][1], at[0][2], at[0][3]) &&
               a.ok && b.ok,
           "of two equally bad the first in memory (%d)", place);
    }
}

/* Where fewer rows are known exactly, they are looked at, each in its place, and no other; against 00_naive all are. */
static void test_samples(void) {
    enum { FEW = 64 };
    static double o[FEW * D], lse[FEW];
    Samples few = {&problem, FEW, o, lse, exact.score_size, 0};
    size_t samples[LSE_ROWS] = {0}; /* of a row */
    int wrong = 0;
    problem.dtype = DTYPE_FP32;
    reset();
    for (int i = 0; i < FEW; i++) {
        size_t row = sampled_row(&problem, i, FEW);
        samples[row]++;
        memcpy(o + i * D, want + row * D, sizeof *o * D);
        lse[i] = want_lse[row];
    }
    for (int row = 0; row < LSE_ROWS; row++) {
        RowIndex index = row_index(&problem, row);
        float *element = got + row * D + 3, *of_lse = got_lse + row, kept = *element, kept_lse = *of_lse;
        *element = *of_lse = NAN;
        Comparison c = compare_output(&few, got, NULL, NULL), c_lse = compare_lse(&few, got_lse, NULL);
        wrong += c.bad != samples[row] || c_lse.bad != samples[row] ||
                 (samples[row] && (!stands_at(&c, index.batch, index.head, index.row, 3) ||
                                   !stands_at(&c_lse, index.batch, index.head, index.row, -1)));
        Comparison all = compare_output(&few, got, reference, reference_lse),
                   all_lse = compare_lse(&few, got_lse, reference_lse);
        wrong += all.bad != 1 || !stands_at(&all, index.batch, index.head, index.row, 3) || all_lse.bad != 1 ||
                 !stands_at(&all_lse, index.batch, index.head, index.row, -1);
        *element = kept, *of_lse = kept_lse;
    }
    ok(!wrong && compare_output(&few, got, NULL, NULL).ok, "a sample of the rows is looked at, and no other row");
}

static void print(void *comparison) { comparison_print(stdout, comparison); }
static void test_print(void) {
    static const struct {
        Comparison c;
        const char *line;
    } cases[] = {
        {{.tensor = "O",
          .head = 3,
          .row = 17,
          .column = 0,
          .got = -(double)NAN,
          .want = 0.0123,
          .error = (double)NAN,
          .allowed = 2.1e-05,
          .bad = 1234},
         "O[batch 0, head 3, row 17, column 0] = nan, want 0.0123, error nan, allowed 2.1e-05 "
         "(1234 elements out of bounds)\n"},
        {{.tensor = "LSE", .batch = 1, .row = 2, .column = -1, .got = 0.5, .want = -INFINITY, .error = INFINITY, .bad = 1},
         "LSE[batch 1, head 0, row 2] = 0.5, want -inf, error inf, allowed 0 (1 element out of bounds)\n"}};
    for (int i = 0; i < 2; i++) {
        char *text = captured(STDOUT_FILENO, print, (void *)&cases[i].c);
        ok(!strcmp(text, cases[i].line), "the line about the worst element of %s", cases[i].c.tensor);
        free(text);
    }
}

int main(void) {
    make_reference();
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        problem.dtype = (Dtype)dtype;
        test_output();
    }
    test_broken_reference();
    test_lse();
    test_allowance();
    test_row();
    test_empty();
    test_overflow();
    test_merge();
    test_samples();
    test_print();
    free_samples(&exact);
    return tap_done();
}
