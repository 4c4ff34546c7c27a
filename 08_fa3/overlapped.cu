/* 08_fa3/overlapped - FlashAttention-3: softmax runs beside products, of the same warpgroup and of the others; tuned.
 *
 * The idea. In `specialised` a consumer does Q K^T, then softmax, then P V of a tile, and both consumers tend to be at
 * the same step. The tensor cores stand still during the softmax. Two changes fill that time:
 *
 *     overlap   a consumer starts S of the next tile before P V of this one. wgmma_wait<1> waits for S alone, the older of
 *               two batches, and the softmax of S runs beside P V
 *     turns     consumers start their products in turns, by named barriers. A turn ends when the products are started: while
 *               they run, the others are at their softmax
 *
 *     consumer 0   Q K1^T   P V0                            Q K2^T   P V1                            Q K3^T ...
 *                           softmax of S1                            softmax of S2
 *     consumer 1                        Q K1^T   P V0                            Q K2^T   P V1
 *                                                softmax of S1                            softmax of S2
 *
 * A third change: there are as many blocks as multiprocessors, and a block works on many query tiles, one after the
 * other. The producer draws the next query tile's number from a counter in device memory, and loads that tile's Q, K
 * and V while the consumers still work on the query tile before.
 *
 * Who owns what. A block is a producer warpgroup and two or three consumer warpgroups, 64 queries each. Roles, ring and
 * barriers are as in `specialised`. The producer hands the consumers a description of each query tile: which head, which rows,
 * how many keys. Q comes with it, into one of two places: the next Q is there before the slowest consumer is done with this one.
 *
 *                                            D = 64                               D = 128
 *     consumers, queries Br, keys Bc         3, 192, 128                          2, 128, 128
 *     shared memory                          2 x 24 + 2 x 32 KB                   2 x 32 + 2 x 64 KB
 *     registers a producer, consumer         32, 160: O 32, S 64, P 32            24, 240: O 64, S 64, P 32
 *
 * What one key tile costs in one block: 4 Br Bc D FLOPs, 2048 clocks of the tensor cores at D = 128 and 1536 at D = 64; Br Bc
 * exponentials, 1024 and 1536 clocks of the special-function units. So at D = 128 products can cover the softmax, and
 * at D = 64 they cannot quite. What each change brought is in notes/08_fa3.md, what was tried in notes/second_reading.md.
 * The words for tiles are those of `wgmma`.
 *
 *     make 08_fa3 && ./08_fa3/08_fa3 --variant overlapped --head-dim 128 --causal
 */
#include "../common/gpu/fa3.cuh"

constexpr int Bc = 128, STAGES = 2;

/* At D = 128 registers allow two consumers, at D = 64 three: O takes half as many, and each tile of K and V then serves 192
 * queries. */
template <int D> struct Roles {
    static constexpr int consumers = D == 64 ? 3 : 2, threads = 128 * (1 + consumers), Br = 64 * consumers;
    static constexpr int producer_registers = D == 64 ? 32 : 24, consumer_registers = D == 64 ? 160 : 240;
    static_assert(128 * (producer_registers + consumers * consumer_registers) <= 65536, "a multiprocessor's registers");
};

template <typename T, int D> struct OverlappedShared {
    Panels<T, Roles<D>::Br, D> q[2]; /* of the query tile at work and of the next one */
    Panels<T, Bc, D> k[STAGES], v[STAGES];
    QueryTile tile; /* the query tile that the producer is loading */
    Mbarrier tile_full, tile_empty; /* full: the description is there, and Q */
    Mbarrier k_full[STAGES], v_full[STAGES], k_empty[STAGES], v_empty[STAGES];
};

/* Key tile number n, counted from the block's first one, has place n % STAGES, and is that place's phase number n / STAGES. */
__device__ inline int place(unsigned n) { return n % STAGES; }
__device__ inline int parity(unsigned n) { return n / STAGES % 2; }

/* ---- the producer: one thread ---- */

/* Tells the consumers which query tile comes next, and asks for its Q, once all of them have read the description of the one
 * before. Who has read that one is done with the Q before it, and the new Q takes its place. */
template <typename T, int D>
__device__ inline void hand_over(OverlappedShared<T, D> &shared, const QueryTile &tile, int nth, const TensorMap &q) {
    mbarrier_wait(&shared.tile_empty, nth % 2 ^ 1);
    shared.tile = tile;
    if (tile.key_tiles > 0) {
        mbarrier_arrive_expect(&shared.tile_full, shared.q[0].bytes);
        shared.q[nth % 2].load(q, tile.first_row, 0, tile.batch_head, &shared.tile_full);
    } else
        mbarrier_arrive(&shared.tile_full);
}

