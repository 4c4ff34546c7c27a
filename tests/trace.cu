/* trace.cu - the trace against values that can be worked out by hand: sectors, wavefronts, races.
 *
 *     make test-trace
 *
 * Each kernel below is one block of one warp, unless it says otherwise, and does one thing to memory.
 */
#include "../common/gpu/hopper.cuh"
#include "../common/gpu/tile.cuh"
#include "../common/trace/trace.h"
#include "tap.h"

#include <string.h>
#include <sys/wait.h>

/* What the kernels keep in shared memory. They are launched with more of it than they use. */
using Floats = float[32 * 33];
using Pairs = float2[32];
using Ints = int[64];
using Bytes = unsigned char[64];
using Chunks = uint4[128];
constexpr size_t SHARED = sizeof(Floats);

/* `in` and `out` are filled by each test as it likes; 64 KB each. */
constexpr size_t BYTES = 64 * 1024;
static unsigned char *in, *out;

#define TRACED(kernel, grid, block, shared, ...)                                                                            \
    (trace_begin("h200"), LAUNCH(kernel, grid, block, shared, __VA_ARGS__), trace_end())

/* "trace.cu:37" for the line of this file whose comment begins with the name. Needs the working directory of make. */
static const char *line_of(const char *name) {
    static char result[2][32];
    static int turn;
    char text[256], comment[64];
    snprintf(comment, sizeof comment, "/* %s ", name);
    FILE *file = fopen(__FILE__, "r");
    int line = 0, found = 0;
    while (file && fgets(text, sizeof text, file)) {
        line++;
        if (strstr(text, comment))
            found = line;
    }
    if (file)
        fclose(file);
    turn = !turn;
    snprintf(result[turn], sizeof *result, "trace.cu:%d", found);
    return result[turn];
}

/* ---- sectors ---- */

__global__ void coalesced(const float *from, float *to) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void coalesced_16(const float4 *from, float4 *to) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void taken_apart(const float4 *from, float4 *to) {
    float4 v = from[threadIdx.x];
    to[threadIdx.x] = make_float4(2 * v.x, v.y + 1, v.z, -v.w);
}
__global__ void stride_two(const float *from, float *to) {
    to[threadIdx.x] = from[2 * threadIdx.x]; /* stride: the worst line */
}
__global__ void off_by_one(const float *from, float *to) { to[threadIdx.x] = from[threadIdx.x + 1]; }
__global__ void same_address(const float *from, float *to) { to[threadIdx.x] = from[7]; }
__global__ void transposed_index(const float *from, float *to) { to[threadIdx.x] = from[32 * threadIdx.x]; }
__global__ void backwards(const float *from, float *to) { to[threadIdx.x] = from[31 - threadIdx.x]; }
__global__ void half_a_warp(const float *from, float *to) {
    if (threadIdx.x < 16)
        to[threadIdx.x] = from[threadIdx.x];
}
__global__ void asynchronous(const __half *from, float *to) {
    SHARED_MEMORY(tile, Chunks);
    cp_async_16(&tile[threadIdx.x], from + 8 * threadIdx.x, threadIdx.x < 31); /* the last lane's row does not exist */
    cp_async_commit();
    cp_async_wait<0>();
    to[threadIdx.x] = tile[threadIdx.x].x;
}
/* 16 lanes read 16 sectors; then all read one. The shuffle between keeps the two turns apart though the lanes' visits
 * differ. */
__global__ void two_turns(const float *from, float *to) {
    float sum = 0;
    for (int turn = 0; turn < 2; turn++) {
        if (turn == 1 || threadIdx.x < 16)
            sum += from[turn == 1 ? 1024 : 8 * threadIdx.x];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
    }
    to[threadIdx.x] = sum;
}

__global__ void wide_atomic(float *to) { atomic_add_4(to + 4 * threadIdx.x, make_float4(1, 2, 3, 4)); }

