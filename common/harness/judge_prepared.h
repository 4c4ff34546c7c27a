/* judge_prepared.h - judging variants that prepare their inputs, against 00_naive's attention of what they prepared. */
#ifndef FA_JUDGE_PREPARED_H
#define FA_JUDGE_PREPARED_H

#include "run.h"

void judge_prepared(Row *row); /* fills in its comparisons */

/* As samples_compute, but by 00_naive on the device and in all rows; in none if it does not fit there. */
Samples naive_samples(const Problem *p, const int *key_lengths, const HostTensors *inputs, size_t limit);

#endif
