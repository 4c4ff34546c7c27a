/* cuda_on_cpu.h - the words of CUDA C that the kernels use, for the host's C++17 compiler. gpu/kernel.cuh includes it when
 * nvcc is not the one compiling; simt.h is the machine below.
 *
 * Only what a kernel of this repository needs is here. A word that is missing is a compile error, never a silent
 * difference. Words that name their caller's line in messages take it as default arguments at the end.
 */
#ifndef FA_CUDA_ON_CPU_H
#define FA_CUDA_ON_CPU_H

#include "../numeric.h"
#include "simt.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed" /* #pragma unroll is for nvcc; here it may be ignored */
#endif

/* ---- what a function is: here everything is an ordinary function ---- */
#ifdef TRACE
#define __global__ __attribute__((flatten)) /* all is inlined: the debug information then knows each line's callers */
#else
#define __global__
#endif
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static_assert(false, "shared memory is declared with SHARED_MEMORY(name, Type), see gpu/kernel.cuh");

/* Where in the kernel a word was used. */
#define CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* ---- vector types ---- */
typedef SimtIndex uint3;
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define VECTOR_2(Type, Name)                                                                                                \
    struct alignas(2 * sizeof(Type)) Name {                                                                                 \
        Type x, y;                                                                                                          \
    };                                                                                                                      \
    inline Name make_##Name(Type x, Type y) { return {x, y}; }
#define VECTOR_4(Type, Name)                                                                                                \
    struct alignas(4 * sizeof(Type)) Name {                                                                                 \
        Type x, y, z, w;                                                                                                    \
    };                                                                                                                      \
    inline Name make_##Name(Type x, Type y, Type z, Type w) { return {x, y, z, w}; }
VECTOR_2(int, int2)
VECTOR_2(unsigned, uint2)
VECTOR_2(float, float2)
VECTOR_4(int, int4)
VECTOR_4(unsigned, uint4)
VECTOR_4(float, float4)
#undef VECTOR_2
#undef VECTOR_4

/* ---- 16-bit floats: storage and conversions; kernels compute in fp32 ---- */
struct __half {
    uint16_t code;
};
struct __nv_bfloat16 {
    uint16_t code;
};
struct alignas(4) __half2 {
    __half x, y;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

inline float __half2float(__half value) { return fp16_to_float(value.code); }
inline __half __float2half_rn(float value) { return {float_to_fp16(value)}; }
inline __half __float2half(float value) { return __float2half_rn(value); }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline __half2 __float22half2_rn(float2 value) { return __floats2half2_rn(value.x, value.y); }
inline float2 __half22float2(__half2 value) { return {__half2float(value.x), __half2float(value.y)}; }
inline float __low2float(__half2 value) { return __half2float(value.x); }
inline float __high2float(__half2 value) { return __half2float(value.y); }

inline float __bfloat162float(__nv_bfloat16 value) { return bf16_to_float(value.code); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return {float_to_bf16(value)}; }
inline __nv_bfloat16 __float2bfloat16(float value) { return __float2bfloat16_rn(value); }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 value) { return __floats2bfloat162_rn(value.x, value.y); }
inline float2 __bfloat1622float2(__nv_bfloat162 value) { return {__bfloat162float(value.x), __bfloat162float(value.y)}; }
inline float __low2float(__nv_bfloat162 value) { return __bfloat162float(value.x); }
inline float __high2float(__nv_bfloat162 value) { return __bfloat162float(value.y); }

/* ---- arithmetic. Macros where a C library has taken the name. ---- */
#define __expf(x) expf(x)
#define __log2f(x) log2f(x)
#define rsqrtf(x) (1.0f / sqrtf(x))
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fadd_rd(float a, float b) { /* rounded down; the sum of two floats that matter is exact in double */
    float sum = a + b;
    return sum > (double)a + b ? nextafterf(sum, -INFINITY) : sum;
}
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }

