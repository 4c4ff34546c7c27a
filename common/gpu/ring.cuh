/* ring.cuh - a producer and its consumers, as 08_fa3/overlapped explains them: their shared memory, how the producer
 * draws query tiles and loads key tiles ahead, and the consumers' turns. What a consumer computes, and in which order,
 * is each kernel's own.
 */
#ifndef FA_RING_CUH
#define FA_RING_CUH

#include "warpgroup.cuh"

/* Of 08_fa3 and 06_fp8; 10_block_sparse has its own. At D = 128 registers allow two consumers of 64 queries, at D = 64
 * three: O takes half as many registers, and each tile of K and V then serves 192 queries. */
template <int D> struct Roles {
    static constexpr int consumers = D == 64 ? 3 : 2, threads = 128 * (1 + consumers), Br = 64 * consumers;
    static constexpr int producer_registers = D == 64 ? 32 : 24, consumer_registers = D == 64 ? 160 : 240;
    static_assert(128 * (producer_registers + consumers * consumer_registers) <= 65536, "a multiprocessor's registers");
};

/* Shared memory. Key tile number n, counted from the block's first one, goes to stage n % stages of the ring, where it
 * is phase number n / stages. Because n is unsigned, % and / by a power of two are a mask and a shift. `Description`
 * says what the consumers have to know of a query tile: QueryTile, for example. */
template <typename Q, typename K, typename V, int stages, typename Description> struct Ring {
    Q q[2]; /* of the current query tile and of the next one */
    K k[stages];
    V v[stages];
    Description query_tile;             /* the query tile that the producer is loading */
    Mbarrier query_tile_full, query_tile_empty; /* full: the description and Q have arrived */
    Mbarrier k_full[stages], v_full[stages], k_empty[stages], v_empty[stages];

    __device__ static int stage(unsigned n) { return n % stages; }
    __device__ static int parity(unsigned n) { return n / stages % 2; }

    __device__ void init(int consumer_warps) {
        mbarrier_init(&query_tile_full, 1);
        mbarrier_init(&query_tile_empty, 32 * consumer_warps);
        for (int i = 0; i < stages; i++) {
            mbarrier_init(&k_full[i], 1);
            mbarrier_init(&v_full[i], 1);
            mbarrier_init(&k_empty[i], consumer_warps); /* one arrival per warp */
            mbarrier_init(&v_empty[i], consumer_warps);
        }
        mbarrier_init_fence();
    }

    /* ---- the producer: one thread ---- */

    /* Tells the consumers which query tile comes next, and requests its Q, once all of them have read the description
     * of the tile before. A consumer that has read that one has finished with the Q before it, so the new Q may
     * overwrite it. */
    __device__ void hand_over(const Description &next, int nth, const TensorMap &map) {
        mbarrier_wait(&query_tile_empty, nth % 2 ^ 1);
        query_tile = next;
        if (next.key_tiles > 0)
            q[nth % 2].expect_and_load(map, next.first_row, 0, next.batch_head, &query_tile_full);
        else
            mbarrier_arrive(&query_tile_full);
    }
    __device__ void load_k(int n, const TensorMap &map, int row, int column, int matrix) {
        mbarrier_wait(&k_empty[stage(n)], parity(n) ^ 1);
        k[stage(n)].expect_and_load(map, row, column, matrix, &k_full[stage(n)]);
    }
    __device__ void load_v(int n, const TensorMap &map, int row, int column, int matrix) {
        mbarrier_wait(&v_empty[stage(n)], parity(n) ^ 1);
        v[stage(n)].expect_and_load(map, row, column, matrix, &v_full[stage(n)]);
    }
    /* All query tiles of this producer: number i of `count`, and then those that it draws from the counter `next`,
     * which begin after the first tiles of all `producers`. describe(i) describes a query tile; load(here, tile, n)
     * requests one of its key tiles. */
    template <typename Describe, typename Load>
    __device__ void produce(int i, int producers, int count, uint32_t *next, const TensorMap &q_map, Describe describe,
                            Load load) {
        int n = 0, nth = 0;
        for (; i < count; nth++, i = draw_tile(next, count, producers)) {
            const Description here = describe(i);
            hand_over(here, nth, q_map);
            for (int tile = here.key_tiles - 1; tile >= 0; n++, tile--)
                load(here, tile, n);
        }
        Description none = {};
        none.batch_head = -1; /* there are no more */
        hand_over(none, nth, q_map);
    }

    /* ---- a consumer: a warpgroup ---- */

    /* The description of the block's query tile number nth; its Q is then in q[nth % 2]. */
    __device__ Description take(int nth) {
        mbarrier_wait(&query_tile_full, nth % 2);
        const Description here = query_tile;
        mbarrier_arrive(&query_tile_empty); /* every thread has its own copy */
        return here;
    }
    __device__ void wait_for_k(int n) { mbarrier_wait(&k_full[stage(n)], parity(n)); }
    __device__ void wait_for_v(int n) { mbarrier_wait(&v_full[stage(n)], parity(n)); }
    __device__ void release_k(int n) { warp_arrive(&k_empty[stage(n)]); }
    __device__ void release_v(int n) { warp_arrive(&v_empty[stage(n)]); }
};

/* Ping-pong scheduling: consumers start their products in turns. Each waits for its turn at a named barrier of its own,
 * `barrier` + `consumer`, where the consumer before it arrives when its turn ends: 128 threads of either. Not `active`:
 * no one waits. */
struct Turns {
    int barrier, consumer, consumers;
    bool active = true;

    __device__ void wait() const {
        if (active)
            named_barrier_sync(barrier + consumer, 256);
    }
    __device__ void end() const {
        if (active)
            named_barrier_arrive(barrier + (consumer + 1) % consumers, 256);
    }
    /* Consumer 0 has the first turn; and it takes the last arrival, so that none is left over at a barrier. */
    __device__ void begin() const {
        if (consumer == consumers - 1)
            end();
    }
    __device__ void finish() const {
        if (consumer == 0)
            wait();
    }
};

#endif
