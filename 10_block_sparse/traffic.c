/* traffic.c - the bytes that 10_block_sparse moves. */
#include "../common/device/device.h"
#include "../common/traffic.h"
#include "lists.h"

static const BlockMask *mask_of(const Problem *p) {
    static const BlockMask everything;
    return p->blocks ? &p->blocks->mask : &everything;
}

/* Every tile up to the last key that its rows see; V of those alone of which something is kept. */
extern Predictor sparse_masked_traffic;
int sparse_masked_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    const BlockMask *mask = mask_of(p);
    const int Bc = (p->head_dim <= 64 ? 128 : 64) / (device_properties()->capability < 80 ? 2 : 1);
    double values = 0; /* rows of V */
    for (int b = 0; b < p->batch; b++)
        for (int row = 0; row < p->seqlen_q; row += MASK_BLOCK)
            for (int key = 0, keys = key_length(p, key_lengths, b); key < keys; key += Bc)
                if (tile_kept(mask, p, keys, row, row + MASK_BLOCK, key, key + Bc) != TILE_NONE)
                    values += p->heads * (double)smaller_of(Bc, keys - key);
    int count = queries_outer_traffic(p, key_lengths, "masked", MASK_BLOCK, Bc, traffic);
    for (int i = 0; i < count; i++)
        if (strcmp(traffic[i].tensor, "V") == 0)
            traffic[i].read = values * p->head_dim * (double)dtype_bytes(p->dtype);
    return count;
}

/* ---- on lists ---- */

/* What the lists of all batch entries hold, each list once. */
typedef struct {
    double entries, partial; /* key blocks; of these those with a mask */
    double keys, rows;       /* keys of the entries below `stored`; queries of lists that are not empty */
    double only_full;        /* lists that are not empty and have no partial block */
} ListSums;

static ListSums sum_lists(const Problem *p, const int *key_lengths, int is_stored) {
    ListSums sum = {0};
    for (int b = 0; b < p->batch; b++)
        for (int row = 0; row < p->seqlen_q; row += MASK_BLOCK) {
            const int keys = key_length(p, key_lengths, b), stored = is_stored ? p->seqlen_k : keys;
            int full = 0, partial = 0;
            for (int key = 0; key < keys; key += MASK_BLOCK) {
                TileKept kept = tile_kept(mask_of(p), p, keys, row, row + MASK_BLOCK, key, key + MASK_BLOCK);
                full += kept == TILE_FULL, partial += kept == TILE_PARTIAL;
                sum.keys += kept == TILE_NONE ? 0 : smaller_of(MASK_BLOCK, stored - key);
            }
            sum.entries += full + partial, sum.partial += partial;
            sum.rows += full + partial ? smaller_of(MASK_BLOCK, p->seqlen_q - row) : 0;
            sum.only_full += full > 0 && partial == 0;
        }
    return sum;
}

extern Predictor sparse_lists_traffic, sparse_skipping_traffic, sparse_overlapped_traffic;

/* Each thread of order_tiles reads its own list's length, and then all of its batch entry. */
int sparse_lists_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    const double lists = (double)list_count(p), length = sizeof(ListLengths);
    const Traffic all[] = {
        {"build_lists", "key blocks", 0, 4 * sum_lists(p, key_lengths, 0).entries},
        {"build_lists", "list lengths", 0, lists * length},
        {"order_tiles", "list lengths", lists * length * (1 + blocks_of(p->seqlen_q)), 0},
        {"order_tiles", "longest first", 0, lists * sizeof(OrderedTile)},
    };
    return list_traffic(traffic, all, sizeof all / sizeof *all);
}

/* Of each list every head's block reads the entry of the order once. */
static int walk_traffic(const Problem *p, const char *kernel, const ListSums *sum, double rows, double list_reads,
                        Traffic *traffic) {
    const double row = p->head_dim * (double)dtype_bytes(p->dtype);
    const Traffic all[] = {
        {kernel, "longest first", p->heads * (double)list_count(p) * sizeof(OrderedTile), 0},
        {kernel, "key blocks", p->heads * 4 * list_reads, 0},
        {kernel, "Q", p->heads * rows * row, 0},
        {kernel, "K", p->heads * sum->keys * row, 0},
        {kernel, "V", p->heads * sum->keys * row, 0},
        {kernel, "O", 0, query_bytes(p)},
        {kernel, "LSE", 0, row_bytes(p)},
    };
    return list_traffic(traffic, all, sizeof all / sizeof *all);
}

/* Each of 128 threads reads a block's number once for each of its tiles, and again where it is partial. */
int sparse_skipping_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    const ListSums sum = sum_lists(p, key_lengths, 0);
    const int tiles = p->head_dim == 64 ? 1 : 2; /* a block; skipping.cu: Bc */
    return walk_traffic(p, "skipping", &sum, (double)p->batch * p->seqlen_q, 128 * tiles * (sum.entries + sum.partial),
                        traffic);
}

/* As 08_fa3/overlapped: TMA loads whole tiles as far as the tensor goes, and a query tile without keys loads nothing.
 * The producer reads a block's number for each of its tiles, its 256 consumers for the first tile of a walk and for
 * partial ones. */
int sparse_overlapped_traffic(const Problem *p, const int *key_lengths, Traffic *traffic) {
    const ListSums sum = sum_lists(p, key_lengths, 1);
    const double draws = p->heads * (double)list_count(p);
    const int tiles = p->head_dim == 64 ? 2 : 1; /* a block; overlapped.cu: Bc */
    const double reads = tiles * sum.entries + 256 * (tiles * sum.partial + sum.only_full);
    int i = walk_traffic(p, "overlapped", &sum, sum.rows, reads, traffic);
    traffic[i++] = (Traffic){"overlapped", "next query tile", draws * 4, (draws + 1) * 4};
    return i;
}
