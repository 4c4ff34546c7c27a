/* key_tiles.h - in which pieces and in which order the blocks work, for the kernels and for
 * the formulas of their traffic. */
#ifndef FA_KEY_TILES_H
#define FA_KEY_TILES_H

#include "../common/device/device.h"
#include "../common/problem.h"

/* Whether several query heads share a K/V head. Then dK and dV are sums over these heads,
 * to which several blocks add. */
HOST_DEVICE static inline int heads_share_keys(const Problem *p) { return p->heads > p->kv_heads; }

/* A piece of work is a key tile of one query head. But each key tile from number `whole` on is cut into `cuts` pieces,
 * with some of its queries each. Heads work in sets of `together` heads. */
typedef struct {
    int together, whole, cuts, count; /* pieces in all */
} KeyTileOrder;

/* Without a causal mask one head works after the other. Under a causal mask as many heads work together as have their
 * Q, dO and accumulator of dQ in half of L2. */
static inline KeyTileOrder key_tile_order(const Problem *p, int Bc) {
    const size_t element_bytes = 2 * dtype_bytes(p->dtype) + sizeof(float);
    const size_t head_bytes = (size_t)p->seqlen_q * p->head_dim * element_bytes;
    const size_t fit = device_properties()->l2_bytes / 2 / head_bytes + 1;
    const int heads = p->batch * p->heads, most = !p->causal ? 1 : fit < (size_t)heads ? (int)fit : heads;
    const int sets = (heads + most - 1) / most, count = heads * ((p->seqlen_k + Bc - 1) / Bc);
    const KeyTileOrder order = {(heads + sets - 1) / sets, count, 1, count};
    return order;
}

/* The same for `overlapped`, whose blocks are persistent. Without a mask all key tiles take equally long, so in the
 * last wave some blocks would have no work. If dK and dV are sums of several blocks anyway, the tiles of that wave are
 * cut, so that it ends sooner. */
static inline KeyTileOrder overlapped_order(const Problem *p, int Bc) {
    enum { MOST_CUTS = 8 };
    KeyTileOrder order = key_tile_order(p, Bc);
    const int blocks = device_properties()->sm_count, last_wave = order.count % blocks;
    float shortest = 1; /* how long the last wave takes, beside a whole tile */
    for (int cuts = 2; cuts <= MOST_CUTS && heads_share_keys(p) && !p->causal; cuts++) {
        const float time = (float)((last_wave * cuts + blocks - 1) / blocks) / (float)cuts;
        if (time < shortest)
            shortest = time, order.cuts = cuts;
    }
    order.whole -= last_wave;
    order.count = order.whole + last_wave * order.cuts;
    return order;
}

#endif