/* sectors and ideal of a request that reads `from`, for one launch of one warp */
static void check_read(const Trace *trace, const char *kernel, unsigned bytes, unsigned sectors, unsigned ideal) {
    const TraceRow *row = trace_find(trace, kernel, "in");
    if (!ok(row->bytes[TRACE_READ] == bytes && row->requests[TRACE_READ] == 1 && row->cost[TRACE_READ] == sectors &&
                row->ideal[TRACE_READ] == ideal,
            "%s: %u bytes, %u sectors, %u ideal", kernel, bytes, sectors, ideal))
        diag("%llu bytes, %llu requests, %llu sectors, %llu ideal", (unsigned long long)row->bytes[TRACE_READ],
             (unsigned long long)row->requests[TRACE_READ], (unsigned long long)row->cost[TRACE_READ],
             (unsigned long long)row->ideal[TRACE_READ]);
}
#define CHECK_READ(kernel, From, To, shared, bytes, sectors, ideal)                                                         \
    check_read(TRACED(kernel, 1, 32, shared, (const From *)in, (To *)out), #kernel, bytes, sectors, ideal)

static void test_sectors() {
    CHECK_READ(coalesced, float, float, 0, 128, 4, 4);
    CHECK_READ(coalesced_16, float4, float4, 0, 512, 16, 16);
    CHECK_READ(taken_apart, float4, float4, 0, 512, 16, 16);
    CHECK_READ(stride_two, float, float, 0, 128, 8, 4);
    CHECK_READ(off_by_one, float, float, 0, 128, 5, 4);
    CHECK_READ(same_address, float, float, 0, 128, 1, 1);
    CHECK_READ(transposed_index, float, float, 0, 128, 32, 4);
    CHECK_READ(backwards, float, float, 0, 128, 4, 4);
    CHECK_READ(half_a_warp, float, float, 0, 64, 2, 2);
    CHECK_READ(asynchronous, __half, float, SHARED, 496, 16, 16);
    const TraceRow *copied = trace_find(TRACED(asynchronous, 1, 32, SHARED, (const __half *)in, (float *)out), "asynchronous",
                                        SHARED_MEMORY_NAME);
    ok(copied->requests[TRACE_WRITE] == 1 && copied->bytes[TRACE_WRITE] == 512, "a copy of zeros is a part of the same request");
    const TraceRow *turns = trace_find(TRACED(two_turns, 1, 32, 0, (const float *)in, (float *)out), "two_turns", "in");
    ok(turns->requests[TRACE_READ] == 2 && turns->cost[TRACE_READ] == 17 && !turns->approximate,
       "two_turns: 16 sectors, then 1");
    const TraceRow *written =
        trace_find(TRACED(taken_apart, 1, 32, 0, (const float4 *)in, (float4 *)out), "taken_apart", "out");
    ok(written->bytes[TRACE_WRITE] == 512 && written->requests[TRACE_WRITE] == 1 && written->cost[TRACE_WRITE] == 16,
       "a float4 made of four numbers is one 16-byte store");
    const TraceRow *row = trace_find(TRACED(same_address, 2, 32, 0, (const float *)in, (float *)out), "same_address", "in");
    ok(row->bytes[TRACE_READ] == 256 && row->unique[TRACE_READ] == 4, "4 bytes read 64 times: 256 bytes, 4 different ones");
    const TraceRow *atomic = trace_find(TRACED(wide_atomic, 1, 32, 0, (float *)out), "wide_atomic", "out");
    ok(atomic->requests[TRACE_WRITE] == 1 && atomic->bytes[TRACE_WRITE] == 512 && atomic->bytes[TRACE_READ] == 512 &&
           atomic->cost[TRACE_WRITE] == 16 && atomic->unique[TRACE_READ] == 512,
       "an atomic of 16 bytes is one request, that reads and writes");
    const TraceRow *worst = trace_find(TRACED(stride_two, 1, 32, 0, (const float *)in, (float *)out), "stride_two", "in");
    ok(strcmp(worst->worst_line, line_of("stride:")) == 0 && worst->worst_cost == 8, "the worst line is named: %s",
       worst->worst_line);
}

/* ---- wavefronts ---- */

template <int Pitch> __global__ void transpose(float *to) {
    SHARED_MEMORY(tile, Floats);
    for (int row = 0; row < 32; row++)
        tile[row * Pitch + threadIdx.x] = row; /* a row: 32 banks */
    __syncwarp();
    to[threadIdx.x] = tile[threadIdx.x * Pitch]; /* a column */
}
__global__ void shared_8(float *to) {
    SHARED_MEMORY(tile, Pairs);
    tile[threadIdx.x] = make_float2(threadIdx.x, 1);
    __syncwarp();
    to[threadIdx.x] = tile[31 - threadIdx.x].x;
}
__global__ void shared_broadcast(float *to) {
    SHARED_MEMORY(tile, Floats);
    tile[threadIdx.x] = threadIdx.x;
    __syncwarp();
    to[threadIdx.x] = tile[5];
}
template <bool swizzled> __global__ void ldmatrix_rows(uint32_t *to) {
    SHARED_MEMORY(tile, Chunks); /* 16 rows of 128 bytes */
    int row = threadIdx.x % 16, chunk = threadIdx.x / 16;
    uint32_t r[4];
    ldmatrix_x4(r, &tile[8 * row + (swizzled ? chunk ^ (row & 7) : chunk)]);
    to[threadIdx.x] = r[0] + r[1] + r[2] + r[3];
}

static void check_shared(const TraceRow *row, int direction, unsigned wavefronts, unsigned ideal, const char *name) {
    if (!ok(row->cost[direction] == wavefronts && row->ideal[direction] == ideal, "%s: %u wavefronts, %u ideal", name,
            wavefronts, ideal))
        diag("%llu wavefronts, %llu ideal", (unsigned long long)row->cost[direction],
             (unsigned long long)row->ideal[direction]);
}

static void test_wavefronts() {
    const TraceRow *row = trace_find(TRACED(transpose<32>, 1, 32, SHARED, (float *)out), "transpose", SHARED_MEMORY_NAME);
    check_shared(row, TRACE_WRITE, 32, 32, "32 rows");
    check_shared(row, TRACE_READ, 32, 1, "a column at pitch 32");
    row = trace_find(TRACED(transpose<33>, 1, 32, SHARED, (float *)out), "transpose", SHARED_MEMORY_NAME);
    check_shared(row, TRACE_READ, 1, 1, "a column at pitch 33");
    row = trace_find(TRACED(shared_8, 1, 32, SHARED, (float *)out), "shared_8", SHARED_MEMORY_NAME);
    check_shared(row, TRACE_WRITE, 2, 2, "8 bytes per lane");
    check_shared(row, TRACE_READ, 2, 1, "every second word");
    row = trace_find(TRACED(shared_broadcast, 1, 32, SHARED, (float *)out), "shared_broadcast", SHARED_MEMORY_NAME);
    check_shared(row, TRACE_READ, 1, 1, "one word for all lanes");
    const TraceRow *plain =
        trace_find(TRACED(ldmatrix_rows<false>, 1, 32, SHARED, (uint32_t *)out), "ldmatrix_rows", SHARED_MEMORY_NAME);
    check_shared(plain, TRACE_READ, 32, 4, "ldmatrix.x4 of plain 128-byte rows");
    row = trace_find(TRACED(ldmatrix_rows<true>, 1, 32, SHARED, (uint32_t *)out), "ldmatrix_rows", SHARED_MEMORY_NAME);
    check_shared(row, TRACE_READ, 4, 4, "ldmatrix.x4 of swizzled rows");
}

/* ---- races. Each kernel is right with <true> and wrong with <false>. Two warps per block. ---- */

template <bool right> __global__ void read_after_write(int *to) {
    SHARED_MEMORY(tile, Ints);
    tile[threadIdx.x] = threadIdx.x; /* raw: write */
    if (right)
        __syncthreads();
    to[threadIdx.x] = tile[63 - threadIdx.x]; /* raw: read */
}
template <bool right> __global__ void overwrite(int *to) { /* warp 0 runs first: it has read when warp 1 writes */
    SHARED_MEMORY(tile, Ints);
    tile[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x < 32)
        to[threadIdx.x] = tile[threadIdx.x + 32]; /* overwrite: read */
    if (right)
        __syncthreads();
    if (threadIdx.x >= 32)
        tile[threadIdx.x] = 1; /* overwrite: write */
}
template <bool right> __global__ void write_after_read(int *to) {
    SHARED_MEMORY(tile, Ints);
    for (int turn = 0; turn < 3; turn++) {
        tile[threadIdx.x] = turn; /* war: write in the next turn */
        __syncthreads();
        to[threadIdx.x] = tile[(threadIdx.x + 32) % 64]; /* war: read */
        if (right)
            __syncthreads();
    }
}
template <bool right> __global__ void lanes_of_a_warp(int *to) {
    SHARED_MEMORY(tile, Ints);
    tile[threadIdx.x] = threadIdx.x; /* lanes: write */
    if (right)
        __syncwarp();
    to[threadIdx.x] = tile[threadIdx.x ^ 1]; /* lanes: read */
}
/* The trace remembers two readers of a byte: lanes 0 and 1 of warp 0, until warp 1 reads it as well. Warp 0 waits for warp 2, and so
 * writes after warp 1's read, but not because of it. */
template <bool right> __global__ void third_reader(int *to) {
    SHARED_MEMORY(tile, Ints);
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0)
        tile[0] = 0;
    __syncthreads();
    if (warp < 2 && threadIdx.x % 32 < 2)
        to[threadIdx.x] = tile[0]; /* third: read */
    if (right)
        __syncthreads();
    else if (warp != 1)
        named_barrier_sync(1, 64);
    if (threadIdx.x == 0)
        tile[0] = 1; /* third: write */
}
__global__ void shuffle_between(int *to) {
    SHARED_MEMORY(tile, Ints);
    tile[threadIdx.x] = threadIdx.x; /* shuffle: write */
    int one = __shfl_xor_sync(0xffffffff, 1, 1);
    to[threadIdx.x] = one + tile[threadIdx.x ^ 1]; /* shuffle: read */
}
__global__ void bytes_of_a_word(int *to) {
    SHARED_MEMORY(tile, Bytes);
    tile[threadIdx.x] = threadIdx.x;
    to[threadIdx.x] = tile[threadIdx.x];
}
template <bool right> __global__ void copy_while_in_use(const __half *from, int *to) {
    SHARED_MEMORY(tile, Chunks);
    tile[threadIdx.x] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    to[threadIdx.x] = tile[63 - threadIdx.x].x; /* copy: read */
    if (right)
        __syncthreads();
    cp_async_16(&tile[threadIdx.x], from + 8 * threadIdx.x); /* copy: issue */
    cp_async_commit();
    cp_async_wait<0>();
}
template <bool right> __global__ void barrier_before_wait(const __half *from, int *to) {
    SHARED_MEMORY(tile, Chunks);
    cp_async_16(&tile[threadIdx.x], from + 8 * threadIdx.x); /* wait: issue */
    cp_async_commit();
    if (!right)
        __syncthreads();
    cp_async_wait<0>();
    if (right)
        __syncthreads();
    to[threadIdx.x] = tile[63 - threadIdx.x].x; /* wait: read */
}
/* Two copies of a tile, each with an mbarrier of its own: only a barrier orders everybody's reads before the next copy. */
struct Loaded {
    alignas(1024) int tile[8 * 32];
    Mbarrier full[2];
};
template <bool right> __global__ void tile_given_back(const __grid_constant__ TensorMap map, int *to) {
    SHARED_MEMORY(shared, Loaded);
    if (threadIdx.x == 0)
        mbarrier_init(&shared.full[0], 1), mbarrier_init(&shared.full[1], 1);
    __syncthreads();
    for (int turn = 0; turn < 2; turn++) {
        if (threadIdx.x == 0) {
            mbarrier_arrive_expect(&shared.full[turn], sizeof shared.tile);
            tma_load(shared.tile, map, 0, 0, 0, &shared.full[turn]); /* tma: issue */
        }
        __syncthreads();
        mbarrier_wait(&shared.full[turn], 0);
        to[threadIdx.x] = shared.tile[threadIdx.x]; /* tma: read */
        if (right)
            __syncthreads();
    }
}
/* What a bulk addition reads has been written by another thread, and is written again. */
enum BulkDefect { BULK_RIGHT, BULK_NO_WAIT, BULK_NO_FENCE, BULK_EARLY_FENCE };
template <BulkDefect defect> __global__ void added(float *to) {
    SHARED_MEMORY(shared, Loaded);
    for (int turn = 0; turn < 2; turn++) {
        if (defect == BULK_EARLY_FENCE)
            proxy_fence();
        shared.tile[threadIdx.x] = threadIdx.x; /* added: write */
        if (defect != BULK_NO_FENCE && defect != BULK_EARLY_FENCE)
            proxy_fence();
        __syncthreads();
        if (threadIdx.x == 0) {
            bulk_add(to, shared.tile, 256); /* added: add */
            bulk_commit();
            if (defect != BULK_NO_WAIT)
                bulk_wait_read<0>();
        }
        __syncthreads();
    }
}
/* A producer, two consumer warpgroups, a ring of two stages; and A, which the consumers write themselves. */
enum Defect {
    RIGHT, NO_FULL, WRONG_FULL, NO_EMPTY, WRONG_EMPTY, EARLY_EMPTY, ONE_FOR_ALL, THREE_OF_FOUR, NO_SYNCWARP, NO_FENCE, LATE_FENCE, NO_NAMED,
    EARLY_READ
};
struct Ring {
    alignas(1024) unsigned char a[2][64 * 128], b[2][64 * 128];
    Mbarrier full[2], empty[2];
};
template <Defect defect> __global__ void ring(const __grid_constant__ TensorMap map, float *to) {
    SHARED_MEMORY(shared, Ring);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < 2; stage++) {
            mbarrier_init(&shared.full[stage], 1);
            mbarrier_init(&shared.empty[stage], defect == ONE_FOR_ALL ? 2 : defect == THREE_OF_FOUR ? 7 : 8);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    const int group = threadIdx.x / 128 - 1;
    if (group < 0) {
        if (threadIdx.x > 0)
            return;
        for (int tile = 0; tile < 5; tile++) {
            const int stage = tile % 2, round = tile / 2;
            if (defect != NO_EMPTY)
                mbarrier_wait(&shared.empty[stage], defect == WRONG_EMPTY ? 1 : (round + 1) % 2);
            mbarrier_arrive_expect(&shared.full[stage], sizeof shared.b[stage]);
            tma_load(shared.b[stage], map, 0, 0, 0, &shared.full[stage]); /* ring: copy */
        }
        return;
    }
    for (int i = threadIdx.x % 128; i < 64 * 8; i += 128)
        store_16(shared.a[group] + 16 * i, make_uint4(0, 0, 0, 0)); /* ring: write */
    if (defect != NO_FENCE && defect != LATE_FENCE)
        proxy_fence();
    if (defect != NO_NAMED)
        named_barrier_sync(1 + group, 128);
    if (defect == LATE_FENCE)
        proxy_fence();
    float d[2][8][4] = {}, sum = 0;
    for (int tile = 0; tile < 5; tile++) {
        const int stage = tile % 2, round = tile / 2;
        if (defect == EARLY_READ)
            sum += shared.b[stage][threadIdx.x % 128]; /* ring: early read */
        if (defect != NO_FULL)
            mbarrier_wait(&shared.full[stage], defect == WRONG_FULL ? (round + 1) % 2 : round % 2);
        wgmma_fence(d[0], d[1]);
        const uint64_t a = wgmma_descriptor<128>(shared.a[group]);
        wgmma<__half>(d[0], a, wgmma_descriptor<128>(shared.b[stage]), true); /* ring: multiply */
        wgmma_commit();
        const uint64_t again = wgmma_descriptor_mn<128>(shared.b[stage], 0);
        wgmma<__half, MN_MAJOR>(d[1], a, again, true); /* ring: again */
        wgmma_commit();
        wgmma_wait<1>(d[0]);
        if (defect != EARLY_EMPTY)
            wgmma_wait<0>(d[1]);
        if (defect == NO_SYNCWARP)
            sum += shared.b[stage][threadIdx.x % 128]; /* ring: read */
        if (threadIdx.x % (defect == ONE_FOR_ALL ? 128 : 32) == 0 && (defect != THREE_OF_FOUR || threadIdx.x < 352))
            mbarrier_arrive(&shared.empty[stage]);
        if (defect == EARLY_EMPTY)
            wgmma_wait<0>(d[1]);
    }
    to[blockIdx.x * 384 + threadIdx.x] = d[0][0][0] + d[1][0][0] + sum;
}
template <bool right> __global__ void blocks(int *to) {
    to[right ? blockIdx.x * 64 + threadIdx.x : threadIdx.x] = 1; /* blocks: write */
}
template <bool right> __global__ void sum_of_blocks(int *to) {
    if (right)
        atomicAdd(to, 1);
    else
        *to = *to + 1; /* sum: read and write */
}
template <bool right> __global__ void one_does_it_plainly(int *to) {
    if (right || blockIdx.x == 0)
        atomicAdd(to, 1); /* plainly: atomic */
    else
        *to = 1; /* plainly: write */
}
/* The block that comes last reads what all have written: each fences its writes, then counts itself in an atomic. */
template <bool right> __global__ void last_block(int *to, unsigned *counter) {
    SHARED_MEMORY(is_last, int);
    to[blockIdx.x * 64 + threadIdx.x] = 1; /* last: write */
    if (right || blockIdx.x == 0)          /* one fence is not enough */
        __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        is_last = atomicAdd(counter, 1u) % gridDim.x == gridDim.x - 1;
    __syncthreads();
    if (is_last)
        for (unsigned i = threadIdx.x; i < 64 * gridDim.x; i += 64)
            to[1024 + i] = to[(i + 1) % (64 * gridDim.x)]; /* last: read */
}

