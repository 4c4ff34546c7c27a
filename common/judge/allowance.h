/* allowance.h - how far two correct implementations may be apart, derived in allowance.c; and when that is so far that it checks nothing. */
#ifndef FA_ALLOWANCE_H
#define FA_ALLOWANCE_H

#include "../problem.h"

/* How far a sum in fp32 may be off, relative to its partial sums; and how large a score of this row must be. */
double sum_error(double terms);
double sum_steps(double terms); /* absolutely, beyond that, where its products are too small for a share */
double least_score(double lse, int keys);

/* How far two correct implementations may be apart in a row of O, and in its LSE: derived in allowance.c. want: [head_dim]; lse: of
 * that row; score_size: of the problem (oracle.h). */
double output_allowance(const Problem *p, const double *want, double lse, double score_size);
double lse_allowance(double want, double score_size);
#define LSE_FLOOR 0.5 /* by then the row's sum is off by e^0.5, whatever LSE is */

/* A soft cap, of a score: added to what an LSE may be off by. */
double cap_error(const Problem *p);

/* Whether numbers may be off by more than half of the largest |want|. An allowance up to `floor` checks something even where all
 * numbers should be 0: that is so of LSE, a logarithm, whose 0 is a number like any other. */
int bound_is_empty(double allowed, double floor, double largest);

#endif
