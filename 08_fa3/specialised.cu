/* 08_fa3/specialised - warps with roles: one warp loads ahead, two warpgroups compute.
 *
 * The idea. In `wgmma` the threads that compute also request the next tile, as soon as this one need not be kept. To
 * know that, they meet at a barrier twice per tile. Here a *producer* warp does nothing but request tiles, as far ahead
 * as there is memory for them, and two *consumer* warpgroups do nothing but compute. K and V have a *ring* of STAGES
 * buffers, the *stages*, each. A stage has two mbarriers. They are all that producer and consumers wait at (except once
 * for Q, and where V's last rows are set to zero, see zero_rows):
 *
 *     full    the tile is there              TMA's last byte ends its phase, consumers wait for that
 *     empty   both consumers are done        each of their warps arrives, the producer waits until all have
 *
 *     producer     K0 V0 K1 V1       K2             V2       ...      K2 is requested when both consumers have used K0
 *     consumer 0         Q K0^T      softmax  P V0  Q K1^T   softmax  P V1 ...
 *     consumer 1         Q K0^T      softmax  P V0  Q K1^T   softmax  P V1 ...
 *
 * A warp that requests tiles needs few registers, and one that multiplies many. A block starts with the same number for
 * every thread; setmaxnreg then moves them from the producer's warpgroup to the consumers'.
 *
 * Who owns what. A block is 384 threads: a warpgroup of which one warp produces and three are idle, and two that
 * consume, 64 queries each: Br = 128. So a tile of K and V that has come from L2 is used by 128 queries, not 64.
 *
 *                          keys ->                        shared memory, D = 128           registers per thread
 *                      +---------+---------+---------+    Q   Br x D              32 KB    producer   24
 *     consumer 0   rows|  64 x Bc|         |         |    K   STAGES x Bc x D     64 KB    consumer  240: O 64, S 64,
 *     consumer 1   rows|  64 x Bc|         |         |    V   STAGES x Bc x D     64 KB                   P 32
 *                      +---------+---------+---------+    160 KB; one block per multiprocessor
 *
 * What one key tile costs in one block: four times the FLOPs of a tile of `wgmma`, with twice its bytes from L2. There
 * is one block per multiprocessor now, at D = 64 too, where registers decide. Only the two consumers can overlap, and
 * only by chance. The tile primitives are those of `wgmma`.
 *
 *     make 08_fa3 && ./08_fa3/08_fa3 --variant specialised --head-dim 128
 */
#include "../common/gpu/fa3.cuh"

constexpr int CONSUMERS = 2, THREADS = 128 * (1 + CONSUMERS), Br = 64 * CONSUMERS, Bc = 128, STAGES = 2;
/* (24 + 2 x 240) x 128 = 64512 of the multiprocessor's 65536 */
[[maybe_unused]] constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
[[maybe_unused]] constexpr int ZEROED = 1; /* the named barrier at which consumers have zeroed V's last rows */

template <typename T, int D> struct SpecialisedShared {
    Panels<T, Br, D> q;
    Panels<T, Bc, D> k[STAGES], v[STAGES];
    Mbarrier q_full, k_full[STAGES], v_full[STAGES], k_empty[STAGES], v_empty[STAGES];
};

/* Tile number n, counted from the first one loaded, goes to stage n % STAGES, where it is phase number n / STAGES.
 * Unsigned, % and / by a power of two are a mask and a shift. */
