/* rotate.cuh - --hadamard: a row times an orthogonal matrix, in registers.
 *
 * R = diag(sign) H / sqrt(D). H is Hadamard's matrix, +-1: H[i][j] = (-1)^(number of binary digits that are 1 both in i
 * and in j). It is never stored: like a Fourier transform it is log2(D) rounds of butterflies (a, b) -> (a + b, a - b),
 * between the components that differ in one binary digit. The signs keep a row that is constant, or in any other way
 * regular, from ending up in one component.
 *
 * A row lies in D/8 neighboring lanes, eight components each. Digits 0-2 of a component are positions in a thread,
 * digits 3 and up are lanes; so three rounds of butterflies stay in registers and the others are shuffles:
 *
 *     lane           0           1     ...    D/8 - 1     D/8  ...
 *     components   0..7       8..15          .. D - 1     0..7 ...
 *                  |-------- row r --------------------|  |-- row r + 1
 */
#ifndef FA_ROTATE_CUH
#define FA_ROTATE_CUH

#include "../common/gpu/softmax.cuh"
#include "fp8.h"

/* x := x R, for rows of D components of which this thread has eight, from component 8 chunk on. */
template <int D> __device__ static void rotate(float (&x)[8], int chunk) {
    const float factor = rsqrtf(D);
    UNROLL for (int i = 0; i < 8; i++)
        x[i] *= factor * rotation_sign(8 * chunk + i);
    UNROLL for (int step = 1; step < 8; step *= 2)
        UNROLL for (int i = 0; i < 8; i++)
            if (!(i & step)) {
                const float a = x[i], b = x[i + step];
                x[i] = a + b, x[i + step] = a - b;
            }
    UNROLL for (int step = 1; step < D / 8; step *= 2) {
        const float sign = chunk & step ? -1 : 1; /* a + b in the lower of two lanes, a - b in the upper, by one fma */
        UNROLL for (int i = 0; i < 8; i++)
            x[i] = sign * x[i] + __shfl_xor_sync(WHOLE_WARP, x[i], step);
    }
}

#endif
