/* simt.cu - does the CPU device mean by CUDA's words what CUDA means? Grids, barriers, shuffles, votes, atomics, shared
 * memory and asynchronous copies, each under all three orders of threads (CPU_DEVICE_ORDER). CPU device only. */
#include "../common/gpu/hopper.cuh"
#include "tap.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CELLS = 4096 };
static float *cells;  /* device memory that every test may use */
static int *counters; /* the same, as integers */
static const char *order;

static int is_nan(float value) { return value != value; }

static void clear_counters(void) { memset(counters, 0, CELLS * sizeof *counters); }

/* How many of the first `count` counters differ from what want(i) says. */
static int wrong_counters(int count, int (*want)(int i)) {
    int wrong = 0;
    for (int i = 0; i < count; i++)
        wrong += counters[i] != want(i);
    return wrong;
}

/* ---- grids and blocks ---- */

__global__ void count_visits(int *visits) {
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    atomicAdd(&visits[block * blockDim.x * blockDim.y * blockDim.z + thread], 1);
}

static void test_grid(void) {
    clear_counters();
    LAUNCH(count_visits, dim3(3, 2, 4), dim3(5, 3, 2), 0, counters);
    ok(wrong_counters(CELLS, [](int i) { return (int)(i < 24 * 30); }) == 0, "every thread of a 3-d grid runs once");
    clear_counters();
    LAUNCH(count_visits, 3, 1024, 0, counters);
    ok(wrong_counters(CELLS, [](int i) { return (int)(i < 3 * 1024); }) == 0, "blocks of 1024 threads");
    clear_counters();
    LAUNCH(count_visits, 1000, 1, 0, counters);
    ok(wrong_counters(CELLS, [](int i) { return (int)(i < 1000); }) == 0, "blocks of one thread");
}

/* ---- barriers ---- */

struct Row {
    float element[1024];
};

/* Hands each thread's value to its left neighbor, `rounds` times; `barriers` says whether it waits as it must. */
__global__ void rotate(float *out, int rounds, bool barriers) {
    SHARED_MEMORY(row, Row);
    int i = threadIdx.x, n = blockDim.x;
    float value = i;
    for (int round = 0; round < rounds; round++) {
        row.element[i] = value;
        if (barriers)
            __syncthreads();
        value = row.element[(i + 1) % n];
        if (barriers)
            __syncthreads();
    }
    out[blockIdx.x * n + i] = value;
}

__global__ void vote_in_block(int *out) {
    int i = threadIdx.x;
    out[i] = __syncthreads_count(i % 3 == 0) * 100 + __syncthreads_or(i == 7) * 10 + __syncthreads_or(0) * 4 +
             __syncthreads_and(1) * 2 + __syncthreads_and(i != 7);
}

/* Warps that have nothing to do leave, before a barrier or while the others wait there already. */
__global__ void barrier_of_some(int *out) {
    const int warp = threadIdx.x / 32;
    if (warp == 0)
        return;
    if (warp == 1) { /* in reverse order this is the last thing that happens */
        named_barrier_sync(1, 64);
        return;
    }
    if (warp == 2)
        named_barrier_arrive(1, 64);
    atomicAdd(&out[threadIdx.x], __syncthreads_count(1));
}

static void test_barrier(void) {
    clear_counters();
    LAUNCH(barrier_of_some, 1, 128, 0, counters);
    ok(wrong_counters(128, [](int i) { return i < 64 ? 0 : 64; }) == 0, "__syncthreads does without warps that have returned");
    const int n = 100, rounds = 30;
    LAUNCH(rotate, 4, n, sizeof(Row), cells, rounds, true);
    int wrong = 0;
    for (int i = 0; i < 4 * n; i++)
        wrong += cells[i] != (i % n + rounds) % n;
    ok(wrong == 0, "__syncthreads: all threads of a block see what the others wrote");

    LAUNCH(rotate, 1, n, sizeof(Row), cells, 1, false);
    int nans = 0;
    for (int i = 0; i < n; i++)
        nans += is_nan(cells[i]);
    int want = !strcmp(order, "forward") ? n - 1 : 1; /* in reverse only the thread that runs first misses its neighbor */
    ok(!strcmp(order, "shuffle") ? nans > 1 && nans < n - 1 : nans == want, "a missing barrier shows: %d of %d are NaN",
       nans, n);

    clear_counters();
    LAUNCH(vote_in_block, 1, 100, 0, counters);
    ok(wrong_counters(100, [](int) { return 34 * 100 + 10 + 2; }) == 0, "__syncthreads_count, _or and _and");
}

