/* traffic.c - the bytes that 09_fa3_backward's variants move. TMA loads whole tiles, as far as the tensor goes: also those keys
 * that exist in it but not for this batch entry. A tile of keys that no query sees loads nothing. */
#include "../common/traffic.h"

static int tiles_traffic(const Problem *p, const int *key_lengths, const char *kernel, int Br, int Bc, Traffic *traffic) {
    double rows = 0, tile_rows = 0, key_rows = 0; /* tile_rows: those that do not exist included */
    for (int b = 0; b < p->batch; b++) {
        int keys = key_length(p, key_lengths, b);
        for (int first_key = 0; first_key < keys; first_key += Bc) {
            int first_row = p->causal ? first_key - (keys - p->seqlen_q) : 0;
            int skipped = first_row > 0 ? first_row / Br * Br : 0;
            if (skipped >= p->seqlen_q)
                continue;
            rows += (double)p->heads * (p->seqlen_q - skipped);
            tile_rows += p->heads * (round_up(p->seqlen_q, Br) - skipped);
            key_rows += (double)p->kv_heads * (first_key + Bc < p->seqlen_k ? Bc : p->seqlen_k - first_key);
        }
    }
    double e = (double)dtype_bytes(p->dtype), row = p->head_dim * e, gradient_bytes = (double)key_elements(p) * e;
    double accumulator = padded_row_count(p) * p->head_dim * 4, added = tile_rows * p->head_dim * 4;
    const Traffic all[] = {
        {"prepare_rows", "dQ accumulator", 0, accumulator}, /* zeros */
        {kernel, "Q", rows * row, 0},
        {kernel, "dO", rows * row, 0},
        {kernel, "K", key_rows * row, 0},
        {kernel, "V", key_rows * row, 0},
        {kernel, "LSE in base 2", tile_rows * 4, 0},
        {kernel, "delta", tile_rows * 4, 0},
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

/* A number is drawn for each key tile, by an atomic that reads and writes it; the last one sets it back. */
int fa3_backward_overlapped_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    int i = tiles_traffic(p, key_lengths, "overlapped_backward", consumer_queries(p), CONSUMER_KEYS, traffic);
    double draws = (double)p->batch * p->kv_heads * (round_up(p->seqlen_k, CONSUMER_KEYS) / CONSUMER_KEYS);
    traffic[i++] = (Traffic){"overlapped_backward", "next key tile", draws * 4, (draws + 1) * 4};
    return i;
}
