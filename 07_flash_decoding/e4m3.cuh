/* e4m3.cuh - four e4m3 numbers in a register to two pairs of 16-bit ones, exactly.
 *
 *     e4m3     s eeee mmm              value 2^(e - 7) x 1.m
 *     fp16     s 0eeee mmm0000000      2^(e - 15) x 1.m: the magnitude one place down, then times 2^8
 *     bf16     s 0000eeee mmm0000      2^(e - 127) x 1.m: the magnitude four places down, then times 2^120
 *
 * Subnormal numbers (e = 0) are subnormal in the wider format too, and right after the multiplication. The cache holds no NaN.
 */
#ifndef FA_E4M3_CUH
#define FA_E4M3_CUH

#include "../common/gpu/instructions.cuh"

/* x: elements 0 and 2 (bytes counted from the lowest), y: elements 1 and 3. The lower one in the lower half. */
template <typename T> __device__ uint2 unpack_e4m3(uint32_t four);

#ifdef __CUDACC__
template <> __device__ inline uint2 unpack_e4m3<__half>(uint32_t four) {
#if __CUDA_ARCH__ >= 890 /* an instruction of its own, for two neighbouring bytes */
    const uint32_t ordered = __byte_perm(four, 0, 0x3120);
    uint2 pairs;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(pairs.x), "=r"(pairs.y) : "r"(ordered));
#else
    uint2 pairs = make_uint2((four << 8 & 0x80008000) | (four << 7 & 0x3f803f80), (four & 0x80008000) | (four >> 1 & 0x3f803f80));
    __half2 *half = reinterpret_cast<__half2 *>(&pairs);
    const __half2 factor = __floats2half2_rn(0x1p8f, 0x1p8f);
    half[0] = __hmul2(half[0], factor), half[1] = __hmul2(half[1], factor);
#endif
    return pairs;
}
template <> __device__ inline uint2 unpack_e4m3<__nv_bfloat16>(uint32_t four) {
    uint2 pairs = make_uint2((four << 8 & 0x80008000) | (four << 4 & 0x07f007f0), (four & 0x80008000) | (four >> 4 & 0x07f007f0));
    __nv_bfloat162 *half = reinterpret_cast<__nv_bfloat162 *>(&pairs);
    const __nv_bfloat162 factor = __floats2bfloat162_rn(0x1p120f, 0x1p120f);
    half[0] = __hmul2(half[0], factor), half[1] = __hmul2(half[1], factor);
    return pairs;
}
#else /* the CPU device: through fp32 */
template <typename T> uint2 unpack_e4m3(uint32_t four) {
    float x[4];
    for (int i = 0; i < 4; i++)
        x[i] = e4m3_to_float((uint8_t)(four >> 8 * i));
    return make_uint2(pack_pair<T>(x[0], x[2]), pack_pair<T>(x[1], x[3]));
}
#endif

#endif
