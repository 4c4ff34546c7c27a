/* traffic.c - the bytes that 08_fa3's variants move. TMA loads whole tiles, as far as the tensor goes: also those keys
 * that exist in it but not for this batch entry. A tile of queries that sees no key loads nothing. */
#include "../common/traffic.h"

static int tiles_traffic(const Problem *p, const int *key_lengths, const char *kernel, int Br, int Bc,
                         Traffic *traffic) {
    double query_rows = 0, key_rows = 0;
    for (int b = 0; b < p->batch; b++)
        for (int first_row = 0; first_row < p->seqlen_q; first_row += Br) {
            int end = first_row + Br < p->seqlen_q ? first_row + Br : p->seqlen_q;
            double loaded = round_up(visible_keys(p, key_length(p, key_lengths, b), end - 1), Bc);
            query_rows += loaded > 0 ? p->heads * (end - first_row) : 0;
            key_rows += p->heads * (loaded < p->seqlen_k ? loaded : p->seqlen_k);
        }
    double row = p->head_dim * (double)dtype_bytes(p->dtype);
    int i = 0;
    traffic[i++] = (Traffic){kernel, "Q", query_rows * row, 0};
    traffic[i++] = (Traffic){kernel, "K", key_rows * row, 0};
    traffic[i++] = (Traffic){kernel, "V", key_rows * row, 0};
    traffic[i++] = (Traffic){kernel, "O", 0, query_bytes(p)};
    traffic[i++] = (Traffic){kernel, "LSE", 0, row_bytes(p)};
    return i;
}

int fa3_wgmma_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return tiles_traffic(p, key_lengths, "wgmma_attention", 64, 64, traffic);
}

int fa3_specialised_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    return tiles_traffic(p, key_lengths, "specialised", 128, 128, traffic);
}

/* A number is drawn for each query tile, by an atomic that reads and writes it; the last one sets it back. */
int fa3_overlapped_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    int Br = p->head_dim == 64 ? 192 : 128; /* overlapped.cu: Roles */
    int i = tiles_traffic(p, key_lengths, "overlapped", Br, 128, traffic);
    double draws = (double)p->batch * p->heads * ((p->seqlen_q + Br - 1) / Br);
    traffic[i++] = (Traffic){"overlapped", "next query tile", draws * 4, (draws + 1) * 4};
    return i;
}
