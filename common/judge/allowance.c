/* allowance.c - what an element of O and LSE may be off by. See allowance.h. */
#include "allowance.h"

#include "rows.h"

#include <math.h>

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
double cap_error(const Problem *p) { return p->score && p->dtype != DTYPE_FP32 ? 0x1p-21 * p->score->score.softcap : 0; }

/* Half: with an allowance as wide as the result a kernel that writes zeros passes, and with half of it one that is wrong by a
 * factor of 1.5. That holds whatever makes the allowance so wide: large scores, or a result that is as small as the steps of its
 * dtype. The allowances end there, too: they take e^x, which turns the error x of a score into one of P, for 1 + x. */
int bound_is_empty(double allowed, double floor, double largest) { return allowed - floor > largest / 2; }
