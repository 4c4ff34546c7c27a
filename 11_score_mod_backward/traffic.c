/* traffic.c - the bytes that 11_score_mod_backward moves: as 05_fa2_backward/fma, but per tile of keys, Q and dO are
 * read only in the query tiles that see any of it. */
#include "../common/traffic.h"
#include "tiles.h"

/* The threads that read LSE and delta of a row. */
enum { READERS = 16 };

extern Predictor score_backward_traffic;
int score_backward_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    static const Score none;
    const Score *score = p->score ? &p->score->score : &none;
    const TileShape tile = score_backward_tile(p);
    const int Br = tile.Br, Bc = tile.Bc;
    double D = p->head_dim, e = (double)dtype_bytes(p->dtype), accumulator = 4.0 * (double)query_elements(p),
           rows = 0; /* of all query tiles */
    for (int b = 0; b < p->batch; b++)
        for (int keys = key_length(p, key_lengths, b), key = 0; key < keys; key += Bc) {
            Range seeing = seeing_queries(score, p, keys, key, smaller_of(key + Bc, keys));
            if (seeing.begin < seeing.end)
                rows += p->heads * (fmin(round_up(seeing.end, Br), p->seqlen_q) - seeing.begin / Br * Br);
        }
    double key_bytes = all_keys(p, key_lengths) / p->heads * p->kv_heads * D * e, sink_rows = row_bytes(p);
    const Traffic all[] = {
        {"prepare_rows", "O", query_bytes(p), 0},
        {"prepare_rows", "dO", query_bytes(p), 0},
        {"prepare_rows", "delta", 0, row_bytes(p)},
        {"prepare_rows", "dQ accumulator", 0, accumulator}, /* zeros */
        {"score_backward", "Q", rows * D * e, 0},
        {"score_backward", "dO", rows * D * e, 0},
        {"score_backward", "K", key_bytes, 0},
        {"score_backward", "V", key_bytes, 0},
        {"score_backward", "dK", 0, (double)key_elements(p) * e},
        {"score_backward", "dV", 0, (double)key_elements(p) * e},
        {"score_backward", "LSE", rows * 4 * READERS, 0},
        {"score_backward", "delta", rows * 4 * READERS, 0},
        {"score_backward", "dQ accumulator", rows * D * 4, rows * D * 4},
        {"convert_dq", "dQ accumulator", accumulator, 0},
        {"convert_dq", "dQ", 0, query_bytes(p)},
        {"sink_gradient", "LSE", sink_rows, 0},
        {"sink_gradient", "delta", sink_rows, 0},
        {"sink_gradient", "sinks", sink_rows, 0},
        {"sink_gradient", "dsinks", 0, 4.0 * p->heads},
    };
    return list_traffic(traffic, all, sizeof all / sizeof *all - (score->sinks ? 0 : 4));
}