/* ---- warps ---- */

__global__ void shuffle_all_ways(int *out) {
    int lane = threadIdx.x % 32, i = threadIdx.x;
    out[i] = __shfl_sync(~0u, lane * lane, 5);
    out[64 + i] = __shfl_xor_sync(~0u, lane, 6);
    out[128 + i] = __shfl_up_sync(~0u, lane, 3);
    out[192 + i] = __shfl_down_sync(~0u, lane, 3);
    out[256 + i] = __shfl_sync(~0u, lane, 9, 8);
    out[320 + i] = __shfl_down_sync(~0u, lane, 3, 8);
    out[384 + i] = (int)(__shfl_xor_sync(~0u, lane + 0.25f, 1) * 4);
    out[448 + i] = (int)(__shfl_xor_sync(~0u, 0xfffffff0u + lane % 2, 1) - 0xfffffff0u);
}

/* Each quad goes around a loop of its own length: the quads of a warp diverge, and their shuffles must not mix. */
__global__ void sum_by_quads(int *out) {
    int lane = threadIdx.x % 32, quad = lane / 4;
    unsigned mask = 0xfu << (4 * quad);
    int sum = lane;
    for (int round = 0; round <= quad; round++) {
        sum += __shfl_xor_sync(mask, sum, 1);
        sum += __shfl_xor_sync(mask, sum, 2);
    }
    out[threadIdx.x] = sum;
}

/* Lane 0 goes through two collectives with different partners; either partner may come first. */
__global__ void overlapping_masks(int *out) {
    int lane = threadIdx.x, got = -1;
    if (lane < 2)
        got = __shfl_sync(0x3, lane + 10, 1);
    if (lane == 0 || lane == 2)
        got += 100 * __shfl_sync(0x5, lane + 20, 2);
    out[lane] = got;
}

__global__ void vote_in_warp(unsigned *out) {
    int i = threadIdx.x;
    out[i] = __ballot_sync(~0u, i % 2);
    out[64 + i] = __any_sync(~0u, i == 40) * 2 + __all_sync(~0u, i != 40);
}

__global__ void exchange_by_syncwarp(float *out) {
    SHARED_MEMORY(row, Row);
    int i = threadIdx.x;
    row.element[i] = i;
    __syncwarp();
    out[i] = row.element[i ^ 31];
}

static void test_warp(void) {
    clear_counters();
    LAUNCH(shuffle_all_ways, 1, 64, 0, counters);
    int wrong = 0;
    for (int i = 0; i < 64; i++) {
        int lane = i % 32;
        const int want[8] = {25,
                             lane ^ 6,
                             lane < 3 ? lane : lane - 3,
                             lane > 28 ? lane : lane + 3,
                             (lane & ~7) + 1,
                             lane % 8 > 4 ? lane : lane + 3,
                             4 * (lane ^ 1) + 1,
                             !(lane % 2)};
        for (int way = 0; way < 8; way++)
            wrong += counters[64 * way + i] != want[way];
    }
    ok(wrong == 0, "shuffles: index, xor, up, down, width 8, float, unsigned");

    clear_counters();
    LAUNCH(sum_by_quads, 1, 64, 0, counters);
    auto quad_sum = [](int i) { /* over the quad's lanes, and four times that in each further round */
                                int quad = i % 32 / 4;
                                return (16 * quad + 6) << (2 * quad);
    };
    ok(wrong_counters(64, quad_sum) == 0, "quads that diverge shuffle among themselves");

    LAUNCH(overlapping_masks, 1, 3, 0, counters);
    ok(counters[0] == 11 + 2200 && counters[1] == 11 && counters[2] == -1 + 2200, "one lane, two partners");

    clear_counters();
    LAUNCH(vote_in_warp, 1, 43, 0, (unsigned *)counters);
    ok(counters[3] == (int)0xaaaaaaaa && counters[35] == 0x2aa, "__ballot_sync, in a whole warp and one of 11 lanes");
    ok(counters[64] == 1 && counters[64 + 33] == 2, "__any_sync and __all_sync");

    LAUNCH(exchange_by_syncwarp, 1, 64, sizeof(Row), cells);
    wrong = 0;
    for (int i = 0; i < 64; i++)
        wrong += cells[i] != (i ^ 31);
    ok(wrong == 0, "__syncwarp");
}

