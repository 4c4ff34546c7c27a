/* What labs/01/kernel.cu is compiled with: CUDA's words, the numbers of the lab, and the kernel's declaration. */
#ifndef FA_LAB_KERNEL_H
#define FA_LAB_KERNEL_H

#include "../../gpu/kernel.cuh"

constexpr int D = 64;        /* the head dim: elements of a row of Q and K */
constexpr int Br = 32;       /* queries of a tile */
constexpr int Bc = 32;       /* keys of a tile */
constexpr int THREADS = 256; /* threads of a block */
constexpr int SHARED_BYTES = 48 * 1024;

extern "C" __global__ void tiled_scores(Problem p, const float *Q, const float *K, const int *key_lengths, float *S);

#endif
