/* 08_fa3/overlapped - FlashAttention-3: softmax runs beside products, of the same warpgroup and of the others; tuned.
 *
 * The idea. In `specialised` a consumer does Q K^T, then softmax, then P V of a tile, and both consumers tend to be at
 * the same step. The tensor cores stand still during the softmax. Three changes fill that time. Their numbers are at
 * their lines in the code, and notes/08_fa3.md says how fast the kernel is without each:
 *
 * [1] overlap             a consumer starts S of the next tile before P V of this one. wgmma_wait<1> waits for S alone,
 *                         the older of two batches, and the softmax of S runs beside P V
 * [2] ping-pong           consumers start their products in turns, by named barriers. A turn ends when the products are
 *     scheduling          started: while they run, the other consumers are at their softmax
 * [3] persistent blocks   there are as many blocks as multiprocessors, and each works on many query tiles. The producer
 *                         draws the next query tile's number from a counter in device memory (a dynamic tile
 *                         scheduler), and loads that tile's Q, K and V while the consumers still work on the query tile
 *                         before
 *
 *     consumer 0   Q K1^T   P V0                            Q K2^T   P V1                            Q K3^T ...
 *                           softmax of S1                            softmax of S2
 *     consumer 1                        Q K1^T   P V0                            Q K2^T   P V1
 *                                                softmax of S1                            softmax of S2
 *
 * Who owns what. A block is a producer warpgroup and two or three consumer warpgroups, 64 queries each. Roles, ring and
 * barriers are as in `specialised`. The producer hands the consumers a description of each query tile: which head,
 * which rows, how many keys. Q comes with it, into one of two buffers: the next Q is there before the slowest consumer
 * is done with this one.
 *
 *                                            D = 64                               D = 128
 *     consumers, queries Br, keys Bc         3, 192, 128                          2, 128, 128
 *     shared memory                          2 x 24 + 2 x 32 KB                   2 x 32 + 2 x 64 KB
 *     registers per producer, consumer       32, 160: O 32, S 64, P 32            24, 240: O 64, S 64, P 32
 *
 * What one key tile costs in one block: 4 Br Bc D FLOPs, 2048 cycles of the tensor cores at D = 128 and 1536 at
 * D = 64; Br Bc exponentials, 1024 and 1536 cycles of the special-function units. So at D = 128 products can cover
 * the softmax, and at D = 64 they cannot quite. What else was tried is in fa3_log.tsv of notes/results. The tile
 * primitives are those of `wgmma`.
 *
 *     make 08_fa3 && ./08_fa3/08_fa3 --variant overlapped --head-dim 128 --causal
 */
#include "../common/gpu/fa3.cuh"
#include "../common/gpu/ring.cuh"

constexpr int Bc = 128, STAGES = 2;

template <typename T, int D>
using Shared = Ring<Panels<T, Roles<D>::Br, D>, Panels<T, Bc, D>, Panels<T, Bc, D>, STAGES, QueryTile>;

/* ---- a consumer: a warpgroup ---- */

/* The named barriers: TURN + i, consumer i's turn; ZEROED, V's last rows are zeros. */
enum { TURN = 1, ZEROED = TURN + 3 };

