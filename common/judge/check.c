/* check.c - see check.h. */
#include "check.h"

#include "../numeric.h"
#include "../host/allocation.h"
#include "../host/parallel.h"

#include <float.h>
#include <pthread.h>
#include <stdlib.h>

Comparison comparison_start(const char *tensor) { return (Comparison){.ok = 1, .tensor = tensor, .severity = -1}; }

/* The larger of two errors, where NaN is larger than everything. */
static double worse(double a, double b) { return a > b || a != a ? a : b; }

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

/* How far a sum of n terms in fp32 may be off, relative to the size of its partial sums. n roundings of up to 2^-24 each
 * add up to sqrt(n) 2^-24, since their signs are as good as random (Higham and Mary 2019); four times that, because two
 * such errors meet and the worst of millions of elements is looked at. */
double sum_error(double terms) { return 4 * sqrt(terms) * 0x1p-24; }

/* How far a score may be off. S is summed in fp32, and its error goes with the size of what is summed, scale |q| |k|, not with
 * what is left of it: terms may cancel. */
double score_error(int head_dim, double score_size) { return sum_error(head_dim) * score_size; }

/* How far two correct kernels, or a kernel and the exact result, may differ in a row of O = sum_j P_j v_j:
 *
 * 4u          P is rounded to the dtype before it meets V, and O once more at the end: each by at most u = dtype_epsilon,
 *             relative, and in both of the two compared. The errors of the P_j have random signs, so they add up as the
 *             terms of O themselves do, and O's own size is the measure: the largest |want| of the row, because a single
 *             element may be near 0 by accident.
 * 2^-20 + score_error
 *             e^S turns the absolute error of S into a relative one of P. 2^-20 is for exp2's result and the sums over P.
 * sum_error   O is a sum over the keys, and its partial sums are about as large as O: 2^-17 for 1000 keys, which shows beside
 *             4u in fp32 alone.
 * one step    the spacing of the dtype's subnormals, below which numbers are not rounded relatively any more.
 *
 * A row that sees no key (LSE = -inf) is exactly 0. Any other reference that is not finite gives
 * an allowance that is not finite, and compare_row takes that as no allowance at all. */
double output_allowance(Dtype dtype, const double *want_row, int columns, int keys, double lse, double score_size) {
    if (lse == -INFINITY)
        return 0;
    if (!isfinite(lse))
        return (double)NAN;
    double largest = 0;
    for (int column = 0; column < columns; column++)
        largest = worse(fabs(want_row[column]), largest);
    double relative = 4 * dtype_epsilon(dtype) + 0x1p-20 + score_error(columns, score_size) + sum_error(keys);
    return relative * largest + dtype_step(dtype);
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
 * score_error           dLSE / dS_j = P_j, and the P_j of a row add up to 1: a mean of the scores' errors, at most the largest
 *                       of them. Of a single key it is that error itself, however small its score happens to be.
 * 2^-17 (1 + |want|)    128 units of fp32's roundoff: room for a fast exponential of 2^-22, sums of some thousands of terms,
 *                       and the way between base 2 and e. */
double lse_allowance(double want, int head_dim, double score_size) {
    return want == -INFINITY ? 0 : 0x1p-17 * (1 + fabs(want)) + score_error(head_dim, score_size);
}

/* What the whole-tensor loops share. Either reference may be there: in the dtype and float, or in double. */
typedef struct {
    const Problem *p;
    const void *got, *want;
    const float *want_lse;
    const double *want_double, *want_lse_double;
    double score_size;
    const char *tensor;
    Comparison result;
    pthread_mutex_t lock; /* of result */
} Job;

static double reference_lse(const Job *job, size_t row) {
    return job->want_lse_double ? job->want_lse_double[row] : (double)job->want_lse[row];
}

static void merge_result(Job *job, const Comparison *part) {
    pthread_mutex_lock(&job->lock);
    comparison_merge(&job->result, part);
    pthread_mutex_unlock(&job->lock);
}

static int batch_of(const Problem *p, size_t row) { return (int)(row / p->seqlen_q / p->heads); }
static int head_of(const Problem *p, size_t row) { return (int)(row / p->seqlen_q % p->heads); }
static int row_of(const Problem *p, size_t row) { return (int)(row % p->seqlen_q); }

static void compare_output_rows(size_t begin, size_t end, void *context) {
    Job *job = context;
    const Problem *p = job->p;
    int d = p->head_dim;
    double *got = host_alloc((size_t)d, sizeof *got), *want = host_alloc((size_t)d, sizeof *want);
    Comparison part = comparison_start(job->tensor);
    for (size_t row = begin; row < end; row++) {
        for (int column = 0; column < d; column++) {
            size_t i = row * d + column;
            got[column] = dtype_to_double(p->dtype, job->got, i);
            want[column] = job->want_double ? job->want_double[i] : dtype_to_double(p->dtype, job->want, i);
        }
        double allowed = output_allowance(p->dtype, want, d, p->seqlen_k, reference_lse(job, row), job->score_size);
        compare_row(&part, batch_of(p, row), head_of(p, row), row_of(p, row), got, want, d, allowed);
    }
    merge_result(job, &part);
    free(got);
    free(want);
}

static void compare_lse_rows(size_t begin, size_t end, void *context) {
    Job *job = context;
    const Problem *p = job->p;
    Comparison part = comparison_start(job->tensor);
    for (size_t row = begin; row < end; row++) {
        double got = ((const float *)job->got)[row], want = reference_lse(job, row);
        compare_row(&part, batch_of(p, row), head_of(p, row), row_of(p, row), &got, &want, 0,
                    lse_allowance(want, p->head_dim, job->score_size));
    }
    merge_result(job, &part);
}

static Comparison run(Job *job, const char *tensor, double floor, void (*body)(size_t, size_t, void *)) {
    job->tensor = tensor;
    job->result = comparison_start(tensor);
    pthread_mutex_init(&job->lock, NULL);
    parallel_for(row_count(job->p), body, job);
    pthread_mutex_destroy(&job->lock);
    job->result.empty = comparison_is_empty(&job->result, floor);
    return job->result;
}

Comparison compare_output(const Problem *p, const void *got, const void *want, const float *want_lse, double score_size) {
    Job job = {.p = p, .got = got, .want = want, .want_lse = want_lse, .score_size = score_size};
    return run(&job, "O", dtype_step(p->dtype), compare_output_rows);
}

Comparison compare_output_double(const Problem *p, const void *got, const double *want, const double *want_lse,
                                 double score_size) {
    Job job = {.p = p, .got = got, .want_double = want, .want_lse_double = want_lse, .score_size = score_size};
    return run(&job, "O", dtype_step(p->dtype), compare_output_rows);
}

Comparison compare_lse(const Problem *p, const float *got, const float *want, double score_size) {
    Job job = {.p = p, .got = got, .want_lse = want, .score_size = score_size};
    return run(&job, "LSE", LSE_FLOOR, compare_lse_rows);
}

Comparison compare_lse_double(const Problem *p, const float *got, const double *want, double score_size) {
    Job job = {.p = p, .got = got, .want_lse_double = want, .score_size = score_size};
    return run(&job, "LSE", LSE_FLOOR, compare_lse_rows);
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
