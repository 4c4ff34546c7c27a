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

#include "check.h"
#include "../stage.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PREPARED_O, PREPARED_LSE, PREPARED_Q, PREPARED_K, PREPARED_V, PREPARED_COMPARISONS };

/* Where the reference comes from: 00_naive on the device, in fp32; the oracle, everywhere or in sampled rows. */
typedef enum { REFERENCE_NAIVE, REFERENCE_ORACLE, REFERENCE_SAMPLES } ReferenceKind;

/* Compares what `variant` left in o and lse (host) after it had prepared `inputs` into `workspace` (device). key_lengths: on
 * the host, device_lengths on the device, or both NULL. Fills in all of `comparisons`. Returns 0 if `kind` does not fit into
 * memory; O and LSE are not filled in then. */
int compare_prepared(const Problem *p, const Variant *variant, const int *key_lengths, const int *device_lengths,
                     const HostTensors *inputs, const Buffer *workspace, const void *o, const float *lse, ReferenceKind kind,
                     Comparison comparisons[PREPARED_COMPARISONS]);

/* Whether the variant prepares its inputs for this problem. */
int variant_prepares(const Variant *variant, const Problem *p);

#ifdef __cplusplus
}
#endif
#endif
