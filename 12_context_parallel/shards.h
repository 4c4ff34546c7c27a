/* shards.h - who holds which part of the sequence. For kernels' host code, main.c and the test.
 *
 * The queries are cut into 2G chunks, two for each of G devices; under a causal mask a chunk that comes later sees more
 * keys.
 *
 *     chunk         0   1   2   3   4   5   6   7      pairs of a causal mask, in half squares of a chunk; G = 4
 *     contiguous    0   0   1   1   2   2   3   3      device 0: 1 + 3 = 4     device 3: 13 + 15 = 28
 *     zigzag        0   1   2   3   3   2   1   0      device 0: 1 + 15 = 16   device 3: 7 + 9 = 16
 *
 * Keys are dealt out by what queries see. Those that every query sees are cut into G equal parts. The others are seen
 * from one query on, and they belong to the chunk of that query. So a device's *shard* of keys has three pieces, stored
 * one behind the other: its part of the keys that all see, the keys of its first chunk, those of its second. Of any
 * shard a chunk sees a prefix, as causal masks and key lengths describe it.
 */
#ifndef FA_SHARDS_H
#define FA_SHARDS_H

#include "../common/device/device.h"
#include "../common/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DEVICES, CHUNKS }; /* p->settings */
#define DEVICE_SETTINGS                                                                                                \
    [DEVICES] = {.name = "devices", .choices = "all", .max = MAX_DEVICES,                                              \
                 .help = "GPUs that share the sequence; all: those of this computer, 4 on the CPU device"},            \
    [CHUNKS] = {.name = "chunks", .choices = "zigzag|contiguous",                                                      \
                .help = "which two of 2G chunks device r of G has: r and 2G-1-r; or 2r and 2r+1"}
enum { ZIGZAG, CONTIGUOUS };
enum { HALVES = 2, BOTH = HALVES, PIECES = 3, WHOLE = -1 };

enum { ARRIVED = FIRST_FREE_EVENT }; /* an event: the keys of this round have been copied; one for each of two slots */

typedef struct {
    int first, count;
} Span;

int devices_of(const Problem *p);
int chunk_of(const Problem *p, int device, int half); /* the second half comes later in the sequence */
Span queries_of(const Problem *p, int chunk);
Span keys_of(const Problem *p, int length, int device, int piece); /* of a batch entry with `length` keys */

/* How many keys of the shard of `from` are seen by the last query of a chunk: as many as its other queries see, or, if
 * the chunk is that device's own and the mask causal, one more than the query before. WHOLE: of all keys. */
int shard_keys_seen(const Problem *p, int length, int from, int chunk);
int most_seen(const Problem *p, const int *key_lengths, int from, int chunk); /* over the batch */

/* Attention of the queries of a half, or of BOTH, with the shard of `from` or the WHOLE sequence, as a problem that the
 * other stages' kernels can compute. It has no queries if there is nothing to compute. */
Problem part_of(const Problem *p, const int *key_lengths, int device, int rows, int from);
int *keys_of_part(const Problem *p, const int *key_lengths, int device, int rows, int from); /* to be freed */

/* BOTH are one problem if they see the same keys of a shard, or if it is their own: its pieces are in the order of the
 * sequence, as their chunks are, so a causal mask that is aligned at the end of the keys is the mask of both. */
int are_one_problem(const Problem *p, const int *key_lengths, int device, int from);
int halves_alone(const Problem *p); /* how many may be a problem of their own: none, the second, or each */
int queries_of_rows(const Problem *p, int device, int rows);

/* Round 0 is a device's own shard; then come those before it, and last those behind it. */
int shard_in_round(const Problem *p, int device, int round);
int sees_in_rounds(const Problem *p, const int *key_lengths, int device, int half, int first, int last); /* any key */

int largest_chunk(const Problem *p); /* queries */
int shard_keys(const Problem *p);    /* what a shard has room for, whatever the key lengths */

LinkBytes link_bytes; /* of K and V */
double device_pairs(const Problem *p, const int *key_lengths, int device);

#ifdef __cplusplus
}
#endif
#endif
