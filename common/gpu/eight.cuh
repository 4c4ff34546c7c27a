/* eight.cuh - what the pre-passes of 05_fa2_backward, 06_fp8 and 07_flash_decoding share: a thread
 * takes eight neighboring elements at a time, 16 bytes of 16-bit numbers, and the block finds the
 * largest of what its threads have.
 */
#ifndef FA_EIGHT_CUH
#define FA_EIGHT_CUH

#include "instructions.cuh"

/* Eight elements of T, which lie in memory side by side, as floats. */
template <typename T> __device__ inline void spread(float (&x)[8], uint4 raw) {
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
    UNROLL for (int i = 0; i < 4; i++) {
        const float2 pair = unpack_pair<T>(word[i]);
        x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
    }
}
/* The same from memory, or zeros. */
__device__ inline uint4 load_16_or_0(const void *from, bool exists) {
    return exists ? load_16(from) : make_uint4(0, 0, 0, 0); /* 0 is 0 in every format */
}
template <typename T> __device__ inline void load_8(float (&x)[8], const T *from, bool exists) {
    spread<T>(x, load_16_or_0(from, exists));
}
/* Eight elements of F that are stored together. */
template <typename F> __device__ inline uint2 pack_8(const float (&x)[8]) {
    return make_uint2(pack_4<F>(x[0], x[1], x[2], x[3]), pack_4<F>(x[4], x[5], x[6], x[7]));
}
__device__ inline void spread(float (&x)[8], float4 low, float4 high) {
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

/* The largest of |x| and `largest`. */
__device__ inline float largest_of(const float (&x)[8], float largest) {
    UNROLL for (int i = 0; i < 8; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    return largest;
}
/* The largest of what the block's threads bring; every thread gets it. */
template <int Threads> using Maxima = float[Threads / 32]; /* of its warps, in shared memory */
template <int Warps> __device__ inline float block_max(float (&of_warp)[Warps], float x) {
    UNROLL for (int offset = 16; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, offset));
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    UNROLL for (int warp = 0; warp < Warps; warp++)
        x = fmaxf(x, of_warp[warp]);
    return x;
}

#endif
