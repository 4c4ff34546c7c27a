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

/* The atom: row and first column of the pair of elements that a lane owns in an 8x8 matrix. */
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

template <int matrices, bool transposed> NOT_TRACED void compute_ldmatrix(void **operands, unsigned) {
    for (int matrix = 0; matrix < matrices; matrix++) {
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

template <int matrices, bool transposed>
void ldmatrix(const char *what, uint32_t (&r)[matrices], const void *row, const char *file, int line) {
    simt_need_full_warp(what, file, line);
    if (simt_lane() < 8 * matrices) { /* the other lanes' addresses are not used */
        simt_need_shared(what, row, 16, file, line);
        trace_read(row, 16);
    }
    LdmatrixOperands operands = {row, r};
    simt_collective(what, SIMT_FULL_WARP, &operands, compute_ldmatrix<matrices, transposed>, file, line);
}
inline void ldmatrix_x1(uint32_t (&r)[1], const void *row, CALLER) { ldmatrix<1, false>("ldmatrix_x1", r, row, file, line); }
inline void ldmatrix_x2(uint32_t (&r)[2], const void *row, CALLER) { ldmatrix<2, false>("ldmatrix_x2", r, row, file, line); }
inline void ldmatrix_x4(uint32_t (&r)[4], const void *row, CALLER) { ldmatrix<4, false>("ldmatrix_x4", r, row, file, line); }
inline void ldmatrix_x1_trans(uint32_t (&r)[1], const void *row, CALLER) {
    ldmatrix<1, true>("ldmatrix_x1_trans", r, row, file, line);
}
inline void ldmatrix_x2_trans(uint32_t (&r)[2], const void *row, CALLER) {
    ldmatrix<2, true>("ldmatrix_x2_trans", r, row, file, line);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row, CALLER) {
    ldmatrix<4, true>("ldmatrix_x4_trans", r, row, file, line);
}

/* ---- mma m16n8k16 ----
 * Gathers A, B and C from the lanes' registers, multiplies, and hands C back. The loops have fixed bounds and plain bodies,
 * so that the compiler turns them into vector instructions. Products of 16-bit floats are exact in fp32 and the sums are
 * rounded to fp32 one by one; a tensor core adds in another order and rounds less often. */
struct MmaOperands {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};

template <typename T> inline float code_to_float(uint16_t code);
template <> inline float code_to_float<__half>(uint16_t code) { return fp16_to_float(code); }
template <> inline float code_to_float<__nv_bfloat16>(uint16_t code) { return bf16_to_float(code); }

template <typename T> NOT_TRACED void compute_mma(void **operands, unsigned) {
    uint16_t a_code[16][16], b_code[16][8]; /* A[m][k], B[k][n] */
    float a[16][16], b[16][8], c[16][8];

    for (int lane = 0; lane < 32; lane++) {
        const MmaOperands *from = static_cast<MmaOperands *>(operands[lane]);
        int row = atom_row(lane), column = atom_column(lane);
        for (int i = 0; i < 4; i++) { /* the quarters of A: down, then right */
            uint16_t *pair = &a_code[row + 8 * (i % 2)][column + 8 * (i / 2)];
            pair[0] = low_half(from->a[i]);
            pair[1] = high_half(from->a[i]);
        }
        for (int i = 0; i < 2; i++) { /* the halves of B; the atom lies transposed in it */
            b_code[column + 8 * i][row] = low_half(from->b[i]);
            b_code[column + 8 * i + 1][row] = high_half(from->b[i]);
        }
        for (int i = 0; i < 4; i++)
            c[row + 8 * (i / 2)][column + i % 2] = from->c[i];
    }

    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 16; k++)
            a[m][k] = code_to_float<T>(a_code[m][k]);
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < 8; n++)
            b[k][n] = code_to_float<T>(b_code[k][n]);
    for (int m = 0; m < 16; m++) {
        float sum[8] = {};
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++)
                sum[n] += a[m][k] * b[k][n];
        for (int n = 0; n < 8; n++)
            c[m][n] += sum[n];
    }

    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            static_cast<MmaOperands *>(operands[lane])->c[i] = c[atom_row(lane) + 8 * (i / 2)][atom_column(lane) + i % 2];
}

template <typename T> void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, CALLER) {
    simt_need_full_warp("mma_m16n8k16", file, line);
    MmaOperands operands = {c, a, {b0, b1}};
    simt_collective("mma_m16n8k16", SIMT_FULL_WARP, &operands, compute_mma<T>, file, line);
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
template <typename F> uint8_t float_to_code8(float value);
template <> inline uint8_t float_to_code8<E4m3>(float value) { return float_to_e4m3(value); }
template <> inline uint8_t float_to_code8<E5m2>(float value) { return float_to_e5m2(value); }
template <typename F> float code8_to_float(uint32_t code);
template <> inline float code8_to_float<E4m3>(uint32_t code) { return e4m3_to_float((uint8_t)code); }
template <> inline float code8_to_float<E5m2>(uint32_t code) { return e5m2_to_float((uint8_t)code); }

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

/* mma m16n8k32: gathers and multiplies as m16n8k16 does, with four bytes where that has two halves. */
template <typename F> NOT_TRACED void compute_mma_8(void **operands, unsigned) {
    float a[16][32], b[32][8], c[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const MmaOperands *from = static_cast<MmaOperands *>(operands[lane]);
        int row = atom_row(lane), column = atom_column(lane), k = 4 * (lane % 4);
        for (int byte = 0; byte < 4; byte++) {
            for (int i = 0; i < 4; i++)
                a[row + 8 * (i % 2)][k + byte + 16 * (i / 2)] = code8_to_float<F>(from->a[i] >> 8 * byte);
            for (int i = 0; i < 2; i++)
                b[k + byte + 16 * i][row] = code8_to_float<F>(from->b[i] >> 8 * byte);
        }
        for (int i = 0; i < 4; i++)
            c[row + 8 * (i / 2)][column + i % 2] = from->c[i];
    }
    for (int m = 0; m < 16; m++) {
        float sum[8] = {};
        for (int k = 0; k < 32; k++)
            for (int n = 0; n < 8; n++)
                sum[n] += a[m][k] * b[k][n];
        for (int n = 0; n < 8; n++)
            c[m][n] += sum[n];
    }
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            static_cast<MmaOperands *>(operands[lane])->c[i] = c[atom_row(lane) + 8 * (i / 2)][atom_column(lane) + i % 2];
}
template <typename F> void mma_m16n8k32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, CALLER) {
    simt_need_full_warp("mma_m16n8k32", file, line);
    MmaOperands operands = {c, a, {b0, b1}};
    simt_collective("mma_m16n8k32", SIMT_FULL_WARP, &operands, compute_mma_8<F>, file, line);
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

/* ---- atom.acq_rel ---- */
inline int atomic_add_ordered(int *to, int value) {
    __threadfence();
    int old = atomicAdd(to, value);
    __threadfence();
    return old;
}

/* ---- ex2.approx.ftz: results below the smallest normal float become 0 ---- */
inline float exp2_approx(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

#endif
