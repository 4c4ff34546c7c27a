/* check.h - comparing what a stage computed with a reference, so that NaN, Inf and unwritten elements can never pass.
 *
 *     Samples exact = samples_compute(&p, key_lengths, &inputs, MAX_SAMPLES);
 *     Comparison c = compare_output(&exact, o, naive_o, naive_lse);
 *     if (!c.ok)
 *         comparison_print(stderr, &c);
 */
#ifndef FA_CHECK_H
#define FA_CHECK_H

#include "comparison.h"
#include "oracle.h"

/* Compares one number, or one row of them, each of which may be off by `allowed`. */
void compare_element(Comparison *c, RowIndex at, int column, double got, double want, double allowed);
void compare_row(Comparison *c, RowIndex at, const double *got, const double *want, int columns, double allowed);

/* How far a sum in fp32 may be off, relative to its partial sums; and how large a score of this row must be. */
double sum_error(double terms);
double least_score(double lse, int keys);

/* How far two correct implementations may be apart in a row of O, and in its LSE: derived in check.c. want: [head_dim]; lse: of
 * that row; score_size: of the problem (oracle.h). */
double output_allowance(const Problem *p, const double *want, double lse, double score_size);
double lse_allowance(double want, double score_size);
#define LSE_FLOOR 0.5 /* by then the row's sum is off by e^0.5, whatever LSE is */

/* O and LSE of the whole problem, on the host, against those that 00_naive wrote. want, want_lse NULL: against fp64, in the rows
 * of `exact`. */
Comparison compare_output(const Samples *exact, const void *got, const void *want, const float *want_lse);
Comparison compare_lse(const Samples *exact, const float *got, const float *want);

#endif
