/* traffic.c - the bytes that 06_fp8's kernels move. */
#include "../common/traffic.h"
#include "fp8.h"

/* Key tiles that hold a key, and keys that exist, summed over the key heads. */
static double k_heads(const Problem *p) { return (double)p->batch * p->kv_heads; }
static double used_tiles(const Problem *p, const int *key_lengths) {
    double sum = 0;
    for (int b = 0; b < p->batch; b++)
        sum += (double)p->kv_heads * ((key_length(p, key_lengths, b) + BLOCK_K - 1) / BLOCK_K);
    return sum;
}
static double stored_keys(const Problem *p, const int *key_lengths) {
    double sum = 0;
    for (int b = 0; b < p->batch; b++)
        sum += (double)p->kv_heads * key_length(p, key_lengths, b);
    return sum;
}

/* The pre-pass. Where scales are found first (--scaling tensor), quantising reads Q, K and V again, and each thread of a
 * block its tile's scale. */
int fp8_quantise_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    const double D = p->head_dim, threads = 256; /* row_tile.cuh: THREADS */
    const double q_tiles = (double)q_scale_offset(p, p->batch, 0), k_tiles = (double)k_scale_offset(p, p->batch, 0);
    const double q_bytes = query_bytes(p), k_bytes = stored_keys(p, key_lengths) * D * (double)dtype_bytes(p->dtype);
    const int found_first = p->settings[SCALING] == SCALING_TENSOR;
    const double mean_read = p->settings[SMOOTH_K] ? 4.0 * 8 * threads : 0; /* a block: each thread its eight components */
    int i = 0;
    if (p->settings[SMOOTH_K]) {
        const double sums = 4 * D * used_tiles(p, key_lengths);
        traffic[i++] = (Traffic){"key_sums", "K", k_bytes, 0};
        traffic[i++] = (Traffic){"key_sums", "VT8", 0, sums};
        traffic[i++] = (Traffic){"key_mean", "VT8", sums, 0};
        traffic[i++] = (Traffic){"key_mean", "K mean", 0, 4 * D * k_heads(p)};
    }
    if (found_first) {
        traffic[i++] = (Traffic){"tile_amax", "Q", q_bytes, 0};
        traffic[i++] = (Traffic){"tile_amax", "K", k_bytes, 0};
        traffic[i++] = (Traffic){"tile_amax", "V", k_bytes, 0};
        if (p->settings[SMOOTH_K])
            traffic[i++] = (Traffic){"tile_amax", "K mean", mean_read * k_tiles, 0};
        traffic[i++] = (Traffic){"tile_amax", "Q scales", 0, 4 * q_tiles};
        traffic[i++] = (Traffic){"tile_amax", "K scales", 0, 4 * k_tiles};
        traffic[i++] = (Traffic){"tile_amax", "V scales", 0, 4 * k_tiles};
        traffic[i++] = (Traffic){"head_scale", "Q scales", 4 * q_tiles, 4 * q_tiles};
        traffic[i++] = (Traffic){"head_scale", "K scales", 4 * k_tiles, 4 * k_tiles};
        traffic[i++] = (Traffic){"head_scale", "V scales", 4 * k_tiles, 4 * k_tiles};
    }
    const double scale_read = found_first ? 4 * threads : 0, scale_written = found_first ? 0 : 4;
    traffic[i++] = (Traffic){"quantise_rows", "Q", q_bytes, 0};
    traffic[i++] = (Traffic){"quantise_rows", "K", k_bytes, 0};
    if (p->settings[SMOOTH_K])
        traffic[i++] = (Traffic){"quantise_rows", "K mean", mean_read * (q_tiles + k_tiles), 0};
    traffic[i++] = (Traffic){"quantise_rows", "Q8", 0, (double)query_elements(p)};
    traffic[i++] = (Traffic){"quantise_rows", "K8", 0, (double)key_elements(p)};
    traffic[i++] = (Traffic){"quantise_rows", "Q scales", scale_read * q_tiles, scale_written * q_tiles};
    traffic[i++] = (Traffic){"quantise_rows", "K scales", scale_read * k_tiles, scale_written * k_tiles};
    traffic[i++] = (Traffic){"quantise_rows", "LSE shift", 0, row_bytes(p)};
    traffic[i++] = (Traffic){"quantise_v", "V", k_bytes, 0};
    traffic[i++] = (Traffic){"quantise_v", "VT8", 0, (double)vt_head_offset(p, p->batch, 0)};
    traffic[i++] = (Traffic){"quantise_v", "V scales", scale_read * k_tiles, scale_written * k_tiles};
    return i;
}

