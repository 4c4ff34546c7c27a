/* compare.c - comparisons, in which NaN never passes, and what an element of O and LSE may be off by. See compare.h. */
#include "compare.h"

#include "../host/parallel.h"
#include "rows.h"

#include <float.h>
#include <pthread.h>
#include <string.h>

Comparison comparison_start(const char *tensor) {
    return (Comparison){.ok = 1, .tensor = tensor, .severity = -1, .beyond = INFINITY};
}

/* Whether a's worst element comes before b's in memory. */
static int comes_first(const Comparison *a, const Comparison *b) {
    const int of_a[] = {a->batch, a->head, a->row, a->column}, of_b[] = {b->batch, b->head, b->row, b->column};
    int same = 0;
    while (same < 3 && of_a[same] == of_b[same])
        same++;
    return of_a[same] < of_b[same];
}

void comparison_merge(Comparison *c, const Comparison *other) {
    Comparison worst = *c; /* bad if one of the two is: then its severity is above 1 */
    if (other->severity > c->severity || (other->severity == c->severity && comes_first(other, c)))
        worst = *other;
    worst.bad = c->bad + other->bad;
    worst.max_error = worse(c->max_error, other->max_error);
    worst.loosest = worse(c->loosest, other->loosest);
    worst.largest = worse(c->largest, other->largest);
    worst.empty = c->empty || other->empty;
    *c = worst;
}

void comparison_repeat(Comparison *c, const Comparison *other) {
    size_t bad = c->bad > other->bad ? c->bad : other->bad;
    comparison_merge(c, other);
    c->bad = bad;
}

typedef struct {
    RowComparer *compare;
    const void *context;
    Comparison result;
    pthread_mutex_t lock; /* of result */
} RowLoop;

static void compare_some_rows(size_t begin, size_t end, void *context) {
    RowLoop *loop = context;
    Comparison part = comparison_start(loop->result.tensor);
    for (size_t row = begin; row < end; row++)
        loop->compare(loop->context, row, &part);
    pthread_mutex_lock(&loop->lock);
    comparison_merge(&loop->result, &part);
    pthread_mutex_unlock(&loop->lock);
}

Comparison compare_rows(const char *tensor, double floor, size_t rows, RowComparer *compare, const void *context) {
    RowLoop loop = {compare, context, comparison_start(tensor), PTHREAD_MUTEX_INITIALIZER};
    parallel_for(rows, compare_some_rows, &loop);
    loop.result.empty = bound_is_empty(loop.result.loosest, floor, loop.result.largest);
    return loop.result;
}

/* Half: with an allowance as wide as the result a kernel that writes zeros passes, and with half of it one that is wrong by a
 * factor of 1.5. That holds whatever makes the allowance so wide: large scores, or a result that is as small as the steps of its
 * dtype. The allowances end there, too: they take e^x, which turns the error x of a score into one of P, for 1 + x. */
int bound_is_empty(double allowed, double floor, double largest) { return allowed - floor > largest / 2; }

/* Without the sign that a NaN may carry: poison would print as "-nan". */
static double printable(double value) { return value == value ? value : (double)NAN; }

void comparison_print(FILE *file, const Comparison *c) {
    fprintf(file, "%s[batch %d, head %d, row %d", c->tensor, c->batch, c->head, c->row);
    if (c->column >= 0)
        fprintf(file, ", column %d", c->column);
    fprintf(file, "] = %.6g, want %.6g, error %.3g, allowed %.3g (%zu element%s out of bounds)\n", printable(c->got),
            printable(c->want), c->error, c->allowed, c->bad, c->bad == 1 ? "" : "s");
}

static double finite_larger(double a, double b) { return a > b && a <= DBL_MAX ? a : b; }

/* Whether the one is infinite and the other, give or take what is allowed, as large as what the dtype rounds to infinity. */
static int both_overflow(double infinite, double other, double allowed, double beyond) {
    return fabs(infinite) > DBL_MAX && allowed <= DBL_MAX && beyond <= DBL_MAX &&
           (infinite > 0 ? other : -other) + allowed >= beyond;
}

