/* mma.cuh - the test of mma that 16- and 8-bit formats share: every lane's registers are filled by the documented layout, and the
 * results are held against fp64. Format<F>, which each test defines, has
 *
 *     Code                      of 2 or of 1 bytes; K is 16 or 32
 *     name(), code(value), value(code), draw()
 *     mma_error()               what is allowed, as a share of the sum of absolute values
 */
#ifndef FA_MMA_CUH
#define FA_MMA_CUH

#include "device_array.cuh"
#include "tap.h"

static inline float random_float(float low, float high) { return low + (high - low) * (random_bits() >> 8) * 0x1p-24f; }

template <typename F> struct Format;

template <typename F> struct MmaProblem {
    using Code = typename Format<F>::Code;
    static constexpr int K = 32 / sizeof(Code);
    Code a[16][K], b[K][8];
    float c[16][8];
};
struct MmaRegisters {
    uint32_t a[4], b[2];
    float c[4];
};

/* One problem a block. */
template <typename F> __global__ void run_mma(MmaRegisters *registers) {
    MmaRegisters &r = registers[32 * blockIdx.x + threadIdx.x];
    float c[4] = {r.c[0], r.c[1], r.c[2], r.c[3]};
    const uint32_t a[4] = {r.a[0], r.a[1], r.a[2], r.a[3]};
    mma<F>(c, a, r.b[0], r.b[1]);
    for (int i = 0; i < 4; i++)
        r.c[i] = c[i];
}

/* Runs all problems; replaces each c by the result. */
template <typename F> static void mma_all(std::vector<MmaProblem<F>> &problems) {
    constexpr int K = MmaProblem<F>::K, each = K / 8, bits = 32 / each; /* elements of a register */
    std::vector<MmaRegisters> registers(32 * problems.size());
    for (size_t i = 0; i < registers.size(); i++) {
        const MmaProblem<F> &p = problems[i / 32];
        MmaRegisters &r = registers[i] = {};
        const int row = i % 32 / 4, k = each * (i % 4), column = 2 * (i % 4);
        for (int j = 0; j < 4; j++) { /* quarters of A and C: a[1] is below a[0]; c[2], c[3] are below c[0], c[1] */
            for (int e = 0; e < each; e++)
                r.a[j] |= (uint32_t)p.a[row + 8 * (j & 1)][k + e + K / 2 * (j >> 1)] << bits * e;
            r.c[j] = p.c[row + 8 * (j >> 1)][column + (j & 1)];
        }
        for (int j = 0; j < 2; j++)
            for (int e = 0; e < each; e++)
                r.b[j] |= (uint32_t)p.b[k + e + K / 2 * j][row] << bits * e;
    }
    DeviceArray<MmaRegisters> device(registers);
    LAUNCH((run_mma<F>), (unsigned)problems.size(), 32, 0, device.pointer);
    registers = device.read();
    for (size_t i = 0; i < registers.size(); i++)
        for (int j = 0; j < 4; j++)
            problems[i / 32].c[i % 32 / 4 + 8 * (j >> 1)][2 * (i % 4) + (j & 1)] = registers[i].c[j];
}

template <typename F> static void test_mma() {
    constexpr int K = MmaProblem<F>::K;
    /* One-hot: for every (m, n, k) a problem with one 2 in A and one 3 in B. Only C[m][n] may grow, by 6, exactly. */
    std::vector<MmaProblem<F>> one_hot(16 * 8 * K);
    for (int i = 0; i < 16 * 8 * K; i++) {
        MmaProblem<F> &p = one_hot[i] = {};
        p.a[i / (8 * K)][i % K] = Format<F>::code(2);
        p.b[i % K][i / K % 8] = Format<F>::code(3);
        for (int j = 0; j < 128; j++)
            p.c[j / 8][j % 8] = j;
    }
    mma_all(one_hot);
    int wrong = 0;
    for (int i = 0; i < 16 * 8 * K; i++)
        for (int j = 0; j < 128; j++)
            wrong += one_hot[i].c[j / 8][j % 8] != j + (j == i / K ? 6 : 0);
    ok(wrong == 0, "mma_m16n8k%d %s: every (m, n, k) is where it belongs", K, Format<F>::name());

    std::vector<MmaProblem<F>> random(200);
    for (auto &p : random) {
        for (int i = 0; i < 16 * K; i++)
            p.a[i / K][i % K] = Format<F>::draw();
        for (int i = 0; i < 8 * K; i++)
            p.b[i / 8][i % 8] = Format<F>::draw();
        for (int i = 0; i < 128; i++)
            p.c[i / 8][i % 8] = K == 16 ? random_float(-10, 10) : (float)(int)(random_bits() % 21) - 10;
    }
    auto result = random;
    mma_all(result);
    double worst = 0; /* error over the sum of absolute values, which is what rounding errors scale with */
    for (size_t i = 0; i < random.size(); i++)
        for (int m = 0; m < 16; m++)
            for (int n = 0; n < 8; n++) {
                double want = random[i].c[m][n], size = fabs(want);
                for (int k = 0; k < K; k++) {
                    const double term = (double)Format<F>::value(random[i].a[m][k]) * Format<F>::value(random[i].b[k][n]);
                    want += term;
                    size += fabs(term);
                }
                const double error = fabs(result[i].c[m][n] - want) / size;
                worst = error <= worst ? worst : error; /* NaN stays */
            }
    ok(worst < Format<F>::mma_error(), "mma_m16n8k%d %s: agrees with fp64 (error %.2g of the sum of absolute values)", K,
       Format<F>::name(), worst);
}

#endif
