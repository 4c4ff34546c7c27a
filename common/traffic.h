/* traffic.h - what the formulas of several stages have in common (Variant.predict).
 *
 * All count bytes that threads ask for, caches or not, over the whole problem.
 */
#ifndef FA_TRAFFIC_H
#define FA_TRAFFIC_H

#include "block_mask.h"
#include "stage.h"

#include <string.h>

static inline double round_up(double a, double b) { return ceil(a / b) * b; }

/* Q or O, and LSE: each once. */
static inline double query_bytes(const Problem *p) { return (double)query_elements(p) * (double)dtype_bytes(p->dtype); }
static inline double row_bytes(const Problem *p) { return 4.0 * (double)row_count(p); }

/* Keys that exist, summed over the query heads. */
static inline double all_keys(const Problem *p, const int *key_lengths) {
    double sum = 0;
    for (int b = 0; b < p->batch; b++)
        sum += (double)p->heads * key_length(p, key_lengths, b);
    return sum;
}

/* Pairs that a block mask keeps in one head. */
static inline double kept_pairs(const Problem *p, int keys) {
    enum { N = MASK_BLOCK };
    const BlockMask *mask = &p->blocks->mask;
    double pairs = 0;
    for (int row = 0; row < p->seqlen_q; row += N)
        for (int key = 0; key < p->seqlen_k; key += N) {
            TileKept tile = tile_kept(mask, p, keys, row, row + N, key, key + N);
            int end_row = smaller_of(row + N, p->seqlen_q), end_key = smaller_of(key + N, p->seqlen_k);
            pairs += tile == TILE_FULL ? (double)(end_row - row) * N : 0;
            for (int i = row; tile == TILE_PARTIAL && i < end_row; i++)
                for (int j = key; j < end_key; j++)
                    pairs += pair_is_kept(mask, p, keys, i, j);
        }
    return pairs;
}

/* Pairs that a window leaves in one head. */
static inline double window_pairs(const Problem *p, int keys) {
    double pairs = 0;
    for (int row = 0; row < p->seqlen_q; row++) {
        Range seen = seen_keys(&p->score->score, p, keys, row);
        pairs += seen.end > seen.begin ? seen.end - seen.begin : 0;
    }
    return pairs;
}

/* Whether the problem has a window. */
static inline int has_window(const Problem *p) { return p->score && p->score->score.window; }

/* Pairs of a query and a key that it sees. Causal: the last query sees all keys that exist, each before it one fewer. */
static inline double visible_pairs(const Problem *p, const int *key_lengths) {
    double pairs = 0;
    for (int b = 0; b < p->batch; b++) {
        int keys = key_length(p, key_lengths, b);
        double rows = p->causal && keys < p->seqlen_q ? keys : p->seqlen_q;
        pairs += p->heads * (p->blocks       ? kept_pairs(p, keys)
                             : has_window(p) ? window_pairs(p, keys)
                                             : rows * keys - (p->causal ? rows * (rows - 1) / 2 : 0));
    }
    return pairs;
}

/* K or V of a kernel in which each tile of Br queries walks over the keys that its last row sees, in tiles of Bc of which
 * the last is loaded whole, as far as keys exist. Bc = ONLY_SEEN: it is loaded only as far as that row sees. */
enum { ONLY_SEEN = 1 };
static inline double walked_key_bytes(const Problem *p, const int *key_lengths, int Br, int Bc) {
    double keys_loaded = 0;
    for (int b = 0; b < p->batch; b++)
        for (int first_row = 0; first_row < p->seqlen_q; first_row += Br) {
            int keys = key_length(p, key_lengths, b);
            int last_row = (first_row + Br < p->seqlen_q ? first_row + Br : p->seqlen_q) - 1;
            keys_loaded += p->heads * fmin(round_up(visible_keys(p, keys, last_row), Bc), keys);
        }
    return keys_loaded * p->head_dim * (double)dtype_bytes(p->dtype);
}

static inline int list_traffic(Traffic *traffic, const Traffic *all, int count) {
    memcpy(traffic, all, (size_t)count * sizeof *all);
    return count;
}

