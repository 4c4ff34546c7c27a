/* ring - all of it together: a warp asks TMA for tiles, a warpgroup multiplies them, and a ring of two stages is between them.
 *
 *     D = A B^T, A and B 64 x 320 in fp16: five tiles of 64 columns of each, and D is the sum of five products
 *
 *     producer     tile 0  tile 1                   tile 2                   tile 3
 *     consumer             product 0                product 1                product 2      tile 2 comes when product 0 is done
 *
 *     make hopper
 */
#include "primer.cuh"

constexpr int SIDE = 64, TILES = 5, K = 64 * TILES, STAGES = 2, CONSUMER_WARPS = 4;
__device__ inline int stage(int n) { return n % STAGES; }
__device__ inline int parity(int n) { return n / STAGES % 2; }

struct Shared {
    Panels<__half, SIDE, 64> a[STAGES], b[STAGES];
    Mbarrier full[STAGES], empty[STAGES];
};

__global__ void ring(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, float *d_out) {
#ifdef HOPPER
    SHARED_MEMORY(shared, Shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&shared.full[i], 1);               /* the producer arrives, and TMA brings bytes */
            mbarrier_init(&shared.empty[i], CONSUMER_WARPS); /* each warp of the consumer arrives */
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    if (threadIdx.x >= 32 * CONSUMER_WARPS) { /* the producer: the last warp, of which one thread */
        if (elect_one())
            for (int n = 0; n < TILES; n++) {
                auto &a = shared.a[stage(n)], &b = shared.b[stage(n)];
                Mbarrier *full = &shared.full[stage(n)];
                mbarrier_wait(&shared.empty[stage(n)], parity(n) ^ 1);
                mbarrier_arrive_expect(full, a.bytes + b.bytes);
                a.load(a_map, 0, 64 * n, 0, full);
                b.load(b_map, 0, 64 * n, 0, full);
            }
        return;
    }
    float d[SIDE / 8][4];
    for (int n = 0; n < TILES; n++) {
        auto &a = shared.a[stage(n)], &b = shared.b[stage(n)];
        mbarrier_wait(&shared.full[stage(n)], parity(n));
        wgmma_fence(d);
        UNROLL for (int step = 0; step < 4; step++) /* 16 columns each; the very first overwrites D */
            wgmma<__half>(d, wgmma_advance(a.descriptor(), a.offset(step)), wgmma_advance(b.descriptor(), b.offset(step)),
                          n + step > 0);
        wgmma_commit();
        wgmma_wait<0>(d);
        if (elect_one())
            mbarrier_arrive(&shared.empty[stage(n)]); /* this warp has read both */
    }
    store_d<SIDE>(d_out, d);
#endif
}

int main() {
    begin("ring");
    const Integers a(SIDE * K, 2654435761u), b(SIDE * K, 2246822519u);
    Array<uint16_t> device_a(a.code, "A"), device_b(b.code, "B");
    Array<float> device_d(SIDE * SIDE, "D");
    LAUNCH(ring, 1, 32 * CONSUMER_WARPS + 32, sizeof(Shared), tensor_map<__half, 128>(device_a.pointer, K, SIDE, 1, SIDE),
           tensor_map<__half, 128>(device_b.pointer, K, SIDE, 1, SIDE), device_d.pointer);
    const int wrong = wrong_sums(device_d.read(), SIDE, K, [&](int m, int n, int k) {
        return a.value[m * K + k] * b.value[n * K + k];
    });
    printf("D has %d elements, sums of %d products each; %d are wrong\n", SIDE * SIDE, K, wrong);
    return end(wrong);
}
