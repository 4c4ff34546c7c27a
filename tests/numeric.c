/* numeric.c - tests of common/numeric.h: every code of every format, and rounding at every point where it can go wrong.
 *
 * The judge is slow and knows no bit tricks: it lists the value of each code from the format's definition, and rounds by
 * looking for the two codes around a number and taking the nearer one, or the even one of a tie.
 */
#include "../common/numeric.h"
#include "tap.h"

#include <float.h>

typedef struct {
    const char *name;
    int mantissa_bits, bias;
    unsigned codes;  /* without the sign: half of all there are */
    unsigned finite; /* the largest finite code */
    unsigned beyond; /* what larger numbers become: infinity's code, or `finite` in a format that saturates */
    unsigned nan;    /* the code of every NaN */
    unsigned (*encode)(float);
    unsigned (*encode_double)(double); /* NULL: there is none */
    float (*decode)(unsigned);
    double value[0x8000]; /* of each finite code, ascending */
} Format;

static unsigned encode_fp16(float x) { return float_to_fp16(x); }
static unsigned encode_bf16(float x) { return float_to_bf16(x); }
static unsigned encode_e4m3(float x) { return float_to_e4m3(x); }
static unsigned encode_e5m2(float x) { return float_to_e5m2(x); }
static unsigned encode_double_fp16(double x) { return double_to_fp16(x); }
static unsigned encode_double_bf16(double x) { return double_to_bf16(x); }
static float decode_fp16(unsigned code) { return fp16_to_float((uint16_t)code); }
static float decode_bf16(unsigned code) { return bf16_to_float((uint16_t)code); }
static float decode_e4m3(unsigned code) { return e4m3_to_float((uint8_t)code); }
static float decode_e5m2(unsigned code) { return e5m2_to_float((uint8_t)code); }

static Format formats[] = {
    {"fp16", 10, 15, 0x8000, 0x7bff, 0x7c00, 0x7fff, encode_fp16, encode_double_fp16, decode_fp16, {0}},
    {"bf16", 7, 127, 0x8000, 0x7f7f, 0x7f80, 0x7fff, encode_bf16, encode_double_bf16, decode_bf16, {0}},
    {"e4m3", 3, 7, 0x80, 0x7e, 0x7e, 0x7f, encode_e4m3, NULL, decode_e4m3, {0}},
    {"e5m2", 2, 15, 0x80, 0x7b, 0x7b, 0x7f, encode_e5m2, NULL, decode_e5m2, {0}},
};

/* The definition: 2^(exponent - bias) (1 + mantissa / 2^bits), and without the 1 when the exponent field is 0. */
static void list_values(Format *f) {
    for (unsigned code = 0; code <= f->finite; code++) {
        int exponent = (int)(code >> f->mantissa_bits);
        double mantissa = code & ((1u << f->mantissa_bits) - 1);
        if (exponent > 0)
            mantissa += 1 << f->mantissa_bits;
        f->value[code] = ldexp(mantissa, (exponent > 0 ? exponent : 1) - f->bias - f->mantissa_bits);
    }
}

/* The right code of any number but NaN. */
static unsigned judge(const Format *f, double x) {
    unsigned sign = signbit(x) ? f->codes : 0, low = 0, high = f->finite;
    double size = fabs(x), last_step = f->value[f->finite] - f->value[f->finite - 1];
    if (size >= f->value[f->finite])
        return sign | (size >= f->value[f->finite] + last_step / 2 ? f->beyond : f->finite);
    while (high - low > 1) { /* value[low] <= size < value[high] */
        unsigned middle = (low + high) / 2;
        if (f->value[middle] <= size)
            low = middle;
        else
            high = middle;
    }
    double below = size - f->value[low], above = f->value[high] - size; /* exact: neighbors are close */
    return sign | (below < above ? low : below > above ? high : low % 2 == 0 ? low : high);
}

static const Format *failing; /* for the diagnosis below */
static int agrees(const Format *f, float x) {
    int right = f->encode(x) == judge(f, x);
    if (!right && failing != f) {
        failing = f;
        diag("%s of %a is 0x%x, should be 0x%x", f->name, (double)x, f->encode(x), judge(f, x));
    }
    return right;
}
static int agrees_double(const Format *f, double x) { return !f->encode_double || f->encode_double(x) == judge(f, x); }

static void test_codes(const Format *f) {
    int values = 1, round_trip = 1, specials = 1;
    for (unsigned code = 0; code <= f->finite; code++) {
        values &= f->decode(code) == f->value[code] && f->decode(code | f->codes) == -f->value[code];
        values &= !signbit(f->decode(code)) && signbit(f->decode(code | f->codes));
        round_trip &= f->encode(f->decode(code)) == code && f->encode(f->decode(code | f->codes)) == (code | f->codes);
    }
    ok(values, "%s: all finite codes stand for the values of the definition, both signs", f->name);
    ok(round_trip, "%s: all finite codes survive a round trip", f->name);

    for (unsigned code = f->finite + 1; code < f->codes; code++) {
        /* An all-ones exponent with mantissa 0 is infinity, except in e4m3, which has none. */
        int infinite = f->bias != 7 && (code & ((1u << f->mantissa_bits) - 1)) == 0;
        float positive = f->decode(code), negative = f->decode(code | f->codes);
        specials &= infinite ? positive == INFINITY && negative == -INFINITY : isnan(positive) && isnan(negative);
    }
    ok(specials, "%s: the codes above are infinity and NaN", f->name);
}