inline unsigned __float_as_uint(float value) { return float_bits(value); }
inline float __uint_as_float(unsigned bits) { return bits_float(bits); }
inline int __float_as_int(float value) { return (int)float_bits(value); }
inline float __int_as_float(int bits) { return bits_float((unsigned)bits); }

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline size_t min(size_t a, size_t b) { return a < b ? a : b; }
inline size_t max(size_t a, size_t b) { return a > b ? a : b; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

template <typename T> inline T __ldg(const T *from) { return *from; }

/* ---- barriers ---- */
inline void __syncthreads(CALLER) { simt_barrier("__syncthreads", 0, file, line); }
inline int __syncthreads_count(int predicate, CALLER) { return simt_barrier("__syncthreads_count", predicate, file, line); }
inline int __syncthreads_or(int predicate, CALLER) { return simt_barrier("__syncthreads_or", predicate, file, line) != 0; }
inline int __syncthreads_and(int predicate, CALLER) {
    return simt_barrier("__syncthreads_and", !predicate, file, line) == 0;
}
inline void __syncwarp(unsigned mask = SIMT_FULL_WARP, CALLER) {
    simt_collective("__syncwarp", mask, nullptr, nullptr, file, line);
}

/* ---- shuffles: every lane offers a 32-bit value and takes the one of lane `source`. What a lane that does not take part
 * would have offered is undefined; here it is all ones, a NaN. ---- */
struct Shuffle {
    uint32_t offered, taken;
    int source;
};
inline void compute_shuffle(void **operands, unsigned lanes) {
    for (int lane = 0; lane < SIMT_WARP; lane++) {
        if (!(lanes >> lane & 1))
            continue;
        Shuffle *to = static_cast<Shuffle *>(operands[lane]);
        bool there = lanes >> to->source & 1;
        to->taken = there ? static_cast<Shuffle *>(operands[to->source])->offered : 0xffffffff;
    }
}
template <typename T> inline T shuffle(const char *what, unsigned mask, T value, int source, const char *file, int line) {
    static_assert(sizeof(T) == 4, "shuffles move 32 bits");
    Shuffle operands = {0, 0, source};
    memcpy(&operands.offered, &value, 4);
    simt_collective(what, mask, &operands, compute_shuffle, file, line);
    memcpy(&value, &operands.taken, 4);
    return value;
}

/* `width` cuts the warp into segments; a source beyond one's own segment is oneself (__shfl_sync: wraps around in it). */
template <typename T> inline T __shfl_sync(unsigned mask, T value, int source, int width = SIMT_WARP, CALLER) {
    int segment = simt_lane() & ~(width - 1);
    return shuffle("__shfl_sync", mask, value, segment + (source & (width - 1)), file, line);
}
template <typename T> inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = SIMT_WARP, CALLER) {
    int lane = simt_lane(), source = lane ^ lane_mask, end = (lane & ~(width - 1)) + width;
    return shuffle("__shfl_xor_sync", mask, value, source < end ? source : lane, file, line);
}
template <typename T> inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = SIMT_WARP, CALLER) {
    int lane = simt_lane(), source = lane + (int)delta, end = (lane & ~(width - 1)) + width;
    return shuffle("__shfl_down_sync", mask, value, source < end ? source : lane, file, line);
}
template <typename T> inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = SIMT_WARP, CALLER) {
    int lane = simt_lane(), source = lane - (int)delta, begin = lane & ~(width - 1);
    return shuffle("__shfl_up_sync", mask, value, source >= begin ? source : lane, file, line);
}

