/* comparison.h - what comparing a tensor with a reference has found: the worst element, and whether its bound checks anything. */
#ifndef FA_COMPARISON_H
#define FA_COMPARISON_H

#include "../problem.h"

#include <stdio.h>

/* The outcome, and the worst element: the first that is NaN or infinite where it must not be, otherwise the one with the
 * largest error / allowed. column is -1 in a tensor of one number a row (LSE). */
typedef struct {
    int ok;             /* 1: no element is out of bounds */
    const char *tensor; /* "O", "LSE", ... */
    int batch, head, row, column;
    double got, want, error, allowed; /* of the worst element */
    double max_error;                 /* over all elements; NaN as soon as one error is NaN */
    size_t bad;                       /* elements out of bounds */
    double severity; /* error / allowed of the worst element; -1 before the first, infinity for NaN and Inf */
    double loosest;  /* the largest allowance that is finite, */
    double largest;  /* and the largest |want| that is */
    int empty;       /* 1: the bound is too wide to check anything (bound_is_empty) */
} Comparison;

/* A comparison that has seen nothing yet. */
Comparison comparison_start(const char *tensor);

/* Adds what another comparison of the same tensor saw. The order of merging does not change the result. */
void comparison_merge(Comparison *c, const Comparison *other);

/* Rows 0 .. rows - 1 of a tensor, in parallel: `compare` adds a row to `part`. `floor`: as below. */
typedef void RowComparer(const void *context, size_t row, Comparison *part);
Comparison compare_rows(const char *tensor, double floor, size_t rows, RowComparer *compare, const void *context);

/* Whether numbers may be off by more than half of the largest |want|. `floor` is the part of `allowed` that a number may be off
 * by even if it should be 0. */
int bound_is_empty(double allowed, double floor, double largest);

/* One line about the worst element, for instance
 *     O[batch 0, head 3, row 17, column 5] = nan, want 0.0123, error nan, allowed 2.1e-05 (1234 elements out of bounds) */
void comparison_print(FILE *file, const Comparison *c);

#endif
