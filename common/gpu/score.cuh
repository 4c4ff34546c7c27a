/* score.cuh - score mods (problem.h: Score) as one function object, S' = f(S, batch, head, query, key), at run time.
 *
 * The object belongs to one head of one batch entry. Query and key are positions, as floats: an int would have to be
 * converted for each element, at a quarter of the rate of an addition, and up to 2^24 a float is as exact.
 */
#ifndef FA_GPU_SCORE_CUH
#define FA_GPU_SCORE_CUH

#include "../score.h"
#include "kernel.cuh"

/* The head's sink. Without one it is -inf: e^-inf adds nothing. */
__device__ inline float sink_of(const Score &score, int head) { return score.sinks ? score.sinks[head] : -INFINITY; }

struct AnyScore {
    float cap, slope; /* 0: none */

    __device__ AnyScore(const Problem &p, const Score &score, int head)
        : cap(score.softcap), slope(score.alibi ? alibi_slope(p.heads, head) : 0) {}

    __device__ float operator()(float s, float query, float key) const {
        const float capped = cap > 0 ? cap * tanhf(s / cap) : s;
        return slope > 0 ? capped - slope * fabsf(query - key) : capped;
    }

    /* df/dS = 1 - tanh^2(S / C), written so that no digits cancel where tanh is nearly 1. ALiBi adds nothing to it. */
    __device__ float derivative(float s) const {
        const float e = expf(-2 * fabsf(s) / cap);
        return cap > 0 ? 4 * e / ((1 + e) * (1 + e)) : 1;
    }
};

#endif
