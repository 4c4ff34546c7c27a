/* traffic.c - the bytes that 09_fa3_backward's variants move. TMA loads whole tiles, as far as the tensor
 * goes: also those keys that exist in it but not for this batch entry. A tile of keys that no query sees
 * loads nothing, and adds nothing. */
#include "../common/traffic.h"
#include "key_tiles.h"

/* How many pieces each of the `heads` tiles with these keys makes, one per head, over all of them. Only full masks have
 * cut tiles, and there the heads come one after the other, from `matrix` on. A piece without queries is none. */
static double pieces(const Problem *p, KeyTileOrder order, int matrix, int tile, int Bc, double query_tiles) {
    double sum = 0;
    for (int head = 0; head < p->heads; head++) {
        double number = (double)(matrix + head) * round_up(p->seqlen_k, Bc) / Bc + tile;
        sum += number < order.whole ? 1 : fmin(order.cuts, query_tiles);
    }
    return sum;
}

/* Rows of Q, and of K, that all blocks load. */
typedef struct {
    double rows, tile_rows, key_rows, pieces; /* tile_rows: rows, with those that do not exist; pieces: with work */
} Loaded;
static Loaded loaded_rows(const Problem *p, const int *key_lengths, int Br, int Bc, KeyTileOrder order) {
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
            double query_tiles = (round_up(p->seqlen_q, Br) - skipped) / Br;
            double number = pieces(p, order, b * p->heads, first_key / Bc, Bc, query_tiles);
            sum.pieces += number;
            sum.key_rows += number * (first_key + Bc < p->seqlen_k ? Bc : p->seqlen_k - first_key);
        }
    }
    return sum;
}

static int tiles_traffic(const Problem *p, const int *key_lengths, const char *kernel, int Br, int Bc,
                         KeyTileOrder order, Traffic *traffic) {
    const Loaded sum = loaded_rows(p, key_lengths, Br, Bc, order);
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
        {"convert_dq", "dQ accumulator", accumulator, 0},
        {"convert_dq", "dQ", 0, query_bytes(p)},
    };
    const Traffic written[] = {{kernel, "dK", 0, gradient_bytes}, {kernel, "dV", 0, gradient_bytes}};
    double key_sums = round_up(p->seqlen_k, ROW_PADDING) * p->batch * p->kv_heads * p->head_dim * 4;
    double keys_added = sum.pieces * Bc * p->head_dim * 4;
    const Traffic shared[] = {
        {kernel, "dK accumulator", keys_added, keys_added},
        {kernel, "dV accumulator", keys_added, keys_added},
        {"convert_keys", "dK accumulator", key_sums, key_sums}, /* leaves zeros */
        {"convert_keys", "dV accumulator", key_sums, key_sums},
        {"convert_keys", "dK", 0, gradient_bytes},
        {"convert_keys", "dV", 0, gradient_bytes},
    };
    int i = prepare_rows_traffic(p, traffic);
    i += list_traffic(traffic + i, all, sizeof all / sizeof *all);
    return i + (heads_share_keys(p) ? list_traffic(traffic + i, shared, sizeof shared / sizeof *shared)
                                    : list_traffic(traffic + i, written, sizeof written / sizeof *written));
}

int fa3_backward_wgmma_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return tiles_traffic(p, key_lengths, "wgmma_backward", 64, 64, key_tile_order(p, 64), traffic);
}

enum { CONSUMER_KEYS = 128 };
static int consumer_queries(const Problem *p) { return p->head_dim == 64 ? 128 : 64; } /* roles.cuh: Br */

int fa3_backward_specialised_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return tiles_traffic(p, key_lengths, "specialised_backward", consumer_queries(p), CONSUMER_KEYS,
                         key_tile_order(p, CONSUMER_KEYS), traffic);
}

/* A number is drawn for each piece of work, by an atomic that reads and writes it; the last one sets it back. */
int fa3_backward_overlapped_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    const KeyTileOrder order = overlapped_order(p, CONSUMER_KEYS);
    int i = tiles_traffic(p, key_lengths, "overlapped_backward", consumer_queries(p), CONSUMER_KEYS, order, traffic);
    double draws = order.count;
    traffic[i++] = (Traffic){"overlapped_backward", "next key tile", draws * 4, (draws + 1) * 4};
    return i;
}

/* Each block draws once more, in vain. Both keepers count on at each step and, if dK and dV are added, once more in
 * each tile. */
int fa3_backward_ordered_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    const KeyTileOrder order = key_tile_order(p, CONSUMER_KEYS);
    int i = tiles_traffic(p, key_lengths, "ordered_backward", consumer_queries(p), CONSUMER_KEYS, order, traffic);
    double draws = order.count + fmin(order.count, device_properties()->sm_count);
    const Loaded sum = loaded_rows(p, key_lengths, consumer_queries(p), CONSUMER_KEYS, order);
    double turns = (sum.tile_rows / consumer_queries(p) + (heads_share_keys(p) ? sum.pieces : 0)) * 2 * 4;
    traffic[i++] = (Traffic){"ordered_backward", "next key tile", draws * 4, (draws + 1) * 4};
    traffic[i++] = (Traffic){"ordered_backward", "turns", turns, turns};
    return i;
}
