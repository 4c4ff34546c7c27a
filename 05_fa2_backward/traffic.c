/* traffic.c - the bytes that 05_fa2_backward moves. Where keys are the outer loop, K, V, dK and dV move once, Q and dO
 * once for each key tile. In the second kernel of two_pass queries are: Q, dO and dQ move once, K and V once for each
 * query tile. */
#include "../common/traffic.h"
#include "backward.h"

/* A kernel whose blocks own tiles of Bc keys and walk over the tiles of Br queries that see any of these
 * keys. *rows becomes the number of rows of all tiles walked over, and *tile_rows the same, rows that do
 * not exist included. blocks_a_tile: 1, or if there is a block for each query head, the heads that share a
 * tile; dK and dV are then added. */
static int keys_outer(const Problem *p, const int *key_lengths, const char *kernel, TileShape tile, int blocks_a_tile,
                      double *rows, double *tile_rows, Traffic *traffic) {
    int Br = tile.Br, Bc = tile.Bc;
    double e = (double)dtype_bytes(p->dtype), D = p->head_dim;
    *rows = *tile_rows = 0;
    for (int b = 0; b < p->batch; b++) {
        int keys = key_length(p, key_lengths, b);
        for (int first_key = 0; first_key < keys; first_key += Bc) {
            int first_row = p->causal ? first_key - (keys - p->seqlen_q) : 0;
            int skipped = first_row > 0 ? first_row / Br * Br : 0;
            if (skipped >= p->seqlen_q)
                continue;
            *rows += (double)p->heads * (p->seqlen_q - skipped);
            *tile_rows += p->heads * (round_up(p->seqlen_q, Br) - skipped);
        }
    }
    double key_bytes = all_keys(p, key_lengths) / p->heads * p->kv_heads * blocks_a_tile * D * e;
    double gradient_bytes = (double)key_elements(p) * e;
    int i = 0;
    traffic[i++] = (Traffic){kernel, "Q", *rows * D * e, 0};
    traffic[i++] = (Traffic){kernel, "dO", *rows * D * e, 0};
    traffic[i++] = (Traffic){kernel, "K", key_bytes, 0};
    traffic[i++] = (Traffic){kernel, "V", key_bytes, 0};
    if (blocks_a_tile > 1)
        return i;
    traffic[i++] = (Traffic){kernel, "dK", 0, gradient_bytes};
    traffic[i++] = (Traffic){kernel, "dV", 0, gradient_bytes};
    return i;
}

int backward_two_pass_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    TileShape tile = two_pass_query_tile(p);
    double rows, tile_rows;
    int i = prepare_rows_traffic(p, traffic);
    i += keys_outer(p, key_lengths, "key_gradients", two_pass_key_tile(p), 1, &rows, &tile_rows, traffic + i);
    traffic[i++] = (Traffic){"key_gradients", "LSE in base 2", tile_rows * 4, 0};
    traffic[i++] = (Traffic){"key_gradients", "delta", tile_rows * 4, 0};

    double key_bytes = walked_key_bytes(p, key_lengths, tile.Br, tile.Bc);
    tile_rows = round_up(p->seqlen_q, tile.Br) * p->batch * p->heads;
    traffic[i++] = (Traffic){"query_gradients", "Q", query_bytes(p), 0};
    traffic[i++] = (Traffic){"query_gradients", "dO", query_bytes(p), 0};
    traffic[i++] = (Traffic){"query_gradients", "LSE in base 2", 4 * 4 * tile_rows, 0}; /* by the four lanes of a row */
    traffic[i++] = (Traffic){"query_gradients", "delta", 4 * 4 * tile_rows, 0};
    traffic[i++] = (Traffic){"query_gradients", "K", key_bytes, 0};
    traffic[i++] = (Traffic){"query_gradients", "V", key_bytes, 0};
    traffic[i++] = (Traffic){"query_gradients", "dQ", 0, query_bytes(p)};
    return i;
}

/* dK and dV where a block has one of several query heads: each key tile that any query sees is added once a head. */
static int added_keys(const Problem *p, const int *key_lengths, Traffic *traffic) {
    TileShape tile = atomic_tile(p);
    double keys = 0, D = p->head_dim, gradient_bytes = (double)key_elements(p) * (double)dtype_bytes(p->dtype);
    for (int b = 0; b < p->batch; b++)
        keys += p->heads * round_up(visible_keys(p, key_length(p, key_lengths, b), p->seqlen_q - 1), tile.Bc);
    double added = keys * D * 4, sums = round_up(p->seqlen_k, ROW_PADDING) * p->batch * p->kv_heads * D * 4;
    const Traffic all[] = {
        {"backward_atomic", "dK accumulator", added, added},
        {"backward_atomic", "dV accumulator", added, added},
        {"convert_keys", "dK accumulator", sums, sums}, /* leaves zeros */
        {"convert_keys", "dV accumulator", sums, sums},
        {"convert_keys", "dK", 0, gradient_bytes},
        {"convert_keys", "dV", 0, gradient_bytes},
    };
    return list_traffic(traffic, all, sizeof all / sizeof *all);
}

int backward_atomic_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    double rows, tile_rows, accumulator = padded_row_count(p) * p->head_dim * 4;
    int i = prepare_rows_traffic(p, traffic), group = p->heads / p->kv_heads;
    traffic[i++] = (Traffic){"prepare_rows", "dQ accumulator", 0, accumulator}; /* zeros */
    i += keys_outer(p, key_lengths, "backward_atomic", atomic_tile(p), group, &rows, &tile_rows, traffic + i);
    traffic[i++] = (Traffic){"backward_atomic", "LSE in base 2", tile_rows * 4, 0};
    traffic[i++] = (Traffic){"backward_atomic", "delta", tile_rows * 4, 0};
    double added = tile_rows * p->head_dim * 4;
    traffic[i++] = (Traffic){"backward_atomic", "dQ accumulator", added, added};
    traffic[i++] = (Traffic){"convert_dq", "dQ accumulator", accumulator, 0};
    traffic[i++] = (Traffic){"convert_dq", "dQ", 0, query_bytes(p)};
    return i + (group > 1 ? added_keys(p, key_lengths, traffic + i) : 0);
}

int backward_fma_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    double rows, tile_rows, accumulator = (double)query_elements(p) * 4;
    int i = 0;
    traffic[i++] = (Traffic){"prepare_rows", "O", query_bytes(p), 0};
    traffic[i++] = (Traffic){"prepare_rows", "dO", query_bytes(p), 0};
    traffic[i++] = (Traffic){"prepare_rows", "delta", 0, row_bytes(p)};
    traffic[i++] = (Traffic){"prepare_rows", "dQ accumulator", 0, accumulator}; /* zeros */
    i += keys_outer(p, key_lengths, "backward_fma", fma_tile(p), 1, &rows, &tile_rows, traffic + i);
    traffic[i++] = (Traffic){"backward_fma", "LSE", rows * 4 * 16, 0}; /* by the 16 threads of a row */
    traffic[i++] = (Traffic){"backward_fma", "delta", rows * 4 * 16, 0};
    traffic[i++] = (Traffic){"backward_fma", "dQ accumulator", rows * p->head_dim * 4, rows * p->head_dim * 4};
    traffic[i++] = (Traffic){"convert_dq", "dQ accumulator", accumulator, 0};
    traffic[i++] = (Traffic){"convert_dq", "dQ", 0, query_bytes(p)};
    return i;
}
