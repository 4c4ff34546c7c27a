/* fp8.h - what the pre-pass (quantise.cu) leaves in the workspace for the attention kernels (mma.cu, wgmma.cu,
 * overlapped.cu).
 *
 * A number x is stored as x / scale, rounded to an 8-bit format. One scale serves a whole tile, or a whole head:
 *
 *     scale = amax / largest        amax: the largest |x| that shares the scale; largest: 448 for e4m3, 57344 for e5m2
 *     x ~ scale * stored            amax lands on the largest number that the format has; where amax is 0, scale is 1
 *
 * No scale is below LEAST_SCALE, whose inverse is finite. bf16 has numbers that would need a smaller scale; they lose
 * bits, or become 0.
 *
 * Before rounding, Q and K may be rotated and K smoothed (quantise.cu says how and why). The attention kernels do the
 * same in all cases; for smoothing they add LSE_SHIFT to LSE.
 *
 * Read by C and by both C++ compilers.
 */
#ifndef FA_FP8_H
#define FA_FP8_H

#include "../common/stage.h"

/* Problem.settings, in the order of the table in main.c, and what the settings with names can be. */
enum { FORMAT, SCALING, HADAMARD, SMOOTH_K };
enum { FORMAT_E4M3, FORMAT_E5M2 };
#define WITH_FORMAT(format, E, ...) /* the statement with E bound to the format's type */ \
    if ((format) == FORMAT_E4M3) { using E = E4m3; __VA_ARGS__; }                   \
    else { using E = E5m2; __VA_ARGS__; }
enum { SCALING_TENSOR, SCALING_BLOCK };
#define WITH_SCALING(scaling, by_block, ...) /* the statement with a constant: whether each block has a scale */ \
    if ((scaling) == SCALING_BLOCK) { constexpr bool by_block = true; __VA_ARGS__; }                              \
    else { constexpr bool by_block = false; __VA_ARGS__; }

/* The workspace, in this order. A code is a byte. */
enum {
    Q8,        /* code [batch, heads, seqlen_q, D] */
    K8,        /* code [batch, kv_heads, seqlen_k, D]; keys past the entry's length are 0 */
    VT8,       /* code [batch, kv_heads, D, key_pitch], V transposed; keys past the entry's length are 0 */
    Q_SCALES,  /* fp32 [batch, heads, q_scale_count] */
    K_SCALES,  /* fp32 [batch, kv_heads, k_scale_count] */
    V_SCALES,  /* the same shape */
    LSE_SHIFT, /* fp32 [batch, heads, seqlen_q]: what the kernels add to LSE (smooth.cuh); 0 without --smooth-k */
    K_MEAN,    /* fp32 [batch, kv_heads, D]: what was subtracted from every key; only written with --smooth-k */
    PROGRESS,  /* int [1 + tiles of 128 rows]: how far the pre-pass is (quantise.cu) */
    FP8_BUFFERS,
    NEXT_TILE = FP8_BUFFERS /* overlapped alone: one number, how many query tiles have been drawn */
};

#define LEAST_SCALE 0x1p-100f

/* Rows that share a scale with --scaling block. 64 queries are the query tile of mma and wgmma. 128 keys are wgmma's
 * key tile and two of mma's: so S of one tile has one scale, and so has its product with V. */
enum { BLOCK_Q = 64, BLOCK_K = 128 };

HOST_DEVICE static inline int q_scale_count(const Problem *p) { return (p->seqlen_q + BLOCK_Q - 1) / BLOCK_Q; }
HOST_DEVICE static inline int k_scale_count(const Problem *p) { return (p->seqlen_k + BLOCK_K - 1) / BLOCK_K; }

/* The scales of one head: indexed by row / BLOCK_Q, or by key / BLOCK_K. With --scaling
 * tensor all of a head are equal. */
HOST_DEVICE static inline size_t q_scale_offset(const Problem *p, int batch, int head) {
    return ((size_t)batch * p->heads + head) * q_scale_count(p);
}
HOST_DEVICE static inline size_t k_scale_offset(const Problem *p, int batch, int kv_head) {
    return ((size_t)batch * p->kv_heads + kv_head) * k_scale_count(p);
}

/* V transposed: row d of a head holds that component of all keys, key_pitch bytes, whole key tiles. */
HOST_DEVICE static inline int key_pitch(const Problem *p) { return k_scale_count(p) * BLOCK_K; }
HOST_DEVICE static inline size_t vt_head_offset(const Problem *p, int batch, int kv_head) {
    return ((size_t)batch * p->kv_heads + kv_head) * p->head_dim * key_pitch(p);
}

/* The order of keys in a row of VT8. P leaves the tensor cores as the accumulator of Q K^T and comes back as the A
 * operand of P V. Lane c of a quad has, of 16 keys, the accumulator columns 2c, 2c + 1 and 8 + 2c, 8 + 2c + 1; of the
 * operand it must bring positions 4c .. 4c + 3. A sum does not care for the order of its terms: V's keys are put into
 * the order in which P has them, and P never moves between lanes.
 *
 *     position  0  1  2  3 | 4  5  6  7 | 8  9 10 11 |12 13 14 15
 *     key       0  1  8  9 | 2  3 10 11 | 4  5 12 13 | 6  7 14 15       and so on in each group of 16
 *     lane c         0     |      1     |      2     |      3                                                        */
HOST_DEVICE static inline int key_at_position(int position) {
    int lane = position % 16 / 4, i = position % 4;
    return position / 16 * 16 + 2 * lane + (i & 1) + 8 * (i >> 1);
}

/* The signs of the rotation (rotate.cuh): -1 where 11 occurs an odd number of times in the binary digits of d (in 111
 * it occurs twice). */
HOST_DEVICE static inline float rotation_sign(int d) {
    int pairs = d & (d >> 1);
    pairs ^= pairs >> 4;
    pairs ^= pairs >> 2;
    return (pairs ^ pairs >> 1) & 1 ? -1.0f : 1.0f;
}

/* m, which the exponents of P are relative to, moves only when a row's maximum exceeds it by more than so many powers
 * of two: in few tiles. Until then P may grow to the format's largest power of two, 2^8 (e5m2: 2^15). So P of a score m
 * is 2^FP8_SLACK times less: 2^5 (2^12). */
enum { FP8_SLACK = 3 };

/* The largest scale_log2 with which no score, times scale_log2, passes 2^24. The exponent of P, s scale_log2 - m, is
 * one fma: its product is not rounded, but m is such a product, rounded. Beyond 2^24 m's rounding error may be 1 and
 * more, and P of a score m would not be the power of two that it is to be. So with a larger scale_log2 the kernels
 * multiply S first, which rounds it as m was. */
HOST_DEVICE static inline float far_scale(int head_dim, float largest) {
    return 0x1p24f / (head_dim * largest * largest);
}

#ifdef __cplusplus
extern "C" {
#endif

/* The workspace above, which all variants have. */
int fp8_plan(const Problem *p, Buffer *workspace);

/* The pre-pass: Q, K, V to the workspace. And, for the check of the results: what numbers it left there, on the host,
 * and how exactly each variant computes with them. */
void fp8_quantise(const Problem *p, const Tensors *t, const Buffer *workspace);
PreparedRounding fp8_mma_prepared_values(const Problem *p, const Buffer *workspace, float *q, float *k, float *v);
PreparedRounding fp8_wgmma_prepared_values(const Problem *p, const Buffer *workspace, float *q, float *k, float *v);

#ifdef __cplusplus
}
#endif
#endif
