/* ceilings.cu - how fast this GPU's parts are, each alone: the rates that the notes' predictions use.
 *
 *     make ceilings        (needs a GPU; prints notes/results/.../ceilings.tsv)
 *
 * Each kernel repeats one instruction on operands that are at hand, in as many warps as keep its unit busy, for some
 * milliseconds. The kernel reads the multiprocessor's clock before and after, so that two figures are known: work a clock, which
 * is a property of the chip, and work a second, which also depends on the clock that the board's power allowed meanwhile.
 * Operands are random, as power depends on how many bits change.
 */
#include "../gpu/hopper.cuh"
#include "../gpu/instructions.cuh"
#include "../host/errors.h"

#include <algorithm>
#include <cstdio>

constexpr int RUNS = 15; /* of each kernel; the median counts */

/* What a kernel writes: the clocks that it took, and something that depends on all results, so that nothing is left out. */
struct Output {
    unsigned long long clocks;
    float sink;
};

/* fp16 numbers between -2 and 2, a pair in 32 bits: random signs, mantissas and low bit of the exponent. */
__device__ uint32_t random_pair(uint32_t seed) {
    seed = (seed + threadIdx.x * 2654435761u + blockIdx.x * 40503u) * 2246822519u;
    seed = (seed ^ seed >> 15) * 3266489917u;
    return ((seed ^ seed >> 16) & 0x87ff87ffu) | 0x38003800u;
}

template <int Count> __device__ float sum_of(const float (&value)[Count]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Count; i++)
        sum += value[i];
    return sum;
}

template <int Size> struct Bytes {
    uint32_t word[Size / 4];
    __device__ void fill() {
        for (int i = threadIdx.x; i < Size / 4; i += blockDim.x)
            word[i] = random_pair(i);
        __syncthreads();
    }
};

struct MmaSync { /* 16 independent products per warp, 4 warps per scheduler */
    static constexpr int THREADS = 512, SHARED = 0;
    static constexpr double WORK = 16 * 4096.0 / 32; /* FLOPs per thread and repetition */
    static __device__ float run(int repetitions) {
        uint32_t a[4], b[16][2];
        float c[16][4] = {};
        for (int i = 0; i < 4; i++)
            a[i] = random_pair(i);
#pragma unroll
        for (int i = 0; i < 16; i++)
            b[i][0] = random_pair(10 + i), b[i][1] = random_pair(30 + i);
        for (int r = 0; r < repetitions; r++)
#pragma unroll
            for (int i = 0; i < 16; i++)
                mma_m16n8k16<__half>(c[i], a, b[i][0], b[i][1]);
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 64; i++)
            sum += c[i / 4][i % 4];
        return sum;
    }
};

/* Two warpgroups; each multiplies 64 x 128 bytes (four steps of K) by 256 x 128 bytes, both in shared memory. */
template <typename E> struct Wgmma {
    static constexpr int THREADS = 256, ROW_BYTES = 128, A_BYTES = 64 * ROW_BYTES, SHARED = 320 * ROW_BYTES;
    static constexpr double WORK = 2 * 64 * 256.0 * (ROW_BYTES / sizeof(E)) / 128;
    static __device__ float run(int repetitions) {
        float d[32][4] = {};
#ifdef HOPPER
        SHARED_MEMORY(shared, Bytes<SHARED>);
        shared.fill();
        proxy_fence();
        __syncthreads();
        const uint64_t a = wgmma_descriptor<ROW_BYTES>(shared.word), b = wgmma_advance(a, A_BYTES);
        for (int r = 0; r < repetitions; r++) {
            wgmma_fence(d);
#pragma unroll
            for (int step = 0; step < ROW_BYTES / 32; step++)
                wgmma<E>(d, wgmma_advance(a, 32 * step), wgmma_advance(b, 32 * step), true);
            wgmma_commit();
            wgmma_wait<0>(d);
        }
#endif
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 32; n++)
            sum += sum_of(d[n]);
        return sum;
    }
};

struct Ex2 {
    static constexpr int THREADS = 1024, SHARED = 0;
    static constexpr double WORK = 16;
    static __device__ float run(int repetitions) {
        float value[16];
#pragma unroll
        for (int i = 0; i < 16; i++)
            value[i] = -1.0f / (1 + threadIdx.x + i);
        for (int r = 0; r < repetitions; r++)
#pragma unroll
            for (int i = 0; i < 16; i++)
                asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(value[i]));
        return sum_of(value);
    }
};

struct Fma {
    static constexpr int THREADS = 1024, SHARED = 0;
    static constexpr double WORK = 2 * 16;
    static __device__ float run(int repetitions) {
        const float factor = 1 - 1.0f / (3 + threadIdx.x), term = 1.0f / (5 + threadIdx.x);
        float value[16];
#pragma unroll
        for (int i = 0; i < 16; i++)
            value[i] = i;
        for (int r = 0; r < repetitions; r++)
#pragma unroll
            for (int i = 0; i < 16; i++)
                value[i] = fmaf(value[i], factor, term);
        return sum_of(value);
    }
};

