/* prepared.h - judging a variant that prepares its inputs (stage.h): rounds them to a smaller format before it uses them.
 *
 * Its result is not attention of the inputs, and how far it is from that says more about the inputs than about the kernel. So
 * two questions are asked apart, each with a bound that follows from the format (derived in prepared.c):
 *
 *     Are the prepared inputs the inputs, as nearly as the format can say?               comparisons of Q, K and V
 *     Is the result attention of the prepared inputs, as nearly as P's format can say?   comparisons of O and LSE
 */
#ifndef FA_PREPARED_H
#define FA_PREPARED_H

#include "compare.h"
#include "../stage.h"

enum { PREPARED_O, PREPARED_LSE, PREPARED_Q, PREPARED_K, PREPARED_V, PREPARED_COMPARISONS };

/* Attention of inputs in some rows: samples_compute, or what does the same. No samples: it does not fit into memory. */
typedef Samples Attention(const Problem *p, const int *key_lengths, const HostTensors *inputs, size_t limit);

/* What the variant prepared into `workspace`, and the O and LSE that it left on the host. Fills in all of `comparisons`,
 * those of O and LSE in the rows that `attention` gives. Returns 0 if it gives none; they are not filled in then. */
int compare_prepared(const Problem *p, const Variant *variant, const int *key_lengths, const HostTensors *inputs,
                     const Buffer *workspace, const void *o, const float *lse, Attention *attention, size_t limit,
                     Comparison comparisons[PREPARED_COMPARISONS]);

#endif
