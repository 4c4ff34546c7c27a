/* 06_fp8/overlapped - 08_fa3/overlapped with 8-bit operands: softmax runs beside products, of the same warpgroup and of
 * the others.
 *
 * The idea. `wgmma` leaves all overlap to chance: three blocks that happen to be at different steps. 08_fa3/overlapped
 * arranges it: a producer loads ahead, consumers take turns at the tensor cores, and a consumer starts S of the next
 * tile before P V of this one. This kernel is that one; its header explains roles, ring and turns. What 8 bits change:
 *
 *     product   the product of a key tile with V starts from 0, because wgmma adds 8-bit products with only some 13
 *               bits (see notes/06_fp8_hopper.md). So O, the product and S of the next tile are all in registers at the
 *               same time
 *     alpha     the product of a tile joins O after the softmax of the next tile has updated m: each has an alpha of
 *               its own
 *     ring      a tile of K and V takes half of the bytes, so the ring has four stages
 *     turns     products take half of the cycles, exponentials do not: at D = 128 both now take equally long. If a turn
 *               ended as soon as its products are started, all consumers would be at their exponentials at the same
 *               time. So here a turn ends when S has come and its maximum is found (a query tile's first turn already
 *               when S has come)
 *
 *     consumer 0   Q K1^T, P V0, max of S1  exp of S1, O += P V0     Q K2^T, P V1, max of S2  exp of S2, O += P V1
 *     consumer 1                            Q K1^T, P V0, max of S1  exp of S1, O += P V0     Q K2^T, P V1, max of S2
 *
 *                                            D = 64                               D = 128
 *     consumers, queries Br, keys Bc         3, 192, 128                          2, 128, 128
 *     shared memory                          2 x 12 + 4 x 16 KB                   2 x 16 + 4 x 32 KB
 *     registers per producer, consumer       32, 160: O 32, product 32, S 64      24, 240: O 64, product 64, S 64
 *                                            and P 16                             and P 16
 *
 * What one key tile costs in one block: 4 Br Bc D FLOPs, 1024 cycles of the tensor cores at D = 128 and 768 at D = 64;
 * Br Bc exponentials, 1024 and 1536 cycles of the special-function units.
 *
 * The workspace is what quantise.cu left there: fp8.h.
 *
 *     make 06_fp8 && ./06_fp8/06_fp8 --variant overlapped --head-dim 128 --format e4m3
 */
#include "../common/gpu/ring.cuh"
#include "softmax8.cuh"

constexpr int Bc = BLOCK_K, STAGES = 4;

/* V is transposed. */
template <typename E, int D>
using Shared = Ring<Panels<E, Roles<D>::Br, D>, Panels<E, Bc, D>, Panels<E, D, Bc>, STAGES, QueryTile>;

/* ---- a consumer: a warpgroup ---- */

enum { TURN = 1 }; /* the named barriers: TURN + i, consumer i's turn */

template <typename E, int D, bool by_block>
__device__ inline void consume(Shared<E, D> &shared, const Problem &p, const Tensors &t, const Scales &scales,
                               int consumer) {
    constexpr int consumers = Roles<D>::consumers;
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32 % 4, 0);
    const int own_row = 64 * consumer + 16 * warp;

    const Turns turn = {TURN, consumer, consumers};
    turn.begin();

    int n = 0;
    for (int nth = 0;; nth++) {
        const QueryTile here = shared.take(nth);
        if (here.batch_head < 0)
            break;
        const int row = here.first_row + own_row;

        const int q_block = min(here.first_row / BLOCK_Q + consumer, q_scale_count(&p) - 1); /* rows may not exist */
        const float q_scale = scales.q[(size_t)here.batch_head * q_scale_count(&p) + q_block];

        /* O has V's scale and m of the tile before the one whose product with V is running: `alpha` brings both to that
         * one's, and `share` the product to the scale. */
        OutputScale<by_block> o_scale;
        float o[1][D / 8][4] = {}, share, m[2] = {LOWEST, LOWEST}, l[2] = {}, alpha[2];

        const auto &q = shared.q[nth % 2];
        if (here.key_tiles > 0) {
            int tile = here.key_tiles - 1;
            const float *k_scales = scales.k + (size_t)here.kv_head * k_scale_count(&p),
                        *v_scales = scales.v + (size_t)here.kv_head * k_scale_count(&p);
            float k_scale = k_scales[tile], v_scale = v_scales[tile]; /* of the tile whose S comes next */
            const auto next_scales = [&](int tile) {
                if (tile >= 0)
                    k_scale = k_scales[tile], v_scale = v_scales[tile];
            };
            const auto scale_log2_now = [&] { return positive(p.scale * LOG2_E * q_scale * k_scale); };

            /* The first tile's S, softmax and P */
            uint32_t a[Bc / 32][4];
            float s[1][Bc / 8][4];
            shared.wait_for_k(n);
            turn.wait();
            start_abt(s, q, 64 * consumer, shared.k[shared.stage(n)]);
            /* Scales come while products run. */
            float scale_log2 = scale_log2_now(); /* e^(scale s) = 2^(scale_log2 s) */
            o_scale.move_to(v_scale, share);
            next_scales(tile - 1);
            wgmma_wait<0>(s);
            turn.end();
            shared.release_k(n);
            if (tile >= here.whole_tiles)
                mask(s, p, here.keys, row, tile * Bc);
            const float factor = update_maximum<E, D>(s, m, l, alpha, scale_log2);
            exponentials<E>(s, m, l, factor);
            to_operand<E>(a, s);

            /* Each step: S of the next tile and P V of this one; the next tile's maximum under P V; then its
             * exponentials */
            float product[1][D / 8][4];
            const auto add_product = [&] {
                multiply_if_less(product, share);
                UNROLL for (int n = 0; n < D / 8; n++)
                    UNROLL for (int i = 0; i < 4; i++)
                        o[0][n][i] = o[0][n][i] * alpha[i / 2] + product[0][n][i];
            };
            for (tile--; tile >= 0; n++, tile--) {
                float s[1][Bc / 8][4], next_alpha[2];
                shared.wait_for_k(n + 1);
                turn.wait();
                start_abt(s, q, 64 * consumer, shared.k[shared.stage(n + 1)]);
                shared.wait_for_v(n);
                start_abt(product, a, shared.v[shared.stage(n)]);
                scale_log2 = scale_log2_now();
                float next_share;
                const float v_ratio = o_scale.move_to(v_scale, next_share);
                next_scales(tile - 1);

                wgmma_wait<1>(s);
                shared.release_k(n + 1);
                if (tile >= here.whole_tiles)
                    mask(s, p, here.keys, row, tile * Bc);
                const float factor = update_maximum<E, D>(s, m, l, next_alpha, scale_log2);
                turn.end();

                wgmma_wait<0>(product, a); /* the compiler mixes the exponentials with what follows */
                shared.release_v(n);
                exponentials<E>(s, m, l, factor);
                add_product();
                UNROLL for (int r = 0; r < 2; r++)
                    alpha[r] = next_alpha[r] * v_ratio;
                share = next_share;
                to_operand<E>(a, s);
            }

            /* The last tile's P V */
            shared.wait_for_v(n);
            start_abt(product, a, shared.v[shared.stage(n)]);
            wgmma_wait<0>(product);
            shared.release_v(n);
            add_product();
            n++;
        }
        write_output<E>(p, t, scales, here.batch_head, row, o, m, l, o_scale.now);
    }
    turn.finish();
}

