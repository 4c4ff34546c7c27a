/* samples.h - the fp64 oracle on a sample of rows: what 00_naive is held against at sizes where the whole oracle would take
 * minutes, and every variant where 00_naive does not fit into memory.
 */
#ifndef FA_SAMPLES_H
#define FA_SAMPLES_H

#include "check.h"

#define MAX_SAMPLES 64

typedef struct {
    const Problem *p;
    int count;
    RowIndex rows[MAX_SAMPLES];
    double *o; /* [count, head_dim] */
    double lse[MAX_SAMPLES];
    double score_size; /* of the whole problem, see check.h */
} Samples;

/* Up to 64 rows spread evenly over batch entries, heads and rows, with first and last rows of heads among them.
 * key_lengths as in Tensors, on the host. */
Samples samples_compute(const Problem *p, const int *key_lengths, const HostTensors *inputs);

/* Compare whole tensors on the host, O in the problem's dtype, in the sampled rows. */
Comparison samples_compare_output(const Samples *samples, const void *o);
Comparison samples_compare_lse(const Samples *samples, const float *lse);

/* Root of the mean square of the errors of O, and the worst one. */
typedef struct {
    double rms, worst;
} SampleErrors;
SampleErrors samples_errors(const Samples *samples, const void *o);

/* Which row the sample-th of `count` looks at. */
RowIndex sampled_row(const Problem *p, int sample, int count);

#endif