void compare_element(Comparison *c, RowIndex at, int column, double got, double want, double allowed) {
    int is_equal =
        got == want || both_overflow(got, want, allowed, c->beyond) || both_overflow(want, got, allowed, c->beyond);
    double error = is_equal ? 0 : fabs(got - want);
    /* `error <= allowed` is false if either number is NaN; `!(error > allowed)` would be true. An allowance that is not a number is
     * as good as an infinite one: nothing is known of this element, so that no finite number is wrong, and the bound is empty. */
    if (!(allowed <= DBL_MAX))
        allowed = INFINITY;
    int is_right = error <= allowed && error <= DBL_MAX;
    double severity = !(error <= DBL_MAX) ? INFINITY
                      : error == 0        ? 0
                      : allowed > 0       ? error / allowed
                                          : DBL_MAX; /* less than what NaN and Inf get */
    c->ok = c->ok && is_right;
    c->bad += !is_right;
    c->max_error = worse(error, c->max_error);
    c->loosest = worse(allowed, c->loosest);
    c->largest = finite_larger(fabs(want) > DBL_MAX ? c->beyond : fabs(want), c->largest);
    if (severity > c->severity) {
        c->severity = severity;
        c->batch = at.batch, c->head = at.head, c->row = at.row, c->column = column;
        c->got = got, c->want = want, c->error = error, c->allowed = allowed;
    }
}

void compare_row(Comparison *c, RowIndex at, const double *got, const double *want, int columns, double allowed) {
    for (int column = 0; column < columns; column++)
        compare_element(c, at, column, got[column], want[column], allowed);
}

/* ---- what may differ ---- */

/* How far a sum of n terms in fp32 may be off, relative to the sum.
 *
 * 2^-24 / sqrt(6)   the root mean square of one rounding: up to half a unit of the last place, beside a mantissa from 1 to 2.
 * sqrt(n / 2)       n partial sums are rounded, with signs as good as random, so that the squares add up (Higham and Mary 2019).
 *                   Partial sum k is k/n of the sum plus what is random in it; over all k their squares are, on average, 1/3 +
 *                   1/6 of the sum's, whatever the order.
 * 7 sqrt(2)         two such errors meet, one in each of the two compared; and the worst of millions of elements is looked at:
 *                   seven standard deviations.
 *
 * 7 sqrt(2) / sqrt(12) = 2.9. Products that are rounded before they are added, or an order in tiles, change little. */
double sum_error(double terms) { return 3 * sqrt(terms) * 0x1p-24; }

/* Below fp32's smallest normal number a product is off by half a step of fp32, 2^-149, in each of the two compared. The errors of many
 * may have one sign: products of less than half a step are all 0. The partial sums are whole steps, and exact. */
double sum_steps(double terms) { return terms * 0x1p-149; }

/* How far two correct kernels, or a kernel and the exact result, may differ in a row of O = sum_j P_j v_j:
 *
 * 4u          P is rounded to the dtype before it meets V, and O once more at the end: each by at most u = dtype_epsilon,
 *             relative, and in both of the two compared. The errors of the P_j have random signs, so they add up as the
 *             terms of O themselves do, and O's own size is the measure: the largest |want| of the row, because a single
 *             element may be near 0 by accident. (P below 2^-14 are subnormal in fp16 and off by up to 2^-25 each:
 *             notes/floating_point.md says how little that is, and for which V it is not.)
 * 2^-21       exp2's result is off by up to 2^-22, in both.
 * sum_error   what sums in fp32 do, which shows beside 4u in fp32 alone. Three errors of which the squares add up, the last two
 *             because e^S turns the absolute error of S into a relative one of P:
 *             keys    O is a sum over the keys, and its partial sums are about as large as O.
 *             s^2     A score is a sum of D products. If their signs are random, too, no partial sum is much larger than
 *                     s / sqrt(D), where s = scale |q| |k|, and D of them make s^2.
 *             D S^2   Where a score is large, its signs are not random: D partial sums of up to S. The scores that count in a row
 *                     are at least as large as its LSE tells: one is LSE - ln keys or more, and none is above LSE.
 * one step    the spacing of the dtype's subnormals, below which numbers are not rounded relatively any more; and sum_steps, of keys
 *             products.
 *
 * A row that sees no key (LSE = -inf) is exactly 0. */