static void no_race(const Trace *trace, const char *name) {
    if (!ok(trace->race_count == 0, "%s: no race", name))
        diag("%s and %s", trace->races[0].line[0], trace->races[0].line[1]);
}

/* A race between the lines of these two comments, in either order. The fibers' order decides which comes first. */
static void one_race(const Trace *trace, const char *name, const char *first, const char *second) {
    const char *a = line_of(first), *b = line_of(second);
    int found = 0;
    for (int i = 0; i < trace->race_count; i++) {
        const TraceRace *race = &trace->races[i];
        found |= (strcmp(race->line[0], a) == 0 && strcmp(race->line[1], b) == 0) ||
                 (strcmp(race->line[0], b) == 0 && strcmp(race->line[1], a) == 0);
    }
    if (!ok(found, "%s: a race between %s and %s", name, a, b))
        for (int i = 0; i < trace->race_count; i++)
            diag("%s and %s", trace->races[i].line[0], trace->races[i].line[1]);
}

/* A kernel that has none with <true>, and this one with <false>. */
#define RIGHT_AND_WRONG(kernel, grid, block, name, first, second, ...)                                                      \
    (no_race(TRACED(kernel<true>, grid, block, SHARED, __VA_ARGS__), name ", ordered"),                                     \
     one_race(TRACED(kernel<false>, grid, block, SHARED, __VA_ARGS__), name, first, second))

