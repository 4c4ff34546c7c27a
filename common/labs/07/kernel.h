/* What labs/07/kernel.cu is compiled with: CUDA's words, the numbers of the lab, and the kernels' declarations. */
#ifndef FA_LAB_KERNEL_H
#define FA_LAB_KERNEL_H

#include "../../gpu/kernel.cuh"

constexpr int D = 64;     /* the head dim: elements of a row of Q, K, V and O */
constexpr int SPLITS = 4; /* into how many parts the keys of a query are cut */
constexpr int WARPS = 4;  /* of a block of `split` */
constexpr int SHARED_BYTES = 8 * 1024;

extern "C" __global__ void split(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, float *partial_O,
                                 float *partial_LSE);
extern "C" __global__ void merge(Problem p, const float *partial_O, const float *partial_LSE, float *O, float *LSE);

#endif
