/* 10_block_sparse/overlapped - 08_fa3/overlapped on lists: the producer walks a list, and consumers follow.
 *
 * The idea. `skipping` does it for 04_fa2's kernel, this file for 08_fa3's. Roles, ring, turns and barriers stay as
 * they are, and its header explains them. What changes is who is told what:
 *
 *     producer    draws a query tile, longest lists first (lists.cuh), and requests the key blocks on its list, one
 *                 after the other
 *     consumers   are handed the description of the query tile, as before. It says how many key tiles there are, and
 *                 how many of them are full. So they count along, and look up a key block's number only where they
 *                 evaluate the mask
 *
 * Lists of very different lengths are balanced by the counter that query tiles are drawn from, and by the order.
 *
 *                                            D = 64                               D = 128
 *     teams, consumers of each               2, 2                                 1, 2
 *     queries Br, keys Bc                    128, 64                              128, 128
 *     shared memory                          2 x (2 x 16 + 4 x 16) KB             2 x 32 + 2 x 64 KB
 *     registers per producer, consumer       24, 112: O 32, S 32, P 16            24, 240: O 64, S 64, P 32
 *
 * At D = 64 08_fa3 has three consumers, and 192 queries. Here Br is the height of a mask block: a taller tile would
 * have to visit what either of two rows of blocks keeps. So a block has two teams there, each with a query tile, a ring
 * and a producer of its own. Key tiles are half as long, or registers would not suffice. Two teams fill each other's
 * pauses without turns.
 *
 * What one key tile costs in one block: 4 Br Bc D FLOPs, 2048 cycles of the tensor cores at D = 128 and 512 at D = 64;
 * Br Bc exponentials, 1024 and 512 cycles of the special-function units. Where lists are short, what a query tile costs
 * beside its key tiles shows: Q, O, and the first S and the last P V, under which nothing runs but other consumers.
 *
 *     make 10_block_sparse && ./10_block_sparse/10_block_sparse --variant overlapped --head-dim 128 --blocks window:512
 */
#include "../common/gpu/fa3.cuh"
#include "../common/gpu/ring.cuh"
#include "lists.cuh"
#include "mask.cuh"

constexpr int CONSUMERS = 2, Br = 64 * CONSUMERS, TEAM = 128 * CONSUMERS; /* a team's threads */

template <int D> struct Shape {
    static constexpr int teams = D == 64 ? 2 : 1, threads = 128 + teams * TEAM;
    static constexpr int Bc = D == 64 ? 64 : 128, stages = D == 64 ? 4 : 2;
    static constexpr int producer_registers = 24, consumer_registers = D == 64 ? 112 : 240;
    static_assert(128 * producer_registers + teams * TEAM * consumer_registers <= 65536 / threads / 8 * 8 * threads,
                  "the registers that a block begins with");
    static_assert(Br == MASK_BLOCK && MASK_BLOCK % Bc == 0, "each tile lies in one block of the mask");
};

template <typename T, int D>
using Shared =
    Ring<Panels<T, Br, D>, Panels<T, Shape<D>::Bc, D>, Panels<T, Shape<D>::Bc, D>, Shape<D>::stages, ListedTile>;

/* ---- a consumer: a warpgroup ---- */

/* A team's named barriers: TURN + i, consumer i's turn; ZEROED, V's last rows are zeros. */
enum { TURN, ZEROED = TURN + CONSUMERS, BARRIERS };

