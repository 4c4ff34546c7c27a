/* 10_block_sparse.c - block masks: what --blocks SPEC says, counted by hand; the masks of kernels and formulas against the oracle's,
 * which reads SPEC by itself; what is kept of a tile, against its pairs; and the lists of tiles that the device makes.
 */
#define _POSIX_C_SOURCE 200809L /* mkstemp */
#include "../10_block_sparse/lists.h"
#include "../common/block_mask.h"
#include "../common/device/device.h"
#include "../common/harness/tensors.h"
#include "../common/host/memory.h"
#include "../common/judge/oracle.h"
#include "../common/traffic.h"
#include "tap.h"

#include <stdlib.h>
#include <unistd.h>

extern MaskReader blocks_read;
extern Planner sparse_skipping_plan;
extern Launcher sparse_lists;

/* Kept pairs of Sq x Sk, by hand. With key lengths L. */
static void test_counts(void) {
    static const struct {
        const char *text;
        int seqlen_q, seqlen_k, causal, length;
        double pairs;
    } cases[] = {
        {"window:1", 300, 300, 0, 300, 300},
        {"window:5", 300, 300, 0, 300, 300 * 5 - (4 + 3 + 2 + 1)},
        {"window:5", 300, 300, 1, 300, 300 * 5 - (4 + 3 + 2 + 1)},
        {"window:300", 300, 300, 0, 300, 300 * 301 / 2},
        {"window:1073741824", 7, 9, 0, 9, 3 + 4 + 5 + 6 + 7 + 8 + 9},
        {"window:2", 3, 9, 0, 9, 3 * 2},             /* the last three positions */
        {"window:2", 9, 3, 0, 3, 1 + 2 + 2},         /* six queries stand before the first key */
        {"window:2", 9, 9, 0, 3, 1 + 2 + 2},         /* as many */
        {"sink:1:2", 9, 9, 0, 9, 1 + 2 + 3 * 7},     /* the first key and two near ones */
        {"sink:4:2", 9, 9, 1, 9, 1 + 2 + 3 + 4 + 5 + 6 * 4},
        {"sink:20:1", 9, 9, 0, 9, 45},
        {"documents:100+50+150", 300, 300, 0, 300, 100. * 100 + 50 * 50 + 150 * 150},
        {"documents:100+50+150", 300, 300, 1, 300, 100. * 101 / 2 + 50 * 51 / 2 + 150 * 151 / 2},
        {"documents:9", 4, 9, 0, 9, 36},
        {"documents:5+4", 4, 9, 0, 9, 16},
        {"documents:0+5+0+4+0", 4, 9, 0, 9, 16}, /* a document may be empty */
        {"documents:5+4", 4, 9, 0, 6, 3 * 5 + 1},    /* positions 2 to 5; of the second document one key */
        {"documents:5+4", 9, 9, 0, 2, 2 * 2},
        {"strided:1", 200, 300, 0, 300, 200. * 300},
        {"strided:2", 256, 512, 0, 512, 256. * 256 + 128 * 128}, /* columns 0 and 2; positions 384 to 511 own block 3 */
        {"strided:9", 256, 256, 1, 256, 128. * 129 / 2 + 128. * 128 + 128. * 129 / 2},
        {"strided:3", 512, 512, 0, 512, 512. * 256 + 2 * 128 * 128},
        {"strided:3", 130, 512, 0, 64, 130. * 64},   /* also of queries before the first key */
        {"random:0:1", 300, 300, 0, 300, 0},
        {"random:100:1", 300, 300, 1, 290, 290. * 291 / 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Problem p = {.batch = 1, .heads = 1, .kv_heads = 1, .causal = cases[i].causal};
        p.seqlen_q = cases[i].seqlen_q, p.seqlen_k = cases[i].seqlen_k;
        p.blocks = blocks_read("blocks", cases[i].text, &p);
        double pairs = visible_pairs(&p, &cases[i].length);
        if (!ok(pairs == cases[i].pairs, "%s: pairs of %d x %d, %d keys%s", cases[i].text, p.seqlen_q, p.seqlen_k,
                cases[i].length, p.causal ? ", causal" : ""))
            diag("%.0f, expected %.0f", pairs, cases[i].pairs);
        free((void *)p.blocks);
    }
}

/* A share of many blocks; another for another seed; not symmetric. */
static void test_random(void) {
    Problem p = {.seqlen_q = 128 * 200, .seqlen_k = 128 * 200};
    const Blocks *a = blocks_read("blocks", "random:3.125:7", &p), *b = blocks_read("blocks", "random:3.125:8", &p);
    int kept = 0, both = 0, mirrored = 0;
    for (int i = 0; i < 40000; i++) {
        kept += a->mask.kept[i];
        both += a->mask.kept[i] & b->mask.kept[i];
        mirrored += a->mask.kept[i] & a->mask.kept[i % 200 * 200 + i / 200];
    }
    ok(abs(kept - 1250) < 175 && both < 80 && mirrored < 110, "random:3.125: 1250 of 40000 blocks, give or take 35: %d", kept);
    free((void *)a), free((void *)b);
}

/* A table that a file has, and whether the oracle finds its way about in it. */
static void test_file(void) {
    Problem p = {.seqlen_q = 300, .seqlen_k = 500}, other = p;
    char path[] = "/tmp/10_block_sparse.XXXXXX", text[64];
    FILE *file = fdopen(mkstemp(path), "wb");
    p.blocks = blocks_read("blocks", "random:50:3", &p);
    fprintf(file, "\x93NUMPY\x01%c\x76%c%-117s\n", 0, 0, "{'descr': '|b1', 'fortran_order': False, 'shape': (3, 4), }");
    fwrite(p.blocks->mask.kept, 1, 12, file);
    fclose(file);
    snprintf(text, sizeof text, "file:%s", path);
    other.blocks = blocks_read("blocks", text, &other);
    int same = memcmp(other.blocks->mask.kept, p.blocks->mask.kept, 12) == 0 && strcmp(other.blocks->text, text) == 0;
    for (int i = 0; i < 12; i++)
        same &= oracle_keeps(&other, NULL, 0, i / 4 * 128 + 5, i % 4 * 128 + 7) == p.blocks->mask.kept[i];
    ok(same, "file: the blocks of a file");
    unlink(path);
    free((void *)p.blocks), free((void *)other.blocks);
}

static int next(int below) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)below);
}