template <typename T, int D>
__device__ inline void produce(OverlappedShared<T, D> &shared, const Problem &p, const Tensors &t, const TileOrder &order,
                               uint32_t *next, const TensorMaps &maps) {
    int n = 0, i = blockIdx.x; /* the block's first query tile; later ones come from the counter */
    int nth = 0; /* which of the block's query tiles is handed over, from 0 on */
    for (; i < order.count; nth++) {
        const QueryTile here = query_tile(p, t.key_lengths, order.together, i, Roles<D>::Br, Bc);
        hand_over(shared, here, nth, maps.q);
        for (int tile = here.key_tiles - 1; tile >= 0; n++, tile--) {
            mbarrier_wait(&shared.k_empty[place(n)], parity(n) ^ 1);
            mbarrier_arrive_expect(&shared.k_full[place(n)], shared.k[0].bytes);
            shared.k[place(n)].load(maps.k, tile * Bc, 0, here.kv_matrix, &shared.k_full[place(n)]);
            mbarrier_wait(&shared.v_empty[place(n)], parity(n) ^ 1);
            mbarrier_arrive_expect(&shared.v_full[place(n)], shared.v[0].bytes);
            shared.v[place(n)].load(maps.v, tile * Bc, 0, here.kv_matrix, &shared.v_full[place(n)]);
        }
        const uint32_t taken = atomicAdd(next, 1u); /* behind the loads: a block that draws early keeps a tile waiting */
        if (taken == (uint32_t)order.count - 1)
            *next = 0; /* each query tile draws once, so this was the launch's last draw; the next begins at 0 */
        i = gridDim.x + taken;
    }
    hand_over(shared, QueryTile{-1, 0, 0, 0, 0, 0}, nth, maps.q); /* head -1: there are no more */
}

/* ---- a consumer: a warpgroup ---- */

/* The named barriers: TURN + i, consumer i's turn; ZEROED, V's last rows are zeros. */
enum { TURN = 1, ZEROED = TURN + 3 };

