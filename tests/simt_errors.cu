/* simt_errors.cu - kernels with the mistakes that a GPU answers with a hang, garbage or "unspecified launch failure". The
 * CPU device must say what is wrong and where, and exit with 1 or 2: simt_errors.t runs `simt_errors NAME` for
 * each and compares. Lines that a message names end in a marker comment, by which simt_errors.t finds their number. */
#include "../common/gpu/hopper.cuh"
#include "../common/numeric.h"
#include "tap.h"

struct Tile4K {
    alignas(128) unsigned char byte[4096];
};

static __device__ bool in_bad_block() { return blockIdx.x == 1 && blockIdx.y == 2; }

__global__ void early_return(int) {
    if (in_bad_block() && threadIdx.x == 31)
        return;
    __syncthreads(); /* @early_return */
}

__global__ void two_barriers(int) {
    if (in_bad_block() && threadIdx.x % 32 < 16)
        __syncthreads(); /* @two_barriers_a */
    else
        __syncthreads(); /* @two_barriers_b */
}

__global__ void one_round_more(int) {
    int rounds = in_bad_block() && threadIdx.x == 5 ? 4 : 3;
    for (int i = 0; i < rounds; i++)
        __syncthreads(); /* @one_round_more */
}

template <int lane> __global__ void shuffle_without_a_lane(int) {
    if (!in_bad_block() || threadIdx.x != lane)
        __shfl_xor_sync(~0u, 1.0f, 1); /* @shuffle_a */
    __syncthreads();                   /* @shuffle_b */
}

__global__ void two_shuffles(int) {
    if (in_bad_block() && threadIdx.x % 2)
        __shfl_xor_sync(~0u, 1, 1); /* @two_shuffles_a */
    else
        __shfl_xor_sync(~0u, 1, 1); /* @two_shuffles_b */
}

__global__ void different_masks(int) {
    if (in_bad_block() && threadIdx.x < 8)
        __shfl_sync(threadIdx.x < 4 ? 0xffu : 0xf0u, 1, 4); /* @masks */
}

__global__ void masks_that_meet(int) {
    if (in_bad_block() && threadIdx.x < 8)
        __shfl_sync(threadIdx.x < 4 ? 0xffu : 0x1ffu, 1, 4); /* @meet: each lane is in the other's mask, and lane 8 stays away */
}

__global__ void not_in_mask(int) {
    if (in_bad_block() && threadIdx.x < 9)
        __syncwarp(0xff); /* @not_in_mask */
}

__global__ void mma_without_a_lane(int) {
    float c[4] = {};
    uint32_t a[4] = {};
    if (in_bad_block() && threadIdx.x == 40)
        return;
    mma_m16n8k16<__half>(c, a, 0, 0); /* @mma */
}

__global__ void mma_in_a_small_block(int) {
    float c[4] = {};
    uint32_t a[4] = {};
    mma_m16n8k16<__half>(c, a, 0, 0); /* @small */
}

__global__ void too_much_used(int) {
    SHARED_MEMORY(tile, Tile4K); /* @used */
    tile.byte[threadIdx.x] = 0;
}

__global__ void empty(int) {}

__global__ void bad_address(const void *device, int what) {
    SHARED_MEMORY(tile, Tile4K);
    uint32_t r[4];
    int i = threadIdx.x % 32;
    const unsigned char *row = tile.byte + 16 * i;
    bool bad = in_bad_block() && threadIdx.x == 9;
    if (what == 0)
        ldmatrix_x4(r, row + (bad ? 8 : 0)); /* @unaligned */
    if (what == 1)
        ldmatrix_x4(r, bad ? device : row); /* @not_shared */
    if (what == 2)
        cp_async_16(tile.byte + (bad ? 4088 : 0), device); /* @past_the_end */
    if (what == 3)
        load_16((const char *)device + (bad ? 4 : 0)); /* @load */
}

/* What a kernel touches that is nobody's. */
__global__ void outside(unsigned char *memory, long byte) {
    SHARED_MEMORY(tile, Tile4K);
    if (in_bad_block() && threadIdx.x == 9)
        (memory ? memory : tile.byte)[byte] = 1;
}
__global__ void null_pointer(float *memory) {
    if (in_bad_block() && threadIdx.x == 9)
        *memory = 1;
}
static __device__ int deeper(volatile int *sum) {
    volatile int here = *sum + 1;
    return here ? deeper(&here) + here : 0;
}
__global__ void deep(int sum) {
    if (in_bad_block() && threadIdx.x == 9)
        deeper(&sum);
}

