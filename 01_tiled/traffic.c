/* traffic.c - the bytes that 01_tiled moves: an element is loaded once for each tile of the product that needs it. */
#include "../common/traffic.h"

/* The two products differ between the variants only in their names and in how far P is read:
 * in whole slices of its keys. */
static int tiled_traffic(const Problem *p, const int *key_lengths, const char *scores, const char *output, int slice,
                         Traffic *traffic) {
    double e = (double)dtype_bytes(p->dtype), D = p->head_dim, heads = (double)p->batch * p->heads;
    double row_tiles = round_up(p->seqlen_q, 64) / 64, column_tiles = round_up(p->seqlen_k, 64) / 64;
    double stored = (double)row_count(p) * 64 * column_tiles; /* elements of S: rows are padded to whole tiles */
    double sliced = 0;
    for (int b = 0; b < p->batch; b++)
        sliced += (double)p->heads * p->seqlen_q * round_up(key_length(p, key_lengths, b), slice);
    double d_tiles = slice < 64 ? round_up(D, 64) / 64 : 1; /* the mma variant's block owns all columns of O */

    int i = 0;
    traffic[i++] = (Traffic){scores, "Q", column_tiles * query_bytes(p), 0};
    traffic[i++] = (Traffic){scores, "K", row_tiles * heads * p->seqlen_k * D * e, 0};
    traffic[i++] = (Traffic){scores, "S", 0, stored * 4};
    traffic[i++] = (Traffic){"tiled_softmax", "S", 3 * stored * 4, 0};
    traffic[i++] = (Traffic){"tiled_softmax", "P", 0, stored * e};
    traffic[i++] = (Traffic){"tiled_softmax", "LSE", 0, row_bytes(p)};
    traffic[i++] = (Traffic){output, "P", d_tiles * sliced * e, 0};
    traffic[i++] = (Traffic){output, "V", row_tiles * all_keys(p, key_lengths) * D * e, 0};
    traffic[i++] = (Traffic){output, "O", 0, query_bytes(p)};
    return i;
}

int tiled_fma_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return tiled_traffic(p, key_lengths, "fma_scores", "fma_output", 32, traffic);
}
int tiled_mma_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return tiled_traffic(p, key_lengths, "mma_scores", "mma_output", 64, traffic);
}