template <typename T, int D>
__device__ inline void consume(OverlappedShared<T, D> &shared, const Problem &p, const Tensors &t, int consumer) {
    constexpr int consumers = Roles<D>::consumers;
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32 % 4, 0);
    const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */

    /* Turns: a consumer waits at a named barrier of its own, at which the consumer before it arrives when its turn
     * ends. */
    auto my_turn = [&] { named_barrier_sync(TURN + consumer, 256); };
    auto end_turn = [&] { named_barrier_arrive(TURN + (consumer + 1) % consumers, 256); };
    if (consumer == consumers - 1)
        end_turn(); /* consumer 0 begins */

    int n = 0;
    for (int nth = 0;; nth++) {
        mbarrier_wait(&shared.tile_full, nth % 2);
        const QueryTile here = shared.tile;
        mbarrier_arrive(&shared.tile_empty); /* every thread has its own copy */
        if (here.batch_head < 0)
            break;
        const int first_row = here.first_row + 64 * consumer, row = first_row + 16 * warp; /* this consumer's, the warp's */
        float o[1][D / 8][4] = {}, m[2] = {LOWEST, LOWEST}, l[2] = {0, 0}, alpha[2];

        const auto &q = shared.q[nth % 2];
        int tile = here.key_tiles - 1;
        if (t.key_lengths && tile >= 0 && here.keys < (tile + 1) * Bc) { /* all consumers meet: not within a turn */
            mbarrier_wait(&shared.v_full[place(n)], parity(n));
            zero_rows(shared.v[place(n)], here.keys - tile * Bc, Bc, threadIdx.x - 128, 128 * consumers);
            named_barrier_sync(ZEROED, 128 * consumers);
        }

        /* Key tiles that only rows of other consumers see pass by. */
        const int end_row = min(first_row + 64, p.seqlen_q), whole_tiles = visible_keys(&p, here.keys, first_row) / Bc;
        const int seen_tiles = first_row < end_row ? ceil_div(visible_keys(&p, here.keys, end_row - 1), Bc) : 0;
        for (; tile >= seen_tiles; n++, tile--) {
            my_turn();
            end_turn();
            mbarrier_wait(&shared.v_full[place(n)], parity(n)); /* who sees the tile waits for its K */
            if (elect_one())
                mbarrier_arrive(&shared.k_empty[place(n)]), mbarrier_arrive(&shared.v_empty[place(n)]);
        }

        if (tile >= 0) {
            /* The first tile's S, softmax and P */
            uint32_t a[Bc / 16][4];
            float first[1][Bc / 8][4];
            mbarrier_wait(&shared.k_full[place(n)], parity(n));
            my_turn();
            start_abt(first, q, 64 * consumer, shared.k[place(n)]);
            end_turn();
            wgmma_wait<0>(first);
            if (elect_one())
                mbarrier_arrive(&shared.k_empty[place(n)]);
            if (tile >= whole_tiles)
                mask(first, p, here.keys, row, tile * Bc);
            softmax(first, m, l, alpha, scale_log2);
            to_operand<T>(a, first);

            /* Each step: S of the next tile and P V of this one; then, under P V, the next tile's softmax */
            for (tile--; tile >= 0; n++, tile--) {
                float s[1][Bc / 8][4];
                mbarrier_wait(&shared.k_full[place(n + 1)], parity(n + 1));
                my_turn();
                start_abt(s, q, 64 * consumer, shared.k[place(n + 1)]);
                mbarrier_wait(&shared.v_full[place(n)], parity(n));
                start_ab(o, a, shared.v[place(n)]);
                end_turn();

                wgmma_wait<1>(s);
                if (elect_one())
                    mbarrier_arrive(&shared.k_empty[place(n + 1)]);
                if (tile >= whole_tiles)
                    mask(s, p, here.keys, row, tile * Bc);
                const bool moved = softmax(s, m, l, alpha, scale_log2);

                wgmma_wait<0>(o, a); /* the compiler moves it up into the softmax: notes/08_fa3.md */
                if (elect_one())
                    mbarrier_arrive(&shared.v_empty[place(n)]);
                to_operand<T>(a, s); /* before the branch: the compiler mixes it with the exponentials */
                if (moved)
                    each(o, [&](float &x, int r) { x *= alpha[r]; });
            }

            /* The last tile's P V */
            mbarrier_wait(&shared.v_full[place(n)], parity(n));
            start_ab(o, a, shared.v[place(n)]);
            wgmma_wait<0>(o);
            if (elect_one())
                mbarrier_arrive(&shared.v_empty[place(n)]);
            n++;
        }
        write_output(head_tensors<T, D>(p, t, here.batch_head), row, o, m, l, LN_2);
    }
    if (consumer == 0)
        my_turn(); /* takes the last consumer's end_turn, so that no arrival is left over at a barrier */
}

template <typename T, int D>
__global__ void __launch_bounds__(Roles<D>::threads, 1)
    overlapped(Problem p, Tensors t, TileOrder order, uint32_t *next, const __grid_constant__ TensorMaps maps) {
#ifdef HOPPER
    SHARED_MEMORY(shared, OverlappedShared<T, D>);
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0); /* by a shuffle: no lane differs, and ptxas knows */
    if (warp == 0 && elect_one()) {
        constexpr int consumer_warps = 4 * Roles<D>::consumers; /* one arrival each */
        mbarrier_init(&shared.tile_full, 1);
        mbarrier_init(&shared.tile_empty, 32 * consumer_warps);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&shared.k_full[i], 1);
            mbarrier_init(&shared.v_full[i], 1);
            mbarrier_init(&shared.k_empty[i], consumer_warps);
            mbarrier_init(&shared.v_empty[i], consumer_warps);
        }
        mbarrier_init_fence();
    }
    __syncthreads(); /* the only time that all meet */

    if (warp < 4) {
        setmaxnreg_decrease<Roles<D>::producer_registers>();
        if (warp == 0 && elect_one())
            produce<T, D>(shared, p, t, order, next, maps);
    } else {
        setmaxnreg_increase<Roles<D>::consumer_registers>();
        consume<T, D>(shared, p, t, warp / 4 - 1);
    }
#endif
}

PLANNER(fa3_overlapped_plan) {
    workspace[0] = {"next query tile", sizeof(uint32_t), nullptr, 1};
    return 1;
}

LAUNCHER(fa3_overlapped) {
    uint32_t *next = (uint32_t *)workspace[0].pointer; /* how many tiles were taken beyond each block's first one */
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const TileOrder order = tile_order(*p, Roles<D>::Br, 2);
        const TensorMaps maps = tensor_maps<T, D>(*p, *t, Roles<D>::Br, Bc);
        LAUNCH((overlapped<T, D>), min(order.count, device_properties()->sm_count), Roles<D>::threads,
               sizeof(OverlappedShared<T, D>), *p, *t, order, next, maps);
    }));
}