struct Hopper {
    alignas(1024) unsigned char tile[64 * 64];
    Mbarrier full;
};

enum { TOO_MANY_ARRIVALS, NOT_INITIALISED, WARP_MISSING, NO_FENCE, OFF_PATTERN };
__global__ void hopper(int what) {
    SHARED_MEMORY(shared, Hopper);
    if (threadIdx.x == 0 && !(in_bad_block() && what == NOT_INITIALISED))
        mbarrier_init(&shared.full, in_bad_block() && what == TOO_MANY_ARRIVALS ? 2 : 1);
    __syncthreads();
    if (threadIdx.x == 0)
        mbarrier_arrive(&shared.full); /* @arrive */
    mbarrier_wait(&shared.full, 0);    /* @wait */
    if (in_bad_block() && what == WARP_MISSING && threadIdx.x / 32 == 2)
        return;
    float d[8][4];
    if (!(in_bad_block() && what == NO_FENCE))
        wgmma_fence(d); /* @fence */
    const int off = in_bad_block() && what == OFF_PATTERN ? 128 : 0;
    wgmma<E4m3>(d, wgmma_descriptor<64>(shared.tile), wgmma_descriptor<64>(shared.tile + off), false); /* @wgmma */
    wgmma_commit();
    wgmma_wait<0>(d);
}

/* A producer (warp 0) and consumers (warp 1) hand each other two stages; 2 takes no part. */
struct Stages {
    alignas(1024) unsigned char tile[2][8 * 128];
    Mbarrier full[2], empty[2];
};
enum { WRONG_PARITY, NO_COPY, TOO_MANY_BYTES, TOO_FEW_BYTES };
__global__ void ring(const __grid_constant__ TensorMap map, int what) {
    SHARED_MEMORY(shared, Stages);
    if (threadIdx.x == 0)
        for (int stage = 0; stage < 2; stage++)
            mbarrier_init(&shared.full[stage], 1), mbarrier_init(&shared.empty[stage], 32);
    __syncthreads();
    if (threadIdx.x == 0)
        for (int tile = 0; tile < 6; tile++) {
            const int stage = tile % 2, round = tile / 2;
            mbarrier_wait(&shared.empty[stage], (round + (what != WRONG_PARITY)) % 2); /* @empty */
            mbarrier_arrive_expect(&shared.full[stage], what == TOO_MANY_BYTES ? 9 * 128 : what == TOO_FEW_BYTES ? 7 * 128 : 8 * 128);
            if (what != NO_COPY || tile < 3)
                tma_load(shared.tile[stage], map, 0, 0, 0, &shared.full[stage]);
        }
    else if (threadIdx.x / 32 == 1)
        for (int tile = 0; tile < 6; tile++) {
            mbarrier_wait(&shared.full[tile % 2], tile / 2 % 2); /* @full */
            mbarrier_arrive(&shared.empty[tile % 2]);
        }
}

static void run_ring(const void *memory, int what) {
    LAUNCH(ring, 1, 96, sizeof(Stages), tensor_map<__half, 128>(memory, 64, 8, 1, 8), what);
}

enum { ODD_BYTES, ODD_SHARED, ODD_DEVICE };
__global__ void bulk(float *memory, int what) {
    SHARED_MEMORY(tile, Tile4K);
    if (in_bad_block() && threadIdx.x == 9)
        bulk_add(memory + (what == ODD_DEVICE), tile.byte + (what == ODD_SHARED ? 8 : 0), what == ODD_BYTES ? 24 : 32); /* @bulk */
}

enum { TOO_FEW, DISAGREE, NO_SUCH_BARRIER, HALF_A_WARP };
__global__ void named(int what) {
    if (what == TOO_FEW && threadIdx.x / 32 == 1)
        return;
    if (what == HALF_A_WARP && threadIdx.x < 16)
        return;
    if (threadIdx.x < 32)
        named_barrier_arrive(3, 96);
    else
        named_barrier_sync(what == NO_SUCH_BARRIER ? 16 : 3, what == DISAGREE ? 64 : 96); /* @named */
}

enum { TOO_MANY_REGISTERS, NO_DECREASE, GROWN_SMALLER, WARPS_APART };
__global__ void registers(int what) {
    if (threadIdx.x < 128) {
        if (what == WARPS_APART && threadIdx.x >= 96)
            return;
        if (what != NO_DECREASE)
            setmaxnreg_decrease<40>(); /* @decrease */
    } else if (what == TOO_MANY_REGISTERS) {
        setmaxnreg_increase<240>(); /* @increase */
    } else if (what == GROWN_SMALLER) {
        setmaxnreg_increase<160>(); /* @smaller */
    } else {
        setmaxnreg_increase<232>(); /* @more */
    }
}