__device__ inline int stage(unsigned n) { return n % STAGES; }
__device__ inline int parity(unsigned n) { return n / STAGES % 2; }

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 1)
    specialised(Problem p, Tensors t, TileOrder order, const __grid_constant__ ForwardMaps maps) {
#ifdef HOPPER
    SHARED_MEMORY(shared, SpecialisedShared<T, D>);
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0); /* by a shuffle: no lane differs, and ptxas knows */

    const QueryTile here = query_tile(p, t.key_lengths, order.together, blockIdx.x, Br, Bc);

    if (warp == 0 && elect_one()) {
        mbarrier_init(&shared.q_full, 1);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&shared.k_full[i], 1);
            mbarrier_init(&shared.v_full[i], 1);
            mbarrier_init(&shared.k_empty[i], 4 * CONSUMERS); /* an arrival per warp */
            mbarrier_init(&shared.v_empty[i], 4 * CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads(); /* the only time that all meet */

    if (warp < 4) { /* ---- the producer ---- */
        setmaxnreg_decrease<PRODUCER_REGISTERS>();
        if (warp == 0 && elect_one() && here.key_tiles > 0) {
            shared.q.expect_and_load(maps.q, here.first_row, 0, here.batch_head, &shared.q_full);
            for (int n = 0, tile = here.key_tiles - 1; tile >= 0; n++, tile--) {
                /* Tile n may come when the phase of `empty` before phase n / STAGES is over. A stage's first tile has
                 * no phase before it; a wait for the other parity then returns at once, as if there had been one. */
                mbarrier_wait(&shared.k_empty[stage(n)], parity(n) ^ 1);
                shared.k[stage(n)].expect_and_load(maps.k, tile * Bc, 0, here.kv_head, &shared.k_full[stage(n)]);
                mbarrier_wait(&shared.v_empty[stage(n)], parity(n) ^ 1);
                shared.v[stage(n)].expect_and_load(maps.v, tile * Bc, 0, here.kv_head, &shared.v_full[stage(n)]);
            }
        }
    } else { /* ---- the consumers ---- */
        setmaxnreg_increase<CONSUMER_REGISTERS>();
        const int consumer = warp / 4 - 1;
        const int row = here.first_row + 16 * (warp - 4); /* the warp's first one */
        const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */
        float o[1][D / 8][4] = {}, m[2] = {LOWEST, LOWEST}, l[2] = {0, 0};
        Limits limits = Limits::NOT_YET;
        if (here.key_tiles > 0)
            mbarrier_wait(&shared.q_full, 0);
        for (int n = 0, tile = here.key_tiles - 1; tile >= 0; n++, tile--) {
            auto &k = shared.k[stage(n)];
            auto &v = shared.v[stage(n)];

            /* S = Q K^T */
            mbarrier_wait(&shared.k_full[stage(n)], parity(n));
            float s[1][Bc / 8][4];
            start_abt(s, shared.q, 64 * consumer, k);
            wgmma_wait<0>(s);
            warp_arrive(&shared.k_empty[stage(n)]); /* this warp is done with K */

            /* Mask, softmax, P as an operand */
            if (tile >= here.whole_tiles)
                mask(s, p, here.keys, row, tile * Bc);
            float alpha[2];
            if (softmax(s, m, limits, l, alpha, scale_log2))
                each(o, [&](float &x, int r) { x *= alpha[r]; });
            uint32_t a[Bc / 16][4];
            to_operand<T>(a, s);

            /* O += P V */
            mbarrier_wait(&shared.v_full[stage(n)], parity(n));
            if (t.key_lengths && here.keys < (tile + 1) * Bc) {
                zero_rows(v, here.keys - tile * Bc, Bc, threadIdx.x - 128, 128 * CONSUMERS);
                named_barrier_sync(ZEROED, 128 * CONSUMERS);
            }
            start_ab(o, a, v);
            wgmma_wait<0>(o);
            warp_arrive(&shared.v_empty[stage(n)]); /* this warp is done with V */
        }
        write_output(head_tensors<T>(p, t, here.batch_head), row, o, m, l, LN_2);
    }
#endif
}

LAUNCHER(fa3_specialised) {
    const TileOrder order = tile_order(*p, Br, 2);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const ForwardMaps maps = forward_maps<T, D>(*p, *t, Br, Bc);
        LAUNCH((specialised<T, D>), order.count, THREADS, sizeof(SpecialisedShared<T, D>), *p, *t, order, maps);
    }));
}
