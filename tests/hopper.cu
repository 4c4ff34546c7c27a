/* hopper.cu - do the wrappers of gpu/hopper.cuh and their CPU twins do what the PTX ISA says? TMA: where each byte of a tile
 * lands, and zeros past every edge. mbarrier: phases. wgmma: exact products of small integers, in all shapes, from both
 * places, compared with the host's. Runs on the CPU device, and on GPUs that have these instructions. */
#include "../common/gpu/hopper.cuh"
#include "../common/numeric.h"
#include "device_array.cuh"
#include "tap.h"

template <typename E> struct Format;
template <> struct Format<__half> {
    static const char *name() { return "fp16"; }
    static void store(unsigned char *to, float value) {
        uint16_t code = float_to_fp16(value);
        memcpy(to, &code, 2);
    }
};
template <> struct Format<E4m3> {
    static const char *name() { return "e4m3"; }
    static void store(unsigned char *to, float value) { *to = float_to_e4m3(value); }
};
template <> struct Format<E5m2> {
    static const char *name() { return "e5m2"; }
    static void store(unsigned char *to, float value) { *to = float_to_e5m2(value); }
};

/* ---- TMA ---- */

enum { TILE_ROWS = 64 };
template <int RowBytes> struct TmaShared {
    alignas(1024) unsigned char tile[TILE_ROWS * RowBytes];
    Mbarrier full;
};

