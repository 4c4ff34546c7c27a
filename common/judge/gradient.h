/* gradient.h - comparing dQ, dK and dV: what may differ, samples in fp64, whole tensors against each other.
 *
 * All tensors are on the host, in p->dtype. In a Comparison of dK or dV, `head` is a K/V head and `row` a key.
 */
#ifndef FA_GRADIENT_H
#define FA_GRADIENT_H

#include "check.h"

typedef enum { GRADIENT_Q, GRADIENT_K, GRADIENT_V, GRADIENT_COUNT } Gradient;

const char *gradient_name(Gradient which); /* "dQ" */

/* A gradient in sampled rows (of dK and dV, keys), and what two correct ones may be apart: derived in gradient.c. */
typedef struct {
    size_t count;
    double *values;   /* [count, head_dim], */
    double *squares;  /* the sum of the squares of the terms of that sum, */
    double *noise;    /* and of the errors that dP and delta bring into them */
    double relative;  /* to the row's largest element, */
    double condition; /* times this: how much the sums of the samples cancel; at least 1 */
    double steps;     /* what the dtype's smallest step leaves, */
    double floor;     /* and with it all that may be left where the gradient is 0 */
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

/* The part that needs no samples: relative, steps, floor; a condition of 1. */
void gradient_bounds(const Problem *p, const HostTensors *inputs, const float *lse, GradientSamples of[GRADIENT_COUNT]);

/* A gradient against another one, everywhere, and in the sampled rows by the bounds of their own. want NULL: those rows against
 * fp64. */
Comparison compare_gradient(const Gradients *exact, Gradient which, const void *got, const void *want);

/* Two runs of a variant; no difference is allowed. */
Comparison compare_runs(const Problem *p, Gradient which, const void *got, const void *want);

#endif
