/* instructions.cuh - the few machine instructions the kernels need that CUDA C has no words for.
 *
 * Each is a thin __device__ function over one PTX instruction, named after it; its twin for the CPU device has the same
 * name in cpu/instructions_cpu.h. (PTX ISA 8.x, section 9.7.)
 *
 * Warp-wide instructions (ldmatrix, mma) are executed by all 32 lanes together; each lane passes in and gets back its
 * *fragment*, a fixed share of a small matrix. T = lane (0..31) owns, in a matrix of 16-bit elements 8 columns wide,
 *
 *            columns  0   1 | 2   3 | 4   5 | 6   7
 *     row 0          T0  T0 | T1  T1| T2  T2| T3  T3        row    = lane / 4
 *     row 1          T4  T4 | T5  T5| T6  T6| T7  T7        column = 2 * (lane % 4) + {0, 1}
 *     ...                                                   the two elements share one 32-bit register,
 *     row 7          T28 T28| T29 T29| ...    T31 T31       the lower column in the lower half
 *
 * Every fragment below is made of such 8x8 matrices. The four lanes that share a row are a *quad*.
 *
 * sm_75 (Turing) lacks some of these; for most, narrower instructions that do the same stand beside it.
 */
#ifndef FA_INSTRUCTIONS_CUH
#define FA_INSTRUCTIONS_CUH

#include "kernel.cuh"

/* The two 8-bit floating point formats, as element types. largest: the largest number; bigger ones
 * become it when they are converted (they saturate). */
struct E4m3 { /* sign, 4 bits of exponent, 3 of mantissa */
    uint8_t code;
    static constexpr float largest = 448;        /* 1.75 x 2^8 */
    static constexpr int largest_exponent = 8;
};
struct E5m2 { /* sign, 5 bits of exponent, 2 of mantissa */
    uint8_t code;
    static constexpr float largest = 57344;      /* 1.75 x 2^15 */
    static constexpr int largest_exponent = 15;
};

#ifndef __CUDACC__
#include "../cpu/instructions_cpu.h"
#else
#include <cuda_fp8.h>

/* The 32-bit address of a pointer into shared memory, which is what PTX wants. */
__device__ inline uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/* ---- 16-byte accesses
 * ----------------------------------------------------------------------------------------------- The widest load and
 * store a lane has; a warp moves 512 bytes, four full 128-byte lines. Pointers aligned to 16 bytes. */
__device__ inline uint4 load_16(const void *from) { return *static_cast<const uint4 *>(from); }
__device__ inline void store_16(void *to, uint4 value) { *static_cast<uint4 *>(to) = value; }

/* ---- ldmatrix: 8x8 matrices of 16-bit elements from shared memory into fragments ------------------------------------
 * Lane i passes the address of one row (16 bytes, 16-byte aligned): lanes 0-7 the rows of matrix 0, lanes 8-15 of
 * matrix 1, 16-23 of matrix 2, 24-31 of matrix 3. Register i then holds this lane's two elements of matrix i. _trans
 * hands out the transposed matrices (element [c][r] where [r][c] would go).
 *
 * The hardware reads the eight rows of one matrix at once: if their 16 bytes lie in different banks it takes one
 * pass (wavefront), if all lie in the same four banks it takes eight. tile.cuh swizzles tiles so that it is one. */
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