static void test_rounding(const Format *f) {
    int tie = 1, beside_tie = 1, beside_code = 1, doubles = 1;
    for (unsigned code = 0; code < f->finite; code++) {
        for (int sign = -1; sign <= 1; sign += 2) {
            double midpoint = sign * (f->value[code] + f->value[code + 1]) / 2;
            float m = (float)midpoint, v = (float)(sign * f->value[code]); /* exact: float has bits to spare */
            tie &= m == midpoint && agrees(f, m);
            beside_tie &= agrees(f, nextafterf(m, 0)) && agrees(f, nextafterf(m, sign * INFINITY));
            beside_code &= agrees(f, nextafterf(v, -INFINITY)) && agrees(f, nextafterf(v, INFINITY));
            doubles &= agrees_double(f, midpoint) && agrees_double(f, nextafter(midpoint, 0)) &&
                       agrees_double(f, nextafter(midpoint, sign * INFINITY));
        }
    }
    ok(tie, "%s: every midpoint goes to the even neighbor", f->name);
    ok(beside_tie, "%s: just below and above every midpoint, to the nearer one", f->name);
    ok(beside_code, "%s: just beside every code, back to it", f->name);
    if (f->encode_double)
        ok(doubles, "%s: doubles at and beside every midpoint are rounded once", f->name);

    int random = 1;
    uint32_t bits = 12345;
    for (int i = 0; i < 500000; i++) {
        bits = bits * 1664525 + 1013904223;
        float x = bits_float(bits);
        random &= x != x || (agrees(f, x) && agrees_double(f, x * 1.0000000001));
    }
    ok(random, "%s: random floats and doubles of all sizes", f->name);
}

static void test_limits(const Format *f) {
    unsigned sign = f->codes;
    float largest = (float)f->value[f->finite];
    double edge = largest + (f->value[f->finite] - f->value[f->finite - 1]) / 2; /* a tie: finite is odd or saturates */
    float past = (float)edge;
    ok(f->encode(largest) == f->finite && f->encode(nextafterf(past, 0)) == f->finite && f->encode(past) == f->beyond &&
           f->encode(-past) == (sign | f->beyond) && f->encode(2 * past) == f->beyond && f->encode(FLT_MAX) == f->beyond,
       "%s: past the largest value, %s", f->name, f->beyond == f->finite ? "saturation" : "infinity");
    ok(f->encode(INFINITY) == f->beyond && f->encode(-INFINITY) == (sign | f->beyond), "%s: infinity", f->name);
    ok(f->encode(0.0f) == 0 && f->encode(-0.0f) == sign && f->encode(1e-45f) == 0 && f->encode(-1e-45f) == sign,
       "%s: zeros keep their sign, and the smallest float becomes zero", f->name);
    ok(f->encode(NAN) == f->nan && f->encode(-NAN) == f->nan && f->encode(bits_float(0x7f800001)) == f->nan &&
           f->encode(bits_float(0xffffffff)) == f->nan,
       "%s: every NaN becomes 0x%x", f->name, f->nan);
}

static void test_doubles(void) {
    /* 1 + 2^-11 is a tie in fp16. A bit above it, too small for a float, must still push upwards. */
    double x = 1 + 0x1p-11 + 0x1p-40;
    ok(float_to_fp16((float)x) == 0x3c00 && double_to_fp16(x) == 0x3c01, "a double is rounded once, not by way of float");
    ok(double_to_fp16(0x1p-25 + 0x1p-70) == 1 && double_to_fp16(0x1p-25) == 0, "the same among the subnormals");
    ok(double_to_bf16(DBL_MAX) == 0x7f80 && double_to_bf16(-DBL_MAX) == 0xff80, "a double beyond all floats is infinite");
    ok(double_to_fp16(1e-300) == 0 && double_to_fp16(-1e-300) == 0x8000, "a double below all floats is zero");
    ok(double_to_fp16((double)INFINITY) == 0x7c00 && double_to_fp16((double)NAN) == 0x7fff, "infinity and NaN as doubles");
}

static void test_dtypes(void) {
    const Dtype dtypes[] = {DTYPE_FP16, DTYPE_BF16, DTYPE_FP32};
    for (int i = 0; i < 3; i++) {
        Dtype dtype = dtypes[i];
        double u = dtype_epsilon(dtype);
        unsigned char memory[12];
        memset(memory, 0xff, sizeof memory);
        dtype_store(dtype, memory, 1, 1 + 2 * u);
        ok(dtype_to_double(dtype, memory, 1) == 1 + 2 * u && isnan(dtype_to_double(dtype, memory, 0)) &&
               isnan(dtype_to_double(dtype, memory, 2)),
           "%s: store and load touch one element", dtype_name(dtype));
        dtype_store(dtype, memory, 0, 1 + u);
        dtype_store(dtype, memory, 2, 1 + u * 1.001);
        ok(dtype_to_double(dtype, memory, 0) == 1 && dtype_to_double(dtype, memory, 2) == 1 + 2 * u,
           "%s: u is half of the step above 1", dtype_name(dtype));
    }
}

int main(void) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        list_values(&formats[i]);
        test_codes(&formats[i]);
        test_rounding(&formats[i]);
        test_limits(&formats[i]);
    }
    test_doubles();
    test_dtypes();
    return tap_done();
}
