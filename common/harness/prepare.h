/* prepare.h - variants that prepare their inputs (stage.h): what they left, on the host, for the judge. */
#ifndef FA_PREPARE_H
#define FA_PREPARE_H

#include "../judge/prepared.h"
#include "run.h"

/* Fills in the comparisons of such a variant's row, against attention of the prepared inputs. */
void judge_prepared(Row *row);

/* compare_prepared of what `variant` prepared into `workspace`. */
int compare_preparation(const Problem *p, const Variant *variant, const int *key_lengths, const HostTensors *inputs,
                        const Buffer *workspace, const void *o, const float *lse, Attention *attention, size_t limit,
                        Comparison comparisons[PREPARED_COMPARISONS]);

/* By 00_naive on the device. */
Attention naive_attention;

#endif