/* The variants walk like tuned, over Br queries in tiles of Bc keys: VT8 whole tiles, K8 as far as keys exist; TMA, which wgmma
 * and overlapped have, knows only where the tensor ends, and a query tile that sees no key does without Q. Each of two threads a
 * query reads a scale of Q once, and those of K and V once a tile; LSE's shift is read for rows that see a key. */
static int attention_traffic(const Problem *p, const int *key_lengths, const char *kernel, int Br, int Bc, int is_wgmma,
                             Traffic *traffic) {
    const int threads = 2 * Br;
    double queries = 0, keys_loaded = 0, tiles = 0, blocks = 0, rows = 0;
    for (int b = 0; b < p->batch; b++)
        for (int first_row = 0; first_row < p->seqlen_q; first_row += Br) {
            const int keys = key_length(p, key_lengths, b);
            const int end = first_row + Br < p->seqlen_q ? first_row + Br : p->seqlen_q;
            const int seen = visible_keys(p, keys, end - 1), stored = is_wgmma ? p->seqlen_k : keys;
            const double whole = round_up(seen, Bc);
            queries += p->heads * (is_wgmma && !seen ? 0 : end - first_row);
            keys_loaded += p->heads * (whole < stored ? whole : stored);
            tiles += p->heads * whole / Bc;
            blocks += p->heads;
            for (int row = first_row; row < end; row++)
                rows += p->heads * (visible_keys(p, keys, row) > 0);
        }
    const double D = p->head_dim;
    int i = 0;
    traffic[i++] = (Traffic){kernel, "Q8", queries * D, 0};
    traffic[i++] = (Traffic){kernel, "K8", keys_loaded * D, 0};
    traffic[i++] = (Traffic){kernel, "VT8", tiles * Bc * D, 0};
    traffic[i++] = (Traffic){kernel, "Q scales", 4.0 * threads * blocks, 0};
    traffic[i++] = (Traffic){kernel, "K scales", 4.0 * threads * tiles, 0};
    traffic[i++] = (Traffic){kernel, "V scales", 4.0 * threads * tiles, 0};
    traffic[i++] = (Traffic){kernel, "LSE shift", 4 * rows, 0};
    traffic[i++] = (Traffic){kernel, "O", 0, query_bytes(p)};
    traffic[i++] = (Traffic){kernel, "LSE", 0, row_bytes(p)};
    return i;
}

int fp8_mma_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return attention_traffic(p, key_lengths, "fp8_mma_kernel", 64, 64, 0, traffic);
}
int fp8_wgmma_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return attention_traffic(p, key_lengths, "wgmma_attention", 64, 128, 1, traffic);
}
/* As 08_fa3's, it draws a number for each query tile. */
int fp8_overlapped_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    int Br = p->head_dim == 64 ? 192 : 128; /* overlapped.cu: Roles */
    int i = attention_traffic(p, key_lengths, "overlapped", Br, 128, 1, traffic);
    double draws = (double)p->batch * p->heads * ((p->seqlen_q + Br - 1) / Br);
    traffic[i++] = (Traffic){"overlapped", "next query tile", draws * 4, (draws + 1) * 4};
    return i;
}
