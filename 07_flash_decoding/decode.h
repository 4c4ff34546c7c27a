/* decode.h - how a decoding problem is cut into work, and where its cache lies, in 8 bits or in pages: what the
 * launchers, the kernels and the traffic formulas agree on.
 *
 * Decoding has few queries and many keys. With grouped heads, heads / kv_heads query heads, a *group*, read the same
 * K/V head. The queries of all heads of a group are taken as the rows of one matrix: row r is query r % seqlen_q of the
 * group's head number r / seqlen_q. In memory these rows of Q, O and LSE are neighbors already. A block that works on
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

enum { SPLITS, SPLIT_SIZE, KV_CACHE, PAGE_SIZE }; /* Problem.settings; 0: auto; none; the problem's dtype; no pages */

enum {
    /* A warp copies TILE_BYTES of K and as many of V at a time, a *stage*; while it computes with one stage, the next
     * one is on its way. By Little's law, bytes under way = bandwidth x latency: 4.3 TB/s x 0.7 us are 23 KB for
     * each of 132 multiprocessors. 8 warps x 8 KB are more than twice that. A third stage brings 1 % at most. */
    TILE_BYTES = 4096,
    STAGES = 2,
    MAX_WARPS = 8,
    SLOTS_AT_ONCE = 16, /* partial results that a thread of equal_shares loads at once: one wait for L2 */
    FP32_ROWS = 4, /* rows a block takes on the CUDA cores, see fma_rows.cuh */
    MOST_TILES = 1 << 30, /* key tiles of all heads: ints count them, and equal_shares rounds them up to whole shares */
};

typedef struct {
    int rows;      /* of a K/V head: heads / kv_heads * seqlen_q */
    int tile_rows; /* of those, what one block takes at a time: 16 or 32, for one or two mma; fp32: FP32_ROWS */
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
HOST_DEVICE static inline int tiles_of(int keys, int tile_keys) {
    return keys > 0 ? (keys + tile_keys - 1) / tile_keys : 1;
}

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

/* How split_k cuts a head: splits of so many key tiles (the last one shorter). */
typedef struct {
    int tiles, count;
} Split;

#ifdef __cplusplus
extern "C" {
#endif

Split decode_split(const Problem *p);             /* split_k.cu */
int decode_equal_shares_blocks(const Problem *p); /* equal_shares.cu: how many it launches */

/* The 8-bit cache of --kv-cache e4m3: each K/V head of K and of V in e4m3, with one scale. A model adds a token's K and
 * V to its cache once, and reads the whole cache for each new token. Here the cache is filled as a whole, before the
 * timed part starts. It is the first part of every variant's workspace; the variant's own buffers follow. */
enum { CACHE_K, CACHE_V, CACHE_SCALES, CACHE_LARGEST, CACHE_BUFFERS,
       CACHE_TABLE = CACHE_V + 1, PAGE_BUFFERS }; /* the last two: with pages */

static inline int cache_is_8_bit(const Problem *p) { return p->settings[KV_CACHE]; }

/* The paged cache of --page-size: K and V in pages of so many keys, with all K/V heads in each page, [pool, kv_heads,
 * size, D]. A sequence's pages may be anywhere in the pool, and its row of the page table, [batch, per_sequence], says
 * where, for K and V alike. Here they are scattered, and the pages that nobody uses hold NaN. */
enum { SMALLEST_PAGE = 16 };
typedef struct {
    int size, shift, per_sequence; /* keys of a page, which are 2^shift; entries of a sequence's row of the table */
    size_t pool;                   /* pages, a power of two: at least one more than are used */
} Pages;
static inline Pages pages_of(const Problem *p) {
    const int shift = p->settings[PAGE_SIZE] == 1 ? 4 : 4 + p->settings[PAGE_SIZE], size = 1 << shift;
    Pages pages = {size, shift, (p->seqlen_k - 1) / size + 1, 1};
    while (pages.pool <= (size_t)p->batch * (size_t)pages.per_sequence)
        pages.pool *= 2;
    return pages;
}

static inline int cache_wanted(const Problem *p) { return cache_is_8_bit(p) || p->settings[PAGE_SIZE]; }
static inline int cache_buffers(const Problem *p) {
    return !cache_wanted(p) ? 0 : cache_is_8_bit(p) ? CACHE_BUFFERS : PAGE_BUFFERS;
}

/* Variant.plan, Preparation.launch and .values of the cache: cache.cu, prepared_values.c. */
Planner cache_plan;
Launcher cache_fill;
PreparedValues cache_prepared_values;

#ifdef __cplusplus
}
#endif
#endif
