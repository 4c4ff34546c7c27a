/* softmax.cuh - what every softmax on fragments needs: what the four lanes of a row do together, and a few
 * constants. */
#ifndef FA_SOFTMAX_CUH
#define FA_SOFTMAX_CUH

#include "kernel.cuh"

#include <float.h>

/* [[maybe_unused]]: a file that includes this does not need all of them. */
[[maybe_unused]] constexpr unsigned WHOLE_WARP = 0xffffffff; /* the lanes that take part in a shuffle: all 32 */
[[maybe_unused]] constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

/* A maximum may start here instead of at -inf. Then the exponents of a row without keys are -inf - LOWEST = -inf and
 * not NaN, and e^-inf = 0. No score is below LOWEST, so a row that sees a key has the maximum of its scores. */
[[maybe_unused]] constexpr float LOWEST = -FLT_MAX;

/* Exponents are computed as fma(s, factor, -m), where m is the rounded product of the row's largest s and factor. The
 * product inside the fma is not rounded, so the exponents of a row are wrong by up to |m| 2^-24, all by the same.
 * 2^error cancels between O and l, but P must fit its type: in fp16 it passes 2^16 from |m| = 2^28 on (2^27 where m may
 * lag by SLACK), in bf16 and fp32 it is 0 or infinite from 2^31 on. Where |m| exceeds FAR, which leaves room, a kernel
 * rounds s * factor first, as m was rounded, and then subtracts m: at the maximum this gives exactly 0. */
[[maybe_unused]] constexpr float FAR = 0x1p24f;

/* The scores' factor, kept above 0 where a product of scales underflows: a masked score is
 * -inf, and -inf times 0 is NaN. */
__device__ inline float positive(float factor) { return fmaxf(factor, FLT_MIN); }

/* What to subtract from scores whose maximum is m: m itself, but 0 where no key was seen,
 * because -inf - -inf is NaN. */
__device__ inline float shift_of(float m) { return m == -INFINITY ? 0 : m; }

/* Maximum and sum over the four lanes of a quad, which share a row of a fragment
 * (instructions.cuh). All four get it. */
__device__ inline float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(WHOLE_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(WHOLE_WARP, x, 2));
}
__device__ inline float quad_sum(float x) {
    x += __shfl_xor_sync(WHOLE_WARP, x, 1);
    return x + __shfl_xor_sync(WHOLE_WARP, x, 2);
}

#endif