/* ---- atomics: blocks run on several cores ---- */

__global__ void count_all_ways(int *out, float *sum) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&out[0], 1);
    atomicAdd((unsigned *)&out[1], 2u);
    atomicMax(&out[2], i);
    atomicMin(&out[3], -i);
    for (int old = out[4], seen; (seen = atomicCAS(&out[4], old, old + 3)) != old;)
        old = seen;
    atomicAdd(&out[5], atomicExch(&out[6], i + 1)); /* every value but the last to come is taken out once */
    atomicAdd(sum, 1.0f);
}

/* The block that finishes last sees what all the others have written. */
__global__ void last_block_sums(float *partial, unsigned *finished, float *sum) {
    partial[blockIdx.x] = blockIdx.x;
    __threadfence();
    if (atomicAdd(finished, 1u) == gridDim.x - 1) {
        float total = 0;
        for (unsigned i = 0; i < gridDim.x; i++)
            total += partial[i];
        *sum = total;
    }
}

static void test_atomics(void) {
    const int n = 500 * 64;
    clear_counters();
    cells[0] = 0;
    LAUNCH(count_all_ways, 500, 64, 0, counters, cells);
    ok(counters[0] == n && counters[1] == 2 * n && cells[0] == n, "atomicAdd: int, unsigned, float");
    ok(counters[2] == n - 1 && counters[3] == 1 - n, "atomicMax and atomicMin");
    ok(counters[4] == 3 * n, "atomicCAS");
    ok((unsigned)counters[5] + counters[6] == (unsigned)n / 2 * (n + 1), "atomicExch");

    clear_counters();
    LAUNCH(last_block_sums, 1000, 1, 0, cells + 1, (unsigned *)counters, cells);
    ok(cells[0] == 999 * 500, "__threadfence: the last block sums up");
}

/* ---- shared memory and asynchronous copies ---- */

struct Chunks {
    float element[64][4];
};

__global__ void fill_after_look(int *not_nan) {
    SHARED_MEMORY(row, Row);
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
        atomicAdd(not_nan, row.element[i] == row.element[i]);
        row.element[i] = 1;
    }
}

__global__ void copy_step_by_step(float *out, const float *in) {
    SHARED_MEMORY(chunks, Chunks);
    int i = threadIdx.x;
    cp_async_16(chunks.element[i], in + 4 * i);
    cp_async_commit();
    cp_async_16(chunks.element[32 + i], in + 4 * (32 + i), i % 2);
    cp_async_commit();
    out[i] = chunks.element[i][3];
    cp_async_wait<1>();
    out[32 + i] = chunks.element[i][3];
    out[64 + i] = chunks.element[32 + i][3];
    cp_async_wait<0>();
    out[96 + i] = chunks.element[32 + i][3];

    cp_async_16(chunks.element[i], in + 4 * (32 + i)); /* over what is there; not committed, so no wait is for it */
    cp_async_wait<0>();
    out[128 + i] = chunks.element[i][3];
}

static void test_shared_memory(void) {
    clear_counters();
    LAUNCH(fill_after_look, 50, 64, sizeof(Row), counters);
    ok(counters[0] == 0, "shared memory is NaN when a block starts");
    LAUNCH(rotate, 1, 8, SIMT_SHARED_LIMIT, cells, 1, true);
    ok(cells[0] == 1, "a block may have %d bytes of shared memory", SIMT_SHARED_LIMIT);

    float *in = cells + 1024;
    for (int i = 0; i < 256; i++)
        in[i] = i;
    LAUNCH(copy_step_by_step, 2, 32, sizeof(Chunks), cells, (const float *)in);
    int early = 0, first = 0, pending = 0, second = 0, uncommitted = 0;
    for (int i = 0; i < 32; i++) {
        early += is_nan(cells[i]);
        first += cells[32 + i] == 4 * i + 3;
        pending += is_nan(cells[64 + i]);
        second += cells[96 + i] == (i % 2 ? 4 * (32 + i) + 3 : 0);
        uncommitted += is_nan(cells[128 + i]);
    }
    ok(early == 32, "cp.async: before the wait, NaN");
    ok(first == 32 && pending == 32, "cp.async: wait<1> lands the older group and not the younger");
    ok(second == 32, "cp.async: wait<0> lands all; a source that does not exist gives zeros");
    ok(uncommitted == 32, "cp.async: what is not committed does not land");
}

