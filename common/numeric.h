/* numeric.h - the small floating point formats on the host: fp16, bf16, and the two fp8 formats e4m3 and e5m2.
 *
 *     uint16_t code = float_to_fp16(0.1f);     rounds to nearest, ties to even, as the GPU does
 *     float value = fp16_to_float(code);       exact
 *
 * format   exponent, mantissa bits   bias   largest   smallest normal   beyond the largest   u (unit roundoff)
 * fp16                5, 10            15     65504            2^-14    infinity             2^-11
 * bf16                8, 7            127    3.39e38          2^-126    infinity             2^-8
 * e4m3                4, 3              7       448            2^-6     the largest          2^-4
 * e5m2                5, 2             15     57344            2^-14    the largest          2^-3
 *
 * fp8 saturates because the GPU's conversion (cvt.rn.satfinite) does. e4m3 is "e4m3fn" of the Open Compute Project: it
 * has no infinity, and 0x7f and 0xff are its only NaNs. A NaN becomes the GPU's one NaN in every format: all bits set
 * but the sign.
 *
 * A compiler can vectorise a loop of these. Without -ffast-math: the NaN tests and the subnormals would go.
 */
#ifndef FA_NUMERIC_H
#define FA_NUMERIC_H

#include "problem.h"

#include <string.h>

static inline uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
static inline float bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A power of two as a float; its exponent field holds exponent + 127. Normal range only, -126 .. 127. */
static inline float power_of_two(int exponent) { return bits_float((uint32_t)(exponent + 127) << 23); }

/* Rounds |value|, not NaN, to a format and returns its code without the sign. The exponent is unbounded above: a code
 * greater than the format's largest means overflow, and the caller decides what that becomes.
 *
 * A float and a small float look alike, [exponent][mantissa], and both grow with the number they stand for. So the normal
 * case drops mantissa bits and shifts the exponent from one bias to the other; a carry out of the mantissa raises the
 * exponent by one, which is just what rounding up to the next power of two must do. */
static inline uint32_t round_to_format(float value, int mantissa_bits, int bias) {
    const int dropped = 23 - mantissa_bits;
    uint32_t bits = float_bits(value) & 0x7fffffff;

    /* Just under half of the last kept bit, plus that bit itself: a tie goes up only from an odd code. */
    uint32_t rounded = bits + ((1u << (dropped - 1)) - 1) + ((bits >> dropped) & 1);
    uint32_t normal = (rounded >> dropped) - ((uint32_t)(127 - bias) << mantissa_bits);

    /* Below the smallest normal, 2^(1 - bias), codes count steps of 2^(1 - bias - mantissa_bits). Adding the power of two
     * whose own last bit is one such step lets the adder do the rounding; the mantissa of the sum is then the code. */
    float anchor = power_of_two(1 - bias + dropped);
    uint32_t subnormal = float_bits(bits_float(bits) + anchor) - float_bits(anchor);

    return bits < ((uint32_t)(128 - bias) << 23) ? subnormal : normal;
}

/* The value of a finite code without its sign: the same backwards. A normal code is shifted into place and its exponent
 * moved to the other bias. A subnormal one is put into the mantissa of the smallest normal, which is then subtracted: a
 * multiplication by a power of two would do for both, but CPUs are slow on the float subnormals it would start from. */
static inline float format_to_float(uint32_t code, int mantissa_bits, int bias) {
    const int dropped = 23 - mantissa_bits;
    float smallest = power_of_two(1 - bias);
    float normal = bits_float((code << dropped) + ((uint32_t)(127 - bias) << 23));
    float subnormal = bits_float((code << dropped) + float_bits(smallest)) - smallest;
    return code < 1u << mantissa_bits ? subnormal : normal;
}

/* The code of any value. `beyond` is what is larger than all finite codes, or the largest, which then takes its place; `sign`
 * the bit of the sign. */
static inline uint32_t float_to_format(float value, int mantissa_bits, int bias, uint32_t beyond, uint32_t sign) {
    uint32_t code = round_to_format(value, mantissa_bits, bias);
    code = (float_bits(value) >> 31 ? sign : 0) | (code < beyond ? code : beyond);
    return value == value ? code : sign - 1;
}