/* Of random problems every pair, and random tiles: the oracle says of each of their pairs whether it is kept. */
static void test_tiles(const char *kind) {
    int wrong_pairs = 0, wrong_tiles = 0, seen[3] = {0};
    for (int round = 0; round < 12; round++) {
        Problem p = {.seqlen_q = 1 + next(400), .seqlen_k = 1 + next(400), .causal = round % 2};
        int length = round % 3 ? p.seqlen_k : next(p.seqlen_k + 1), first = 1 + next(p.seqlen_k);
        char text[80];
        if (*kind == 'd')
            snprintf(text, sizeof text, first < p.seqlen_k ? "documents:%d+%d" : "documents:%d", first, p.seqlen_k - first);
        else
            snprintf(text, sizeof text, kind, 1 + next(300), 1 + next(300));
        p.blocks = blocks_read("blocks", text, &p);
        const BlockMask *mask = &p.blocks->mask;
        for (int i = 0; i < p.seqlen_q; i++)
            for (int j = 0; j < p.seqlen_k; j++)
                wrong_pairs += pair_is_kept(mask, &p, length, i, j) !=
                               (oracle_sees(&p, &length, 0, i, j) && oracle_keeps(&p, &length, 0, i, j));
        for (int tile = 0; tile < 60; tile++) {
            int row = next(p.seqlen_q), key = next(p.seqlen_k), rows = 1 + next(200), keys = 1 + next(200), any = 0, all = 1;
            if (tile % 2)
                row &= ~127, key &= ~127, rows = keys = 128;
            for (int i = row; i < row + rows && i < p.seqlen_q; i++)
                for (int j = key; j < key + keys; j++) {
                    int kept = j < length && oracle_sees(&p, &length, 0, i, j) && oracle_keeps(&p, &length, 0, i, j);
                    any |= kept, all &= kept;
                }
            TileKept got = tile_kept(mask, &p, length, row, row + rows, key, key + keys);
            wrong_tiles += got != (all ? TILE_FULL : any ? TILE_PARTIAL : TILE_NONE);
            seen[got]++;
        }
        free((void *)p.blocks);
    }
    ok(!wrong_pairs, "%s: every pair as the oracle says", kind);
    if (!ok(!wrong_tiles && seen[0] > 9 && seen[1] > 9 && seen[2] > 2, "%s: tiles of which nothing, some, all is kept", kind))
        diag("%d wrong; %d, %d, %d", wrong_tiles, seen[0], seen[1], seen[2]);
}