template <Defect defect> static const Trace *trace_ring() {
    return TRACED(ring<defect>, 2, 384, sizeof(Ring), tensor_map<__half, 128>(in, 64, 64, 1, 64), (float *)out);
}
/* What is wrong, where that shows, and whether it is only that a proxy_fence is missing. */
static const struct {
    const char *name;
    const Trace *(*run)();
    const char *a, *b;
    int unpublished;
} defects[] = {
    {"a tile not waited for", trace_ring<NO_FULL>, "ring: copy", "ring: multiply", 0},
    {"a tile waited for with the wrong parity", trace_ring<WRONG_FULL>, "ring: copy", "ring: multiply", 0},
    {"a tile read before it is waited for", trace_ring<EARLY_READ>, "ring: copy", "ring: early read", 0},
    {"a stage filled again without its empty barrier", trace_ring<NO_EMPTY>, "ring: copy", "ring: multiply", 0},
    {"a stage waited for with the wrong parity", trace_ring<WRONG_EMPTY>, "ring: copy", "ring: multiply", 0},
    {"a stage given back before wgmma is done", trace_ring<EARLY_EMPTY>, "ring: copy", "ring: again", 0},
    {"a stage given back by one warp for four", trace_ring<ONE_FOR_ALL>, "ring: copy", "ring: multiply", 0},
    {"a stage given back by three warps for four", trace_ring<THREE_OF_FOUR>, "ring: copy", "ring: multiply", 0},
    {"a stage given back by one lane for its warp", trace_ring<NO_SYNCWARP>, "ring: copy", "ring: read", 0},
    {"a tile written without proxy_fence", trace_ring<NO_FENCE>, "ring: write", "ring: multiply", 1},
    {"proxy_fence after the barrier", trace_ring<LATE_FENCE>, "ring: write", "ring: multiply", 1},
    {"a tile written without a barrier", trace_ring<NO_NAMED>, "ring: write", "ring: multiply", 0},
};
/* Each defect is run by a child, `trace NUMBER`: some end in a deadlock, and the races are printed all the same. */
static void test_rings(const char *program) {
    no_race(trace_ring<RIGHT>(), "a ring with full and empty barriers");
    for (size_t i = 0; i < sizeof defects / sizeof *defects; i++) {
        char text[8192], command[256], at[2][64];
        snprintf(command, sizeof command, "CPU_DEVICE_ORDER=forward %s %zu 2>&1", program, i);
        FILE *child = popen(command, "r");
        text[child ? fread(text, 1, sizeof text - 1, child) : 0] = 0;
        const int status = child ? pclose(child) : -1;
        snprintf(at[0], sizeof at[0], " at %s", line_of(defects[i].a));
        snprintf(at[1], sizeof at[1], " at %s", line_of(defects[i].b));
        int found = 0, others = 0;
        for (char *race = strtok(text, "R"); race; race = strtok(nullptr, "R")) { /* "RACE in ...", each */
            if (strncmp(race, "ACE ", 4) != 0)
                continue;
            found |= strstr(race, at[0]) && strstr(race, at[1]);
            others |= !strstr(race, "proxy_fence") != !defects[i].unpublished;
        }
        ok(found && !others && status != 0, "%s: %s and %s%s", defects[i].name, at[0], at[1],
           defects[i].unpublished ? ", no proxy_fence" : "");
    }
}