struct Ldmatrix { /* eight neighboring rows of 16 bytes are all 32 banks */
    static constexpr int THREADS = 1024, SHARED = 16 * THREADS;
    static constexpr double WORK = 4 * 16; /* bytes per thread and repetition */
    static __device__ float run(int repetitions) {
        SHARED_MEMORY(shared, Bytes<SHARED>);
        shared.fill();
        uint32_t sum = 0;
        for (int r = 0; r < repetitions; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t fragment[4];
                ldmatrix_x4(fragment, shared.word + (4 * threadIdx.x ^ (4 * r + i) % 32 * 128)); /* each time another warp's */
                sum += fragment[0] ^ fragment[1] ^ fragment[2] ^ fragment[3];
            }
        return __uint_as_float(sum);
    }
};

/* One block a multiprocessor: the schedulers prefer some blocks to others, and one that ended early would read too few clocks. */
template <typename Unit> __global__ void __launch_bounds__(Unit::THREADS) repeat(int repetitions, Output *output) {
    __syncthreads();
    const unsigned long long start = clock64();
    const float result = Unit::run(repetitions);
    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.x == 0)
        output->clocks = clock64() - start;
    if (result == 0.123f) /* hardly ever, but the compiler does not know */
        output->sink = result;
}

struct Context {
    void (*kernel)(int, Output *);
    int blocks, threads, shared, repetitions;
    Output *output;
};
static void launch_once(void *context) {
    Context *c = static_cast<Context *>(context);
    LAUNCH(c->kernel, c->blocks, c->threads, c->shared, c->repetitions, c->output);
}

/* Prints a line. `unit`: 10^12 a second of what `a_clock` names. */
template <typename Unit> static void measure(const char *what, int repetitions, const char *unit, const char *a_clock, const char *how) {
    const int sms = device_properties()->sm_count;
    Context c = {repeat<Unit>, sms, Unit::THREADS, Unit::SHARED, repetitions,
                 static_cast<Output *>(device_alloc(sizeof(Output), "ceilings"))};
    double seconds[RUNS], rates[RUNS];
    const double work = Unit::WORK * repetitions * c.blocks * c.threads;
    launch_once(&c); /* warm */
    for (int i = 0; i < RUNS; i++) {
        seconds[i] = device_time_ms(launch_once, &c, 1) / 1000;
        Output output;
        device_read(&output, c.output, sizeof output);
        rates[i] = work / sms / (double)output.clocks;
    }
    device_free(c.output);
    std::sort(seconds, seconds + RUNS);
    std::sort(rates, rates + RUNS);
    const double a_second = work / seconds[RUNS / 2], rate = rates[RUNS / 2];
    printf("%s\t%.*f\t%s\t%.0f %s\t%.2f GHz\tmeasured: %s\n", what, a_second < 1e14 ? 2 : 0, a_second * 1e-12, unit, rate, a_clock, a_second / rate / sms * 1e-9, how);
    flush_output();
}

int main() {
    const DeviceProperties *device = device_properties();
    const Bandwidth memory = device_bandwidth();
    printf("what\tfigure\tunit\tper cycle and multiprocessor\tclock held\thow known\n");
    printf("device memory\t%.2f\tTB/s\t\t\tmeasured: a copy of 1 GiB, bytes read and written\n", memory.copy_gbps / 1000);
    printf("device memory, read\t%.2f\tTB/s\t\t\tmeasured: a sum over 1 GiB\n", memory.read_gbps / 1000);
    if (device->capability >= 80)
        measure<MmaSync>("mma.sync", 20000, "TFLOP/s", "FLOPs", "m16n8k16, fp16 inputs, fp32 accumulation, operands in registers");
    if (device->has_hopper) {
        measure<Wgmma<__half>>("wgmma, 16 bits", 10000, "TFLOP/s", "FLOPs", "m64n256k16, fp16 inputs, fp32 accumulation, operands in shared memory");
        measure<Wgmma<E4m3>>("wgmma, 8 bits", 10000, "TFLOP/s", "FLOPs", "m64n256k32, e4m3 inputs, the same");
    }
    measure<Fma>("fp32 FMA", 100000, "TFLOP/s", "FLOPs", "fma.rn.f32, CUDA cores");
    measure<Ex2>("ex2", 20000, "10¹²/s", "exponentials", "ex2.approx.f32");
    measure<Ldmatrix>("shared memory", 50000, "TB/s", "bytes", "ldmatrix.x4 without bank conflicts");
    return 0;
}