double output_allowance(const Problem *p, const double *want, double lse, double score_size) {
    if (lse == -INFINITY)
        return 0;
    double score = least_score(lse, p->seqlen_k);
    double relative = 4 * dtype_epsilon(p->dtype) + 0x1p-21 +
                      sum_error(p->seqlen_k + score_size * score_size + p->head_dim * score * score);
    return relative * largest_of(want, p->head_dim) + dtype_step(p->dtype) + sum_steps(p->seqlen_k);
}

double least_score(double lse, int keys) { return worse(worse(lse - log(keys), -lse), 0); }

/* LSE is fp32 throughout and nothing of it is rounded to the dtype, so only the summation of S and of the row sum shows.
 *
 * 2^-17 (1 + |want|)    128 units of fp32's roundoff: room for a fast exponential of 2^-22, sums of some thousands of terms, the
 *                       way between base 2 and e, and partial sums of S that are as large as LSE is.
 * sum_error(s^2)        dLSE / dS_j = P_j, and the P_j of a row add up to 1: a mean of the scores' errors, at most the largest
 *                       of them. Of a single key it is that error itself, however small its score happens to be. */
double lse_allowance(double want, double score_size) {
    return want == -INFINITY ? 0 : 0x1p-17 * (1 + fabs(want)) + sum_error(score_size * score_size);
}

/* A soft cap in 16 bits, C tanh(S / C), adds to that. tanh y = 1 - 2 / (1 + e^2y) is the difference of two numbers near 1 where y is near
 * 0, and so its error does not shrink with it: 2^-23 from the exponential, which is off by 2^-22, 2^-23 from the reciprocal, which is off
 * by 2^-23, and 2^-24 from the sum. C times these 1.25 x 2^-22 is the error of a score, and LSE is a mean of such errors. In O it does not
 * show: up to C = 1000 it is less than the u that P is rounded by. */
static double cap_error(const Problem *p) {
    return p->score && p->dtype != DTYPE_FP32 ? 0x1p-21 * p->score->score.softcap : 0;
}

/* ---- O and LSE ---- */

typedef struct {
    const Samples *exact;
    const void *got, *want; /* want NULL: the rows of `exact` */
    const float *want_lse;
} Outputs;

static size_t row_number(const Outputs *x, size_t i) {
    return x->want_lse ? i : sampled_row(x->exact->p, i, x->exact->count);
}
static double lse_of(const Outputs *x, size_t i) { return x->want_lse ? (double)x->want_lse[i] : x->exact->lse[i]; }

static void compare_output_row(const void *context, size_t i, Comparison *part) {
    const Outputs *x = context;
    const Problem *p = x->exact->p;
    double got[MAX_HEAD_DIM], want[MAX_HEAD_DIM];
    size_t row = row_number(x, i);
    part->beyond = dtype_beyond(p->dtype);
    read_row(p, x->got, row, got);
    if (x->want)
        read_row(p, x->want, row, want);
    else
        memcpy(want, x->exact->o + i * p->head_dim, p->head_dim * sizeof *want);
    compare_row(part, row_index(p, row), got, want, p->head_dim,
                output_allowance(p, want, lse_of(x, i), x->exact->score_size) + x->exact->underflow);
}

static void compare_lse_row(const void *context, size_t i, Comparison *part) {
    const Outputs *x = context;
    size_t row = row_number(x, i);
    compare_element(part, row_index(x->exact->p, row), -1, ((const float *)x->got)[row], lse_of(x, i),
                    lse_allowance(lse_of(x, i), x->exact->score_size) + cap_error(x->exact->p));
}

Comparison compare_output(const Samples *exact, const void *got, const void *want, const float *want_lse) {
    return compare_rows("O", 0, want ? row_count(exact->p) : exact->count, compare_output_row,
                        &(Outputs){exact, got, want, want_lse});
}

Comparison compare_lse(const Samples *exact, const float *got, const float *want) {
    return compare_rows("LSE", LSE_FLOOR, want ? row_count(exact->p) : exact->count, compare_lse_row,
                        &(Outputs){exact, got, NULL, want});
}