static void test_races() {
    int *to = (int *)out;
    unsigned *counter = (unsigned *)in;
    const __half *from = (const __half *)in;
    RIGHT_AND_WRONG(read_after_write, 1, 64, "read after write", "raw: write", "raw: read", to);
    RIGHT_AND_WRONG(overwrite, 1, 64, "read, then overwrite", "overwrite: write", "overwrite: read", to);
    RIGHT_AND_WRONG(write_after_read, 1, 64, "write after read", "war: write", "war: read", to);
    RIGHT_AND_WRONG(lanes_of_a_warp, 1, 64, "lanes of a warp", "lanes: write", "lanes: read", to);
    RIGHT_AND_WRONG(third_reader, 1, 96, "two readers of the writer's warp and one of another", "third: write", "third: read", to);
    one_race(TRACED(shuffle_between, 1, 64, SHARED, to), "a shuffle is no barrier", "shuffle: write", "shuffle: read");
    no_race(TRACED(bytes_of_a_word, 1, 64, SHARED, to), "different bytes of one word");
    RIGHT_AND_WRONG(copy_while_in_use, 1, 64, "copy after use", "copy: read", "copy: issue", from, to);
    RIGHT_AND_WRONG(barrier_before_wait, 1, 64, "copy, wait, barrier", "wait: issue", "wait: read", from, to);
    const TensorMap map = tensor_map<__half, 128>(in, 64, 8, 1, 8);
    RIGHT_AND_WRONG(tile_given_back, 1, 64, "TMA, given back", "tma: issue", "tma: read", map, to);
    no_race(TRACED(added<BULK_RIGHT>, 2, 64, SHARED, (float *)out), "bulk additions");
    one_race(TRACED(added<BULK_NO_WAIT>, 2, 64, SHARED, (float *)out), "a bulk addition, not waited for", "added: write", "added: add");
    one_race(TRACED(added<BULK_NO_FENCE>, 2, 64, SHARED, (float *)out), "a bulk addition, no proxy_fence", "added: write", "added: add");
    one_race(TRACED(added<BULK_EARLY_FENCE>, 2, 64, SHARED, (float *)out), "a bulk addition, proxy_fence just before the write", "added: write",
             "added: add");
    RIGHT_AND_WRONG(blocks, 4, 64, "blocks that write", "blocks: write", "blocks: write", to);
    RIGHT_AND_WRONG(sum_of_blocks, 4, 64, "a sum", "sum: read", "sum: read", to);
    RIGHT_AND_WRONG(one_does_it_plainly, 2, 64, "an atomic and a plain write", "plainly: atomic", "plainly: write", to);
    RIGHT_AND_WRONG(last_block, 4, 64, "the last block goes on", "last: write", "last: read", to, counter);
}

