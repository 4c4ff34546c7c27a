/* What labs/fragments/kernel.cu is compiled with: CUDA's words, ldmatrix and mma, the numbers of the lab, and the kernel's declaration. */
#ifndef FA_LAB_KERNEL_H
#define FA_LAB_KERNEL_H

#include "../../gpu/tile.cuh"

constexpr int D = 64;        /* the head dim: elements of a row of Q and K */
constexpr int Br = 64;       /* queries of a tile */
constexpr int Bc = 64;       /* keys of a tile */
constexpr int THREADS = 128; /* threads of a block: four warps */
constexpr int SHARED_BYTES = 48 * 1024;

extern "C" __global__ void mma_scores(Problem p, const __half *Q, const __half *K, const int *key_lengths, float *S);

#endif
