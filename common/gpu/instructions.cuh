/* instructions.cuh - the few machine instructions the kernels need that CUDA C has no words for.
 *
 * Each is a thin __device__ function over one PTX instruction, named after it; its twin for the CPU device has the same
 * name in cpu/instructions_cpu.h. Nothing is hidden below these. (PTX ISA 8.x, section 9.7.)
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
 * This 8x8 pattern is the atom: every fragment below is a handful of them. The four lanes that share a row are a *quad*.
 *
 * sm_75 (Turing) lacks some of these; where that is so, the narrower instructions that do the same stand beside it.
 */
#ifndef FA_INSTRUCTIONS_CUH
#define FA_INSTRUCTIONS_CUH

#include "kernel.cuh"

#ifndef __CUDACC__
#include "../cpu/instructions_cpu.h"
#else

/* The 32-bit address of a pointer into shared memory, which is what PTX wants. */
__device__ inline uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/* This thread's lane, as a value of which the compiler knows nothing. Addresses made from it are computed where they are used, one
 * XOR each, and not, because they never change, kept in registers throughout a loop. For kernels that have none to spare. */
__device__ inline int fresh_lane() {
    int lane = threadIdx.x % 32;
    asm volatile("" : "+r"(lane));
    return lane;
}

/* ---- 16-byte accesses ------------------------------------------------------------------------------------------------
 * The widest load and store a lane has; a warp moves 512 bytes, four full 128-byte lines. Pointers aligned to 16 bytes. */
__device__ inline uint4 load_16(const void *from) { return *static_cast<const uint4 *>(from); }
__device__ inline void store_16(void *to, uint4 value) { *static_cast<uint4 *>(to) = value; }

/* ---- ldmatrix: 8x8 matrices of 16-bit elements from shared memory into fragments --------------------------------------
 * Lane i passes the address of one row (16 bytes, 16-byte aligned): lanes 0-7 the rows of matrix 0, lanes 8-15 of matrix 1,
 * 16-23 of matrix 2, 24-31 of matrix 3. Register i then holds this lane's atom of matrix i. x1 reads the addresses of lanes
 * 0-7 only, x2 those of 0-15. _trans hands out the transposed matrices (element [c][r] where [r][c] would go).
 *
 * The hardware reads the eight rows of one matrix at once: eight rows in eight different 16-byte bank groups take one
 * pass, eight rows in the same group take eight. That is what tile.cuh swizzles for. */
__device__ inline void ldmatrix_x1(uint32_t (&r)[1], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(shared_address(row)) : "memory");
}
__device__ inline void ldmatrix_x2(uint32_t (&r)[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
__device__ inline void ldmatrix_x1_trans(uint32_t (&r)[1], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(shared_address(row)) : "memory");
}
__device__ inline void ldmatrix_x2_trans(uint32_t (&r)[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

/* ---- mma m16n8k16: C += A B, 16-bit inputs, fp32 accumulation ----------------------------------------------------------
 *
 *     A 16x16, row-major              B 16x8, "column-major": lane l holds two      C 16x8, fp32
 *                                     neighbours of one COLUMN
 *            k 0-7    k 8-15                  n 0-7                                        n 0-7
 *     m 0-7   a[0]     a[2]           k 0-7    b[0]                                 m 0-7   c[0] c[1]
 *     m 8-15  a[1]     a[3]           k 8-15   b[1]                                 m 8-15  c[2] c[3]
 *
 *     a[i]: rows lane/4,              b[i]: rows (k) 2*(lane%4) + {0,1},            c[0], c[1]: row lane/4,
 *           columns 2*(lane%4)+{0,1}        column (n) lane/4                             columns 2*(lane%4) + {0, 1}
 *           of its 8x8 quarter              of its 8x8 half                         c[2], c[3]: row lane/4 + 8
 *
 * Two consequences every tensor-core attention kernel lives on:
 *   - B's fragment is the atom of B transposed. K stored [key][d] *is* (K^T)'s transpose, so Q K^T loads K with plain
 *     ldmatrix; V stored [key][d] is P V's B itself, so it is loaded with ldmatrix_trans.
 *   - C's fragment of two neighbouring 16x8 tiles has the very shape of one A fragment: P goes from accumulator to operand
 *     in registers, without shared memory (pack_pair below).
 *
 * A full warp's mma is 16*8*16 multiply-adds = 4096 FLOPs. bf16 needs sm_80. */
template <typename T> __device__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ inline void mma_m16n8k16<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
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
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    __trap(); /* the harness never launches bf16 here: Variant.min_bf16_capability */
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

/* ---- cp.async: 16 bytes from device memory to shared memory, past the registers ----------------------------------------
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

/* ---- red.global.add.v4.f32: adds four neighbouring floats in device memory atomically, each on its own ----------------
 * In no particular order against other threads' additions, and floating-point sums depend on their order in the last bits.
 * `to` is aligned to 16 bytes. Chips before sm_90 take the four one by one. */
__device__ inline void atomic_add_4(float *to, float4 value) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(__cvta_generic_to_global(to)), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w) : "memory");
#else
    atomicAdd(to, value.x), atomicAdd(to + 1, value.y), atomicAdd(to + 2, value.z), atomicAdd(to + 3, value.w);
#endif
}

/* ---- ex2.approx: 2^x, relative error below 2^-22, 2^-inf = 0 -----------------------------------------------------------
 * The special-function unit computes 2^x, not e^x; so softmax folds log2(e) into its scale: e^x = 2^(x log2 e). */
__device__ inline float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
#endif