/* ---- mma m16n8k16: C += A B, 16-bit inputs, fp32 accumulation -------------------------------------------------------
 *
 *     A 16x16, row-major              B 16x8, "column-major": lane l holds two      C 16x8, fp32
 *                                     neighbors of one COLUMN
 *            k 0-7    k 8-15                  n 0-7                                        n 0-7
 *     m 0-7   a[0]     a[2]           k 0-7    b[0]                                 m 0-7   c[0] c[1]
 *     m 8-15  a[1]     a[3]           k 8-15   b[1]                                 m 8-15  c[2] c[3]
 *
 *     a[i]: rows lane/4,              b[i]: rows (k) 2*(lane%4) + {0,1},            c[0], c[1]: row lane/4,
 *           columns 2*(lane%4)+{0,1}        column (n) lane/4                             columns 2*(lane%4) + {0, 1}
 *           of its 8x8 quarter              of its 8x8 half                         c[2], c[3]: row lane/4 + 8
 *
 * Two consequences that every tensor-core attention kernel uses:
 *   - B's fragment is the 8x8 matrix of B transposed. K stored [key][d] *is* (K^T)'s transpose, so Q K^T loads K with
 *     plain ldmatrix; V stored [key][d] is P V's B itself, so it is loaded with ldmatrix_trans.
 *   - C's fragment of two neighboring 16x8 tiles has the very shape of one A fragment: P goes from accumulator to
 *     operand in registers, without shared memory (pack_pair below).
 *
 * A full warp's mma is 16*8*16 multiply-adds = 4096 FLOPs. bf16 needs sm_80. */
template <typename T> __device__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ inline void mma_m16n8k16<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else /* sm_75: the two halves of k one after the other */
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

template <>
__device__ inline void mma_m16n8k16<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    __trap(); /* the harness never launches bf16 here: stage.h, TENSOR_CORES */
#endif
}

/* Two floats, rounded, in one register: `low` in the lower half, as in every fragment above. */
template <typename T> __device__ uint32_t pack_pair(float low, float high);
template <> __device__ inline uint32_t pack_pair<__half>(float low, float high) {
    __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}
template <> __device__ inline uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

/* And back. */
template <typename T> __device__ float2 unpack_pair(uint32_t pair);
template <> __device__ inline float2 unpack_pair<__half>(uint32_t pair) {
    return __half22float2(*reinterpret_cast<__half2 *>(&pair));
}
template <> __device__ inline float2 unpack_pair<__nv_bfloat16>(uint32_t pair) {
    return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&pair));
}

/* ---- fp8: four elements in one register, the first in the lowest byte -----------------------------------------------
 * pack_4 rounds to nearest, ties to even, and saturates: what is larger than the format's largest number becomes that
 * one. CUDA's conversion is one instruction for two elements from sm_89 on, and many in software before. */
template <typename F> __device__ uint32_t pack_4(float x0, float x1, float x2, float x3);
template <> __device__ inline uint32_t pack_4<E4m3>(float x0, float x1, float x2, float x3) {
    return __nv_cvt_float2_to_fp8x2(make_float2(x0, x1), __NV_SATFINITE, __NV_E4M3) |
           (uint32_t)__nv_cvt_float2_to_fp8x2(make_float2(x2, x3), __NV_SATFINITE, __NV_E4M3) << 16;
}
template <> __device__ inline uint32_t pack_4<E5m2>(float x0, float x1, float x2, float x3) {
    return __nv_cvt_float2_to_fp8x2(make_float2(x0, x1), __NV_SATFINITE, __NV_E5M2) |
           (uint32_t)__nv_cvt_float2_to_fp8x2(make_float2(x2, x3), __NV_SATFINITE, __NV_E5M2) << 16;
}

/* e4m3 to T, exactly: bytes 0 and 2 to x, bytes 1 and 3 to y; in each the lower byte's number in the lower half.
 *
 *     e4m3     s eeee mmm              value 2^(e - 7) x 1.m
 *     fp16     s 0eeee mmm0000000      2^(e - 15) x 1.m: the magnitude one place down, then times 2^8
 *     bf16     s 0000eeee mmm0000      2^(e - 127) x 1.m: the magnitude four places down, then times 2^120
 *
 * A subnormal number (e = 0) becomes a subnormal number of the wider format, and the multiplication makes it right,
 * too. NaN is not provided for.
 */
template <typename T> __device__ uint2 unpack_e4m3(uint32_t four);
template <> __device__ inline uint2 unpack_e4m3<__half>(uint32_t four) {
#if __CUDA_ARCH__ >= 890 /* an instruction of its own, for two neighboring bytes */
    const uint32_t ordered = __byte_perm(four, 0, 0x3120);
    uint2 pairs;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(pairs.x), "=r"(pairs.y) : "r"(ordered));
