/* What labs/08/kernel.cu is compiled with: CUDA's words, Hopper's instructions, the ring, and the function's declaration. */
#ifndef FA_LAB_KERNEL_H
#define FA_LAB_KERNEL_H

#include "../../gpu/hopper.cuh"

constexpr int D = 64;             /* the head dim: elements of a row of Q and K */
constexpr int Br = 64;            /* queries of a tile */
constexpr int Bc = 64;            /* keys of a tile */
constexpr int STAGES = 2;         /* tiles of K that fit into the ring */
constexpr int CONSUMER_WARPS = 4; /* one warpgroup */

/* Tile number n is in stage n % STAGES of the ring, as number n / STAGES there. */
struct Ring {
    Panels<__half, Br, D> q;
    Panels<__half, Bc, D> k[STAGES];
    Mbarrier q_full, full[STAGES], empty[STAGES];
};

extern "C" __device__ void consume(Ring &ring, int tiles, const Problem &p, int keys, int first_row, float *S, float *LSE);

#endif
