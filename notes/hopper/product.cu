/* product - one wgmma: D, 64 x 128, is A, 64 x 16, times B, 16 x 128, in fp16. B lies in shared memory in either order.
 *
 *     K_MAJOR     [n][k]     128 rows of 64 k: one panel           as K lies for Q K^T
 *     MN_MAJOR    [k][n]     64 rows of 128 n: two panels          as V lies for P V
 *
 * Of the tiles' 64 k the product takes 16, number 16 STEP and those after it. The program prints the descriptors.
 *
 *     make hopper
 */
#include "primer.cuh"

constexpr int M = 64, N = 128, K = 64, STEP = 1;

template <Major major> struct Shared {
    Panels<__half, M, K> a;                                               /* [m][k] */
    Panels<__half, major == K_MAJOR ? N : K, major == K_MAJOR ? K : N> b; /* [n][k] or [k][n] */
    Mbarrier full;
};

template <Major major>
__global__ void product(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, float *d_out,
                        uint64_t *descriptor) {
#ifdef HOPPER
    SHARED_MEMORY(shared, Shared<major>);
    if (threadIdx.x == 0) {
        mbarrier_init(&shared.full, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(&shared.full, shared.a.bytes + shared.b.bytes);
        shared.a.load(a_map, 0, 0, 0, &shared.full);
        shared.b.load(b_map, 0, 0, 0, &shared.full);
    }
    __syncthreads();
    mbarrier_wait(&shared.full, 0);

    const uint64_t a = wgmma_advance(shared.a.descriptor(), shared.a.offset(STEP));
    const uint64_t b = major == K_MAJOR ? wgmma_advance(shared.b.descriptor(), shared.b.offset(STEP))
                                        : wgmma_advance(shared.b.descriptor_mn(), shared.b.offset_mn(STEP));
    float d[N / 8][4];
    wgmma_fence(d);
    wgmma<__half, major>(d, a, b, false); /* false: D = A B, not D += A B */
    wgmma_commit();
    wgmma_wait<0>(d);

    store_d<N>(d_out, d);
    if (threadIdx.x == 0)
        *descriptor = b - (shared_address(&shared.b) >> 4); /* counted from B's first byte */
#endif
}

template <Major major> int multiply(const char *name) {
    const Integers a(M * K, 2654435761u), b(N * K, 2246822519u);
    const int rows = major == K_MAJOR ? N : K, columns = major == K_MAJOR ? K : N;
    Array<uint16_t> device_a(a.code, "A"), device_b(b.code, "B");
    Array<float> device_d(M * N, "D");
    Array<uint64_t> descriptor(1, "descriptor");
    LAUNCH(product<major>, 1, 128, sizeof(Shared<major>), tensor_map<__half, 128>(device_a.pointer, K, M, 1, M),
           tensor_map<__half, 128>(device_b.pointer, columns, rows, 1, rows), device_d.pointer, descriptor.pointer);
    const uint64_t bits = descriptor.read()[0];
    const auto bytes = [=](int bit) { return (int)(bits >> bit & 0x3fff) * 16; }; /* in units of 16, 14 bits */
    printf("%-8s  swizzle %d  stride %4d  leading %4d  address + %d\n", name, (int)(bits >> 62), bytes(32), bytes(16),
           bytes(0));
    return wrong_sums(device_d.read(), N, 16, [&](int m, int n, int k) {
        k += 16 * STEP;
        return a.value[m * K + k] * b.value[major == K_MAJOR ? n * K + k : k * N + n];
    });
}

int main() {
    begin("product");
    const int wrong = multiply<K_MAJOR>("K_MAJOR");
    return end(wrong + multiply<MN_MAJOR>("MN_MAJOR"));
}