__global__ void wgmma_by_some(int) {
    SHARED_MEMORY(shared, Hopper);
    float d[8][4];
    wgmma_fence(d);
    if (threadIdx.x >= 32)
        wgmma<E4m3>(d, wgmma_descriptor<64>(shared.tile), wgmma_descriptor<64>(shared.tile), false); /* @by_some */
    wgmma_commit();
    wgmma_wait<0>(d);
}

enum { WITHOUT_D, WITHOUT_A, BEFORE_WAIT };
__global__ void unnamed(int what) {
    SHARED_MEMORY(shared, Hopper);
    float d[8][4];
    uint32_t a[4] = {};
    if (what == BEFORE_WAIT) {
        wgmma_fence(d, a);
        wgmma_wait<0>();
    }
    if (what == WITHOUT_A)
        wgmma_fence(d);
    else
        wgmma_fence(a);
    wgmma<E4m3>(d, a, wgmma_descriptor<64>(shared.tile), false); /* @unnamed */
    wgmma_commit();
    wgmma_wait<0>(d);
}

/* What a choice among the dtypes must not take for one of them. */
static const Dtype NO_DTYPE = (Dtype)3;

int main(int argc, char **argv) {
    if (argc != 2) {
        tap_skip_all("simt_errors.t runs this, with the name of a mistake");
        return 0;
    }
    struct {
        const char *name;
        void (*run)(const void *memory);
    } mistakes[] = {
        {"early_return", [](const void *) { LAUNCH(early_return, dim3(3, 3), 64, 0, 0); }},
        {"two_barriers", [](const void *) { LAUNCH(two_barriers, dim3(3, 3), 64, 0, 0); }},
        {"one_round_more", [](const void *) { LAUNCH(one_round_more, dim3(3, 3), dim3(8, 2), 0, 0); }},
        {"lane_at_barrier", [](const void *) { LAUNCH((shuffle_without_a_lane<33>), dim3(3, 3), 64, 0, 0); }},
        {"two_shuffles", [](const void *) { LAUNCH(two_shuffles, dim3(3, 3), 4, 0, 0); }},
        {"different_masks", [](const void *) { LAUNCH(different_masks, dim3(3, 3), 16, 0, 0); }},
        {"masks_that_meet", [](const void *) { LAUNCH(masks_that_meet, dim3(3, 3), 16, 0, 0); }},
        {"not_in_mask", [](const void *) { LAUNCH(not_in_mask, dim3(3, 3), 32, 0, 0); }},
        {"mma", [](const void *) { LAUNCH(mma_without_a_lane, dim3(3, 3), 64, 0, 0); }},
        {"small_block", [](const void *) { LAUNCH(mma_in_a_small_block, 1, 20, 0, 0); }},
        {"too_much_used", [](const void *) { LAUNCH(too_much_used, 1, 1, 4095, 0); }},
        {"too_much_asked", [](const void *) { LAUNCH(empty, 1, 1, 232449, 0); }},        /* @asked */
        {"block_too_large", [](const void *) { LAUNCH(empty, 1, dim3(64, 17), 0, 0); }}, /* @block */
        {"empty_grid", [](const void *) { LAUNCH(empty, dim3(1, 0), 1, 0, 0); }},        /* @grid */
        {"unaligned", [](const void *memory) { LAUNCH(bad_address, dim3(3, 3), 32, 4096, memory, 0); }},
        {"not_shared", [](const void *memory) { LAUNCH(bad_address, dim3(3, 3), 32, 4096, memory, 1); }},
        {"past_the_end", [](const void *memory) { LAUNCH(bad_address, dim3(3, 3), 32, 4096, memory, 2); }},
        {"load", [](const void *memory) { LAUNCH(bad_address, dim3(3, 3), 32, 4096, memory, 3); }},
        {"behind", [](const void *memory) { LAUNCH(outside, dim3(3, 3), 32, 4096, (unsigned char *)memory, 4096); }},
        {"far_behind", [](const void *memory) { LAUNCH(outside, dim3(3, 3), 32, 4096, (unsigned char *)memory, 1000000); }},
        {"far_away", [](const void *memory) { LAUNCH(outside, dim3(3, 3), 32, 4096, (unsigned char *)memory, -(1L << 38)); }},
        {"before", [](const void *memory) { LAUNCH(outside, dim3(3, 3), 32, 4096, (unsigned char *)memory, -1); }},
        {"behind_shared", [](const void *) { LAUNCH(outside, dim3(3, 3), 32, 4096, nullptr, 4096); }},
        {"null", [](const void *) { LAUNCH(null_pointer, dim3(3, 3), 32, 0, nullptr); }},
        {"deep", [](const void *) { LAUNCH(deep, dim3(3, 3), 32, 0, 1); }},
        {"host", [](const void *memory) { ((volatile char *)memory)[4096] = 0; }},
        {"too_many_arrivals", [](const void *) { LAUNCH(hopper, dim3(3, 3), 128, sizeof(Hopper), TOO_MANY_ARRIVALS); }},
        {"not_initialised", [](const void *) { LAUNCH(hopper, dim3(3, 3), 128, sizeof(Hopper), NOT_INITIALISED); }},
        {"warp_missing", [](const void *) { LAUNCH(hopper, dim3(3, 3), 128, sizeof(Hopper), WARP_MISSING); }},
        {"no_fence", [](const void *) { LAUNCH(hopper, dim3(3, 3), 128, sizeof(Hopper), NO_FENCE); }},
        {"off_pattern", [](const void *) { LAUNCH(hopper, dim3(3, 3), 128, sizeof(Hopper), OFF_PATTERN); }},
        {"wrong_parity", [](const void *memory) { run_ring(memory, WRONG_PARITY); }},
        {"no_copy", [](const void *memory) { run_ring(memory, NO_COPY); }},
        {"too_many_bytes", [](const void *memory) { run_ring(memory, TOO_MANY_BYTES); }},
        {"too_few_bytes", [](const void *memory) { run_ring(memory, TOO_FEW_BYTES); }},
        {"bulk_bytes", [](const void *memory) { LAUNCH(bulk, dim3(3, 3), 32, sizeof(Tile4K), (float *)memory, ODD_BYTES); }},
        {"bulk_shared", [](const void *memory) { LAUNCH(bulk, dim3(3, 3), 32, sizeof(Tile4K), (float *)memory, ODD_SHARED); }},
        {"bulk_device", [](const void *memory) { LAUNCH(bulk, dim3(3, 3), 32, sizeof(Tile4K), (float *)memory, ODD_DEVICE); }},
        {"named_too_few", [](const void *) { LAUNCH(named, 1, 96, 0, TOO_FEW); }},
        {"named_disagree", [](const void *) { LAUNCH(named, 1, 64, 0, DISAGREE); }},
        {"named_none", [](const void *) { LAUNCH(named, 1, 64, 0, NO_SUCH_BARRIER); }},
        {"named_half_a_warp", [](const void *) { LAUNCH(named, 1, 96, 0, HALF_A_WARP); }},
        {"too_many_registers", [](const void *) { LAUNCH(registers, 1, 384, 0, TOO_MANY_REGISTERS); }},
        {"no_decrease", [](const void *) { LAUNCH(registers, 1, 384, 0, NO_DECREASE); }},
        {"grown_smaller", [](const void *) { LAUNCH(registers, 1, 384, 0, GROWN_SMALLER); }},
        {"warps_apart", [](const void *) { LAUNCH(registers, 1, 384, 0, WARPS_APART); }},
        {"without_d", [](const void *) { LAUNCH(unnamed, 1, 128, sizeof(Hopper), WITHOUT_D); }},
        {"without_a", [](const void *) { LAUNCH(unnamed, 1, 128, sizeof(Hopper), WITHOUT_A); }},
        {"before_wait", [](const void *) { LAUNCH(unnamed, 1, 128, sizeof(Hopper), BEFORE_WAIT); }},
        {"wgmma_by_some", [](const void *) { LAUNCH(wgmma_by_some, 1, 128, sizeof(Hopper), 0); }},
        {"with_any_type", [](const void *) { WITH_ANY_TYPE(NO_DTYPE, T, printf("%zu\n", sizeof(T))); }},
        {"with_half_type", [](const void *) { WITH_HALF_TYPE(DTYPE_FP32, T, printf("%zu\n", sizeof(T))); }},
        {"nothing", [](const void *) { LAUNCH(empty, 1, 1, 0, 0); }},
    };
    for (auto &mistake : mistakes)
        if (!strcmp(mistake.name, argv[1]))
            mistake.run(device_alloc(4096, "memory"));
    return 0;
}
