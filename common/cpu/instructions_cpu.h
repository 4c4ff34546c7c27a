/* instructions_cpu.h - the twins of gpu/instructions.cuh on the CPU device: the same names, the same results, computed
 * straight from the fragment layouts that are drawn there (PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix").
 *
 * ldmatrix and mma are collectives: each lane brings its registers, the last one to arrive computes for all 32. On top of
 * what a GPU does, addresses are checked: alignment, and that what should be shared memory is.
 */
#ifndef FA_INSTRUCTIONS_CPU_H
#define FA_INSTRUCTIONS_CPU_H

#include "cuda_on_cpu.h"
#include "trace_hooks.h"

#include <type_traits>

/* Row and first column of the pair of elements that a lane owns in an 8x8 matrix. */
inline int atom_row(int lane) { return lane / 4; }
inline int atom_column(int lane) { return 2 * (lane % 4); }

/* A register of two 16-bit elements. */
inline uint16_t low_half(uint32_t pair) { return (uint16_t)pair; }
inline uint16_t high_half(uint32_t pair) { return (uint16_t)(pair >> 16); }
inline uint32_t two_halves(uint16_t low, uint16_t high) { return low | (uint32_t)high << 16; }

/* ---- 16-byte accesses ---- */
inline uint4 load_16(const void *from, CALLER) {
    simt_need_aligned("load_16", from, 16, file, line);
    return *static_cast<const uint4 *>(from);
}
inline void store_16(void *to, uint4 value, CALLER) {
    simt_need_aligned("store_16", to, 16, file, line);
    *static_cast<uint4 *>(to) = value;
}

/* ---- ldmatrix ---- */
struct LdmatrixOperands {
    const void *row;    /* the address this lane brings: row lane%8 of matrix lane/8 */
    uint32_t *fragment; /* one register a matrix */
};

template <bool transposed> NOT_TRACED void compute_ldmatrix(void **operands, unsigned) {
    for (int matrix = 0; matrix < 4; matrix++) {
        uint16_t element[8][8];
        for (int row = 0; row < 8; row++)
            memcpy(element[row], static_cast<LdmatrixOperands *>(operands[8 * matrix + row])->row, 16);
        for (int lane = 0; lane < 32; lane++) {
            int r = atom_row(lane), c = atom_column(lane);
            static_cast<LdmatrixOperands *>(operands[lane])->fragment[matrix] =
                transposed ? two_halves(element[c][r], element[c + 1][r]) : two_halves(element[r][c], element[r][c + 1]);
        }
    }
}

template <bool transposed> void ldmatrix(const char *what, uint32_t (&r)[4], const void *row, const char *file, int line) {
    simt_need_full_warp(what, file, line);
    simt_need_shared(what, row, 16, file, line);
    trace_read(row, 16);
    LdmatrixOperands operands = {row, r};
    simt_collective(what, SIMT_FULL_WARP, &operands, compute_ldmatrix<transposed>, file, line);
}
inline void ldmatrix_x4(uint32_t (&r)[4], const void *row, CALLER) { ldmatrix<false>("ldmatrix_x4", r, row, file, line); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row, CALLER) {
    ldmatrix<true>("ldmatrix_x4_trans", r, row, file, line);
}

/* ---- elements as floats ---- */
template <typename T> inline float code_to_float(uint16_t code);
template <> inline float code_to_float<__half>(uint16_t code) { return fp16_to_float(code); }
template <> inline float code_to_float<__nv_bfloat16>(uint16_t code) { return bf16_to_float(code); }
template <typename F> uint8_t float_to_code8(float value);
template <> inline uint8_t float_to_code8<E4m3>(float value) { return float_to_e4m3(value); }
template <> inline uint8_t float_to_code8<E5m2>(float value) { return float_to_e5m2(value); }
template <typename F> float code8_to_float(uint32_t code);
template <> inline float code8_to_float<E4m3>(uint32_t code) { return e4m3_to_float((uint8_t)code); }
template <> inline float code8_to_float<E5m2>(uint32_t code) { return e5m2_to_float((uint8_t)code); }


/* `count` elements as floats. The loop over 16-bit codes becomes vector instructions; 8-bit ones are looked up. */
template <typename E> using Code = std::conditional_t<sizeof(E) == 2, uint16_t, uint8_t>;
template <typename E> struct Code8Table {
    float value[256];
    Code8Table() {
        for (int code = 0; code < 256; code++)
            value[code] = code8_to_float<E>(code);
    }
};
template <typename E> inline const Code8Table<E> code8_table;
template <typename E> NOT_TRACED void elements_to_floats(const Code<E> *code, float *value, int count) {
    for (int i = 0; i < count; i++)
        if constexpr (sizeof(E) == 2)
            value[i] = code_to_float<E>(code[i]);
        else
            value[i] = code8_table<E>.value[code[i]];
}

/* ---- mma m16n8k16, and m16n8k32 of 8-bit elements ----
 * Gathers A, B and C from the lanes' registers, multiplies, and hands C back. The loops have fixed bounds and plain bodies,
 * so that the compiler turns them into vector instructions. Products are exact in fp32 and the sums are rounded to fp32 one by
 * one; a tensor core adds in another order and rounds less often. */
struct MmaOperands {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};

