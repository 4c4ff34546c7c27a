/* hopper.cu - do the wrappers of gpu/hopper.cuh and their CPU twins do what the PTX ISA says? TMA: where each byte of a tile
 * lands, and zeros past every edge. mbarrier: phases. wgmma: exact products of small integers, in all shapes, from both
 * places and in both orders, compared with the host's. Named barriers: who goes when. And a small pipeline of all of them,
 * with roles. Runs on the CPU device, and on GPUs that have these instructions. */
#include "../common/gpu/hopper.cuh"
#include "../common/numeric.h"
#include "device_array.cuh"
#include "tap.h"

template <typename E> static const char *name_of() {
    return std::is_same<E, __half>::value ? "fp16" : sizeof(E) == 2 ? "bf16" : std::is_same<E, E4m3>::value ? "e4m3" : "e5m2";
}

#ifdef HOPPER
/* One thread's part of a load of so many bytes that nothing was loaded before. */
__device__ static void begin_load(Mbarrier *full, int bytes) {
    mbarrier_init(full, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(full, bytes);
}
/* The first row of D that a thread of a warpgroup has; A from memory and D to memory, as they are distributed. */
__device__ static int row_of_d() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
template <int Steps> __device__ static void read_fragments(uint32_t (&fragment)[Steps][4], const uint32_t *a_words) {
#pragma unroll
    for (int i = 0; i < 4 * Steps; i++)
        fragment[i / 4][i % 4] = a_words[(row_of_d() + i % 2 * 8) * 8 * Steps + i / 4 * 8 + i / 2 % 2 * 4 + threadIdx.x % 4];
}
template <int Eighths> __device__ static void write_d(float *d_out, int row, const float (&d)[Eighths][4]) {
#pragma unroll
    for (int i = 0; i < 4 * Eighths; i++)
        d_out[(row + i / 2 % 2 * 8) * 8 * Eighths + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i / 4][i % 4];
}
#endif

/* ---- TMA ---- */

enum { TILE_ROWS = 64 };
template <int RowBytes> struct TmaShared {
    alignas(1024) unsigned char tile[TILE_ROWS * RowBytes];
    Mbarrier full;
};

/* Loads one tile, so many rows at a time, and writes out shared memory as it is. */
template <int RowBytes, int Rows>
__global__ void run_tma(const __grid_constant__ TensorMap map, int column, int row, int matrix, unsigned char *bytes) {
#ifdef HOPPER
    using Shared = TmaShared<RowBytes>;
    SHARED_MEMORY(shared, Shared);
    if (threadIdx.x == 0) {
        begin_load(&shared.full, TILE_ROWS * RowBytes);
        for (int r = 0; r < TILE_ROWS; r += Rows)
            tma_load(shared.tile + r * RowBytes, map, row + r, column, matrix, &shared.full);
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
        LAUNCH((run_tma<RowBytes, TILE_ROWS>), 1, 64, sizeof(TmaShared<RowBytes>), map, place[0], place[1], place[2], out.pointer);
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

/* A tile row by row: each is a load of its own, to a multiple of 128 bytes. The swizzle goes by the address, so that
 * together they are what one load would have brought. */
template <int RowBytes> static void test_tma_rows() {
    constexpr int rows = 128 / RowBytes;
    std::vector<unsigned char> tensor(TILE_ROWS * RowBytes);
    for (auto &byte : tensor)
        byte = (unsigned char)random_bits();
    DeviceArray<unsigned char> device(tensor), whole(tensor.size()), by_rows(tensor.size());
    LAUNCH((run_tma<RowBytes, TILE_ROWS>), 1, 64, sizeof(TmaShared<RowBytes>),
           tensor_map<E4m3, RowBytes>(device.pointer, RowBytes, TILE_ROWS, 1, TILE_ROWS), 0, 0, 0, whole.pointer);
    LAUNCH((run_tma<RowBytes, rows>), 1, 64, sizeof(TmaShared<RowBytes>),
           tensor_map<E4m3, RowBytes>(device.pointer, RowBytes, TILE_ROWS, 1, rows), 0, 0, 0, by_rows.pointer);
    ok(whole.read() == by_rows.read(), "tma_load, rows of %d bytes: 128 bytes at a time, and all at once", RowBytes);
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
    SHARED_MEMORY(shared, MbarrierShared);
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
    SHARED_MEMORY(shared, Shared);
    if (threadIdx.x == 0) {
        begin_load(&shared.full, (64 + N) * RowBytes);
        tma_load(shared.a, a_map, 0, 0, 0, &shared.full);
        tma_load(shared.b, b_map, 0, 0, 0, &shared.full);
    }
    __syncthreads();
    mbarrier_wait(&shared.full, 0);
    const uint64_t a = wgmma_descriptor<RowBytes>(shared.a), b = wgmma_descriptor<RowBytes>(shared.b);
    uint32_t fragment[RowBytes / 32][4];
    read_fragments(fragment, a_words);
    float d[N / 8][4];
    wgmma_fence(d, fragment);
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
    write_d(d_out, row_of_d(), d);
#endif
}

/* `count` small integers as floats, and in `bytes` as E. Every format has these, and every sum of theirs here is exact. */
template <typename E> static std::vector<float> small_integers(size_t count, std::vector<unsigned char> &bytes) {
    std::vector<float> value(count);
    bytes.resize(count * sizeof(E));
    for (size_t i = 0; i < count; i++) {
        const float x = value[i] = (float)(random_bits() % 7) - 3;
        const uint16_t code = sizeof(E) == 2 ? (std::is_same<E, __half>::value ? float_to_fp16(x) : float_to_bf16(x))
                                             : (std::is_same<E, E4m3>::value ? float_to_e4m3(x) : float_to_e5m2(x));
        memcpy(&bytes[i * sizeof(E)], &code, sizeof(E)); /* the host is little-endian */
    }
    return value;
}

template <typename E, int N, int RowBytes, bool from_registers> static void test_wgmma() {
    constexpr int K = RowBytes / sizeof(E), step = 32 / sizeof(E);
    std::vector<unsigned char> a_bytes, b_bytes;
    const std::vector<float> a = small_integers<E>(64 * K, a_bytes), b = small_integers<E>(N * K, b_bytes);
    DeviceArray<unsigned char> device_a(a_bytes), device_b(b_bytes);
    DeviceArray<float> d(64 * N);
    LAUNCH((run_wgmma<E, N, RowBytes, from_registers>), 1, 128, sizeof(WgmmaShared<N, RowBytes>),
           tensor_map<E, RowBytes>(device_a.pointer, K, 64, 1, 64), tensor_map<E, RowBytes>(device_b.pointer, K, N, 1, N),
           (const uint32_t *)device_a.pointer, d.pointer);
    auto got = d.read();
    const int wrong = wrong_products(
        got.data(), 64, N, K, [&](int m, int k) { return a[m * K + k] * (k < step ? 2 : 1); },
        [&](int k, int n) { return b[n * K + k]; });
    ok(wrong == 0, "wgmma m64n%dk%d %s, A from %s, rows of %d bytes: D = A B, D += A B", N, step, name_of<E>(),
       from_registers ? "registers" : "shared memory", RowBytes);
}

/* ---- wgmma, B stored [k][n] ---- */

/* A is panels of 64 rows of 64 elements, B panels of K rows of RowBytes bytes. */
template <int N, int K, int RowBytes> struct MnShared {
    static constexpr int a_panels = (K + 63) / 64, b_panels = 2 * N / RowBytes;
    alignas(1024) unsigned char a[a_panels * 64 * 128];
    alignas(1024) unsigned char b[b_panels * K * RowBytes];
    Mbarrier full;
};
template <typename E, int N, int K, int RowBytes, bool from_registers>
__global__ void run_wgmma_mn(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                             const uint32_t *a_words, float *d_out) {
#ifdef HOPPER
    using Shared = MnShared<N, K, RowBytes>;
    SHARED_MEMORY(shared, Shared);
    if (threadIdx.x == 0) {
        begin_load(&shared.full, sizeof shared.a + sizeof shared.b);
        for (int panel = 0; panel < Shared::a_panels; panel++)
            tma_load(shared.a + panel * 64 * 128, a_map, 0, 64 * panel, 0, &shared.full);
        for (int panel = 0; panel < Shared::b_panels; panel++)
            tma_load(shared.b + panel * K * RowBytes, b_map, 0, RowBytes / 2 * panel, 0, &shared.full);
    }
    __syncthreads();
    mbarrier_wait(&shared.full, 0);
    const uint64_t a = wgmma_descriptor<128>(shared.a), b = wgmma_descriptor_mn<RowBytes>(shared.b, K * RowBytes);
    uint32_t fragment[K / 16][4];
    read_fragments(fragment, a_words);
    float d[N / 8][4];
    wgmma_fence(d, fragment);
#pragma unroll
    for (int step = 0; step < K / 16; step++)
        if constexpr (from_registers)
            wgmma<E, MN_MAJOR>(d, fragment[step], wgmma_advance(b, 16 * RowBytes * step), step > 0);
        else
            wgmma<E, MN_MAJOR>(d, wgmma_advance(a, step / 4 * (64 * 128) + step % 4 * 32),
                               wgmma_advance(b, 16 * RowBytes * step), step > 0);
    wgmma_commit();
    wgmma_wait<0>(d);
    write_d(d_out, row_of_d(), d);
#endif
}

template <typename E, int N, int K, int RowBytes, bool from_registers> static void test_wgmma_mn() {
    std::vector<unsigned char> a_bytes, b_bytes;
    const std::vector<float> a = small_integers<E>(64 * K, a_bytes), b = small_integers<E>(K * N, b_bytes);
    DeviceArray<unsigned char> device_a(a_bytes), device_b(b_bytes);
    DeviceArray<float> d(64 * N);
    LAUNCH((run_wgmma_mn<E, N, K, RowBytes, from_registers>), 1, 128, sizeof(MnShared<N, K, RowBytes>),
           tensor_map<E, 128>(device_a.pointer, K, 64, 1, 64), tensor_map<E, RowBytes>(device_b.pointer, N, K, 1, K),
           (const uint32_t *)device_a.pointer, d.pointer);
    auto got = d.read();
    const int wrong = wrong_products(
        got.data(), 64, N, K, [&](int m, int k) { return a[m * K + k]; }, [&](int k, int n) { return b[k * N + n]; });
    ok(wrong == 0, "wgmma m64n%dk16 %s, %d k, A from %s, B as it lies, panels of %d bytes", N, name_of<E>(), K,
       from_registers ? "registers" : "shared memory", RowBytes);
}

/* ---- wgmma, both operands stored [k][..]: D = A^T B ---- */

template <int N, int K> struct AtbShared {
    alignas(1024) unsigned char a[K * 128];
    alignas(1024) unsigned char b[N / 64 * K * 128];
    Mbarrier full;
};
template <typename E, int N, int K>
__global__ void run_wgmma_atb(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, float *d_out) {
#ifdef HOPPER
    using Shared = AtbShared<N, K>;
    SHARED_MEMORY(shared, Shared);
    if (threadIdx.x == 0) {
        begin_load(&shared.full, sizeof shared.a + sizeof shared.b);
        tma_load(shared.a, a_map, 0, 0, 0, &shared.full);
        for (int panel = 0; panel < N / 64; panel++)
            tma_load(shared.b + panel * K * 128, b_map, 0, 64 * panel, 0, &shared.full);
    }
    __syncthreads();
    mbarrier_wait(&shared.full, 0);
    const uint64_t a = wgmma_descriptor_mn<128>(shared.a, K * 128), b = wgmma_descriptor_mn<128>(shared.b, K * 128);
    float d[N / 8][4];
    wgmma_fence(d);
#pragma unroll
    for (int step = 0; step < K / 16; step++)
        wgmma<E, MN_MAJOR, MN_MAJOR>(d, wgmma_advance(a, 16 * 128 * step), wgmma_advance(b, 16 * 128 * step), step > 0);
    wgmma_commit();
    wgmma_wait<0>(d);
    write_d(d_out, row_of_d(), d);
#endif
}
template <typename E, int N, int K> static void test_wgmma_atb() {
    std::vector<unsigned char> a_bytes, b_bytes;
    const std::vector<float> a = small_integers<E>(K * 64, a_bytes), b = small_integers<E>(K * N, b_bytes);
    DeviceArray<unsigned char> device_a(a_bytes), device_b(b_bytes);
    DeviceArray<float> d(64 * N);
    LAUNCH((run_wgmma_atb<E, N, K>), 1, 128, sizeof(AtbShared<N, K>), tensor_map<E, 128>(device_a.pointer, 64, K, 1, K),
           tensor_map<E, 128>(device_b.pointer, N, K, 1, K), d.pointer);
    auto got = d.read();
    const int wrong = wrong_products(
        got.data(), 64, N, K, [&](int m, int k) { return a[k * 64 + m]; }, [&](int k, int n) { return b[k * N + n]; });
    ok(wrong == 0, "wgmma m64n%dk16 %s, %d k, A and B as they lie", N, name_of<E>(), K);
}

/* ---- bulk copies: a row at a time to shared memory, and added back ---- */

enum { BULK_ROWS = 5, BULK_FLOATS = 12 };
struct BulkShared {
    alignas(128) float row[2][BULK_FLOATS];
    Mbarrier full[2];
};
/* Row after row comes, is doubled, and is added to `sums`; two places, so a place is written again after its addition has read it. */
template <bool waits> __global__ void run_bulk(const float *rows, float *sums) {
#ifdef HOPPER
    SHARED_MEMORY(shared, BulkShared);
    if (threadIdx.x == 0) {
        mbarrier_init(&shared.full[0], 1);
        mbarrier_init(&shared.full[1], 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    for (int i = 0; i < BULK_ROWS; i++) {
        const int bytes = sizeof shared.row[i % 2];
        if (threadIdx.x == 0) {
            if (waits)
                bulk_wait_read<1>();
            mbarrier_arrive_expect(&shared.full[i % 2], bytes);
            bulk_load(shared.row[i % 2], rows + i * BULK_FLOATS, bytes, &shared.full[i % 2]);
        }
        mbarrier_wait(&shared.full[i % 2], i / 2 % 2);
        if (threadIdx.x < BULK_FLOATS)
            shared.row[i % 2][threadIdx.x] *= 2;
        proxy_fence();
        __syncthreads();
        if (threadIdx.x == 0) {
            bulk_add(sums + i / 2 * BULK_FLOATS, shared.row[i % 2], bytes);
            bulk_commit();
        }
    }
    if (threadIdx.x == 0)
        bulk_wait_read<0>();
#endif
}
static void test_bulk() {
    std::vector<float> rows(BULK_ROWS * BULK_FLOATS), sums((BULK_ROWS / 2 + 2) * BULK_FLOATS);
    for (float &x : rows)
        x = (float)(random_bits() % 100);
    for (float &x : sums)
        x = (float)(random_bits() % 100);
    DeviceArray<float> device_rows(rows), device_sums(sums), other_sums(sums);
    LAUNCH(run_bulk<true>, 1, 64, sizeof(BulkShared), device_rows.pointer, device_sums.pointer);
    for (int i = 0; i < BULK_ROWS * BULK_FLOATS; i++)
        sums[i / BULK_FLOATS / 2 * BULK_FLOATS + i % BULK_FLOATS] += 2 * rows[i];
    ok(device_sums.read() == sums, "bulk_load and bulk_add: %d rows of %d floats, two to a sum", BULK_ROWS, BULK_FLOATS);
#ifndef __CUDACC__ /* a GPU can be right by luck */
    LAUNCH(run_bulk<false>, 1, 64, sizeof(BulkShared), device_rows.pointer, other_sums.pointer);
    ok(other_sums.read() != sums, "without the wait before a place is written again the sums are wrong");
#endif
}

/* ---- wgmma: batches under way, and a tile that threads have written ---- */

/* A and B are written by the threads, swizzled by hand. Two products are under way at once; the older one is read, and begun
 * anew, while the younger one may still run: D0 = 2 A B, D1 = A B. */
__global__ void run_batches(const uint4 *a_chunks, const uint4 *b_chunks, float *d_out) {
#ifdef HOPPER
    using Shared = WgmmaShared<64, 128>;
    SHARED_MEMORY(shared, Shared);
    for (int i = threadIdx.x; i < 64 * 8; i += 128) { /* chunk i % 8 of row i / 8 */
        const int to = 16 * (i ^ i / 8 % 8);
        store_16(shared.a + to, a_chunks[i]);
        store_16(shared.b + to, b_chunks[i]);
    }
    proxy_fence();
    __syncthreads();
    const uint64_t a = wgmma_descriptor<128>(shared.a), b = wgmma_descriptor<128>(shared.b);
    float d0[8][4], d1[8][4];
    wgmma_fence(d0, d1);
#pragma unroll
    for (int step = 0; step < 4; step++)
        wgmma<__half>(d0, wgmma_advance(a, 32 * step), wgmma_advance(b, 32 * step), step > 0);
    wgmma_commit();
#pragma unroll
    for (int step = 0; step < 4; step++)
        wgmma<__half>(d1, wgmma_advance(a, 32 * step), wgmma_advance(b, 32 * step), step > 0);
    wgmma_commit();
    wgmma_wait<1>(d0);
    write_d(d_out, row_of_d(), d0);
    wgmma_fence(d0);
#pragma unroll
    for (int step = 0; step < 4; step++)
        wgmma<__half>(d0, wgmma_advance(a, 32 * step), wgmma_advance(b, 32 * step), true);
    wgmma_commit();
    wgmma_wait<0>(d0, d1);
    write_d(d_out + 64 * 64, row_of_d(), d0);
    write_d(d_out + 2 * 64 * 64, row_of_d(), d1);
#endif
}
static void test_batches() {
    std::vector<unsigned char> a_bytes, b_bytes;
    const std::vector<float> a = small_integers<__half>(64 * 64, a_bytes), b = small_integers<__half>(64 * 64, b_bytes);
    DeviceArray<unsigned char> device_a(a_bytes), device_b(b_bytes);
    DeviceArray<float> d(3 * 64 * 64);
    LAUNCH(run_batches, 1, 128, sizeof(WgmmaShared<64, 128>), (const uint4 *)device_a.pointer,
           (const uint4 *)device_b.pointer, d.pointer);
    auto got = d.read();
    int wrong = 0;
    for (int i = 0; i < 3; i++)
        wrong += wrong_products(
            got.data() + i * 64 * 64, 64, 64, 64, [&](int m, int k) { return (i == 1 ? 2 : 1) * a[m * 64 + k]; },
            [&](int k, int n) { return b[n * 64 + k]; });
    ok(wrong == 0,
       "wgmma: one batch read and begun again while another is under way; tiles written by threads, proxy_fence");
}

/* ---- named barriers ---- */

enum { TURNS = 5 };
struct TurnShared {
    int turns, order[2 * TURNS];
};
/* Two warpgroups take turns; a third has nothing to do and leaves. */
__global__ void run_turns(int *order) {
#ifdef HOPPER
    SHARED_MEMORY(shared, TurnShared);
    if (threadIdx.x == 0)
        shared.turns = 0;
    __syncthreads();
    const int group = threadIdx.x / 128;
    if (group == 0)
        return;
    if (group == 2)
        named_barrier_arrive(1, 256); /* the first turn is 1's */
    for (int turn = 0; turn < TURNS; turn++) {
        named_barrier_sync(group, 256);
        if (threadIdx.x % 128 == 0)
            shared.order[shared.turns++] = group;
        if (group == 1 || turn < TURNS - 1)
            named_barrier_arrive(3 - group, 256);
    }
    named_barrier_sync(15, 256);
    if (threadIdx.x >= 128 && threadIdx.x < 128 + 2 * TURNS)
        order[threadIdx.x - 128] = shared.order[threadIdx.x - 128];
#endif
}
static void test_turns() {
    DeviceArray<int> order(2 * TURNS);
    LAUNCH(run_turns, 1, 384, sizeof(TurnShared), order.pointer);
    auto got = order.read();
    int wrong = 0;
    for (int i = 0; i < 2 * TURNS; i++)
        wrong += got[i] != 1 + i % 2;
    ok(wrong == 0, "named barriers: two warpgroups take turns, a third has left");
}

/* ---- all together: a producer, two consumer warpgroups, a ring of two stages ---- */

enum { STAGES = 2, TILES = 7 };
struct RingShared {
    alignas(1024) unsigned char a[2][64 * 128];
    alignas(1024) unsigned char b[STAGES][64 * 128];
    Mbarrier a_full, full[STAGES], empty[STAGES];
};
/* Warpgroups 1 and 2 have 64 rows of A each, and add up A times each tile of B. */
__global__ void __launch_bounds__(384, 1)
    run_ring(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, float *d_out) {
#ifdef HOPPER
    SHARED_MEMORY(shared, RingShared);
    if (threadIdx.x == 0) {
        mbarrier_init(&shared.a_full, 1);
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&shared.full[stage], 1);
            mbarrier_init(&shared.empty[stage], 8); /* a consumer warp, one arrival */
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        setmaxnreg_decrease<24>();
        if (threadIdx.x < 32 && elect_one()) {
            mbarrier_arrive_expect(&shared.a_full, sizeof shared.a);
            tma_load(shared.a[0], a_map, 0, 0, 0, &shared.a_full);
            tma_load(shared.a[1], a_map, 64, 0, 0, &shared.a_full);
            for (int tile = 0; tile < TILES; tile++) {
                const int stage = tile % STAGES, round = tile / STAGES;
                mbarrier_wait(&shared.empty[stage], (round + 1) % 2); /* in round 0 it returns at once */
                mbarrier_arrive_expect(&shared.full[stage], sizeof shared.b[stage]);
                tma_load(shared.b[stage], b_map, 0, 0, tile, &shared.full[stage]);
            }
        }
    } else {
        setmaxnreg_increase<240>();
        const int group = threadIdx.x / 128 - 1;
        float d[8][4] = {};
        mbarrier_wait(&shared.a_full, 0);
        for (int tile = 0; tile < TILES; tile++) {
            const int stage = tile % STAGES;
            const uint64_t a = wgmma_descriptor<128>(shared.a[group]), b = wgmma_descriptor<128>(shared.b[stage]);
            mbarrier_wait(&shared.full[stage], tile / STAGES % 2);
            wgmma_fence(d);
#pragma unroll
            for (int step = 0; step < 4; step++)
                wgmma<__nv_bfloat16>(d, wgmma_advance(a, 32 * step), wgmma_advance(b, 32 * step), true);
            wgmma_commit();
            wgmma_wait<0>(d);
            if (threadIdx.x % 32 == 0)
                mbarrier_arrive(&shared.empty[stage]);
        }
        write_d(d_out, 64 * group + row_of_d(), d);
    }
#endif
}
static void test_ring() {
    std::vector<unsigned char> a_bytes, b_bytes;
    const std::vector<float> a = small_integers<__nv_bfloat16>(128 * 64, a_bytes),
                             b = small_integers<__nv_bfloat16>(TILES * 64 * 64, b_bytes);
    DeviceArray<unsigned char> device_a(a_bytes), device_b(b_bytes);
    DeviceArray<float> d(128 * 64);
    LAUNCH(run_ring, 1, 384, sizeof(RingShared), tensor_map<__nv_bfloat16, 128>(device_a.pointer, 64, 128, 1, 64),
           tensor_map<__nv_bfloat16, 128>(device_b.pointer, 64, 64, TILES, 64), d.pointer);
    auto got = d.read();
    const int wrong = wrong_products(
        got.data(), 128, 64, 64 * TILES, [&](int m, int k) { return a[m * 64 + k % 64]; },
        [&](int k, int n) { return b[(k / 64 * 64 + n) * 64 + k % 64]; });
    ok(wrong == 0, "a producer and two consumer warpgroups, %d tiles through %d stages, registers moved", TILES, STAGES);
}

template <typename E, int N> static void test_wgmmas_n() {
    test_wgmma<E, N, 128, false>();
    test_wgmma<E, N, 128, true>();
}
template <typename E> static void test_wgmmas() {
    test_wgmmas_n<E, 64>();
    test_wgmmas_n<E, 128>();
    test_wgmma<E, 64, 64, false>();
    test_wgmma<E, 128, 64, false>();
    test_wgmma<E, 64, 64, true>();
    test_wgmma<E, 128, 64, true>();
}
template <typename E> static void test_wgmmas_16() {
    test_wgmmas<E>();
    test_wgmmas_n<E, 256>();
    test_wgmma_mn<E, 64, 64, 128, false>(); /* one panel */
    test_wgmma_mn<E, 128, 176, 128, true>();
    test_wgmma_mn<E, 128, 128, 128, false>();
    test_wgmma_atb<E, 64, 64>();
    test_wgmma_atb<E, 128, 128>();
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
    test_tma_rows<64>();
    test_tma_rows<128>();
    test_mbarrier();
    test_wgmmas<E4m3>();
    test_wgmmas<E5m2>();
    test_wgmmas_16<__half>();
    test_wgmmas_16<__nv_bfloat16>();
    test_wgmma_mn<__half, 64, 192, 128, true>();
    test_wgmma_mn<__half, 64, 64, 64, true>(); /* panels of 64 bytes */
    test_wgmma_mn<__half, 256, 32, 64, true>();
    test_bulk();
    test_batches();
    test_turns();
    test_ring();
    ok(!device_damaged(), "nothing was written past the end of an array");
    return tap_done();
}