/* ---- blocks that meet, in the order of the model's clock ---- */

/* Each block waits until the one before it is done. There are more of them than multiprocessors. */
enum Wait { BY_ADDING, BY_SWAPPING, BY_LOADING, BY_VOLATILE };
template <Wait wait> __global__ void chain(int *to, int *done) {
    const int before = blockIdx.x;
    if (threadIdx.x == 0) {
        if (wait == BY_ADDING)
            while (atomicAdd(done, 0) < before) {
            }
        if (wait == BY_SWAPPING)
            while (atomicCAS(done, before, before) != before) {
            }
        if (wait == BY_LOADING)
            wait_ordered(done, before);
        if (wait == BY_VOLATILE)
            while (*(volatile int *)done < before) {
            }
    }
    __syncthreads();
    to[64 * (before + 1) + threadIdx.x] = to[64 * before + threadIdx.x] + 1;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        atomicAdd(done, 1);
}
template <Wait wait> static void test_chain(const char *name) {
    const int blocks = 200;
    int *to = (int *)out, *done = (int *)in, right = 0;
    memset(in, 0, BYTES), memset(out, 0, BYTES);
    no_race(TRACED(chain<wait>, blocks, 64, 0, to, done), name);
    for (int i = 0; i < 64; i++)
        right += to[64 * blocks + i] == blocks;
    ok(right == 64, "%s: %d blocks, one after the other", name, blocks);
}

