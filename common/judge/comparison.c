/* comparison.c - see comparison.h. */
#include "comparison.h"

#include "../host/parallel.h"
#include "rows.h"

#include <pthread.h>

Comparison comparison_start(const char *tensor) { return (Comparison){.ok = 1, .tensor = tensor, .severity = -1}; }

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
 * factor of 1.5. The allowances end there, too: they take e^x, which turns the error x of a score into one of P, for 1 + x. */
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
