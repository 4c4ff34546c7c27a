/* 10_block_sparse/overlapped - 08_fa3/overlapped on lists: the producer walks a list, and consumers follow.
 *
 * The idea. `skipping` does it for 04_fa2's kernel, this file for 08_fa3's. Roles, ring, turns and barriers stay as they are, and
 * its header explains them. What changes is who is told what:
 *
 *     producer    draws a query tile, longest lists first (lists.cuh), and asks for the key blocks on its list, one after the other
 *     consumers   are handed the description of the query tile, as before. It says how many key tiles there are, and how many of
 *                 them are full. So they count along, and look up a key block's number only where they evaluate the mask
 *
 * Lists of very different lengths are balanced by the counter that blocks draw from, and by the order.
 *
 *                                            D = 64                               D = 128
 *     consumers, queries Br, keys Bc         2, 128, 128                          2, 128, 128
 *     shared memory                          16 + 2 x 32 KB                       32 + 2 x 64 KB
 *     registers a producer, consumer         24, 240: O 32, S 64, P 32            24, 240: O 64, S 64, P 32
 *
 * At D = 64 there are two consumers, where 08_fa3 has three: Br is then the height of a mask block. With 192 queries a tile would
 * have to visit what either of two rows of blocks keeps.
 *
 * What one key tile costs in one block: 4 Br Bc D FLOPs, 2048 clocks of the tensor cores at D = 128 and 1024 at D = 64; Br Bc
 * exponentials, 1024 clocks of the special-function units. Where lists are short, what a query tile costs beside its key
 * tiles shows: Q, O, and the first S and the last P V, under which nothing runs but the other consumer.
 *
 *     make 10_block_sparse && ./10_block_sparse/10_block_sparse --variant overlapped --head-dim 128 --blocks window:1024
 */
#include "../common/gpu/fa3.cuh"
#include "lists.cuh"
#include "mask.cuh"

constexpr int CONSUMERS = 2, THREADS = 128 * (1 + CONSUMERS), Br = 64 * CONSUMERS, Bc = 128, STAGES = 2;
static_assert(Br == MASK_BLOCK && Bc == MASK_BLOCK, "each tile is a block of the mask");
/* (24 + 2 x 240) x 128 = 64512 of the multiprocessor's 65536 */
[[maybe_unused]] constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;

template <typename T, int D> struct OverlappedShared {
    Panels<T, Br, D> q;
    Panels<T, Bc, D> k[STAGES], v[STAGES];
    ListedTile tile; /* the query tile that the producer is loading */
    Mbarrier tile_full, tile_empty, q_full, q_empty, k_full[STAGES], v_full[STAGES], k_empty[STAGES], v_empty[STAGES];
};

/* Key tile number n, counted from the block's first one, has place n % STAGES, and is that place's phase number n / STAGES. */
__device__ inline int place(int n) { return n % STAGES; }
__device__ inline int parity(int n) { return n / STAGES % 2; }

/* ---- the producer: one thread ---- */

/* Tells the consumers which query tile comes next, once all of them have read the description of the one before. */
template <typename Shared> __device__ inline void hand_over(Shared &shared, const ListedTile &tile, int turn) {
    mbarrier_wait(&shared.tile_empty, turn % 2 ^ 1);
    shared.tile = tile;
    mbarrier_arrive(&shared.tile_full);
}

template <typename T, int D>
__device__ inline void produce(OverlappedShared<T, D> &shared, const Problem &p, const Tensors &t, const Lists &lists,
                               const TileOrder &order, uint32_t *next, const TensorMaps &maps) {
    int n = 0, q_turn = 0, i = blockIdx.x; /* the block's first query tile; later ones come from the counter */
    int turn = 0;
    for (; i < order.count; turn++) {
        const ListedTile here = listed_tile(p, t.key_lengths, lists, order.together, i, Bc);
        hand_over(shared, here, turn);
        const uint32_t taken = atomicAdd(next, 1u);
        for (int tile = here.key_tiles - 1; tile >= 0; n++, tile--) {
            const int key = listed_key(p, lists, here, tile, Bc);
            mbarrier_wait(&shared.k_empty[place(n)], parity(n) ^ 1);
            mbarrier_arrive_expect(&shared.k_full[place(n)], shared.k[0].bytes);
            shared.k[place(n)].load(maps.k, key, 0, here.kv_matrix, &shared.k_full[place(n)]);
            if (tile == here.key_tiles - 1) {
                mbarrier_wait(&shared.q_empty, q_turn++ % 2 ^ 1);
                mbarrier_arrive_expect(&shared.q_full, shared.q.bytes);
                shared.q.load(maps.q, here.first_row, 0, here.batch_head, &shared.q_full);
            }
            mbarrier_wait(&shared.v_empty[place(n)], parity(n) ^ 1);
            mbarrier_arrive_expect(&shared.v_full[place(n)], shared.v[0].bytes);
            shared.v[place(n)].load(maps.v, key, 0, here.kv_matrix, &shared.v_full[place(n)]);
        }
        if (taken == (uint32_t)order.count - 1)
            *next = 0; /* each query tile draws once, so this was the launch's last draw; the next begins at 0 */
        i = gridDim.x + taken;
    }
    hand_over(shared, ListedTile{-1, 0, 0, 0, 0, 0, 0}, turn); /* head -1: there are no more */
}

/* ---- a consumer: a warpgroup ---- */

/* The named barriers: TURN + i, consumer i's turn; ZEROED, V's last rows are zeros. */
enum { TURN = 1, ZEROED = TURN + CONSUMERS };

