/* prepare.h - variants that prepare their inputs (stage.h): what they left, on the host, for the judge. */
#ifndef FA_PREPARE_H
#define FA_PREPARE_H

#include "../judge/prepared.h"

/* Whether the variant prepares its inputs for this problem. */
int variant_prepares(const Variant *variant, const Problem *p);

/* compare_prepared of what `variant` prepared into `workspace`. */
int compare_preparation(const Problem *p, const Variant *variant, const int *key_lengths, const HostTensors *inputs,
                        const Buffer *workspace, const void *o, const float *lse, Attention *attention,
                        Comparison comparisons[PREPARED_COMPARISONS]);

/* By 00_naive on the device. */
Attention naive_attention;

#endif
