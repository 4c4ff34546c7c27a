/* gradient.h - comparing dQ, dK and dV: what may differ, samples in fp64, whole tensors against each other.
 *
 * All tensors are on the host, in p->dtype. In a Comparison of dK or dV, `head` is a K/V head and `row` a key.
 */
#ifndef FA_GRADIENT_H
#define FA_GRADIENT_H

#include "compare.h"

typedef enum { GRADIENT_Q, GRADIENT_K, GRADIENT_V, GRADIENT_SINKS, GRADIENT_COUNT } Gradient;

/* Of the four those that the problem has: only a score mod has sinks. The gradient of these is in fp32; its
 * rows are heads, of one column. */
static inline int gradient_count(const Problem *p) { return p->score && p->score->score.sinks ? GRADIENT_COUNT : GRADIENT_SINKS; }

const char *gradient_name(Gradient which); /* "dQ" */

/* A gradient in sampled rows (of dK and dV, keys), and what two correct ones may be apart: derived in gradient.c. */
typedef struct {
    size_t count;
    double *values;   /* [count, head_dim], */
    double *squares;  /* the sum of the squares of the terms of that sum, */
    double *noise;    /* and of their errors: those of dP and delta, and steps where P or dS is too small for a share */
    double relative;  /* to the row's largest element, */
    double condition; /* times this: how much the sums of the samples cancel; at least 1 */
    double terms;     /* or to this, where more: the root of the sum of squares in a middling sample */
    double least;     /* of a gradient too small for a share: the steps of its sum in fp32, and its own in the dtype */
    double floor;     /* all that may be left where the gradient is 0: of a row that is no sample */
} GradientSamples;

typedef struct {
    const Problem *p;
    GradientSamples of[GRADIENT_COUNT];
} Gradients;

/* In up to `limit` rows and keys, in fp64 from the O and LSE that the forward pass left: their rounding is its doing, not the
 * backward pass's. */
Gradients gradients_compute(const Problem *p, const int *key_lengths, const HostTensors *inputs, const void *o,
                            const float *lse, size_t limit);
void free_gradients(Gradients *gradients);

/* The part that needs no samples: relative and floor; a condition of 1. */
void gradient_bounds(const Problem *p, const HostTensors *inputs, const float *lse, GradientSamples of[GRADIENT_COUNT]);

/* A gradient against another one, everywhere, and in the sampled rows by the bounds of their own. want NULL: those rows against
 * fp64. */
Comparison compare_gradient(const Gradients *exact, Gradient which, const void *got, const void *want);

/* The largest |dS|, which kernels round to the dtype, in the sampled rows and in the row of dQ, or of the key of dK, where the worst
 * element of `c` is. The other arguments are those of gradients_compute. */
double largest_score_gradient(const Gradients *exact, const int *key_lengths, const HostTensors *inputs, const void *o,
                              const float *lse, Gradient which, const Comparison *c);

/* Two runs of a variant; no difference is allowed. */
Comparison compare_runs(const Problem *p, Gradient which, const void *got, const void *want);

#endif