template <typename T, int D>
__device__ inline void consume(OverlappedShared<T, D> &shared, const Problem &p, const Tensors &t, const Lists &lists,
                               int consumer) {
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32 % 4, 0);
    const int own_row = 64 * consumer + 16 * warp;
    const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */

    /* Turns: a consumer waits at a named barrier of its own, at which the consumer before it arrives when its turn
     * ends. */
    auto my_turn = [&] { named_barrier_sync(TURN + consumer, 256); };
    auto end_turn = [&] { named_barrier_arrive(TURN + (consumer + 1) % CONSUMERS, 256); };
    if (consumer == CONSUMERS - 1)
        end_turn(); /* consumer 0 begins */

    int n = 0, q_turn = 0;
    for (int turn = 0;; turn++) {
        mbarrier_wait(&shared.tile_full, turn % 2);
        const ListedTile here = shared.tile;
        mbarrier_arrive(&shared.tile_empty); /* every thread has its own copy */
        if (here.batch_head < 0)
            break;
        const int row = here.first_row + own_row;
        float o[1][D / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0}, alpha[2];

        if (here.key_tiles > 0) {
            int tile = here.key_tiles - 1, key = listed_key(p, lists, here, tile, Bc);
            if (t.key_lengths && here.keys < key + Bc) { /* all consumers meet: not within a turn */
                mbarrier_wait(&shared.v_full[place(n)], parity(n));
                zero_rows(shared.v[place(n)], here.keys - key, Bc, threadIdx.x - 128, 128 * CONSUMERS);
                named_barrier_sync(ZEROED, 128 * CONSUMERS);
            }

            /* The first tile's S, softmax and P */
            uint32_t a[Bc / 16][4];
            float first[1][Bc / 8][4];
            mbarrier_wait(&shared.q_full, q_turn++ % 2);
            mbarrier_wait(&shared.k_full[place(n)], parity(n));
            my_turn();
            start_abt(first, shared.q, 64 * consumer, shared.k[place(n)]);
            end_turn();
            wgmma_wait<0>(first);
            if (elect_one())
                mbarrier_arrive(&shared.k_empty[place(n)]);
            if (tile >= here.whole_tiles)
                mask_block(first, t.mask, p, here.keys, row, key);
            softmax(first, m, l, alpha, scale_log2);
            to_operand<T>(a, first);

            /* Each turn: S of the next tile and P V of this one; then, under P V, the next tile's softmax */
            for (tile--; tile >= 0; n++, tile--) {
                float s[1][Bc / 8][4];
                if (tile >= here.whole_tiles)
                    key = listed_key(p, lists, here, tile, Bc); /* from L2: long before the mask needs it */
                mbarrier_wait(&shared.k_full[place(n + 1)], parity(n + 1));
                my_turn();
                start_abt(s, shared.q, 64 * consumer, shared.k[place(n + 1)]);
                mbarrier_wait(&shared.v_full[place(n)], parity(n));
                start_ab(o, a, shared.v[place(n)]);
                end_turn();

                wgmma_wait<1>(s);
                if (elect_one())
                    mbarrier_arrive(&shared.k_empty[place(n + 1)]);
                if (tile >= here.whole_tiles)
                    mask_block(s, t.mask, p, here.keys, row, key);
                const bool moved = softmax(s, m, l, alpha, scale_log2);

                /* The result does not need this wait; the next turn waits for tile n + 2 of K anyway. But mbarrier_wait
                 * is a loop, and the compiler moves no wgmma_wait across a loop. Without the loop it moves
                 * wgmma_wait<0> up, in front of the softmax, and P V and the softmax no longer overlap. (Measured in
                 * notes/08_fa3.md.) */
                if (tile > 0)
                    mbarrier_wait(&shared.k_full[place(n + 2)], parity(n + 2)); /* not needed for the result */
                wgmma_wait<0>(o, a);
                if (elect_one())
                    mbarrier_arrive(&shared.v_empty[place(n)]);
                if (moved)
                    each(o, [&](float &x, int r) { x *= alpha[r]; });
                to_operand<T>(a, s);
            }
            if (elect_one())
                mbarrier_arrive(&shared.q_empty);

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
__global__ void __launch_bounds__(THREADS, 1)
    overlapped(Problem p, Tensors t, Lists lists, TileOrder order, uint32_t *next,
               const __grid_constant__ TensorMaps maps) {
#ifdef HOPPER
    using Shared = OverlappedShared<T, D>;
    SHARED_MEMORY(Shared, shared);
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0); /* by a shuffle: no lane differs, and ptxas knows */
    if (warp == 0 && elect_one()) {
        constexpr int consumer_warps = 4 * CONSUMERS; /* one arrival each */
        mbarrier_init(&shared.tile_full, 1);
        mbarrier_init(&shared.tile_empty, 32 * consumer_warps);
        mbarrier_init(&shared.q_full, 1);
        mbarrier_init(&shared.q_empty, consumer_warps);
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
        setmaxnreg_decrease<PRODUCER_REGISTERS>();
        if (warp == 0 && elect_one())
            produce<T, D>(shared, p, t, lists, order, next, maps);
    } else {
        setmaxnreg_increase<CONSUMER_REGISTERS>();
        consume<T, D>(shared, p, t, lists, warp / 4 - 1);
    }
#endif
}

LAUNCHER(sparse_overlapped) {
    uint32_t *next = (uint32_t *)workspace[NEXT_TILE].pointer; /* how many tiles were taken beyond each block's first one */
    const TileOrder order = {heads_together(*p, 2), p->batch * p->heads * ceil_div(p->seqlen_q, Br)};
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const TensorMaps maps = tensor_maps<T, D>(*p, *t, Br, Bc);
        LAUNCH((overlapped<T, D>), min(order.count, device_properties()->sm_count), THREADS, sizeof(OverlappedShared<T, D>), *p,
               *t, lists_in(workspace), order, next, maps);
    }));
}
