/* 09_fa3_backward/overlapped - `specialised`, tuned: persistent blocks, dQ added from registers, dK that runs into the
 * next step.
 *
 * The idea. Three things still cost `specialised` time:
 *
 *     blocks     a block that begins waits for K and V, and one that ends writes dK and dV while nothing multiplies.
 *                Now there are as many blocks as multiprocessors, and a block works on many key tiles. The producer
 *                draws the next tile's number from a counter in device memory; it loads that tile's Q, V and K as soon
 *                as their buffers are free, while the consumers still write dK and dV of the tile before
 *     dQ         shared memory is the busiest unit beside the tensor cores: wgmma reads 64 rows of A and 64 rows of B
 *                at 128 bytes per cycle, all that it gives. dQ on its way to a bulk copy crosses it twice. Here a lane
 *                adds 16 bytes at a time from its registers, as in `wgmma`
 *     dK         at D = 128 a consumer does not wait for dK before it starts the next step's S and dP. At D = 64, with
 *                S and dP of 64 registers each, there are none left for that
 *
 * If several query heads share a K/V head, blocks add dK and dV, too, one block for each key tile and query head.
 * Because they are added, a key tile may be cut into pieces with some of its queries each. Without a mask this is done
 * with the key tiles of the last wave, in which blocks would otherwise have no work (key_tiles.h).
 *
 *     step n        tensor cores, D = 128   threads of a consumer
 *                   dK(n-1), S(n), dP(n)
 *                   dP(n)                   P(n) from S(n)
 *                   dV(n)                   dS(n) from P(n) and dP(n), to shared memory
 *                   dQ(n-1), dK(n)
 *                   dK(n)                   dQ(n-1) to the accumulator
 *
 * Who owns what: as in `specialised`. Without a buffer for dQ shared memory holds 160 KB. K and V have one buffer each,
 * and an `empty` mbarrier now, since they are loaded many times. So has the description of the key tile, which the
 * producer hands to the consumers.
 *
 * Where it is. Here is what a block takes, and how. The loads of a key tile and the consumer's steps are in
 * overlapped.cuh, which `ordered` uses, too; what `specialised` does alike is in roles.cuh. What each change brought is
 * in notes/09_fa3_backward.md, what was tried in fa3_backward_log.tsv of notes/results.
 *
 *     make 09_fa3_backward && ./09_fa3_backward/09_fa3_backward --variant overlapped --head-dim 128 --causal
 */
#include "overlapped.cuh"

/* The producer: one thread. The block's first key tile has the block's number; later ones come from the counter. */
template <typename T, int D>
__device__ inline void produce(OverlappedShared<T, D> &shared, const Problem &p, const Tensors &t,
                               const KeyTileOrder &order, uint32_t *next, const RowStatistics &statistics,
                               const TensorMaps &maps) {
    int nth = 0, kv_n = 0, n = 0, i = blockIdx.x;
    for (; i < order.count; nth++, i = draw_tile(next, order.count, gridDim.x)) {
        const KeyTile here = key_tile(p, t.key_lengths, order, i, Br<D>, Bc);
        hand_over(shared, here, nth);
        load_key_tile<D>(shared, p, here, statistics, maps, n, kv_n);
    }
    hand_over(shared, no_more_tiles(), nth);
}

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 1)
    overlapped_backward(Problem p, Tensors t, KeyTileOrder order, uint32_t *next, RowStatistics statistics,
                        Accumulators sums, const __grid_constant__ TensorMaps maps) {
#ifdef HOPPER
    using Shared = OverlappedShared<T, D>;
    SHARED_MEMORY(shared, Shared);
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0); /* by a shuffle: no lane differs, and ptxas knows */
    if (warp == 0 && elect_one())
        init_barriers(shared);
    __syncthreads(); /* the only time that all meet */

    if (warp < 4) {
        setmaxnreg_decrease<PRODUCER_REGISTERS>();
        if (warp == 0 && elect_one())
            produce<T, D>(shared, p, t, order, next, statistics, maps);
    } else {
        setmaxnreg_increase<CONSUMER_REGISTERS>();
        consume<T, D>(shared, p, t, sums, warp - 4, AtOnce());
    }
#endif
}

PLANNER(fa3_backward_overlapped_plan) {
    int count = plan_accumulators(p, workspace);
    workspace[count++] = {"next key tile", sizeof(uint32_t), nullptr, 1};
    return count;
}

/* Some or all of the steps. `next` counts how many times blocks drew a tile. */
static void launch_steps(const Problem *p, const Tensors *t, const Buffer *workspace, const Buffer *next, int steps) {
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const auto launch_main = [&](const RowStatistics &statistics, const Accumulators &sums) {
            const TensorMaps maps = tensor_maps<T, D>(*p, *t, Br<D>, Bc);
            const KeyTileOrder order = overlapped_order(p, Bc);
            const int blocks = min(order.count, device_properties()->sm_count);
            LAUNCH((overlapped_backward<T, D>), blocks, THREADS, sizeof(OverlappedShared<T, D>), *p, *t, order,
                   (uint32_t *)next->pointer, statistics, sums, maps);
        };
        launch_backward<T, D>(*p, *t, workspace, launch_main, steps);
    }));
}

LAUNCHER(fa3_backward_overlapped) { launch_steps(p, t, workspace, own_workspace(p, workspace), ALL_STEPS); }
extern "C" void fa3_backward_overlapped_steps(const Problem *p, const Tensors *t, const Buffer *workspace, int steps) {
    launch_steps(p, t, workspace, workspace + 5, steps);
}