template <typename T, int D>
__device__ inline void consume(Shared<T, D> &shared, const Problem &p, const Tensors &t, int consumer) {
    constexpr int consumers = Roles<D>::consumers;
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32 % 4, 0);
    const float scale_log2 = p.scale * LOG2_E; /* e^(scale s) = 2^(scale_log2 s) */

    const Turns turn = {TURN, consumer, consumers}; /* [2] */
    turn.begin();

    int n = 0;
    for (int nth = 0;; nth++) { /* [3] the block's query tiles */
        const QueryTile here = shared.take(nth);
        if (here.batch_head < 0)
            break;
        /* Which 64 of the rows: in turns, because under a causal mask some have half a key tile less to do. */
        const int first = 64 * ((consumer + nth) % consumers);
        const int first_row = here.first_row + first, row = first_row + 16 * warp; /* consumer's, warp's */
        float o[1][D / 8][4] = {}, m[2] = {LOWEST, LOWEST}, l[2] = {0, 0}, alpha[2];
        Limits limits = Limits::NOT_YET;
        const auto &q = shared.q[nth % 2];
        int tile = here.key_tiles - 1;
        if (t.key_lengths && tile >= 0 && here.keys < (tile + 1) * Bc) { /* all consumers meet: not within a turn */
            shared.wait_for_v(n);
            zero_rows(shared.v[shared.stage(n)], here.keys - tile * Bc, Bc, threadIdx.x - 128, 128 * consumers);
            named_barrier_sync(ZEROED, 128 * consumers);
        }

        /* Key tiles that only rows of other consumers see: this one takes its turns and releases them. */
        const int end_row = min(first_row + 64, p.seqlen_q), whole_tiles = visible_keys(&p, here.keys, first_row) / Bc;
        const int seen = first_row < end_row ? visible_keys(&p, here.keys, end_row - 1) : 0;
        const int seen_tiles = ceil_div(seen, Bc);
        for (; tile >= seen_tiles; n++, tile--) {
            turn.wait();
            turn.end();
            /* Its turns stand in for a wait for K: the next one comes only after a consumer that sees this tile has
             * waited. Else k_full might still be in this phase when the next tile of this stage is waited for, and the
             * parity of the phase before this one would let that wait pass. */
            shared.wait_for_v(n);
            shared.release_k(n), shared.release_v(n);
        }

        if (tile >= 0) {
            /* The first tile's S, softmax and P, for all its keys or, where no row sees more, for the first half */
            uint32_t a[Bc / 16][4] = {};
            const auto begin = [&](auto &s, auto &p_operand) {
                shared.wait_for_k(n);
                turn.wait();
                start_abt(s, q, first, shared.k[shared.stage(n)]);
                turn.end();
                wgmma_wait<0>(s);
                shared.release_k(n);
                if (tile >= whole_tiles)
                    mask(s, p, here.keys, row, tile * Bc);
                softmax(s, m, limits, l, alpha, scale_log2);
                to_operand<T>(p_operand, s);
            };
            if (seen - tile * Bc <= Bc / 2) {
                float s[1][Bc / 16][4];
                uint32_t half[Bc / 32][4];
                begin(s, half);
                UNROLL for (int i = 0; i < Bc / 8; i++)
                    a[i / 4][i % 4] = half[i / 4][i % 4];
            } else {
                float s[1][Bc / 8][4];
                begin(s, a);
            }

            /* [1] Each step: S of the next tile and P V of this one; then, under P V, the next tile's softmax */
            for (tile--; tile >= 0; n++, tile--) {
                float s[1][Bc / 8][4];
                shared.wait_for_k(n + 1);
                turn.wait(); /* [2] */
                start_abt(s, q, first, shared.k[shared.stage(n + 1)]);
                shared.wait_for_v(n);
                start_ab(o, a, shared.v[shared.stage(n)]);
                turn.end();

                wgmma_wait<1>(s); /* [1] S alone */
                shared.release_k(n + 1);
                if (tile >= whole_tiles)
                    mask(s, p, here.keys, row, tile * Bc);
                const bool updated = softmax(s, m, limits, l, alpha, scale_log2);

                wgmma_wait<0>(o, a); /* the compiler moves it up into the softmax: notes/08_fa3.md */
                shared.release_v(n);
                to_operand<T>(a, s); /* before the branch: the compiler mixes it with the exponentials */
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
__global__ void __launch_bounds__(Roles<D>::threads, 1)
    overlapped(Problem p, Tensors t, TileOrder order, uint32_t *next, const __grid_constant__ ForwardMaps maps) {
#ifdef HOPPER
    SHARED_MEMORY(shared, Shared<T, D>);
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0); /* by a shuffle: no lane differs, and ptxas knows */
    if (warp == 0 && elect_one())
        shared.init(4 * Roles<D>::consumers);
    __syncthreads(); /* the only time that all meet */

    if (warp < 4) {
        setmaxnreg_decrease<Roles<D>::producer_registers>();
        if (warp == 0 && elect_one())
            shared.produce(blockIdx.x, gridDim.x, order.count, next, maps.q,
                           [&](int i) { return query_tile(p, t.key_lengths, order.together, i, Roles<D>::Br, Bc); },
                           [&](const QueryTile &here, int tile, int n) {
                               shared.load_k(n, maps.k, tile * Bc, 0, here.kv_head);
                               shared.load_v(n, maps.v, tile * Bc, 0, here.kv_head);
                           });
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
    uint32_t *next = (uint32_t *)workspace[0].pointer; /* [3] how many tiles were taken beyond each block's first one */
    WITH_HALF_TYPE(p->dtype, T, WITH_HEAD_DIM_64_128(p->head_dim, D, {
        const TileOrder order = tile_order(*p, Roles<D>::Br, 2);
        const ForwardMaps maps = forward_maps<T, D>(*p, *t, Roles<D>::Br, Bc);
        LAUNCH((overlapped<T, D>), min(order.count, device_properties()->sm_count), Roles<D>::threads,
               sizeof(Shared<T, D>), *p, *t, order, next, maps);
    }));
}