#else
    uint2 pairs =
        make_uint2((four << 8 & 0x80008000) | (four << 7 & 0x3f803f80), (four & 0x80008000) | (four >> 1 & 0x3f803f80));
    __half2 *half = reinterpret_cast<__half2 *>(&pairs);
    const __half2 factor = __floats2half2_rn(0x1p8f, 0x1p8f);
    half[0] = __hmul2(half[0], factor), half[1] = __hmul2(half[1], factor);
#endif
    return pairs;
}
template <> __device__ inline uint2 unpack_e4m3<__nv_bfloat16>(uint32_t four) {
    uint2 pairs =
        make_uint2((four << 8 & 0x80008000) | (four << 4 & 0x07f007f0), (four & 0x80008000) | (four >> 4 & 0x07f007f0));
    __nv_bfloat162 *half = reinterpret_cast<__nv_bfloat162 *>(&pairs);
    const __nv_bfloat162 factor = __floats2bfloat162_rn(0x1p120f, 0x1p120f);
    half[0] = __hmul2(half[0], factor), half[1] = __hmul2(half[1], factor);
    return pairs;
}

/* Both formats to fp16, exactly, in the order of the bytes. e5m2 is the upper byte of an fp16. */
template <typename F> __device__ void unpack_halves(uint32_t four, uint32_t &low, uint32_t &high);
template <> __device__ inline void unpack_halves<E5m2>(uint32_t four, uint32_t &low, uint32_t &high) {
    low = __byte_perm(four, 0, 0x1404); /* bytes 0, x0, 0, x1; 4 stands for a byte of the second number, zero */
    high = __byte_perm(four, 0, 0x3424);
}
template <> __device__ inline void unpack_halves<E4m3>(uint32_t four, uint32_t &low, uint32_t &high) {
    const uint2 pairs = unpack_e4m3<__half>(four);
    low = __byte_perm(pairs.x, pairs.y, 0x5410), high = __byte_perm(pairs.x, pairs.y, 0x7632);
}
template <typename F> __device__ inline float4 unpack_4(uint32_t four) {
    uint32_t low, high;
    unpack_halves<F>(four, low, high);
    const float2 a = unpack_pair<__half>(low), b = unpack_pair<__half>(high);
    return make_float4(a.x, a.y, b.x, b.y);
}

/* ---- mma m16n8k32: C += A B, 8-bit inputs, fp32 accumulation --------------------------------------------------------
 * The picture of m16n8k16 with every 16-bit element replaced by a pair of 8-bit ones: k is twice as long, registers and
 * lanes are the same. a[0]: row lane/4, k = 4*(lane%4) .. + 3; a[2]: the same 16 further in k; b[0], b[1] alike; C is
 * as before. So ldmatrix, which moves pairs of bytes, loads these operands as well. (Not transposed: that would leave
 * the pairs together.)
 *
 * The instruction is there from sm_89 on. On sm_90 the compiler takes it apart as the lines for older chips
 * do here: unpacks both operands to fp16 and multiplies these. fp8 is then no faster than fp16; only wgmma
 * is. The order in which k is summed does not matter, so each register's lower pair goes into one m16n8k16
 * and its upper pair into another. */
template <typename F>
__device__ inline void mma_m16n8k32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 890
    if constexpr (F::largest_exponent == E4m3::largest_exponent)
        asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    uint32_t a_low[4], a_high[4], b_low[2], b_high[2];
    UNROLL for (int i = 0; i < 4; i++)
        unpack_halves<F>(a[i], a_low[i], a_high[i]);
    unpack_halves<F>(b0, b_low[0], b_high[0]);
    unpack_halves<F>(b1, b_low[1], b_high[1]);
    mma_m16n8k16<__half>(c, a_low, b_low[0], b_low[1]);
    mma_m16n8k16<__half>(c, a_high, b_high[0], b_high[1]);
#endif
}

