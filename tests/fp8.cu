/* fp8.cu - do the 8-bit instructions of gpu/instructions.cuh, and their CPU twins, do what the formats and the PTX ISA say?
 * Conversions are held against every code, mma against the documented layout, bit by bit, and against fp64. Then the road of
 * 06_fp8/mma.cu: P from accumulator to operand without leaving its lane, beside a V whose keys are in fp8.h's order.
 * Runs on both devices. */
#include "../06_fp8/fp8.h"
#include "../common/gpu/tile.cuh"
#include "../common/numeric.h"
#include "mma.cuh"

/* What a code stands for, from the format's definition: (1 + mantissa / steps) 2^(exponent - bias), or without the 1 and
 * with exponent 1 where the exponent is 0. `finite` codes come before infinity and NaN. */
template <int MantissaBits, int Bias, int Finite> struct EightBits {
    using Code = uint8_t;
    static constexpr int finite = Finite, steps = 1 << MantissaBits;
    static double value(int code) {
        const int mantissa = code % steps, exponent = (code & 0x7f) / steps;
        const double share = mantissa / (double)steps, size = exponent ? (1 + share) * exp2(exponent - Bias) : share * exp2(1 - Bias);
        return code & 0x80 ? -size : size;
    }
    /* The nearest finite code: of two equally near the even one. */
    static int code(double number) {
        int best = 0;
        for (int code = 1; code < finite; code++) {
            const double gain = fabs(fabs(number) - value(best)) - fabs(fabs(number) - value(code));
            if (gain > 0 || (gain == 0 && code % 2 == 0))
                best = code;
        }
        return best | (std::signbit(number) ? 0x80 : 0);
    }
    /* Of the size of 1: codes of exponents around the bias, and subnormal ones. */
    static Code draw() {
        const int size = random_bits() % 8 ? (Bias << MantissaBits) + (int)(random_bits() % 16) - 12 : (int)(random_bits() % 4);
        return (Code)(size | (random_bits() & 0x80));
    }
    /* Where tensor cores take 8 bits as they are, they keep about 13 bits of the sum. */
    static double mma_error() {
        const int capability = device_properties()->capability;
        return capability < 89 || capability == 90 || device_properties()->is_cpu ? 0x1p-20 : 0x1p-12;
    }
};
template <> struct Format<E4m3> : EightBits<3, 7, 0x7f> {
    static const char *name() { return "e4m3"; }
};
template <> struct Format<E5m2> : EightBits<2, 15, 0x7c> {
    static const char *name() { return "e5m2"; }
};

/* ---- conversions ---- */

template <typename F> __global__ void convert(const float *values, int fours, uint32_t *packed, float4 *unpacked) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < fours)
        packed[i] = pack_4<F>(values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3]);
    if (i < 64)
        unpacked[i] = unpack_4<F>(4 * i | (4 * i + 1) << 8 | (4 * i + 2) << 16 | (uint32_t)(4 * i + 3) << 24);
}

template <typename F> static void test_conversions() {
    std::vector<float> values = {0, -0.0f, 1, F::largest, 1.04f * F::largest, 1e6f, -3e38f, INFINITY, -INFINITY, 1e-40f};
    for (int code = 0; code + 1 < Format<F>::finite; code++) { /* each code, the tie above it, what is just beside */
        const float low = (float)Format<F>::value(code), tie = (float)((Format<F>::value(code) + Format<F>::value(code + 1)) / 2);
        for (float value : {low, tie, nextafterf(tie, 0), nextafterf(tie, INFINITY)})
            values.insert(values.end(), {value, -value});
    }
    for (int i = 0; i < 4000; i++) {
        const uint32_t bits = random_bits();
        values.push_back((bits & 0x7f800000) == 0x7f800000 ? 1.0f : bits_float(bits));
        values.push_back(Format<F>::value(random_bits() % Format<F>::finite) * (0.9f + (random_bits() >> 8) * 0x0.3p-24f));
    }
    while (values.size() % 4)
        values.push_back(0);
    const int fours = (int)values.size() / 4;
    DeviceArray<float> device_values(values);
    DeviceArray<uint32_t> packed(fours);
    DeviceArray<float4> unpacked(64);
    LAUNCH((convert<F>), ceil_div(fours, 64), 64, 0, device_values.pointer, fours, packed.pointer, unpacked.pointer);
    auto codes = packed.read();
    auto floats = unpacked.read();
    int wrong = 0, not_saturated = 0;
    for (size_t i = 0; i < values.size(); i++) {
        const int got = codes[i / 4] >> 8 * (i % 4) & 0xff;
        if (fabsf(values[i]) > F::largest)
            not_saturated += got != ((Format<F>::finite - 1) | (values[i] < 0 ? 0x80 : 0));
        else
            wrong += got != Format<F>::code(values[i]);
    }
    ok(wrong == 0, "pack_4 %s: rounds to nearest, ties to even, first element lowest", Format<F>::name());
    ok(not_saturated == 0, "pack_4 %s: what is larger than %g becomes that", Format<F>::name(), (double)F::largest);
    wrong = 0;
    for (int code = 0; code < 256; code++)
        if ((code & 0x7f) < Format<F>::finite) {
            const float4 four = floats[code / 4];
            const float got[4] = {four.x, four.y, four.z, four.w};
            wrong += float_bits(got[code % 4]) != float_bits((float)Format<F>::value(code));
        }
    ok(wrong == 0, "unpack_4 %s: every finite code", Format<F>::name());
}

