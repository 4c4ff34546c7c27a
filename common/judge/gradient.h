/* gradient.h - comparing dQ, dK and dV: what may differ, whole tensors against each other, samples against fp64.
 *
 *     GradientScale scale = gradient_scale(&p, &inputs, lse);
 *     GradientSamples samples = gradient_samples_compute(&p, key_lengths, &inputs, o, lse, &scale);
 *     Comparison naive = gradient_samples_compare(&samples, GRADIENT_Q, naive_dq, NULL, &scale);
 *     Comparison other = compare_gradient(&p, GRADIENT_Q, dq, naive_dq, &scale);
 *
 * All tensors are on the host, in p->dtype. In a Comparison of dK or dV, `head` is a K/V head and `row` a key.
 */
#ifndef FA_GRADIENT_H
#define FA_GRADIENT_H

#include "check.h"
#include "samples.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { GRADIENT_Q, GRADIENT_K, GRADIENT_V, GRADIENT_COUNT } Gradient;

const char *gradient_name(Gradient which); /* "dQ" */
size_t gradient_elements(const Problem *p, Gradient which);

/* How far two correct gradients may be apart depends on the inputs; this looks at them once. Derived in gradient.c. */
typedef struct {
    double relative[GRADIENT_COUNT];  /* to the row's largest element, */
    double condition[GRADIENT_COUNT]; /* times this; 1 until gradient_samples_compute has seen how much its sums cancel */
    double steps[GRADIENT_COUNT];     /* what the dtype's smallest step leaves, */
    double floor[GRADIENT_COUNT];     /* and with it all that may be left where the gradient is 0 */
} GradientScale;
GradientScale gradient_scale(const Problem *p, const HostTensors *inputs, const float *lse);

/* Two gradients computed from the same O and LSE, rows in parallel. */
Comparison compare_gradient(const Problem *p, Gradient which, const void *got, const void *want, const GradientScale *scale);

/* The largest |a - b| of two tensors of `count` elements: 0 if they are equal, NaN if one holds a NaN. */
double largest_difference(Dtype dtype, const void *a, const void *b, size_t count);

/* dQ in sampled rows, dK and dV in sampled keys, in fp64 from the O and LSE that the forward pass left (host arrays): their
 * rounding is its doing, not the backward pass's. */
typedef struct {
    const Problem *p;
    int query_count, key_count;
    RowIndex queries[MAX_SAMPLES], keys[MAX_SAMPLES]; /* of a key: batch entry, K/V head, key */
    double *gradients[GRADIENT_COUNT];                /* [count, head_dim]; free_gradient_samples */
    double *squares[GRADIENT_COUNT]; /* [count, head_dim]: the sum of the squares of the terms of that sum, */
    double *noise[GRADIENT_COUNT];   /* and of the errors that dP and delta bring into them */
} GradientSamples;
GradientSamples gradient_samples_compute(const Problem *p, const int *key_lengths, const HostTensors *inputs, const void *o,
                                         const float *lse, GradientScale *scale);
/* A gradient in the sampled rows, each by its own bound: against fp64, or against another (want; else NULL). */
Comparison gradient_samples_compare(const GradientSamples *samples, Gradient which, const void *got, const void *want,
                                    const GradientScale *scale);
void free_gradient_samples(GradientSamples *samples);

#ifdef __cplusplus
}
#endif
#endif