template <typename E> NOT_TRACED void compute_mma(void **operands, unsigned) {
    constexpr int K = 32 / sizeof(E), elements = 4 / sizeof(E); /* of a register */
    Code<E> a_code[16][K], b_code[K][8];                        /* A[m][k], B[k][n] */
    float a[16][K], b[K][8], c[16][8];

    for (int lane = 0; lane < 32; lane++) {
        const MmaOperands *from = static_cast<MmaOperands *>(operands[lane]);
        const int row = atom_row(lane), column = atom_column(lane), k = elements * (lane % 4);
        for (int i = 0; i < 4; i++) { /* the quarters of A: down, then right; and of C */
            memcpy(&a_code[row + 8 * (i % 2)][k + K / 2 * (i / 2)], &from->a[i], 4);
            c[row + 8 * (i / 2)][column + i % 2] = from->c[i];
        }
        for (int i = 0; i < 2; i++) { /* the halves of B; the 8x8 matrix lies transposed in it */
            Code<E> code[elements];
            memcpy(code, &from->b[i], 4);
            for (int e = 0; e < elements; e++)
                b_code[k + e + K / 2 * i][row] = code[e];
        }
    }

    elements_to_floats<E>(a_code[0], a[0], 16 * K);
    elements_to_floats<E>(b_code[0], b[0], 8 * K);
    for (int m = 0; m < 16; m++) {
        float sum[8] = {};
        for (int k = 0; k < K; k++)
            for (int n = 0; n < 8; n++)
                sum[n] += a[m][k] * b[k][n];
        for (int n = 0; n < 8; n++)
            c[m][n] += sum[n];
    }

    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            static_cast<MmaOperands *>(operands[lane])->c[i] = c[atom_row(lane) + 8 * (i / 2)][atom_column(lane) + i % 2];
}

template <typename E>
void mma(const char *what, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const char *file, int line) {
    simt_need_full_warp(what, file, line);
    MmaOperands operands = {c, a, {b0, b1}};
    simt_collective(what, SIMT_FULL_WARP, &operands, compute_mma<E>, file, line);
}
template <typename T> void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, CALLER) {
    mma<T>("mma_m16n8k16", c, a, b0, b1, file, line);
}
template <typename F> void mma_m16n8k32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, CALLER) {
    mma<F>("mma_m16n8k32", c, a, b0, b1, file, line);
}

/* ---- pack_pair ---- */
template <typename T> uint32_t pack_pair(float low, float high);
template <> inline uint32_t pack_pair<__half>(float low, float high) {
    return two_halves(float_to_fp16(low), float_to_fp16(high));
}
template <> inline uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
    return two_halves(float_to_bf16(low), float_to_bf16(high));
}

template <typename T> float2 unpack_pair(uint32_t pair) {
    return {code_to_float<T>(low_half(pair)), code_to_float<T>(high_half(pair))};
}

/* ---- fp8 ---- */
template <typename F> uint32_t pack_4(float x0, float x1, float x2, float x3) {
    return float_to_code8<F>(x0) | (uint32_t)float_to_code8<F>(x1) << 8 | (uint32_t)float_to_code8<F>(x2) << 16 |
           (uint32_t)float_to_code8<F>(x3) << 24;
}
template <typename T> uint2 unpack_e4m3(uint32_t four) {
    float x[4];
    for (int i = 0; i < 4; i++)
        x[i] = e4m3_to_float((uint8_t)(four >> 8 * i));
    return make_uint2(pack_pair<T>(x[0], x[2]), pack_pair<T>(x[1], x[3]));
}
template <typename F> float4 unpack_4(uint32_t four) {
    return {code8_to_float<F>(four), code8_to_float<F>(four >> 8), code8_to_float<F>(four >> 16), code8_to_float<F>(four >> 24)};
}

/* ---- cp.async: the bytes land at the wait, see simt_copy ---- */
inline void cp_async_16(void *shared, const void *global, bool exists = true, CALLER) {
    static const unsigned char zeros[16] = {};
    simt_need_shared("cp_async_16", shared, 16, file, line);
    simt_need_aligned("cp_async_16", global, 16, file, line);
    if (exists)
        trace_read(global, 16);
    trace_write(shared, 16);
    simt_copy(shared, exists ? static_cast<const unsigned char *>(global) : zeros);
}
inline void cp_async_commit() { simt_copy_commit(); }
template <int pending> inline void cp_async_wait() { simt_copy_wait(pending); }

/* ---- red.global.add.v4.f32 ---- */
inline void atomic_add_4(float *to, float4 value, CALLER) {
    simt_need_aligned("atomic_add_4", to, 16, file, line);
    trace_wide_atomic(to, 4);
    atomicAdd(to, value.x), atomicAdd(to + 1, value.y), atomicAdd(to + 2, value.z), atomicAdd(to + 3, value.w);
}

/* ---- atom.acq_rel, ld.acquire, ld.relaxed ---- */
inline int atomic_add_ordered(int *to, int value) {
    __threadfence();
    int old = atomicAdd(to, value);
    __threadfence();
    return old;
}
inline void wait_ordered(const int *at, int value) {
    while (__atomic_load_n(at, __ATOMIC_SEQ_CST) != value)
        simt_look_later();
}
inline int wait_for_number(const int *at) {
    int found;
    while ((found = __atomic_load_n(at, __ATOMIC_SEQ_CST)) < 0)
        simt_look_later();
    return found;
}

/* ---- ex2.approx.ftz: results below the smallest normal float become 0 ---- */
inline float exp2_approx(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

/* ---- rcp.approx.ftz, tanh.approx: the CPU rounds correctly ---- */
inline float reciprocal_approx(float x) {
    float y = 1 / x;
    return fabsf(y) < 0x1p-126f ? 0.0f : y;
}
inline float tanh_approx(float x) { return tanhf(x); }

#endif
