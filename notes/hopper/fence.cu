/* fence - threads write an operand of wgmma themselves: two fences, one for shared memory and one for registers.
 *
 *     D = -A B^T, A and B 64 x 64 in fp16. TMA loads B. The threads load A, flip its signs, and store it where wgmma reads it
 *
 * Without proxy_fence wgmma may read what was in shared memory before. On the CPU device the result is right even so, but the
 * trace names the two lines. Without wgmma_fence the CPU device stops the program.
 *
 *     make hopper
 */
#include "primer.cuh"

constexpr int SIDE = 64;
[[maybe_unused]] constexpr uint32_t SIGNS = 0x80008000; /* of two fp16 */

struct Shared {
    Panels<__half, SIDE, SIDE> a, b;
    Mbarrier full;
};

__global__ void fence(const uint4 *a, const __grid_constant__ TensorMap b_map, float *d_out) {
#ifdef HOPPER
    SHARED_MEMORY(shared, Shared);
    if (threadIdx.x == 0) {
        mbarrier_init(&shared.full, 1);
        mbarrier_init_fence();
        shared.b.expect_and_load(b_map, 0, 0, 0, &shared.full);
    }
    for (int i = threadIdx.x; i < 8 * SIDE; i += 128) { /* a row has eight chunks of 16 bytes */
        const uint4 x = load_16(a + i);
        store_16(shared.a.chunk(i / 8, i % 8), uint4{x.x ^ SIGNS, x.y ^ SIGNS, x.z ^ SIGNS, x.w ^ SIGNS});
    }
    proxy_fence();   /* what this thread has stored, wgmma can see */
    __syncthreads(); /* and so have the others */
    mbarrier_wait(&shared.full, 0);

    float d[SIDE / 8][4] = {};
    wgmma_fence(d); /* the zeros are in the registers before the first wgmma adds to them */
    UNROLL for (int step = 0; step < 4; step++)
        wgmma<__half>(d, wgmma_advance(shared.a.descriptor(), shared.a.offset(step)),
                      wgmma_advance(shared.b.descriptor(), shared.b.offset(step)), true);
    wgmma_commit();
    wgmma_wait<0>(d);
    store_d<SIDE>(d_out, d);
#endif
}

int main() {
    begin("fence");
    const Integers a(SIDE * SIDE, 2654435761u), b(SIDE * SIDE, 2246822519u);
    Array<uint16_t> device_a(a.code, "A"), device_b(b.code, "B");
    Array<float> device_d(SIDE * SIDE, "D");
    LAUNCH(fence, 1, 128, sizeof(Shared), reinterpret_cast<const uint4 *>(device_a.pointer),
           tensor_map<__half, 128>(device_b.pointer, SIDE, SIDE, 1, SIDE), device_d.pointer);
    const int wrong = wrong_sums(device_d.read(), SIDE, SIDE, [&](int m, int n, int k) {
        return -a.value[m * SIDE + k] * b.value[n * SIDE + k];
    });
    printf("A is stored by threads, B by TMA; of D's %d elements %d are wrong\n", SIDE * SIDE, wrong);
    return end(wrong);
}