/* More key blocks than a warp has lanes, in two batch entries: each list has the full blocks and then the partial ones, and the
 * longest lists come first. */
static void test_lists(const char *text) {
    Problem p = {.batch = 2, .heads = 1, .kv_heads = 1, .seqlen_q = 1000, .seqlen_k = 5000, .causal = 1};
    const int lengths[2] = {4321, 5000}, tiles = 8, key_blocks = 40;
    p.blocks = blocks_read("blocks", text, &p);
    Buffer workspace[MAX_WORKSPACE_BUFFERS];
    void *host[MAX_WORKSPACE_BUFFERS];
    int buffers = sparse_skipping_plan(&p, workspace), wrong = 0, late = 0, entries = 0;
    for (int i = 0; i < buffers; i++)
        workspace[i].pointer = device_alloc(workspace[i].bytes, workspace[i].purpose);
    Tensors t = {.key_lengths = NULL};
    upload_options(&p, lengths, &t);
    sparse_lists(&p, &t, workspace);
    for (int i = 0; i < buffers; i++)
        device_read(host[i] = host_alloc(workspace[i].bytes, 1), workspace[i].pointer, workspace[i].bytes);
    for (int list = 0; list < 2 * tiles; list++) {
        const int row = list % tiles * MASK_BLOCK, *got = (int *)host[KEY_BLOCKS] + list * key_blocks;
        const ListLengths *length = (ListLengths *)host[LIST_LENGTHS] + list;
        const OrderedTile *order = (OrderedTile *)host[LONGEST_FIRST] + list;
        const ListLengths *next = (ListLengths *)host[LIST_LENGTHS] + list / tiles * tiles + order->tile;
        int count[2] = {0};
        for (int kind = 0; kind < 2; kind++)
            for (int key = 0; key < lengths[list / tiles]; key += MASK_BLOCK)
                if (tile_kept(&p.blocks->mask, &p, lengths[list / tiles], row, row + MASK_BLOCK, key, key + MASK_BLOCK) ==
                    (kind ? TILE_PARTIAL : TILE_FULL))
                    wrong += got[count[0] + count[1]] != key / MASK_BLOCK, count[kind]++;
        wrong += length->full != count[0] || length->partial != count[1];
        entries += count[0] + count[1];
        wrong += memcmp(&order->blocks, next, sizeof *next) != 0;
        if (list % tiles) { /* after another, which is longer, or as long and further down */
            int more = order[-1].blocks.full + order[-1].blocks.partial - order->blocks.full - order->blocks.partial;
            late += more < 0 || (more == 0 && order[-1].tile <= order->tile);
        }
    }
    if (!ok(!wrong && !late && entries > 2 * tiles, "%s: lists, full blocks first, and the longest list first", text))
        diag("%d wrong, %d late, of %d", wrong, late, entries);
    for (int i = 0; i < buffers; i++)
        device_free(workspace[i].pointer), free(host[i]);
    free_options(&t);
    free((void *)p.blocks);
}

int main(void) {
    test_counts();
    test_random();
    test_file();
    static const char *const kinds[] = {"window:%d", "sink:%d:%d", "strided:%d", "documents", "random:40:%d"};
    for (int i = 0; i < 5; i++)
        test_tiles(kinds[i]);
    test_lists("random:40:1"); /* of different lengths */
    test_lists("window:600");
    test_lists("strided:3");
    return tap_done();
}