/* Loads one tile and writes out shared memory as it is. */
template <int RowBytes>
__global__ void run_tma(const __grid_constant__ TensorMap map, int column, int row, int matrix, unsigned char *bytes) {
#ifdef HOPPER
    using Shared = TmaShared<RowBytes>;
    SHARED_MEMORY(Shared, shared);
    if (threadIdx.x == 0) {
        mbarrier_init(&shared.full, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(&shared.full, TILE_ROWS * RowBytes);
        tma_load(shared.tile, map, column, row, matrix, &shared.full);
    }
    __syncthreads();
    mbarrier_wait(&shared.full, 0);
    for (int i = threadIdx.x; i < TILE_ROWS * RowBytes; i += blockDim.x)
        bytes[i] = shared.tile[i];
#endif
}

/* Tiles in the middle, over the last row of a matrix that is not the last one, over the last column, and before the first
 * row. */
template <typename E, int RowBytes> static void test_tma() {
    const int columns = 2 * RowBytes / sizeof(E) + 16, rows = 100, matrices = 3, pitch = columns * sizeof(E);
    std::vector<unsigned char> tensor(matrices * rows * pitch);
    for (auto &byte : tensor)
        byte = (unsigned char)(1 + random_bits() % 255); /* never 0 */
    DeviceArray<unsigned char> device(tensor), out(TILE_ROWS * RowBytes);
    const TensorMap map = tensor_map<E, RowBytes>(device.pointer, columns, rows, matrices, TILE_ROWS);
    const int tile_columns = RowBytes / sizeof(E);
    const int places[4][3] = {
        {0, 10, 0}, {tile_columns, 64, 1}, {2 * tile_columns, 0, 2}, {0, -5, 1}}; /* column, row, matrix */
    int wrong = 0;
    for (auto &place : places) {
        LAUNCH((run_tma<RowBytes>), 1, 64, sizeof(TmaShared<RowBytes>), map, place[0], place[1], place[2], out.pointer);
        auto got = out.read();
        for (int r = 0; r < TILE_ROWS; r++)
            for (int b = 0; b < RowBytes; b++) {
                /* 128-byte rows: the chunk XOR row % 8; 64-byte rows: XOR row / 2 % 4 */
                const int chunk = b / 16 ^ (RowBytes == 128 ? r % 8 : r / 2 % 4);
                const int row = place[1] + r, column = place[0] * (int)sizeof(E) + b;
                const bool inside = row >= 0 && row < rows && column < pitch;
                wrong += got[r * RowBytes + 16 * chunk + b % 16] !=
                         (inside ? tensor[(place[2] * rows + row) * pitch + column] : 0);
            }
    }
    ok(wrong == 0, "tma_load, %zu-byte elements, rows of %d bytes: every byte, swizzled, and zeros outside", sizeof(E),
       RowBytes);
}

/* ---- mbarrier ---- */

enum { PHASES = 7 };
struct MbarrierShared {
    alignas(1024) unsigned char tile[TILE_ROWS * 128];
    Mbarrier full, empty;
};

/* One warp loads matrix after matrix into the same place, the other adds each up: two barriers hand the tile to and fro. */
__global__ void run_mbarrier(const __grid_constant__ TensorMap map, int *sums) {
#ifdef HOPPER
    SHARED_MEMORY(MbarrierShared, shared);
    if (threadIdx.x == 0) {
        mbarrier_init(&shared.full, 1);
        mbarrier_init(&shared.empty, 32);
        mbarrier_init_fence();
    }
    __syncthreads();
    for (int phase = 0; phase < PHASES; phase++) {
        if (threadIdx.x == 0) {
            if (phase > 0)
                mbarrier_wait(&shared.empty, (phase - 1) % 2);
            mbarrier_arrive_expect(&shared.full, TILE_ROWS * 128);
            tma_load(shared.tile, map, 0, 0, phase, &shared.full);
        } else if (threadIdx.x >= 32) {
            mbarrier_wait(&shared.full, phase % 2);
            int sum = 0;
            for (int i = threadIdx.x - 32; i < TILE_ROWS * 128; i += 32)
                sum += shared.tile[i];
            sums[phase * 32 + threadIdx.x - 32] = sum;
            mbarrier_arrive(&shared.empty);
        }
    }
#endif
}

static void test_mbarrier() {
    std::vector<unsigned char> tensor(PHASES * TILE_ROWS * 128);
    std::vector<int> want(PHASES);
    for (size_t i = 0; i < tensor.size(); i++)
        want[i / (TILE_ROWS * 128)] += tensor[i] = (unsigned char)random_bits();
    DeviceArray<unsigned char> device(tensor);
    DeviceArray<int> sums(32 * PHASES);
    LAUNCH(run_mbarrier, 1, 64, sizeof(MbarrierShared),
           tensor_map<E4m3, 128>(device.pointer, 128, TILE_ROWS, PHASES, TILE_ROWS), sums.pointer);
    auto got = sums.read();
    int wrong = 0;
    for (int phase = 0; phase < PHASES; phase++) {
        int sum = 0;
        for (int lane = 0; lane < 32; lane++)
            sum += got[32 * phase + lane];
        wrong += sum != want[phase];
    }
    ok(wrong == 0, "mbarrier: %d phases of a producer and 32 consumers", PHASES);
}

/* ---- wgmma ---- */

template <int N, int RowBytes> struct WgmmaShared {
    alignas(1024) unsigned char a[64 * RowBytes];
    alignas(1024) unsigned char b[N * RowBytes];
    Mbarrier full;
};

/* D = A B over all of a row's bytes, 32 at a time; in a second batch the first 32 bytes' product is added once more. */
template <typename E, int N, int RowBytes, bool from_registers>
__global__ void run_wgmma(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                          const uint32_t *a_words, float *d_out) {
#ifdef HOPPER
    using Shared = WgmmaShared<N, RowBytes>;
    SHARED_MEMORY(Shared, shared);
    if (threadIdx.x == 0) {
        mbarrier_init(&shared.full, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(&shared.full, (64 + N) * RowBytes);
        tma_load(shared.a, a_map, 0, 0, 0, &shared.full);
        tma_load(shared.b, b_map, 0, 0, 0, &shared.full);
    }
    __syncthreads();
    mbarrier_wait(&shared.full, 0);
    const uint64_t a = wgmma_descriptor<RowBytes>(shared.a), b = wgmma_descriptor<RowBytes>(shared.b);
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    uint32_t fragment[RowBytes / 32][4];
#pragma unroll
    for (int step = 0; step < RowBytes / 32; step++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            fragment[step][i] = a_words[(row + 8 * (i % 2)) * (RowBytes / 4) + 8 * step + 4 * (i / 2) + threadIdx.x % 4];

    float d[N / 2];
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < RowBytes / 32; step++)
        if constexpr (from_registers)
            wgmma<E>(d, fragment[step], wgmma_advance(b, 32 * step), step > 0);
        else
            wgmma<E>(d, wgmma_advance(a, 32 * step), wgmma_advance(b, 32 * step), step > 0);
    wgmma_commit();
    if constexpr (from_registers)
        wgmma<E>(d, fragment[0], b, true);
    else
        wgmma<E>(d, a, b, true);
    wgmma_commit();
    wgmma_wait<0>(d);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d_out[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
#endif
}

template <typename E, int N, int RowBytes, bool from_registers> static void test_wgmma() {
    constexpr int K = RowBytes / sizeof(E), step = 32 / sizeof(E);
    std::vector<float> a(64 * K), b(N * K);
    std::vector<unsigned char> a_bytes(64 * RowBytes), b_bytes(N * RowBytes);
    for (int i = 0; i < 64 * K; i++) /* every format has these, and every sum is exact */
        Format<E>::store(&a_bytes[i * sizeof(E)], a[i] = (float)(random_bits() % 7) - 3);
    for (int i = 0; i < N * K; i++)
        Format<E>::store(&b_bytes[i * sizeof(E)], b[i] = (float)(random_bits() % 7) - 3);
    DeviceArray<unsigned char> device_a(a_bytes), device_b(b_bytes);
    DeviceArray<float> d(64 * N);
    LAUNCH((run_wgmma<E, N, RowBytes, from_registers>), 1, 128, sizeof(WgmmaShared<N, RowBytes>),
           tensor_map<E, RowBytes>(device_a.pointer, K, 64, 1, 64), tensor_map<E, RowBytes>(device_b.pointer, K, N, 1, N),
           (const uint32_t *)device_a.pointer, d.pointer);
    auto got = d.read();
    int wrong = 0;
    for (int m = 0; m < 64; m++)
        for (int n = 0; n < N; n++) {
            float want = 0;
            for (int k = 0; k < K; k++)
                want += a[m * K + k] * b[n * K + k] * (k < step ? 2 : 1);
            wrong += !(got[m * N + n] == want);
        }
    ok(wrong == 0, "wgmma m64n%dk%d %s, A from %s, rows of %d bytes: D = A B, D += A B", N, step, Format<E>::name(),
       from_registers ? "registers" : "shared memory", RowBytes);
}

template <typename E> static void test_wgmmas() {
    test_wgmma<E, 64, 64, false>();
    test_wgmma<E, 64, 128, false>();
    test_wgmma<E, 128, 64, false>();
    test_wgmma<E, 128, 128, false>();
    test_wgmma<E, 64, 64, true>();
    test_wgmma<E, 64, 128, true>();
    test_wgmma<E, 128, 64, true>();
    test_wgmma<E, 128, 128, true>();
}

int main() {
    if (!device_properties()->has_hopper) {
        tap_skip_all("wgmma and TMA are Hopper's, built for sm_90a");
        return 0;
    }
    printf("# %s\n", device_properties()->name);
    test_tma<E4m3, 64>();
    test_tma<E4m3, 128>();
    test_tma<__half, 64>();
    test_tma<__half, 128>();
    test_mbarrier();
    test_wgmmas<E4m3>();
    test_wgmmas<E5m2>();
    test_wgmmas<__half>();
    ok(!device_damaged(), "nothing was written past the end of an array");
    return tap_done();
}
