/* traffic.c - the bytes that 04_fa2's variants move. `epilogue` moves what 03_fa1 moves. In the others queries are the outer
 * loop: Q, O and LSE move once, K and V once for each tile of queries. */
#include "../common/traffic.h"

int fa2_epilogue_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return keys_outer_traffic(p, key_lengths, "epilogue_kernel", 16384 / p->head_dim, 1, traffic);
}

static int queries_outer(const Problem *p, const char *kernel, double key_bytes, Traffic *traffic) {
    int i = 0;
    traffic[i++] = (Traffic){kernel, "Q", query_bytes(p), 0};
    traffic[i++] = (Traffic){kernel, "K", key_bytes, 0};
    traffic[i++] = (Traffic){kernel, "V", key_bytes, 0};
    traffic[i++] = (Traffic){kernel, "O", 0, query_bytes(p)};
    traffic[i++] = (Traffic){kernel, "LSE", 0, row_bytes(p)};
    return i;
}

int fa2_loop_swap_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return queries_outer(p, "loop_swap_kernel", walked_key_bytes(p, key_lengths, 32, 1), traffic);
}

int fa2_split_q_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return queries_outer(p, "split_q_kernel", walked_key_bytes(p, key_lengths, 64, 1), traffic);
}

int fa2_tuned_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    int D = p->head_dim, Br = D <= 128 ? 128 : 64, Bc = D <= 64 ? 128 : D <= 128 ? 64 : 32; /* tuned.cu: Shape */
    return queries_outer(p, "tuned", walked_key_bytes(p, key_lengths, Br, Bc), traffic);
}