/* ---- votes ---- */
struct Vote {
    int predicate;
    unsigned ballot;
};
inline void compute_ballot(void **operands, unsigned lanes) {
    unsigned ballot = 0;
    for (int lane = 0; lane < SIMT_WARP; lane++)
        if ((lanes >> lane & 1) && static_cast<Vote *>(operands[lane])->predicate)
            ballot |= 1u << lane;
    for (int lane = 0; lane < SIMT_WARP; lane++)
        if (lanes >> lane & 1)
            static_cast<Vote *>(operands[lane])->ballot = ballot;
}
inline unsigned vote(const char *what, unsigned mask, int predicate, const char *file, int line) {
    Vote operands = {predicate, 0};
    simt_collective(what, mask, &operands, compute_ballot, file, line);
    return operands.ballot;
}
inline unsigned __ballot_sync(unsigned mask, int predicate, CALLER) {
    return vote("__ballot_sync", mask, predicate, file, line);
}
inline int __any_sync(unsigned mask, int predicate, CALLER) { return vote("__any_sync", mask, predicate, file, line) != 0; }
inline int __all_sync(unsigned mask, int predicate, CALLER) { return vote("__all_sync", mask, !predicate, file, line) == 0; }

/* ---- atomics: real ones, since blocks run on several cores at once. All return the old value. ---- */
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline int atomicAdd(int *to, int value) { return __atomic_fetch_add(to, value, __ATOMIC_SEQ_CST); }
inline unsigned atomicAdd(unsigned *to, unsigned value) { return __atomic_fetch_add(to, value, __ATOMIC_SEQ_CST); }
inline int atomicExch(int *to, int value) { return __atomic_exchange_n(to, value, __ATOMIC_SEQ_CST); }
inline unsigned atomicExch(unsigned *to, unsigned value) { return __atomic_exchange_n(to, value, __ATOMIC_SEQ_CST); }
inline int atomicCAS(int *to, int expected, int value) {
    __atomic_compare_exchange_n(to, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected; /* on failure the builtin has put the old value there; on success it was the old value */
}
inline unsigned atomicCAS(unsigned *to, unsigned expected, unsigned value) {
    __atomic_compare_exchange_n(to, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}

/* The rest is compare-and-swap: compute the new value, store it if the old one is still there, else try again. */
template <typename T, typename Update> inline T atomic_update(T *to, Update update) {
    T old, desired;
    __atomic_load(to, &old, __ATOMIC_RELAXED);
    do
        desired = update(old);
    while (!__atomic_compare_exchange(to, &old, &desired, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    return old;
}
inline float atomicAdd(float *to, float value) {
    return atomic_update(to, [=](float old) { return old + value; });
}
inline int atomicMax(int *to, int value) {
    return atomic_update(to, [=](int old) { return max(old, value); });
}
inline int atomicMin(int *to, int value) {
    return atomic_update(to, [=](int old) { return min(old, value); });
}

/* The same number on every computer, so that results are the same; few, so that a small problem is more than they can take at
 * once, as a large one is on a GPU; and odd, so that work divided by it does not come out even. */
template <typename... Parameter> int resident_blocks(void (*)(Parameter...), int, size_t) { return 5; }

inline int __ffs(unsigned bits) { return __builtin_ffs((int)bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

/* ---- the two macros of kernel.cuh that are syntax in CUDA ---- */
#define SHARED_MEMORY(name, ...) \
    __VA_ARGS__ &name = *static_cast<__VA_ARGS__ *>(simt_shared(sizeof(__VA_ARGS__), __FILE__, __LINE__))

template <typename... Parameter, typename... Argument>
void launch(const char *name, const char *file, int line, void (*kernel)(Parameter...), dim3 grid, dim3 block,
            size_t shared_bytes, Argument... argument) {
    auto thread = [=] { kernel(argument...); };
    SimtLaunch simt = {};
    simt.kernel = name;
    simt.file = file;
    simt.line = line;
    simt.grid = {grid.x, grid.y, grid.z};
    simt.block = {block.x, block.y, block.z};
    simt.shared_bytes = shared_bytes;
    simt.thread = [](void *context) { (*static_cast<decltype(thread) *>(context))(); };
    simt.arguments = &thread;
    simt.argument_bytes = sizeof thread;
    simt_launch(&simt);
}

#endif