template <typename T, int D>
__device__ inline void consume(Shared<T, D> &shared, const Problem &p, const Tensors &t, const Lists &lists,
                               int team, int consumer) {
    constexpr int Bc = Shape<D>::Bc;
    const int barriers = 1 + team * BARRIERS; /* 0 is __syncthreads */
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32 % 4, 0);
    const int own_row = 64 * consumer + 16 * warp;
    const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */

    const Turns turn = {barriers + TURN, consumer, CONSUMERS, Shape<D>::teams == 1}; /* for a team alone */
    turn.begin();

    int n = 0;
    for (int nth = 0;; nth++) {
        const ListedTile here = shared.take(nth);
        if (here.batch_head < 0)
            break;
        const int row = here.first_row + own_row;
        float o[1][D / 8][4] = {}, m[2] = {LOWEST, LOWEST}, l[2] = {0, 0}, alpha[2];
        Limits limits = Limits::NOT_YET;
        const auto &q = shared.q[nth % 2];
        if (here.key_tiles > 0) {
            int tile = here.key_tiles - 1, key = listed_key(p, lists, here, tile, Bc);
            if (t.key_lengths && here.keys < key + Bc) { /* all consumers meet: not within a turn */
                for (int i = 0; i < MASK_BLOCK / Bc; i++) { /* a block's tiles */
                    const int behind = max(0, here.keys - key + i * Bc);
                    shared.wait_for_v(n + i);
                    zero_rows(shared.v[shared.stage(n + i)], behind, Bc, (threadIdx.x - 128) % TEAM, TEAM);
                }
                named_barrier_sync(barriers + ZEROED, TEAM);
            }

            /* The first tile's S, softmax and P */
            uint32_t a[Bc / 16][4];
            float s[1][Bc / 8][4];
            shared.wait_for_k(n);
            turn.wait();
            start_abt(s, q, 64 * consumer, shared.k[shared.stage(n)]);
            turn.end();
            wgmma_wait<0>(s);
            shared.release_k(n);
            if (tile >= here.whole_tiles)
                mask_block(s, t.mask, p, here.keys, row, key);
            softmax(s, m, limits, l, alpha, scale_log2);
            to_operand<T>(a, s);

            /* Each step: S of the next tile and P V of this one; then, under P V, the next tile's softmax */
            for (tile--; tile >= 0; n++, tile--) {
                float s[1][Bc / 8][4];
                if (tile >= here.whole_tiles)
                    key = listed_key(p, lists, here, tile, Bc); /* from L2: long before the mask needs it */
                shared.wait_for_k(n + 1);
                turn.wait();
                start_abt(s, q, 64 * consumer, shared.k[shared.stage(n + 1)]);
                shared.wait_for_v(n);
                start_ab(o, a, shared.v[shared.stage(n)]);
                turn.end();

                wgmma_wait<1>(s);
                shared.release_k(n + 1);
                if (tile >= here.whole_tiles)
                    mask_block(s, t.mask, p, here.keys, row, key);
                const bool updated = softmax(s, m, limits, l, alpha, scale_log2);

                wgmma_wait<0>(o, a);
                shared.release_v(n);
                to_operand<T>(a, s);
                if (updated)
                    each(o, [&](float &x, int r) { x *= alpha[r]; });
            }

            /* The last tile's P V */
            shared.wait_for_v(n);
            start_ab(o, a, shared.v[shared.stage(n)]);
            wgmma_wait<0>(o);
            shared.release_v(n);
            n++;
        }
        write_output(head_tensors<T, D>(p, t, here.batch_head), row, o, m, l, LN_2);
    }
    turn.finish();
}

template <typename T, int D>
__global__ void __launch_bounds__(Shape<D>::threads, 1)
    overlapped(Problem p, Tensors t, Lists lists, TileOrder order, uint32_t *next,
               const __grid_constant__ ForwardMaps maps) {
#ifdef HOPPER
    using S = Shape<D>;
    struct Teams {
        Shared<T, D> team[S::teams];
    };
    SHARED_MEMORY(shared, Teams);
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0); /* by a shuffle: no lane differs, and ptxas knows */
    if (warp < S::teams && elect_one())
        shared.team[warp].init(4 * CONSUMERS);
    __syncthreads(); /* the only time that all meet */

    if (warp < 4) {
        setmaxnreg_decrease<S::producer_registers>();
        if (warp < S::teams && elect_one())
            shared.team[warp].produce(
                warp * gridDim.x + blockIdx.x, S::teams * gridDim.x, order.count, next, maps.q,
                [&](int i) { return listed_tile(p, t.key_lengths, lists, order.together, i, S::Bc); },
                [&](const ListedTile &here, int tile, int n) {
                    const int key = listed_key(p, lists, here, tile, S::Bc);
                    shared.team[warp].load_k(n, maps.k, key, 0, here.kv_head);
                    shared.team[warp].load_v(n, maps.v, key, 0, here.kv_head);
                });
    } else {
        setmaxnreg_increase<S::consumer_registers>();
        const int consumer = warp / 4 - 1, team = consumer / CONSUMERS;
        consume<T, D>(shared.team[team], p, t, lists, team, consumer % CONSUMERS);
    }
#endif
}

LAUNCHER(sparse_overlapped) {
    uint32_t *next = (uint32_t *)workspace[NEXT_TILE].pointer; /* how many tiles were taken after each team's first */
    const TileOrder order = listed_order(*p, t->mask);
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        using S = Shape<D>;
        const ForwardMaps maps = forward_maps<T, D>(*p, *t, Br, S::Bc);
        LAUNCH((overlapped<T, D>), min(order.count, device_properties()->sm_count), S::threads,
               S::teams * sizeof(Shared<T, D>), *p, *t, lists_in(workspace), order, next, maps);
    }));
}
