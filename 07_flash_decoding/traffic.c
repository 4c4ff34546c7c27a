/* traffic.c - the bytes that 07_flash_decoding's variants move. K and V once (for each tile of rows); split_k also writes and
 * reads a partial result for each piece of a head that has several, and draws a ticket for it. */
#include "cache.h"
#include "decode.h"
#include "../common/traffic.h"

extern int decode_split_k_blocks(const Problem *p);

/* K or V as far as keys exist. */
static double cache_bytes(const Problem *p, const int *key_lengths) {
    return all_keys(p, key_lengths) / p->heads * p->kv_heads * p->head_dim *
           (p->settings[KV_CACHE] ? 1 : (double)dtype_bytes(p->dtype));
}

/* How many lanes ask for each byte of Q: one of each warp; in fp32 one for each key of its tile. */
static double query_readers(const Problem *p, const Work *w) { return p->dtype == DTYPE_FP32 ? w->tile_keys : w->warps; }

double decode_bytes(const Problem *p, const int *key_lengths) {
    return 2 * cache_bytes(p, key_lengths) + 2 * query_bytes(p) + row_bytes(p);
}

int decode_one_block_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    Work w = work_of(p);
    double keys = w.row_tiles * cache_bytes(p, key_lengths);
    double queries = query_readers(p, &w) * query_bytes(p);
    Traffic all[] = {{"one_block", "Q", queries, 0},
                     {"one_block", "K", keys, 0},
                     {"one_block", "V", keys, 0},
                     {"one_block", "O", 0, query_bytes(p)},
                     {"one_block", "LSE", 0, row_bytes(p)}};
    for (int i = 0; i < 5; i++)
        traffic[i] = all[i];
    return 5;
}

/* Filling the 8-bit cache: K and V read twice. Each of the 256 threads of a block reads the 32 maxima of its head. */
static int fill_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    const char *largest = "cache_largest", *fill = "cache_fill_kernel";
    double heads = (double)p->batch * p->kv_heads, slices = 2 * heads * 32, elements = (double)key_elements(p);
    double keys = all_keys(p, key_lengths) / p->heads * p->kv_heads * p->head_dim * (double)dtype_bytes(p->dtype);
    int i = 0;
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

int decode_split_k_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    Work w = work_of(p);
    int blocks = decode_split_k_blocks(p);

    /* The line, as split_k.cu lays it */
    double total = 0;
    for (int h = 0; h < w.heads; h++)
        total += tiles_of(key_length(p, key_lengths, h / w.row_tiles / p->kv_heads), w.tile_keys);
    int pieces_a_head = blocks / w.heads, piece = (int)round_up(total / blocks, 1), gaps = 0;
    if (p->settings[SPLITS])
        piece = (w.tiles + p->settings[SPLITS] - 1) / p->settings[SPLITS], gaps = 1;
    else if (p->settings[SPLIT_SIZE])
        piece = (p->settings[SPLIT_SIZE] + w.tile_keys - 1) / w.tile_keys, gaps = 1;

    /* Pieces, and rows in them; the same of heads with several pieces, and these heads */
    double all_pieces = 0, row_pieces = 0, tickets = 0, partial_rows = 0, merges = 0, start = 0;
    for (int h = 0; h < w.heads; h++) {
        int first_row = h % w.row_tiles * w.tile_rows;
        int rows = w.rows - first_row < w.tile_rows ? w.rows - first_row : w.tile_rows;
        int tiles = tiles_of(key_length(p, key_lengths, h / w.row_tiles / p->kv_heads), w.tile_keys);
        start = gaps ? (double)h * pieces_a_head * piece : start;
        int pieces = (int)((long long)(start + tiles - 1) / piece - (long long)start / piece) + 1;
        all_pieces += pieces, row_pieces += (double)rows * pieces;
        if (pieces > 1)
            tickets += pieces, partial_rows += (double)rows * pieces, merges++;
        if (!gaps)
            start += tiles;
    }

    /* Every thread reads the scales; one that merges reads LSE with each four columns */
    int e4m3 = p->settings[KV_CACHE], i = 0;
    double e = (double)dtype_bytes(p->dtype), D = p->head_dim, keys = w.row_tiles * cache_bytes(p, key_lengths);
    if (e4m3)
        i = fill_traffic(p, key_lengths, traffic);
    traffic[i++] = (Traffic){"split_k", "Q", query_readers(p, &w) * row_pieces * D * e, 0};
    traffic[i++] = (Traffic){"split_k", e4m3 ? "K cache" : "K", keys, 0};
    traffic[i++] = (Traffic){"split_k", e4m3 ? "V cache" : "V", keys, 0};
    if (e4m3)
        traffic[i++] = (Traffic){"split_k", "scales", 32.0 * w.warps * all_pieces * 2 * 4, 0};
    traffic[i++] = (Traffic){"split_k", "partial O", partial_rows * D * 4, partial_rows * D * 4};
    traffic[i++] = (Traffic){"split_k", "partial LSE", partial_rows * D / 4 * 4, partial_rows * 4};
    traffic[i++] = (Traffic){"split_k", "tickets", tickets * 4, (tickets + merges) * 4};
    traffic[i++] = (Traffic){"split_k", "O", 0, query_bytes(p)};
    traffic[i++] = (Traffic){"split_k", "LSE", 0, row_bytes(p)};
    return i;
}
