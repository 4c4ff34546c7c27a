/* compare.c - comparisons, in which NaN never passes. See compare.h. */
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
