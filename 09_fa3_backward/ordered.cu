/* 09_fa3_backward/ordered - `overlapped` with the additions to dQ in a fixed order: equal bits in every run.
 *
 * The idea. Sums of floats depend on the order of their terms. In `overlapped` blocks add to dQ when they come to it,
 * in another order in every run, and the last bits of dQ differ. Here key tiles add to a query tile in a fixed order,
 * the last key tile first. Whoever comes too early waits.
 *
 *     turns      each query tile has, for each consumer, a number in device memory: how many key tiles have added that
 *                half of dQ. Whoever waits for a turn waits for a number. Key tile 0 counts back to 0, for the next
 *                launch
 *     keepers    to read a number takes hundreds of cycles. To count on takes more: a fence must wait until memory has
 *                the additions. A consumer that did so would stand still. So two idle warps beside the producer have a
 *                keeper each, one thread per consumer. It waits for the turn, lets the consumer add, by an mbarrier,
 *                learns by another that its four warps have, and counts on, while the consumer computes the next step
 *     no hang    a block must not wait for one that cannot begin before it has ended. Here every key tile's number, a
 *                block's first one too, comes from the counter, and a block works on its numbers one after the other.
 *                Whatever is waited for has a lower number, so it is already at work. The lowest one at work waits for
 *                nothing. (Nor does a keeper ask for a turn before it has passed on the one before)
 *     the last   with a causal mask key tile j is seen from query tile j on. So its first query tile sees no key tile
 *     key tile   behind it, and it adds there at once; at each further query tile the key tile behind was a step ago.
 *     first      In the other order the key tile before would be there a step *later*, and each block would begin with
 *                waiting
 *
 *                     query tiles ->             Key tile 2 adds to query tile 2 in its first step, key tile 1 in its
 *                     0     1     2              second, key tile 0 in its third: nobody waits. In the other order key
 *     key tile  0     1     2     3  <- time     tile 1 could add there at time 4 at the earliest, and key tile 2 at
 *               1           1     2              time 5.
 *               2                 1
 *
 *     heads      without a mask all key tiles of a head begin at the same queries, one behind the other. So as many
 *     together   heads go together as fill the chip: the next key tile of a head begins where one of its own has ended,
 *                and seldom waits
 *
 *     dK and     where query heads share a K/V head, their blocks take turns to add dK and dV as well, the last head of
 *     dV         the group first: so again the blocks that are waited for have lower numbers
 *
 * What it costs beside the waiting: 8 bytes of device memory for each query tile and, for dK and dV, for each key tile.
 *
 * Who owns what, and the steps: as in `overlapped` (overlapped.cuh).
 *
 *     make 09_fa3_backward && ./09_fa3_backward/09_fa3_backward --variant ordered --head-dim 128 --causal
 */
#include "overlapped.cuh"

/* How many have added: of each query tile to dQ, of each key tile to dK and dV. */
struct TurnCounts {
    int *queries, *keys, key_tiles; /* of a head */
};

template <typename T, int D> struct OrderedShared : OverlappedShared<T, D> {
    Mbarrier may_add[SUMS][CONSUMERS], has_added[SUMS][CONSUMERS];
};

/* The producer: one thread. Every key tile's number comes from the counter, and the last key tile has number 0. */
template <typename T, int D>
__device__ inline void produce(OverlappedShared<T, D> &shared, const Problem &p, const Tensors &t,
                               const KeyTileOrder &order, int *next, const RowStatistics &statistics,
                               const TensorMaps &maps) {
    int nth = 0, kv_n = 0, n = 0, i;
    for (; (i = atomicAdd(next, 1)) < order.count; nth++) {
        const KeyTile here = key_tile(p, t.key_lengths, order, order.count - 1 - i, Br<D>, Bc);
        hand_over(shared, here, nth);
        load_key_tile<D>(shared, p, here, statistics, maps, n, kv_n);
    }
    if (i == order.count + (int)gridDim.x - 1)
        *next = 0; /* each block draws once in vain, so this was the launch's last draw; the next begins at 0 */
    hand_over(shared, no_more_tiles(), nth);
}

/* A keeper: one thread for each consumer. keep_turn waits until `before` others have added, lets the consumer add, and
 * when the four warps have, counts on, or back to 0 behind the last one. */
template <typename T, int D>
__device__ inline void keep_turn(OrderedShared<T, D> &shared, Sum sum, int nth, int *added, int before, bool is_last,
                                 int consumer) {
    wait_ordered(added, before);
    mbarrier_arrive(&shared.may_add[sum][consumer]);
    mbarrier_wait(&shared.has_added[sum][consumer], nth % 2); /* the consumer's warps have added */
    atomic_add_ordered(added, is_last ? -before : 1);
}

