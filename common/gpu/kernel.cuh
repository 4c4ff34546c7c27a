/* kernel.cuh - what every kernel file includes: CUDA C, the one way to launch, the one way to get shared memory, and
 * the two element types under one pair of names.
 *
 * The same .cu file is compiled twice: by nvcc for a GPU, and by the host's C++ compiler for the CPU device, where
 * cpu/cuda_on_cpu.h supplies the CUDA words. Two things CUDA writes with syntax of its own become macros here:
 *
 *     kernel<<<grid, block, shared>>>(a, b)     LAUNCH(kernel, grid, block, shared, a, b)
 *     extern __shared__ ...                     SHARED_MEMORY(name, Type)
 */
#ifndef FA_KERNEL_CUH
#define FA_KERNEL_CUH

#include "../device/device.h"
#include "../problem.h"

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* `name` becomes a reference to one `Type` in the block's dynamic shared memory (launch with sizeof(Type)). Put every
 * tile of a kernel into one struct: its declaration is then the picture of shared memory. Aligned to 1024 bytes, since
 * that is what Hopper's swizzled tiles need (hopper.cuh). */
#define SHARED_MEMORY(name, ...)                                      \
    extern __shared__ __align__(1024) unsigned char shared_memory[];  \
    __VA_ARGS__ &name = *reinterpret_cast<__VA_ARGS__ *>(shared_memory)

/* Launches `kernel`. Above 48 KB of shared memory CUDA wants to be asked for permission first. */
template <typename... Parameter, typename... Argument>
void launch(const char *name, const char *file, int line, void (*kernel)(Parameter...), dim3 grid, dim3 block,
            size_t shared_bytes, Argument... argument) {
    if (shared_bytes > 48 * 1024)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    kernel<<<grid, block, shared_bytes, static_cast<cudaStream_t>(device_stream())>>>(argument...);
    device_check_launch(name, file, line);
}

/* How many blocks of `kernel` run on the device at the same time. */
template <typename... Parameter> int resident_blocks(void (*kernel)(Parameter...), int threads, size_t shared_bytes) {
    int blocks = 0; /* on one multiprocessor */
    if (shared_bytes > 48 * 1024)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes);
    return (blocks > 0 ? blocks : 1) * device_properties()->sm_count; /* if not one fits, LAUNCH will say why */
}

#else
#include "../cpu/cuda_on_cpu.h" /* the same words, SHARED_MEMORY and launch() for the CPU device */
#endif

/* A kernel with template arguments goes in parentheses: LAUNCH((attention<__half, 64>), grid, block, 0, p, t). */
#define LAUNCH(kernel, grid, block, shared_bytes, ...) \
    launch(#kernel, __FILE__, __LINE__, kernel, grid, block, shared_bytes, __VA_ARGS__)

/* The compute capability, times 10, that this compilation is for: 75, or 80 for all later ones. The host finds the
 * code's in device_properties()->capability. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
[[maybe_unused]] constexpr int CAPABILITY = 75;
#else
[[maybe_unused]] constexpr int CAPABILITY = 80;
#endif

/* One pair of names over the element types. from_float rounds to nearest even. */
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(float x) { return x; }

template <typename T> __device__ T from_float(float x);
template <> __device__ inline __half from_float<__half>(float x) { return __float2half_rn(x); }
template <> __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ inline float from_float<float>(float x) { return x; }

/* Choice of template arguments from run-time values: the statement runs with T (or D) bound to the
 * match. The harness has already refused what the variant's table entry does not list. They are plain
 * ifs: an if around one takes braces. */
#define WITH_HALF_TYPE(dtype, T, ...)                                     \
    if ((dtype) == DTYPE_FP16) { using T = __half; __VA_ARGS__; }         \
    else if ((dtype) == DTYPE_BF16) { using T = __nv_bfloat16; __VA_ARGS__; }
#define WITH_ANY_TYPE(dtype, T, ...)                                      \
    if ((dtype) == DTYPE_FP32) { using T = float; __VA_ARGS__; }          \
    else WITH_HALF_TYPE(dtype, T, __VA_ARGS__)
#define WITH_HEAD_DIM_64_128(head_dim, D, ...)                            \
    if ((head_dim) == 64) { constexpr int D = 64; __VA_ARGS__; }          \
    else { constexpr int D = 128; __VA_ARGS__; }

HOST_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

/* How many terms of a long sum to add up on their own, before the piece is added to the rest: about 5 sqrt(terms),
 * and a multiple of 32 for loops that are unrolled. A single float rounds a million equal terms all the same way,
 * and may be 3 % off. Of p pieces of n terms the sum is off by at most 2^-25 (n + p), here 2.6 * 2^-24 sqrt(terms),
 * whatever the signs of the roundings. The judge allows 3 (sum_error in judge/allowance.c); shorter pieces would
 * only make the loops slower. */
__device__ inline int piece_of(size_t terms) { return (int)(5 * sqrtf((float)terms)) / 32 * 32 + 32; }

/* Before a loop whose turns are written out, so that arrays indexed by its counter stay in registers. */
#define UNROLL _Pragma("unroll")

/* What a query head has: its matrices of Q and O, [queries][D], its rows of LSE, and K and V of the key/value head that
 * it reads. */
template <typename T> struct HeadTensors {
    const T *q, *k, *v;
    T *o;
    float *lse;
    int queries, keys; /* as many keys as exist for its batch entry */
    size_t first_row;  /* its first row among those of all heads */
};
/* batch_head: the head's number, counted through the batch. D: the head dim, if the kernel
 * has it as a constant; 0: p's. */
template <typename T, int D = 0>
__device__ inline HeadTensors<T> head_tensors(const Problem &p, const Tensors &t, int batch_head) {
    const int batch = batch_head / p.heads, head = batch_head % p.heads;
    const size_t first_row = (size_t)batch_head * p.seqlen_q, queries = first_row * (D ? D : p.head_dim);
    const size_t keys = key_head_offset(&p, batch, kv_head_of(&p, head));
    return {(const T *)t.q + queries, (const T *)t.k + keys, (const T *)t.v + keys, (T *)t.o + queries,
            t.lse + first_row, p.seqlen_q, key_length(&p, t.key_lengths, batch), first_row};
}

/* Copies rows of D elements into a tile of the plain kernels, as floats. Rows of the tile are one word longer, for the
 * banks. From row `exist` on there are none: they become 0. All `Threads` threads of the block call it. */
template <int Threads, int Rows, int Pitch, typename T>
__device__ inline void load_tile(float (&tile)[Rows][Pitch], const T *rows, int exist) {
    constexpr int D = Pitch - 1;
    for (int i = threadIdx.x; i < Rows * D; i += Threads)
        tile[i / D][i % D] = i / D < exist ? to_float(rows[i]) : 0;
}

/* The one-dimensional grid that has a thread for each of `count` elements; the x dimension
 * takes up to 2^31 - 1 blocks. */
inline dim3 blocks_for(size_t count, int threads) { return dim3((unsigned)((count + threads - 1) / threads)); }

#endif