static inline uint16_t float_to_fp16(float value) { return (uint16_t)float_to_format(value, 10, 15, 0x7c00, 0x8000); }
static inline uint8_t float_to_e4m3(float value) { return (uint8_t)float_to_format(value, 3, 7, 0x7e, 0x80); }
static inline uint8_t float_to_e5m2(float value) { return (uint8_t)float_to_format(value, 2, 15, 0x7b, 0x80); }

static inline float fp16_to_float(uint16_t code) {
    uint32_t magnitude = code & 0x7fff;
    uint32_t finite = float_bits(format_to_float(magnitude, 10, 15));
    uint32_t special = 0x7f800000 | (magnitude << 13); /* infinity, or NaN with its payload */
    return bits_float((magnitude < 0x7c00 ? finite : special) | (uint32_t)(code & 0x8000) << 16);
}
static inline float e4m3_to_float(uint8_t code) {
    uint32_t magnitude = code & 0x7f;
    uint32_t bits = float_bits(format_to_float(magnitude, 3, 7));
    return bits_float((magnitude < 0x7f ? bits : 0x7fc00000) | (uint32_t)(code & 0x80) << 24);
}
static inline float e5m2_to_float(uint8_t code) { return fp16_to_float((uint16_t)(code << 8)); } /* the upper half of an fp16 */

/* bf16 is the upper half of a float. */
static inline uint16_t float_to_bf16(float value) {
    uint32_t bits = float_bits(value);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; /* ties to even; a carry ends in infinity by itself */
    return (uint16_t)(value == value ? rounded : 0x7fff);
}
static inline float bf16_to_float(uint16_t code) { return bits_float((uint32_t)code << 16); }

/* ---- double, rounded once ---- */

/* Rounding a double to float and then to fp16 can go wrong: the first step may land exactly on a tie. "Rounding to odd"
 * avoids that: of the two floats around an inexact value take the one whose last bit is 1. That bit then says "not quite
 * this", no tie can appear, and the second rounding is right (it needs two bits to spare; fp16 and bf16 leave 13 and 16). */
static inline float double_to_float_odd(double value) {
    float nearest = (float)value;
    uint32_t bits = float_bits(nearest);
    if (nearest == value || value != value || (bits & 1))
        return nearest;
    return bits_float(fabs((double)nearest) < fabs(value) ? bits + 1 : bits - 1); /* the odd neighbor, on value's side */
}
static inline uint16_t double_to_fp16(double value) { return float_to_fp16(double_to_float_odd(value)); }
static inline uint16_t double_to_bf16(double value) { return float_to_bf16(double_to_float_odd(value)); }

/* ---- a tensor's element, whatever its dtype ---- */

static inline double dtype_to_double(Dtype dtype, const void *base, size_t index) {
    if (dtype == DTYPE_FP32)
        return ((const float *)base)[index];
    uint16_t code = ((const uint16_t *)base)[index];
    return dtype == DTYPE_FP16 ? fp16_to_float(code) : bf16_to_float(code);
}

/* Rounds `value` to the dtype, once, and stores it. */
static inline void dtype_store(Dtype dtype, void *base, size_t index, double value) {
    if (dtype == DTYPE_FP32)
        ((float *)base)[index] = (float)value;
    else
        ((uint16_t *)base)[index] = dtype == DTYPE_FP16 ? double_to_fp16(value) : double_to_bf16(value);
}

/* The smallest number above 0: below the normal range numbers are its multiples, and rounding is off by up to half of it. */
static inline double dtype_step(Dtype dtype) {
    static const double STEPS[] = {0x1p-24, 0x1p-133, 0x1p-149};
    return STEPS[dtype];
}

/* The unit roundoff u: rounding a value to the dtype changes it by at most u times its size (normal range). */
static inline double dtype_epsilon(Dtype dtype) {
    static const double EPSILONS[] = {0x1p-11, 0x1p-8, 0x1p-24};
    return EPSILONS[dtype];
}

/* The largest number; and half a step above it, from where on a value is rounded to infinity. */
static inline double dtype_largest(Dtype dtype) {
    return (dtype == DTYPE_FP16 ? 0x1p16 : 0x1p128) * (1 - dtype_epsilon(dtype));
}
static inline double dtype_beyond(Dtype dtype) {
    return (dtype == DTYPE_FP16 ? 0x1p16 : 0x1p128) * (1 - dtype_epsilon(dtype) / 2);
}

#endif
