/* What labs/00/kernel.cu is compiled with: CUDA's words, the numbers of the lab, and the kernel's declaration. */
#ifndef FA_LAB_KERNEL_H
#define FA_LAB_KERNEL_H

#include "../../gpu/kernel.cuh"

constexpr int D = 64;        /* the head dim: elements of a row of Q, K, V and O */
constexpr int THREADS = 128; /* threads of a block, a query each */

extern "C" __global__ void naive(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, float *S, float *O,
                                 float *LSE);

#endif
