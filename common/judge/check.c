/* check.c - see check.h. */
#include "check.h"

#include "../host/memory.h"
#include "../host/parallel.h"
#include "rows.h"

#include <float.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

Comparison comparison_start(const char *tensor) { return (Comparison){.ok = 1, .tensor = tensor, .severity = -1}; }

static double finite_larger(double a, double b) { return a > b && a <= DBL_MAX ? a : b; }

void compare_row(Comparison *c, int batch, int head, int row, const double *got, const double *want, int columns,
                 double allowed) {
    c->loosest = finite_larger(allowed, c->loosest);
    for (int column = 0; column < columns || column == 0; column++) {
        double g = got[column], w = want[column];
        double error = g == w ? 0 : fabs(g - w); /* the first case also covers two equal infinities */
        c->max_error = worse(error, c->max_error);
        c->largest = finite_larger(fabs(w), c->largest);
        if (!(error <= allowed && allowed <= DBL_MAX)) { /* an allowance that is not finite allows nothing */
            c->ok = 0;
            c->bad++;
        }
        /* DBL_MAX for a finite error where none is allowed: less than what NaN and Inf get. */
        double severity = !(error <= DBL_MAX && allowed <= DBL_MAX) ? INFINITY
                          : error == 0                              ? 0
                          : allowed > 0                             ? error / allowed
                                                                    : DBL_MAX;
        if (severity > c->severity) {
            c->severity = severity;
            c->batch = batch, c->head = head, c->row = row, c->column = columns == 0 ? -1 : column;
            c->got = g, c->want = w, c->error = error, c->allowed = allowed;
        }
    }
}

/* Half: with an allowance as wide as the result a kernel that writes zeros passes, and with half of it one that is wrong by a
 * factor of 1.5. The allowances end there, too: they take e^x, which turns the error x of a score into one of P, for 1 + x. */
int comparison_is_empty(const Comparison *c, double floor) { return c->loosest - floor > c->largest / 2; }

/* Whether a's worst element comes before b's in memory. */
static int comes_first(const Comparison *a, const Comparison *b) {
    if (a->batch != b->batch)
        return a->batch < b->batch;
    if (a->head != b->head)
        return a->head < b->head;
    return a->row != b->row ? a->row < b->row : a->column < b->column;
}

void comparison_merge(Comparison *c, const Comparison *other) {
    Comparison worst = *c; /* bad if one of the two is: then its severity is above 1 */
    if (other->severity > c->severity || (other->severity == c->severity && comes_first(other, c)))
        worst = *other;
    worst.bad = c->bad + other->bad;
    worst.max_error = worse(c->max_error, other->max_error);
    worst.loosest = finite_larger(other->loosest, c->loosest);
    worst.largest = finite_larger(other->largest, c->largest);
    worst.empty = c->empty || other->empty;
    *c = worst;
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
    loop->compare(loop->context, begin, end, &part);
    pthread_mutex_lock(&loop->lock);
    comparison_merge(&loop->result, &part);
    pthread_mutex_unlock(&loop->lock);
}

Comparison compare_rows(const char *tensor, double floor, size_t rows, RowComparer *compare, const void *context) {
    RowLoop loop = {compare, context, comparison_start(tensor), PTHREAD_MUTEX_INITIALIZER};
    parallel_for(rows, compare_some_rows, &loop);
    loop.result.empty = comparison_is_empty(&loop.result, floor);
    return loop.result;
}

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

/* How far a score may be off at most: all its partial sums as large as scale |q| |k|. */
double score_error(int head_dim, double score_size) { return sum_error(head_dim) * score_size; }

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
 * one step    the spacing of the dtype's subnormals, below which numbers are not rounded relatively any more.
 *
 * A row that sees no key (LSE = -inf) is exactly 0. Any other reference that is not finite gives
 * an allowance that is not finite, and compare_row takes that as no allowance at all. */
double least_score(double lse, int keys) { return worse(worse(lse - log(keys), -lse), 0); }

double output_allowance(Dtype dtype, const double *want_row, int columns, int keys, double lse, double score_size) {
    if (lse == -INFINITY)
        return 0;
    if (!isfinite(lse))
        return (double)NAN;
    double score = least_score(lse, keys);
    double relative =
        4 * dtype_epsilon(dtype) + 0x1p-21 + sum_error(keys + score_size * score_size + columns * score * score);
    return relative * largest_of(want_row, columns) + dtype_step(dtype);
}