/* ---- Hopper: what is asynchronous is as late as a program may count on ---- */

struct Late {
    alignas(1024) __half tile[64 * 64];
    Mbarrier full;
};

/* A tile of ones, over one of zeros; then two batches, D0 = 64 and D1 += 64, both begun and the older one waited for. */
__global__ void look_too_early(const __grid_constant__ TensorMap map, float *out) {
    SHARED_MEMORY(shared, Late);
    for (int i = threadIdx.x; i < 64 * 64; i += 128)
        shared.tile[i] = __float2half(0);
    if (threadIdx.x == 0)
        mbarrier_init(&shared.full, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&shared.full, sizeof shared.tile);
        tma_load(shared.tile, map, 0, 0, 0, &shared.full);
        for (int i = 0; i < 64 * 64; i++)
            out[i] = __half2float(shared.tile[i]);
    }
    mbarrier_wait(&shared.full, 0);
    const uint64_t tile = wgmma_descriptor<128>(shared.tile);
    float d0[8][4] = {}, d1[8][4];
    for (int i = 0; i < 32; i++)
        d1[i / 4][i % 4] = 1;
    wgmma_fence(d0, d1);
    for (int step = 0; step < 4; step++)
        wgmma<__half>(d0, wgmma_advance(tile, 32 * step), wgmma_advance(tile, 32 * step), step > 0);
    wgmma_commit();
    for (int step = 0; step < 4; step++)
        wgmma<__half>(d1, wgmma_advance(tile, 32 * step), wgmma_advance(tile, 32 * step), true);
    wgmma_commit();
    float *seen = out + 64 * 64 + 5 * threadIdx.x;
    seen[0] = d0[7][3];
    wgmma_wait<1>(d0);
    seen[1] = d0[7][3], seen[2] = d1[7][3];
    wgmma_wait<0>(d1);
    seen[3] = d1[7][3], seen[4] = __half2float(shared.tile[threadIdx.x]);
}

static void test_late(void) {
    enum { TILE = 64 * 64 };
    float *out = (float *)device_alloc((TILE + 5 * 128) * sizeof *out, "out");
    for (int i = 0; i < TILE; i++)
        ((__half *)cells)[i] = __float2half(1);
    LAUNCH(look_too_early, 1, 128, sizeof(Late), tensor_map<__half, 128>(cells, 64, 64, 1, 64), out);
    int nans = 0, begun = 0, older = 0, younger = 0, done = 0, landed = 0;
    for (int i = 0; i < TILE; i++)
        nans += is_nan(out[i]);
    for (const float *seen = out + TILE; seen < out + TILE + 5 * 128; seen += 5) {
        begun += seen[0] == 0;
        older += seen[1] == 64;
        younger += seen[2] == 1;
        done += seen[3] == 65;
        landed += seen[4] == 1;
    }
    ok(nans == TILE && landed == 128, "tma_load: NaN wherever the tile will be, until somebody waits for it");
    ok(begun == 128 && older == 128, "wgmma: D is as it was until its wgmma_wait");
    ok(younger == 128 && done == 128, "wgmma_wait<1> leaves the younger batch as it was, wgmma_wait<0> does not");
    device_free(out);
}

static void test_all(void) {
    cells = (float *)device_alloc(CELLS * sizeof(float), "cells");
    counters = (int *)device_alloc(CELLS * sizeof(int), "counters");
    test_grid();
    test_barrier();
    test_warp();
    test_atomics();
    test_shared_memory();
    test_late();
    device_free(cells);
    device_free(counters);
}

/* The order is read once a process, so each order gets a process of its own; they share the count of test points. */
int main(void) {
    int *shared_count = (int *)mmap(NULL, 2 * sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const char *const orders[] = {"forward", "reverse", "shuffle"};
    for (const char *name : orders) {
        fflush(stdout);
        if (fork() == 0) {
            setenv("CPU_DEVICE_ORDER", name, 1);
            order = name;
            printf("# threads in order: %s\n", name);
            test_all();
            shared_count[0] = tap_count;
            shared_count[1] = tap_failed;
            exit(0);
        }
        int status;
        wait(&status);
        tap_count = shared_count[0];
        tap_failed = shared_count[1];
        ok(status == 0, "order %s came to its end", name);
    }
    return tap_done();
}