/* ---- the road of a key tile: S = Q K^T and O = S V for 16 queries, 32 keys and D = 64, by one warp ---- */

typedef uint16_t Pair;
struct AttentionTiles {
    Tile<Pair, 16, 32> q;
    Tile<Pair, 32, 32> k;  /* [key][d] */
    Tile<Pair, 64, 32> vt; /* [d][place]; 32 of its 64 places are used, a tile row is no shorter */
};

template <typename F>
__global__ void run_attention(const Pair *q, const Pair *k, const Pair *vt, float *s_out, float *o_out) {
    SHARED_MEMORY(tiles, AttentionTiles);
    load_tile_async<32>(tiles.q, q, 0, 16);
    load_tile_async<32>(tiles.k, k, 0, 32);
    load_tile_async<32>(tiles.vt, vt, 0, 64);
    cp_async_wait<0>();
    __syncthreads();
    const int row = threadIdx.x / 4, column = 2 * (threadIdx.x % 4);

    float s[4][4] = {};
    for (int d = 0; d < 2; d++) {
        uint32_t a[4];
        load_a_fragment(a, tiles.q, 0, d);
        for (int c = 0; c < 4; c += 2) {
            uint32_t b[4];
            load_b_fragments(b, tiles.k, 8 * c, d);
            mma_m16n8k32<F>(s[c], a, b[0], b[1]);
            mma_m16n8k32<F>(s[c + 1], a, b[2], b[3]);
        }
    }
    uint32_t p[4];
    for (int j = 0; j < 4; j++) {
        const int h = j % 2, c = 2 * (j / 2);
        p[j] = pack_4<F>(s[c][2 * h], s[c][2 * h + 1], s[c + 1][2 * h], s[c + 1][2 * h + 1]);
    }
    for (int i = 0; i < 16; i++)
        s_out[32 * (row + 8 * (i / 2 % 2)) + 8 * (i / 4) + column + i % 2] = s[i / 4][i % 4];
    for (int d = 0; d < 64; d += 16) {
        uint32_t b[4];
        load_b_fragments(b, tiles.vt, d, 0);
        for (int half = 0; half < 2; half++) {
            float o[4] = {};
            mma_m16n8k32<F>(o, p, b[2 * half], b[2 * half + 1]);
            for (int i = 0; i < 4; i++)
                o_out[64 * (row + 8 * (i / 2)) + d + 8 * half + column + i % 2] = o[i];
        }
    }
}

template <typename F> static void test_attention() {
    /* Small integers, few of them not 0: every sum is exact, and every S is a number of the format. */
    std::vector<int> q(16 * 64), k(32 * 64), v(32 * 64);
    for (auto *matrix : {&q, &k, &v})
        for (int &element : *matrix)
            element = random_bits() % 32 ? 0 : random_bits() % 2 ? 1 : -1;
    auto pairs = [](const std::vector<int> &matrix) {
        std::vector<Pair> codes;
        for (size_t i = 0; i < matrix.size(); i += 2)
            codes.push_back((Pair)(Format<F>::code(matrix[i]) | Format<F>::code(matrix[i + 1]) << 8));
        return codes;
    };
    std::vector<int> vt(64 * 64, 0);
    for (int d = 0; d < 64; d++)
        for (int place = 0; place < 32; place++)
            vt[64 * d + place] = v[64 * key_at_position(place) + d];
    DeviceArray<Pair> device_q(pairs(q)), device_k(pairs(k)), device_vt(pairs(vt));
    DeviceArray<float> s_out(16 * 32), o_out(16 * 64);
    LAUNCH((run_attention<F>), 1, 32, sizeof(AttentionTiles), device_q.pointer, device_k.pointer, device_vt.pointer,
           s_out.pointer, o_out.pointer);
    auto s = s_out.read(), o = o_out.read();
    float largest = 0;
    for (float sum : s)
        largest = fmaxf(largest, fabsf(sum));
    const int wrong_s =
        wrong_products(s.data(), 16, 32, 64, [&](int i, int d) { return q[64 * i + d]; }, [&](int d, int j) { return k[64 * j + d]; });
    ok(!wrong_s && largest > 0 && largest <= 4, "%s: Q K^T from tiles of pairs", Format<F>::name());
    ok(!wrong_products(o.data(), 16, 64, 32, [&](int i, int j) { return s[32 * i + j]; }, [&](int j, int d) { return v[64 * j + d]; }),
       "%s: P V with P from the accumulator and the keys in its order", Format<F>::name());
}

int main() {
    printf("# %s\n", device_properties()->name);
    test_conversions<E4m3>();
    test_conversions<E5m2>();
    test_mma<E4m3>();
    test_mma<E5m2>();
    test_attention<E4m3>();
    test_attention<E5m2>();
    ok(!device_damaged(), "nothing was written past the end of an array");
    return tap_done();
}