/* The largest |row|^2 of a matrix. */
static double largest_square(Dtype dtype, const void *matrix, size_t rows, int columns) {
    double largest = 0;
    for (size_t row = 0; row < rows; row++) {
        double square = 0;
        for (int column = 0; column < columns; column++) {
            double value = dtype_to_double(dtype, matrix, row * columns + column);
            square += value * value;
        }
        largest = worse(square, largest);
    }
    return largest;
}
double score_size(const Problem *p, const void *q, const void *k) {
    return p->scale * sqrt(largest_square(p->dtype, q, row_count(p), p->head_dim)) *
           sqrt(largest_square(p->dtype, k, (size_t)p->batch * p->kv_heads * p->seqlen_k, p->head_dim));
}

/* LSE is fp32 throughout and nothing of it is rounded to the dtype, so only the summation of S and of the row sum shows.
 *
 * 2^-17 (1 + |want|)    128 units of fp32's roundoff: room for a fast exponential of 2^-22, sums of some thousands of terms, the
 *                       way between base 2 and e, and partial sums of S that are as large as LSE is.
 * sum_error(s^2)        dLSE / dS_j = P_j, and the P_j of a row add up to 1: a mean of the scores' errors, at most the largest
 *                       of them. Of a single key it is that error itself, however small its score happens to be. */
double lse_allowance(double want, double score_size) {
    return want == -INFINITY ? 0 : 0x1p-17 * (1 + fabs(want)) + sum_error(score_size * score_size);
}

/* Two whole tensors. Either reference may be there: in the dtype and float, or in double. */
typedef struct {
    const Problem *p;
    const void *got, *want;
    const float *want_lse;
    const double *want_double, *want_lse_double;
    double score_size;
} OutputPair;

static double reference_lse(const OutputPair *x, size_t row) {
    return x->want_lse_double ? x->want_lse_double[row] : (double)x->want_lse[row];
}

static void compare_output_rows(const void *context, size_t begin, size_t end, Comparison *part) {
    const OutputPair *x = context;
    const Problem *p = x->p;
    size_t d = (size_t)p->head_dim;
    double *got = host_alloc(d, sizeof *got), *want = host_alloc(d, sizeof *want);
    for (size_t row = begin; row < end; row++) {
        RowIndex at = row_index(p, row);
        read_doubles(p->dtype, x->got, row * d, d, got);
        if (x->want_double)
            memcpy(want, x->want_double + row * d, d * sizeof *want);
        else
            read_doubles(p->dtype, x->want, row * d, d, want);
        compare_row(part, at.batch, at.head, at.row, got, want, p->head_dim,
                    output_allowance(p->dtype, want, p->head_dim, p->seqlen_k, reference_lse(x, row), x->score_size));
    }
    free(got);
    free(want);
}
static Comparison compare_outputs(const OutputPair *x) {
    return compare_rows("O", dtype_step(x->p->dtype), row_count(x->p), compare_output_rows, x);
}

static void compare_lse_rows(const void *context, size_t begin, size_t end, Comparison *part) {
    const OutputPair *x = context;
    for (size_t row = begin; row < end; row++) {
        RowIndex at = row_index(x->p, row);
        double got = ((const float *)x->got)[row], want = reference_lse(x, row);
        compare_row(part, at.batch, at.head, at.row, &got, &want, 0, lse_allowance(want, x->score_size));
    }
}
static Comparison compare_lses(const OutputPair *x) {
    return compare_rows("LSE", LSE_FLOOR, row_count(x->p), compare_lse_rows, x);
}

Comparison compare_output(const Problem *p, const void *got, const void *want, const float *want_lse, double score_size) {
    return compare_outputs(&(OutputPair){.p = p, .got = got, .want = want, .want_lse = want_lse, .score_size = score_size});
}

Comparison compare_output_double(const Problem *p, const void *got, const double *want, const double *want_lse,
                                 double score_size) {
    return compare_outputs(
        &(OutputPair){.p = p, .got = got, .want_double = want, .want_lse_double = want_lse, .score_size = score_size});
}

Comparison compare_lse(const Problem *p, const float *got, const float *want, double score_size) {
    return compare_lses(&(OutputPair){.p = p, .got = got, .want_lse = want, .score_size = score_size});
}

Comparison compare_lse_double(const Problem *p, const float *got, const double *want, double score_size) {
    return compare_lses(&(OutputPair){.p = p, .got = got, .want_lse_double = want, .score_size = score_size});
}

/* Without the sign that a NaN may carry: poison would print as "-nan". */
static double printable(double value) { return value == value ? value : (double)NAN; }

void comparison_print(FILE *file, const Comparison *c) {
    fprintf(file, "%s[batch %d, head %d, row %d", c->tensor, c->batch, c->head, c->row);
    if (c->column >= 0)
        fprintf(file, ", column %d", c->column);
    fprintf(file, "] = %.6g, want %.6g, error %.3g, allowed %.3g (%zu element%s out of bounds)\n", printable(c->got),
            printable(c->want), c->error, c->allowed, c->bad, c->bad == 1 ? "" : "s");
}
