/* compare.h - comparing what a stage computed with a reference, so that NaN, Inf and unwritten elements can never pass. */
#ifndef FA_COMPARE_H
#define FA_COMPARE_H

#include "allowance.h"
#include "oracle.h"

#include <stdio.h>

/* The outcome, and the worst element: the first that is NaN or infinite where it must not be, otherwise the one with the
 * largest error / allowed. column is -1 in a tensor of one number per row (LSE). */
typedef struct {
    int ok;             /* 1: no element is out of bounds */
    const char *tensor; /* "O", "LSE", ... */
    int batch, head, row, column;
    double got, want, error, allowed; /* of the worst element */
    double max_error;                 /* over all elements; NaN as soon as one error is NaN */
    size_t bad;                       /* elements out of bounds */
    double severity; /* error / allowed of the worst element; -1 before the first, infinity for NaN and Inf */
    double loosest;  /* the largest allowance, */
    double largest;  /* and the largest |want| that is finite */
    int empty;       /* 1: the bound is too wide to check anything (bound_is_empty) */
    double beyond;   /* what the tensor's dtype rounds to infinity: from here on infinity is right. INFINITY: no number */
} Comparison;

/* A comparison that has seen nothing yet. */
Comparison comparison_start(const char *tensor);

/* Adds what another comparison of the same tensor saw. The order of merging does not change the result. */
void comparison_merge(Comparison *c, const Comparison *other);

/* The same if these were the same elements once more: it counts none of them twice. */
void comparison_repeat(Comparison *c, const Comparison *other);

/* Rows 0 .. rows - 1 of a tensor, in parallel: `compare` adds a row to `part`. `floor`: as in allowance.h. */
typedef void RowComparer(const void *context, size_t row, Comparison *part);
Comparison compare_rows(const char *tensor, double floor, size_t rows, RowComparer *compare, const void *context);

/* One line about the worst element, for instance
 *     O[batch 0, head 3, row 17, column 5] = nan, want 0.0123, error nan, allowed 2.1e-05 (1234 elements out of bounds) */
void comparison_print(FILE *file, const Comparison *c);

/* Compares one number, or one row of them, each of which may be off by `allowed`. */
void compare_element(Comparison *c, RowIndex at, int column, double got, double want, double allowed);
void compare_row(Comparison *c, RowIndex at, const double *got, const double *want, int columns, double allowed);

/* O and LSE of the whole problem, on the host, against those that 00_naive wrote. want, want_lse NULL: against fp64, in the rows
 * of `exact`. */
Comparison compare_output(const Samples *exact, const void *got, const void *want, const float *want_lse);
Comparison compare_lse(const Samples *exact, const float *got, const float *want);

#endif