/* The first blocks read the most, and so draw last. */
__global__ void draw(const float *from, int *tickets, int *counter) {
    float sum = 0;
    for (unsigned i = 0; i < 4 * (gridDim.x - blockIdx.x); i++)
        sum += from[32 * i + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0)
        tickets[blockIdx.x] = atomicAdd(counter, sum == 0);
}

static void test_meeting() {
    test_chain<BY_ADDING>("a chain of blocks, by atomicAdd of 0");
    test_chain<BY_SWAPPING>("a chain of blocks, by atomicCAS");
    test_chain<BY_LOADING>("a chain of blocks, by loads that acquire");
    test_chain<BY_VOLATILE>("a chain of blocks, by volatile reads");
    int *tickets = (int *)out, right = 0;
    memset(in, 0, BYTES);
    no_race(TRACED(draw, 16, 32, 0, (const float *)in, tickets, (int *)(out + 1024)), "tickets");
    for (int i = 0; i < 16; i++)
        right += tickets[i] - tickets[15] == 15 - i;
    ok(right == 16, "who is ready first draws first");
}

/* ---- limits ---- */

__global__ void forever(int *done) {
    while (atomicAdd(done, 0) == 0) {
    }
}

__global__ void collectives(const char (*kinds)[8], int count) {
    for (int i = 0; i < count; i++)
        simt_collective(kinds[i], SIMT_FULL_WARP, nullptr, nullptr, __FILE__, __LINE__);
}
static const Trace *trace_collectives(int count) {
    static char kinds[TRACE_COLLECTIVES + 1][8];
    for (int i = 0; i <= TRACE_COLLECTIVES; i++)
        snprintf(kinds[i], sizeof kinds[i], "kind %d", i);
    return TRACED(collectives, 1, 32, 0, kinds, count);
}

/* What a child, `trace WHAT NUMBER`, says: whether it is this one line, with this exit code. */
static int says(const char *program, const char *what, int number, const char *line, int code, int *status) {
    char text[256], command[256];
    snprintf(command, sizeof command, "CPU_DEVICE_THREADS=1 %s %s %d 2>&1", program, what, number);
    FILE *child = popen(command, "r");
    text[child ? fread(text, 1, sizeof text - 1, child) : 0] = 0;
    *status = child ? pclose(child) : -1;
    return WIFEXITED(*status) && WEXITSTATUS(*status) == code && strstr(text, line) && strchr(text, '\n') == strrchr(text, '\n');
}

/* ---- what is in no tensor: before it and behind it on its own pages, and beyond them, by all ways to get there ---- */

