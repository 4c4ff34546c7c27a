/* traffic.c - the bytes that 02_online_softmax moves: neither S nor P; K is read twice. */
#include "../common/traffic.h"

int online_fma_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    double key_bytes = walked_key_bytes(p, key_lengths, 32, 1);
    int i = 0;
    traffic[i++] = (Traffic){"online_fma", "Q", query_bytes(p), 0};
    traffic[i++] = (Traffic){"online_fma", "K", 2 * key_bytes, 0};
    traffic[i++] = (Traffic){"online_fma", "V", key_bytes, 0};
    traffic[i++] = (Traffic){"online_fma", "LSE", 0, row_bytes(p)};
    traffic[i++] = (Traffic){"online_fma", "O", 0, query_bytes(p)};
    return i;
}

int online_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    double key_bytes = walked_key_bytes(p, key_lengths, 64, 1);
    int i = 0;
    traffic[i++] = (Traffic){"online_statistics", "Q", query_bytes(p), 0};
    traffic[i++] = (Traffic){"online_statistics", "K", key_bytes, 0};
    traffic[i++] = (Traffic){"online_statistics", "LSE", 0, row_bytes(p)};
    traffic[i++] = (Traffic){"online_output", "Q", query_bytes(p), 0};
    traffic[i++] = (Traffic){"online_output", "K", key_bytes, 0};
    traffic[i++] = (Traffic){"online_output", "V", key_bytes, 0};
    traffic[i++] = (Traffic){"online_output", "LSE", 4 * row_bytes(p), 0}; /* by the four lanes that share a row */
    traffic[i++] = (Traffic){"online_output", "O", 0, query_bytes(p)};
    return i;
}
