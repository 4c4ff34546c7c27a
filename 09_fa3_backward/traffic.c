/* traffic.c - the bytes that 09_fa3_backward's variants move. TMA loads whole tiles, as far as the tensor goes: also those keys
 * that exist in it but not for this batch entry. A tile of keys that no query sees loads nothing. */
#include "../common/device/device.h"
#include "../common/traffic.h"

/* Rows of Q, and of K, that all blocks load. */
typedef struct {
    double rows, tile_rows, key_rows; /* tile_rows: rows, and those that do not exist */
} Loaded;
static Loaded loaded_rows(const Problem *p, const int *key_lengths, int Br, int Bc) {
    Loaded sum = {0};
    for (int b = 0; b < p->batch; b++) {
        int keys = key_length(p, key_lengths, b);
        for (int first_key = 0; first_key < keys; first_key += Bc) {
            int first_row = p->causal ? first_key - (keys - p->seqlen_q) : 0;
            int skipped = first_row > 0 ? first_row / Br * Br : 0;
            if (skipped >= p->seqlen_q)
                continue;
            sum.rows += (double)p->heads * (p->seqlen_q - skipped);
            sum.tile_rows += p->heads * (round_up(p->seqlen_q, Br) - skipped);
            sum.key_rows += (double)p->kv_heads * (first_key + Bc < p->seqlen_k ? Bc : p->seqlen_k - first_key);
        }
    }
    return sum;
}

static int tiles_traffic(const Problem *p, const int *key_lengths, const char *kernel, int Br, int Bc, Traffic *traffic) {
    const Loaded sum = loaded_rows(p, key_lengths, Br, Bc);
    double e = (double)dtype_bytes(p->dtype), row = p->head_dim * e, gradient_bytes = (double)key_elements(p) * e;
    double accumulator = padded_row_count(p) * p->head_dim * 4, added = sum.tile_rows * p->head_dim * 4;
    const Traffic all[] = {
        {"prepare_rows", "dQ accumulator", 0, accumulator}, /* zeros */
        {kernel, "Q", sum.rows * row, 0},
        {kernel, "dO", sum.rows * row, 0},
        {kernel, "K", sum.key_rows * row, 0},
        {kernel, "V", sum.key_rows * row, 0},
        {kernel, "LSE in base 2", sum.tile_rows * 4, 0},
        {kernel, "delta", sum.tile_rows * 4, 0},
        {kernel, "dQ accumulator", added, added},
        {kernel, "dK", 0, gradient_bytes},
        {kernel, "dV", 0, gradient_bytes},
        {"convert_dq", "dQ accumulator", accumulator, 0},
        {"convert_dq", "dQ", 0, query_bytes(p)},
    };
    int i = prepare_rows_traffic(p, traffic);
    return i + list_traffic(traffic + i, all, sizeof all / sizeof *all);
}

int fa3_backward_wgmma_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return tiles_traffic(p, key_lengths, "wgmma_backward", 64, 64, traffic);
}

enum { CONSUMER_KEYS = 128 };
static int consumer_queries(const Problem *p) { return p->head_dim == 64 ? 128 : 64; } /* roles.cuh: Br */

int fa3_backward_specialised_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return tiles_traffic(p, key_lengths, "specialised_backward", consumer_queries(p), CONSUMER_KEYS, traffic);
}

static double all_key_tiles(const Problem *p) {
    return (double)p->batch * p->kv_heads * (round_up(p->seqlen_k, CONSUMER_KEYS) / CONSUMER_KEYS);
}

/* A number is drawn for each key tile, by an atomic that reads and writes it; the last one sets it back. */
int fa3_backward_overlapped_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    int i = tiles_traffic(p, key_lengths, "overlapped_backward", consumer_queries(p), CONSUMER_KEYS, traffic);
    double draws = all_key_tiles(p);
    traffic[i++] = (Traffic){"overlapped_backward", "next key tile", draws * 4, (draws + 1) * 4};
    return i;
}

/* Each block draws once more, in vain. At each step both keepers count on. */
int fa3_backward_ordered_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    int i = tiles_traffic(p, key_lengths, "ordered_backward", consumer_queries(p), CONSUMER_KEYS, traffic);
    double draws = all_key_tiles(p) + fmin(all_key_tiles(p), device_properties()->sm_count);
    double turns = loaded_rows(p, key_lengths, consumer_queries(p), CONSUMER_KEYS).tile_rows / consumer_queries(p) * 2 * 4;
    traffic[i++] = (Traffic){"ordered_backward", "next key tile", draws * 4, (draws + 1) * 4};
    traffic[i++] = (Traffic){"ordered_backward", "turns", turns, turns};
    return i;
}