__global__ void outside(float *to, int index, int way) {
    SHARED_MEMORY(tile, Floats);
    if (way == 0)
        to[index] = 1; /* outside: plain */
    else if (way == 1)
        atomicAdd(to + index, 1.0f); /* outside: atomic */
    else if (way == 2)
        *(float4 *)(to + index) = make_float4(1, 2, 3, 4); /* outside: wide */
    else
        tile[index] = 1; /* outside: shared */
}
static const struct {
    int index, way;
    const char *line, *says;
} strays[] = {
    {25, 0, "outside: plain", "byte 100 of the nearest, small, which has 100"},
    {24, 2, "outside: wide", "byte 100 of the nearest, small, which has 100"}, /* its first four bytes are inside */
    {25, 1, "outside: atomic", "byte 100 of the nearest, small, which has 100"},
    {-1, 0, "outside: plain", "byte -4 of the nearest, small, which has 100"},
    {100000, 0, "outside: plain", "byte 400000 of the nearest, small, which has 100"},
    {100000, 1, "outside: atomic", "byte 400000 of the nearest, small, which has 100"},
    {32 * 33, 3, "outside: shared", "byte 4224 of the nearest, shared memory, which has 4224"},
    {-1, 3, "outside: shared", "byte -4 of the nearest, shared memory, which has 4224"},
};
static int trace_stray(int number) {
    float *small = (float *)device_alloc(100, "small");
    return TRACED(outside, 1, 1, SHARED, small, strays[number].index, strays[number].way)->race_count;
}
static void test_strays(const char *program) {
    for (int i = 0; i < (int)(sizeof strays / sizeof *strays); i++) {
        char line[128];
        int status;
        snprintf(line, sizeof line, "; it would be %s (%s)\n", strays[i].says, line_of(strays[i].line));
        ok(says(program, "stray", i, line, 2, &status), "%s: %s", strays[i].line, strays[i].says);
    }
}

/* The allocation that fails: the n-th from now on; 0: none. glibc's own calloc stands behind. */
static int failing;
extern "C" void *__libc_calloc(size_t count, size_t size);
extern "C" void *calloc(size_t count, size_t size) noexcept {
    return failing && --failing == 0 ? nullptr : __libc_calloc(count, size);
}

/* 2 of each lane, and 2 more each of its turns: lane i takes i % 4. A conversion is none. */
__global__ void arithmetic(const float *from, float *to) {
    float sum = from[threadIdx.x] / 3 - 1;
    for (int turn = 0; turn < (int)threadIdx.x % 4; turn++)
        sum += 2.5f * from[turn];
    to[threadIdx.x] = __half2float(__float2half(sum));
}

/* One of each kind by each lane. */
__global__ void exponentials(const float *from, float *to) {
    to[threadIdx.x] = expf(from[0]) + exp2f(from[1]) + tanhf(from[2]);
}

static void test_limits(const char *program) {
    int count = (int)TRACED(exponentials, 1, 32, 0, (const float *)in, (float *)out)->kernels->exponentials;
    ok(count == 32 * 3, "exponentials: %d", count);
    int flops = (int)TRACED(arithmetic, 1, 32, 0, (const float *)in, (float *)out)->kernels->cuda_flops;
    ok(flops == 32 * 2 + 8 * (0 + 1 + 2 + 3) * 2, "FLOPs of CUDA cores: %d", flops);

    const TraceKernel *kernel = trace_collectives(TRACE_COLLECTIVES)->kernels;
    int right = 0;
    for (const TraceCollective *c = kernel->collectives; c->what; c++)
        right += c->count == 1;
    ok(right == TRACE_COLLECTIVES, "%d kinds of collectives in one kernel", TRACE_COLLECTIVES);
    int status = 0, failed = 0;
    const char *line = "trace: kernel collectives has more than 15 kinds of collectives\n";
    ok(says(program, "collectives", TRACE_COLLECTIVES + 1, line, 2, &status), "one more is an error");
    line = ": waits for memory that no block will change anymore (";
    ok(says(program, "forever", 3, line, 1, &status), "blocks that wait in vain");
    while (says(program, "memory", failed + 1, "memory", 2, &status))
        failed++;
    ok(failed > 5 && status == 0, "each of its %d allocations may fail: one line, exit code 2", failed);
}

int main(int argc, char **argv) {
    in = (unsigned char *)device_alloc(BYTES, "in");
    out = (unsigned char *)device_alloc(BYTES, "out");
    memset(in, 0, BYTES);
    if (argc == 3 && strcmp(argv[1], "collectives") == 0)
        return trace_collectives(atoi(argv[2]))->race_count;
    if (argc == 3 && strcmp(argv[1], "stray") == 0)
        return trace_stray(atoi(argv[2]));
    if (argc == 3 && strcmp(argv[1], "forever") == 0)
        return TRACED(forever, atoi(argv[2]), 32, 0, (int *)in)->race_count;
    if (argc == 3) {
        LAUNCH(coalesced, 1, 32, 0, (const float *)in, (float *)out); /* the device has what it needs */
        failing = atoi(argv[2]);
        return TRACED(coalesced, 1, 32, 0, (const float *)in, (float *)out)->race_count;
    }
    if (argc == 2) {
        const Trace *trace = defects[atoi(argv[1])].run();
        trace_print_races(trace, stdout);
        return trace->race_count > 0;
    }
    test_sectors();
    test_wavefronts();
    test_races();
    test_rings(argv[0]);
    test_strays(argv[0]);
    test_meeting();
    test_limits(argv[0]);
    return tap_done();
}
