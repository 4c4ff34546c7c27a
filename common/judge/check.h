/* check.h - comparing what a stage computed with a reference, so that NaN, Inf and unwritten elements can never pass.
 *
 *     Comparison c = compare_output(&p, o, naive_o, naive_lse, score_size(&p, q, k));
 *     if (!c.ok)
 *         comparison_print(stderr, &c);
 *
 * An element is out of bounds unless |got - want| <= allowed: written that way round, a NaN on either side is out of bounds.
 */
#ifndef FA_CHECK_H
#define FA_CHECK_H

#include "../problem.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

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
    int empty;       /* 1: the allowance is so wide that nothing is checked (comparison_is_empty) */
} Comparison;

/* A comparison that has seen nothing yet. */
Comparison comparison_start(const char *tensor);

/* Compares one row of `columns` numbers, each of which may be off by `allowed`. columns == 0 stands for a single number
 * without a column (LSE). */
void compare_row(Comparison *c, int batch, int head, int row, const double *got, const double *want, int columns,
                 double allowed);

/* The same for `rows` rows of a tensor, in parallel: `compare` compares rows [begin, end) and adds them to `part`. `floor` as in
 * comparison_is_empty. */
typedef void RowComparer(const void *context, size_t begin, size_t end, Comparison *part);
Comparison compare_rows(const char *tensor, double floor, size_t rows, RowComparer *compare, const void *context);

/* Whether the allowance is more than half of the largest |want| of the tensor. `floor` is the part of it that a number may be
 * off by even if it should be 0. LSE_FLOOR: of an LSE. */
int comparison_is_empty(const Comparison *c, double floor);
#define LSE_FLOOR 0.5 /* by then the row's sum is off by e^0.5, whatever LSE is */

/* Adds what another comparison of the same tensor saw. The order of merging does not change the result. */
void comparison_merge(Comparison *c, const Comparison *other);

/* scale * max|q_i| * max|k_j|: the most a score of the problem can be, and the measure of its rounding error. q, k: host. */
double score_size(const Problem *p, const void *q, const void *k);

/* How far a sum in fp32 may be off, relative to its partial sums; and such a score. */
double sum_error(double terms);
double score_error(int head_dim, double score_size);

/* How large a score of this row must be. */
double least_score(double lse, int keys);

/* How far two correct implementations may be apart: derived in check.c. want_row: [columns]; lse: of that row;
 * keys: seqlen_k. */
double output_allowance(Dtype dtype, const double *want_row, int columns, int keys, double lse, double score_size);
double lse_allowance(double want, double score_size);

/* Whole tensors on the host, rows in parallel. O is [batch, heads, seqlen_q, head_dim] in p->dtype (the _double reference:
 * doubles), LSE [batch, heads, seqlen_q]. */
Comparison compare_output(const Problem *p, const void *got, const void *want, const float *want_lse, double score_size);
Comparison compare_lse(const Problem *p, const float *got, const float *want, double score_size);
Comparison compare_output_double(const Problem *p, const void *got, const double *want, const double *want_lse,
                                 double score_size);
Comparison compare_lse_double(const Problem *p, const float *got, const double *want, double score_size);

/* One line about the worst element, for instance
 *     O[batch 0, head 3, row 17, column 5] = nan, want 0.0123, error nan, allowed 2.1e-05 (1234 elements out of bounds) */
void comparison_print(FILE *file, const Comparison *c);

#ifdef __cplusplus
}
#endif
#endif
