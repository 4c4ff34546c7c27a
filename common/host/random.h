/* random.h - seeded N(0,1) inputs, the same numbers on every machine and for any number of threads. */
#ifndef FA_RANDOM_H
#define FA_RANDOM_H

#include "../problem.h"

/* Fills `out`, `count` elements of `dtype`, with mean + std * N(0,1). Element i depends on (seed, stream, i) alone: give
 * each tensor a stream of its own. */
void random_normal(Dtype dtype, void *out, size_t count, uint64_t seed, uint32_t stream, double mean, double std);

/* A number between 0 and 1, by these three. */
double random_uniform(uint64_t seed, uint32_t a, uint32_t b);

/* Adds std * N(0,1) to each element with the given probability, and nothing to the others. */
void random_outliers(Dtype dtype, void *out, size_t count, uint64_t seed, uint32_t stream, double probability, double std);

#endif