template <typename E, int D, bool by_block>
__global__ void __launch_bounds__(Roles<D>::threads, 1)
    overlapped(Problem p, Tensors t, Scales scales, TileOrder order, uint32_t *next,
               const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
               const __grid_constant__ TensorMap v_map) {
#ifdef HOPPER
    SHARED_MEMORY(shared, Shared<E, D>);
    const int warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0); /* by a shuffle: no lane differs, and ptxas knows */
    if (warp == 0 && elect_one())
        shared.init(4 * Roles<D>::consumers);
    __syncthreads(); /* the only time that all meet */

    if (warp < 4) {
        setmaxnreg_decrease<Roles<D>::producer_registers>();
        if (warp == 0 && elect_one())
            shared.produce(blockIdx.x, gridDim.x, order.count, next, q_map,
                           [&](int i) { return query_tile(p, t.key_lengths, order.together, i, Roles<D>::Br, Bc); },
                           [&](const QueryTile &here, int tile, int n) {
                               shared.load_k(n, k_map, tile * Bc, 0, here.kv_head);
                               shared.load_v(n, v_map, 0, tile * Bc, here.kv_head);
                           });
    } else {
        setmaxnreg_increase<Roles<D>::consumer_registers>();
        consume<E, D, by_block>(shared, p, t, scales, warp / 4 - 1);
    }
#endif
}

PLANNER(fp8_overlapped_plan) {
    fp8_plan(p, workspace);
    workspace[NEXT_TILE] = {"next query tile", sizeof(uint32_t), nullptr, 1};
    return NEXT_TILE + 1;
}

LAUNCHER(fp8_overlapped) {
    const Buffer *w = workspace;
    const Scales scales = scales_in(w);
    uint32_t *next = (uint32_t *)w[NEXT_TILE].pointer; /* how many tiles were taken beyond each block's first one */
    const int heads = p->batch * p->heads, kv_heads = p->batch * p->kv_heads;
    WITH_FORMAT(p->settings[FORMAT], E, WITH_HEAD_DIM_64_128(p->head_dim, D,
                                        WITH_SCALING(p->settings[SCALING], by_block, {
        const TileOrder order = tile_order(*p, Roles<D>::Br, 1);
        const TensorMap q_map =
            tensor_map<E, Panels<E, Roles<D>::Br, D>::row_bytes>(w[Q8].pointer, D, p->seqlen_q, heads, Roles<D>::Br);
        const TensorMap k_map = tensor_map<E, Panels<E, Bc, D>::row_bytes>(w[K8].pointer, D, p->seqlen_k, kv_heads, Bc);
        const TensorMap v_map =
            tensor_map<E, Panels<E, D, Bc>::row_bytes>(w[VT8].pointer, key_pitch(p), D, kv_heads, D);
        LAUNCH((overlapped<E, D, by_block>), min(order.count, device_properties()->sm_count), Roles<D>::threads,
               sizeof(Shared<E, D>), *p, *t, scales, order, next, q_map, k_map, v_map);
    })));
}