/* At each step all key tiles behind this one come before it, and with dK and dV all further heads of the group. */
template <typename T, int D>
__device__ inline void keep_turns(OrderedShared<T, D> &shared, const Problem &p, const TurnCounts &turns,
                                  int consumer) {
    int n = 0, kv_n = 0;
    for (int nth = 0;; nth++) {
        mbarrier_wait(&shared.key_tile_full, nth % 2);
        const KeyTile here = shared.key_tile;
        mbarrier_arrive(&shared.key_tile_empty);
        if (here.batch_head < 0)
            break;
        int *added = turns.queries + here.padded_row(p, here.first_query) / Br<D> * CONSUMERS + consumer;
        for (int step = 1, last = here.first_query - 1; step <= here.steps; step++, added += CONSUMERS) {
            last += Br<D>;
            const int adding = ceil_div(visible_keys(&p, here.keys, last), Bc); /* key tiles, to these rows */
            keep_turn(shared, QUERIES, n++, added, adding - 1 - here.first_key / Bc, here.first_key == 0, consumer);
        }
        if (heads_share_keys(&p) && here.steps > 0) {
            const int group = p.heads / p.kv_heads, head = here.batch_head % group; /* in the group */
            added = turns.keys + (here.kv_head * turns.key_tiles + here.first_key / Bc) * CONSUMERS + consumer;
            keep_turn(shared, KEYS, kv_n++, added, group - 1 - head, head == 0, consumer);
        }
    }
}

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 1)
    ordered_backward(Problem p, Tensors t, KeyTileOrder order, int *next, TurnCounts turns, RowStatistics statistics,
                     Accumulators sums, const __grid_constant__ TensorMaps maps) {
#ifdef HOPPER
    using Shared = OrderedShared<T, D>;
    SHARED_MEMORY(shared, Shared);
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0); /* by a shuffle: no lane differs, and ptxas knows */
    if (warp == 0 && elect_one()) {
        for (int i = 0; i < SUMS * CONSUMERS; i++) {
            mbarrier_init(&shared.may_add[i / CONSUMERS][i % CONSUMERS], 1);
            mbarrier_init(&shared.has_added[i / CONSUMERS][i % CONSUMERS], 4);
        }
        init_barriers(shared, CONSUMERS);
    }
    __syncthreads(); /* the only time that all meet */

    if (warp < 4) {
        setmaxnreg_decrease<PRODUCER_REGISTERS>();
        if (warp > 0 && warp <= CONSUMERS && elect_one()) /* first, or else ptxas spills the producer's registers */
            keep_turns(shared, p, turns, warp - 1);
        if (warp == 0 && elect_one())
            produce<T, D>(shared, p, t, order, next, statistics, maps);
    } else {
        setmaxnreg_increase<CONSUMER_REGISTERS>();
        const int consumer = warp / 4 - 1;
        consume<T, D>(shared, p, t, sums, warp - 4, [&](Sum sum, int nth, auto add) {
            mbarrier_wait(&shared.may_add[sum][consumer], nth % 2);
            add();
            __syncwarp(); /* all lanes have added */
            warp_arrive(&shared.has_added[sum][consumer]);
        });
    }
#endif
}

inline size_t query_turns(const Problem &p) {
    return all_padded_rows(&p) / (p.head_dim == 64 ? Br<64> : Br<128>) * CONSUMERS;
}

PLANNER(fa3_backward_ordered_plan) {
    int count = plan_accumulators(p, workspace);
    const size_t key_turns = heads_share_keys(p) ? all_padded_keys(p) / Bc * CONSUMERS : 0;
    workspace[count++] = {"next key tile", sizeof(int), nullptr, 1};
    workspace[count++] = {"turns", (query_turns(*p) + key_turns) * sizeof(int), nullptr, 1};
    return count;
}

LAUNCHER(fa3_backward_ordered) {
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const TensorMaps maps = tensor_maps<T, D>(*p, *t, Br<D>, Bc);
        KeyTileOrder order = key_tile_order(p, Bc);
        const int fill = device_properties()->sm_count / ceil_div(p->seqlen_k, Bc); /* heads that fill the chip */
        if (!p->causal)
            order.together = fill > 1 ? fill : 1;
        const Buffer *own = own_workspace(p, workspace);
        int *next = (int *)own[0].pointer; /* how many times blocks drew a tile */
        int *turns = (int *)own[1].pointer;
        const int blocks = min(order.count, device_properties()->sm_count);
        launch_backward<T, D>(*p, *t, workspace, [&](const RowStatistics &statistics, const Accumulators &sums) {
            LAUNCH((ordered_backward<T, D>), blocks, THREADS, sizeof(OrderedShared<T, D>), *p, *t, order, next,
                   TurnCounts{turns, turns + query_turns(*p), ceil_div(p->seqlen_k, Bc)}, statistics, sums, maps);
        });
    }));
}