/* Several launches of the same kernels: entries of the same kernel and tensor are added up. */
typedef struct {
    Traffic *all;
    int count;
} TrafficSum;
static inline void add_traffic(TrafficSum *sum, const char *kernel, const char *tensor, double read, double written) {
    int i = 0;
    while (i < sum->count && (strcmp(sum->all[i].kernel, kernel) != 0 || strcmp(sum->all[i].tensor, tensor) != 0))
        i++;
    if (i == sum->count)
        sum->all[sum->count++] = (Traffic){kernel, tensor, 0, 0};
    sum->all[i].read += read, sum->all[i].written += written;
}

/* Queries outer, as walked_key_bytes has it: Q, O and LSE move once, K and V once for each tile of queries. */
static inline int queries_outer_traffic(const Problem *p, const int *key_lengths, const char *kernel, int Br, int Bc,
                                        Traffic *traffic) {
    double key_bytes = walked_key_bytes(p, key_lengths, Br, Bc);
    const Traffic all[] = {
        {kernel, "Q", query_bytes(p), 0},
        {kernel, "K", key_bytes, 0},
        {kernel, "V", key_bytes, 0},
        {kernel, "O", 0, query_bytes(p)},
        {kernel, "LSE", 0, row_bytes(p)},
    };
    return list_traffic(traffic, all, sizeof all / sizeof *all);
}

/* The workspace of kernels with keys outer, queries inner: O, l and m of every row between two key tiles. */
static inline int keys_outer_workspace(const Problem *p, Buffer *workspace) {
    const Buffer all[] = {
        {"O accumulator", query_elements(p) * sizeof(float), 0, 0},
        {"l", row_count(p) * sizeof(float), 0, 0},
        {"m", row_count(p) * sizeof(float), 0, 0},
    };
    memcpy(workspace, all, sizeof all);
    return 3;
}

/* What such kernels move if a block has block_rows queries, all of a head's or fewer. It loads the keys that its last row
 * sees. A tile of Br rows has as many steps as there are tiles of Bc keys that its last row sees, at least one. l and m of
 * a row are read by `readers` threads. */
static inline int keys_outer_traffic(const Problem *p, const int *key_lengths, const char *kernel, int block_rows, int Br,
                                     int Bc, int readers, Traffic *traffic) {
    double row_steps = 0; /* summed over all rows */
    for (int b = 0; b < p->batch; b++)
        for (int first_row = 0; first_row < p->seqlen_q; first_row += Br) {
            int end = first_row + Br < p->seqlen_q ? first_row + Br : p->seqlen_q;
            int steps = (visible_keys(p, key_length(p, key_lengths, b), end - 1) + Bc - 1) / Bc;
            row_steps += (double)p->heads * (end - first_row) * (steps > 0 ? steps : 1);
        }
    double e = (double)dtype_bytes(p->dtype), D = p->head_dim, again = row_steps - (double)row_count(p);
    double key_bytes = walked_key_bytes(p, key_lengths, block_rows, ONLY_SEEN);
    const Traffic all[] = {
        {kernel, "Q", row_steps * D * e, 0},
        {kernel, "K", key_bytes, 0},
        {kernel, "V", key_bytes, 0},
        {kernel, "O accumulator", again * D * 4, again * D * 4},
        {kernel, "l", readers * again * 4, again * 4},
        {kernel, "m", readers * again * 4, again * 4},
        {kernel, "O", 0, query_bytes(p)},
        {kernel, "LSE", 0, row_bytes(p)},
    };
    return list_traffic(traffic, all, sizeof all / sizeof *all);
}

/* LSE, delta and the accumulator of dQ have a multiple of so many rows per head. */
enum { ROW_PADDING = 128 };
static inline double padded_row_count(const Problem *p) { return round_up(p->seqlen_q, ROW_PADDING) * p->batch * p->heads; }

/* The pre-pass of the fast backward kernels: delta, and LSE in base 2, 8 bytes per row; each row's LSE is read by its D/8
 * threads. */
static inline int prepare_rows_traffic(const Problem *p, Traffic *traffic) {
    const Traffic all[] = {
        {"prepare_rows", "O", query_bytes(p), 0},
        {"prepare_rows", "dO", query_bytes(p), 0},
        {"prepare_rows", "LSE", row_bytes(p) * p->head_dim / 8, 0},
        {"prepare_rows", "LSE in base 2", 0, 4 * padded_row_count(p)},
        {"prepare_rows", "delta", 0, 4 * padded_row_count(p)},
    };
    return list_traffic(traffic, all, sizeof all / sizeof *all);
}

#endif