/* ---- cp.async: 16 bytes from device memory to shared memory, past the registers -------------------------------------
 * Returns at once; the bytes are there after commit, wait and a barrier (the wait covers this thread's copies only, the
 * barrier everyone's). exists == false writes zeros instead and reads nothing, so a tile's tail needs no branch. */
__device__ inline void cp_async_16(void *shared, const void *global, bool exists = true) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(exists ? 16 : 0) : "memory");
#else /* sm_75 has no asynchronous copy: load and store */
    store_16(shared, exists ? load_16(global) : make_uint4(0, 0, 0, 0));
#endif
}
/* Closes the group of copies this thread has issued since the last commit. */
__device__ inline void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* Waits until at most `pending` of this thread's committed groups are still under way. */
template <int pending> __device__ inline void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

/* ---- red.global.add.v4.f32: adds four neighboring floats in device memory atomically, each on its own --------------
 * In no particular order against other threads' additions, and floating-point sums depend on their order in the last
 * bits. `to` is aligned to 16 bytes. Chips before sm_90 take the four one by one. */
__device__ inline void atomic_add_4(float *to, float4 value) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(__cvta_generic_to_global(to)), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
                 : "memory");
#else
    atomicAdd(to, value.x), atomicAdd(to + 1, value.y), atomicAdd(to + 2, value.z), atomicAdd(to + 3, value.w);
#endif
}

/* ---- atom.acq_rel: atomicAdd that is also a fence, both ways. Every thread that later adds to the same address sees
 * what this thread wrote before (and, if a barrier came before, what its block wrote); this thread sees what those
 * wrote that added before it. */
__device__ inline int atomic_add_ordered(int *to, int value) {
    int old;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
                 : "=r"(old) : "l"(__cvta_generic_to_global(to)), "r"(value) : "memory");
    return old;
}
/* ld.acquire, until it finds `value`: from then on this thread sees what those wrote that had added to this address. */
__device__ inline void wait_ordered(const int *at, int value) {
    int found;
    do
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                     : "=r"(found) : "l"(__cvta_generic_to_global(at)) : "memory");
    while (found != value);
}

/* ld.relaxed, until it finds a number that is not negative, which it returns. Nothing else is ordered by it: it suits a
 * message of one number, at an address that held -1 before. */
__device__ inline int wait_for_number(const int *at) {
    int found;
    do
        asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];"
                     : "=r"(found) : "l"(__cvta_generic_to_global(at)) : "memory");
    while (found < 0);
    return found;
}

/* ---- ex2.approx: 2^x, relative error below 2^-22, 2^-inf = 0 --------------------------------------------------------
 * The special-function unit computes 2^x, not e^x; so softmax folds log2(e) into its scale: e^x = 2^(x log2 e). */
__device__ inline float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- two more of that unit: rcp.approx, relative error below 2^-22, 1/inf = 0; tanh.approx, 2^-10.9, from sm_75 on */
__device__ inline float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float tanh_approx(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

/* The mma of elements of type T: k = 16 of 16 bits, or 32 of 8. */
template <typename T> __device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (sizeof(T) == 1)
        mma_m16n8k32<T>(c, a, b0, b1);
    else
        mma_m16n8k16<T>(c, a, b0, b1);
}

/* ---- four floats at once --------------------------------------------------------------------------------------------
 * 16 bytes of fp32, aligned to 16 bytes; or, rounded to T, 8 bytes aligned to 8. */
__device__ inline float4 load_4(const float *from) { return *reinterpret_cast<const float4 *>(from); }
__device__ inline void store_4(float *to, float4 x) { *reinterpret_cast<float4 *>(to) = x; }
template <typename T> __device__ inline void store_4(T *to, float4 x) {
    *reinterpret_cast<uint2 *>(to) = make_uint2(pack_pair<T>(x.x, x.y), pack_pair<T>(x.z, x.w));
}
__device__ inline float4 operator+(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ inline float4 operator*(float a, float4 b) { return make_float4(a * b.x, a * b.y, a * b.z, a * b.w); }

#endif
