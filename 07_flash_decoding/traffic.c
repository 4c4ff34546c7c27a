/* traffic.c - the bytes that 07_flash_decoding's variants move. K and V once (for each tile of rows); split_k and
 * equal_shares also write and read partial results. */
#include "decode.h"
#include "../common/traffic.h"

/* K or V as far as keys exist. */
static double cache_bytes(const Problem *p, const int *key_lengths) {
    return all_keys(p, key_lengths) / p->heads * p->kv_heads * p->head_dim *
           (p->settings[KV_CACHE] ? 1 : (double)dtype_bytes(p->dtype));
}

/* Filling pages: the keys that exist are read once, all of the pool is written, and all of the table. Filling the 8-bit
 * cache: K and V are read twice. Each of the 256 threads of a block reads the 32 maxima of its head. */
int cache_fill_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    const char *largest = "cache_largest", *fill = "cache_fill_kernel";
    double heads = (double)p->batch * p->kv_heads, slices = 2 * heads * 32, elements = (double)key_elements(p);
    double keys = all_keys(p, key_lengths) / p->heads * p->kv_heads * p->head_dim * (double)dtype_bytes(p->dtype);
    int i = 0;
    if (!cache_is_8_bit(p)) {
        const Pages pages = pages_of(p);
        double pool = (double)pages.pool * pages.size * p->kv_heads * p->head_dim * (double)dtype_bytes(p->dtype);
        const Traffic all[] = {{"fill_pages", "K", keys, 0}, {"fill_pages", "V", keys, 0},
                               {"fill_pages", "K cache", 0, pool}, {"fill_pages", "V cache", 0, pool},
                               {"fill_pages", "page table", 0, 4.0 * p->batch * pages.per_sequence}};
        return list_traffic(traffic, all, 5);
    }
    traffic[i++] = (Traffic){largest, "K", keys, 0};
    traffic[i++] = (Traffic){largest, "V", keys, 0};
    traffic[i++] = (Traffic){largest, "largest of a slice", 0, slices * 4};
    traffic[i++] = (Traffic){fill, "K", keys, 0};
    traffic[i++] = (Traffic){fill, "V", keys, 0};
    traffic[i++] = (Traffic){fill, "largest of a slice", slices * 256 * 32 * 4, 0};
    traffic[i++] = (Traffic){fill, "scales", 0, 2 * heads * 4};
    traffic[i++] = (Traffic){fill, "K cache", 0, elements};
    traffic[i++] = (Traffic){fill, "V cache", 0, elements};
    return i;
}

/* What every variant reads. `walks`: walks of a block over keys of one head; `rows`: the rows of all these walks
 * together. How many lanes ask for each byte of Q: one of each warp; in fp32 one for each key of a tile. Every thread
 * reads the scales. With pages all 32 lanes of a warp read an entry of the table for each 16 keys, or for as many as
 * the warp takes at a time, if that is fewer. */
static int walk_traffic(const char *kernel, const Problem *p, const int *key_lengths, double walks, double rows,
                        Traffic *traffic) {
    Work w = work_of(p);
    int e4m3 = p->settings[KV_CACHE], i = 0;
    double keys = w.row_tiles * cache_bytes(p, key_lengths), readers = p->dtype == DTYPE_FP32 ? w.tile_keys : w.warps;
    traffic[i++] = (Traffic){kernel, "Q", readers * rows * p->head_dim * (double)dtype_bytes(p->dtype), 0};
    traffic[i++] = (Traffic){kernel, cache_wanted(p) ? "K cache" : "K", keys, 0};
    traffic[i++] = (Traffic){kernel, cache_wanted(p) ? "V cache" : "V", keys, 0};
    double lookups = 0, keys_at_once = smaller_of(w.tile_keys / w.warps, SMALLEST_PAGE);
    for (int b = 0; b < p->batch; b++)
        lookups += w.row_tiles * p->kv_heads * ceil(key_length(p, key_lengths, b) / keys_at_once);
    if (p->settings[PAGE_SIZE])
        traffic[i++] = (Traffic){kernel, "page table", 32 * lookups * sizeof(int), 0};
    if (e4m3)
        traffic[i++] = (Traffic){kernel, "scales", 32.0 * w.warps * walks * 2 * 4, 0};
    return i;
}

int decode_one_block_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    int i = walk_traffic("one_block", p, key_lengths, work_of(p).heads, (double)row_count(p), traffic);
    traffic[i++] = (Traffic){"one_block", "O", 0, query_bytes(p)};
    traffic[i++] = (Traffic){"one_block", "LSE", 0, row_bytes(p)};
    return i;
}

/* Each of the D threads that merge a row reads LSE twice. */
int decode_split_k_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    double splits = decode_split(p).count, rows = splits * (double)row_count(p), D = p->head_dim;
    int i = walk_traffic("split_k", p, key_lengths, work_of(p).heads * splits, rows, traffic);
    traffic[i++] = (Traffic){"split_k", "partial O", 0, rows * D * 4};
    traffic[i++] = (Traffic){"split_k", "partial LSE", 0, rows * 4};
    traffic[i++] = (Traffic){"merge_splits", "partial O", rows * D * 4, 0};
    traffic[i++] = (Traffic){"merge_splits", "partial LSE", 2 * rows * D * 4, 0};
    traffic[i++] = (Traffic){"merge_splits", "O", 0, query_bytes(p)};
    traffic[i++] = (Traffic){"merge_splits", "LSE", 0, row_bytes(p)};
    return i;
}

/* A head in one split has no partial result. One in several has a ticket for each. Threads that merge read
 * SLOTS_AT_ONCE splits at a time, and LSE with each four columns. */
int decode_equal_shares_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    Work w = work_of(p);
    double all_tiles = 0, start = 0, D = p->head_dim;
    for (int h = 0; h < w.heads; h++)
        all_tiles += tiles_of(key_length(p, key_lengths, h / w.row_tiles / p->kv_heads), w.tile_keys);
    long long share = (long long)round_up(all_tiles / decode_equal_shares_blocks(p), 1);

    /* Splits, and rows in them; the same of heads with several splits, and these heads */
    double walks = 0, walk_rows = 0, tickets = 0, partial_rows = 0, merged_rows = 0, merges = 0;
    for (int h = 0; h < w.heads; h++) {
        int first_row = h % w.row_tiles * w.tile_rows;
        int rows = w.rows - first_row < w.tile_rows ? w.rows - first_row : w.tile_rows;
        int tiles = tiles_of(key_length(p, key_lengths, h / w.row_tiles / p->kv_heads), w.tile_keys);
        int splits = (int)((long long)(start + tiles - 1) / share - (long long)start / share) + 1;
        walks += splits, walk_rows += (double)rows * splits;
        if (splits > 1)
            tickets += splits, partial_rows += (double)rows * splits, merges++,
                merged_rows += rows * round_up(splits, SLOTS_AT_ONCE);
        start += tiles;
    }
    int i = walk_traffic("equal_shares", p, key_lengths, walks, walk_rows, traffic);
    traffic[i++] = (Traffic){"equal_shares", "partial O", merged_rows * D * 4, partial_rows * D * 4};
    traffic[i++] = (Traffic){"equal_shares", "partial LSE", merged_rows * D / 4 * 4, partial_rows * 4};
    traffic[i++] = (Traffic){"equal_shares", "tickets", tickets * 4, (tickets + merges) * 4};
    traffic[i++] = (Traffic){"equal_shares", "O", 0, query_bytes(p)};
    traffic[i++] = (Traffic){"equal_shares", "LSE", 0, row_bytes(p)};
    return i;
}
