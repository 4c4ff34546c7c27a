/* What labs/05/kernel.cu is compiled with: CUDA's words, the numbers of the lab, and the kernel's declaration. */
#ifndef FA_LAB_KERNEL_H
#define FA_LAB_KERNEL_H

#include "../../gpu/kernel.cuh"

constexpr int D = 64;        /* the head dim: elements of a row of all tensors but LSE */
constexpr int Br = 32;       /* queries of a tile */
constexpr int Bc = 32;       /* keys of a tile */
constexpr int THREADS = 128; /* threads of a block */
constexpr int SHARED_BYTES = 64 * 1024;

extern "C" __global__ void gradients(Problem p, const float *Q, const float *K, const float *V, const int *key_lengths, const float *O,
                                     const float *LSE, const float *dO, float *dQ, float *dK, float *dV);

#endif
