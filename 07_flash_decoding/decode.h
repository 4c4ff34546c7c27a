/* decode.h - how a decoding problem is cut into work, and where its 8-bit cache lies: what the launchers, the kernels and the
 * traffic formulas agree on.
 *
 * Decoding has few queries and many keys. With grouped heads, heads / kv_heads query heads, a *group*, read the same
 * K/V head. The queries of all heads of a group are taken as the rows of one matrix: row r is query r % seqlen_q of the
 * group's head number r / seqlen_q. In memory these rows of Q, O and LSE are neighbours already. A block that works on
 * all rows of a group reads each byte of K and V once for all of them.
 *
 * A block takes at most tile_rows rows. So in this folder *head* means a unit of work: a tile of the rows of one group,
 * and the K/V head that they read (cache.cu alone means a K/V head). Heads are numbered batch entry by batch entry, in
 * there K/V head by K/V head, in there row tile by row tile. The keys of a head are cut into *key tiles*, which a block
 * takes one after the other; each warp takes a part of the tile.
 */
#ifndef FA_DECODE_H
#define FA_DECODE_H

#include "../common/device/device.h"
#include "../common/stage.h"

enum { SPLITS, SPLIT_SIZE, KV_CACHE }; /* Problem.settings; 0 means: auto; none; the problem's dtype */

enum {
    /* A warp copies TILE_BYTES of K and as many of V at a time, a *stage*; while it computes with one stage, the next
     * one is on its way. By Little's law, bytes under way = bandwidth x latency: 4.3 TB/s x 0.7 us are 23 KB for
     * each of 132 multiprocessors. 8 warps x 8 KB are more than twice that. A third stage brings 1 % at most. */
    TILE_BYTES = 4096,
    STAGES = 2,
    MAX_WARPS = 8,
    PLACES = 16, /* partial results that a thread of equal_shares loads at once: one wait for L2 */
    FP32_ROWS = 4, /* rows a block takes on the CUDA cores, see fma_rows.cuh */
    MOST_TILES = 1 << 30, /* key tiles of all heads: ints count them, and equal_shares rounds them up to whole shares */
};

typedef struct {
    int rows;      /* of a K/V head: heads / kv_heads * seqlen_q */
    int tile_rows; /* of those, what one block takes at a time: 16 or 32, the height of one or two mma; fp32: FP32_ROWS */
    int row_tiles; /* how many such tiles */
    int heads;     /* batch x kv_heads x row_tiles */
    int warps;     /* a block's: as many as shared memory has room for, at most MAX_WARPS */
    int tile_keys; /* keys of a key tile: TILE_BYTES of K for each warp */
    int tiles;     /* key tiles of a head with all seqlen_k keys */
} Work;

/* Shared memory of a warp: its pairs of tiles, and m and l of each row, to whole 128-byte lines. */
#ifdef __cplusplus
constexpr
#endif
    static inline int
    warp_shared_bytes(int tile_rows) {
    return STAGES * 2 * TILE_BYTES + (2 * 4 * tile_rows + 127) / 128 * 128;
}

/* Key tiles of a head with so many keys. At least one: also without keys a block must write O = 0 and LSE = -inf. */
HOST_DEVICE static inline int tiles_of(int keys, int tile_keys) { return keys > 0 ? (keys + tile_keys - 1) / tile_keys : 1; }

static inline Work work_of(const Problem *p) {
    Work w;
    int cache_bytes = p->settings[KV_CACHE] ? 1 : (int)dtype_bytes(p->dtype);
    w.rows = p->heads / p->kv_heads * p->seqlen_q;
    w.tile_rows = p->dtype == DTYPE_FP32 ? FP32_ROWS : w.rows <= 16 ? 16 : 32;
    w.row_tiles = (w.rows + w.tile_rows - 1) / w.tile_rows;
    w.heads = p->batch * p->kv_heads * w.row_tiles;
    /* sizeof(int): equal_shares' last_ticket */
    int fit = ((int)device_properties()->shared_bytes - (int)sizeof(int)) / warp_shared_bytes(w.tile_rows);
    w.warps = fit < MAX_WARPS ? fit : MAX_WARPS;
    w.tile_keys = w.warps * (TILE_BYTES / (p->head_dim * cache_bytes));
    w.tiles = tiles_of(p->seqlen_k, w.tile_keys);
    return w;
}

/* How split_k cuts a head: pieces of so many key tiles (the last one shorter). */
typedef struct {
    int tiles, pieces;
} Split;

#ifdef __cplusplus
extern "C" {
#endif

Split decode_split(const Problem *p);             /* split_k.cu */
int decode_equal_shares_blocks(const Problem *p); /* equal_shares.cu: how many it launches */

/* The 8-bit cache of --kv-cache e4m3: each K/V head of K and of V in e4m3, with one scale. A model adds a token's K and
 * V to its cache once, and reads the whole cache for each new token. Here the cache is filled as a whole, before the
 * timed part starts. It is the first part of every variant's workspace; the variant's own buffers follow. */
enum { CACHE_K, CACHE_V, CACHE_SCALES, CACHE_LARGEST, CACHE_BUFFERS };

static inline int cache_wanted(const Problem *p) { return p->settings[KV_CACHE]; }
static inline int cache_buffers(const Problem *p) { return cache_wanted(p) ? CACHE_BUFFERS : 0; }

/* Variant.plan, Preparation.launch and .values of the cache: cache.cu, prepared_values.c. */
Planner cache_plan;
Launcher cache_fill;
PreparedValues cache_prepared_values;

#ifdef __cplusplus
}
#endif
#endif
