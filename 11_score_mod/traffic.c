/* traffic.c - the bytes that 11_score_mod moves: as 04_fa2, but K and V only as far as a window reaches. */
#include "../common/traffic.h"
#include "tiles.h"

static const Score *score_of(const Problem *p) {
    static const Score none;
    return p->score ? &p->score->score : &none;
}

/* K or V: each tile of Br queries loads the keys from `from`, the first that any of its rows sees, to `to`, the last.
 * If `whole`, it loads whole tiles of Bc keys, as far as keys exist. */
static double window_key_bytes(const Problem *p, const int *key_lengths, TileShape tile, int whole) {
    double loaded = 0;
    for (int b = 0; b < p->batch; b++)
        for (int first_row = 0; first_row < p->seqlen_q; first_row += tile.Br) {
            int keys = key_length(p, key_lengths, b), last_row = smaller_of(first_row + tile.Br, p->seqlen_q) - 1;
            int from = seen_keys(score_of(p), p, keys, first_row).begin,
                to = seen_keys(score_of(p), p, keys, last_row).end;
            if (from >= to)
                continue;
            loaded += whole ? fmin(round_up(to, tile.Bc), keys) - from / tile.Bc * tile.Bc : to - from;
        }
    return p->heads * loaded * p->head_dim * (double)dtype_bytes(p->dtype);
}

static int score_traffic(const Problem *p, const char *kernel, double key_bytes, double readers, Traffic *traffic) {
    const Traffic all[] = {
        {kernel, "Q", query_bytes(p), 0},  {kernel, "K", key_bytes, 0},    {kernel, "V", key_bytes, 0},
        {kernel, "O", 0, query_bytes(p)}, {kernel, "LSE", 0, row_bytes(p)}, {kernel, "sinks", 4 * readers, 0},
    };
    return list_traffic(traffic, all, score_of(p)->sinks ? 6 : 5);
}

extern Predictor score_fma_traffic, score_fused_traffic;

/* Each thread of a block, rows that do not exist included, reads the head's sink for each of its rows. */
int score_fma_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    const TileShape tile = score_fma_tile(p);
    double rows = round_up(p->seqlen_q, tile.Br) * p->batch * p->heads;
    return score_traffic(p, "score_fma", window_key_bytes(p, key_lengths, tile, 0), 16 * rows, traffic);
}

/* One thread of a block reads it. */
int score_fused_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    const TileShape tile = score_fused_tile(p);
    double blocks = ceil((double)p->seqlen_q / tile.Br) * p->batch * p->heads;
    return score_traffic(p, "fused", window_key_bytes(p, key_lengths, tile, 1), blocks, traffic);
}
