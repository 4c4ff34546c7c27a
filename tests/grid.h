/* grid.h - what the grids of forward and backward stages share: the shapes they go through, and their options.
 *
 *     build/cpu/tests/grid_01_tiled [--quick] [--variant NAME] [--verbose]
 *
 * A test point is one variant in one dtype, head dim and mask; inside, pairs of the lengths below, while heads, batch, key
 * lengths and the kind of input rotate. --quick keeps every eighth of those pairs, for sanitizers and mutation tests; a GPU
 * takes more of them. Of wrong cases three are printed, with --verbose all.
 */
#ifndef FA_GRID_H
#define FA_GRID_H

#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../common/device.h"
#include "../common/parallel.h"
#include "../common/stage.h"
#include "tap.h"

extern const Stage stage;

static const int LENGTHS[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257, 509};
enum { LENGTH_COUNT = sizeof LENGTHS / sizeof *LENGTHS };

typedef struct {
    int quick, verbose;
    const Variant *variants[MAX_VARIANTS + 1]; /* those asked for, behind what they are measured by */
    int count;
} Grid;

/* Ends the program, exit code 2, if there is an option it does not know. */
static inline Grid grid_options(int argc, char **argv, const Variant *reference) {
    static const struct option options[] = {
        {"quick", 0, 0, 'q'}, {"variant", 1, 0, 'v'}, {"verbose", 0, 0, 'w'}, {0, 0, 0, 0}};
    Grid grid = {.variants = {reference}, .count = 1};
    const char *only = NULL;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'q': grid.quick = 1; break;
        case 'v': only = optarg; break;
        case 'w': grid.verbose = 1; break;
        default: exit(2);
        }
    }
    for (int i = 0; i < MAX_VARIANTS && stage.variants[i].name; i++)
        if (!only || strcmp(only, stage.variants[i].name) == 0)
            grid.variants[grid.count++] = &stage.variants[i];
    return grid;
}

/* Ends the program if there is no memory. */
static inline void *device_allocate(size_t bytes, const char *purpose) {
    void *memory = device_alloc(bytes, purpose);
    if (!memory) {
        fprintf(stderr, "grid: no device memory for %s\n", purpose);
        exit(2);
    }
    return memory;
}

/* The `index`-th problem of a dtype, head dim and mask: which heads and batch go with this pair of lengths. */
static inline Problem problem_of_shape(int index, int seqlen_q, int seqlen_k, int head_dim, Dtype dtype, int causal) {
    static const int heads[][2] = {{1, 1}, {2, 1}, {4, 2}, {4, 1}, {2, 2}};
    int large = (long)seqlen_q * seqlen_k > 130 * 130; /* large ones keep to one head or a pair, for time */
    const int *h = heads[large ? index % 2 : index % 5];
    return (Problem){.batch = !large && index % 3 == 0 ? 3 : 1,
                     .heads = h[0],
                     .kv_heads = h[1],
                     .seqlen_q = seqlen_q,
                     .seqlen_k = seqlen_k,
                     .head_dim = head_dim,
                     .dtype = dtype,
                     .causal = causal,
                     .scale = (float)(1 / sqrt(head_dim))};
}

/* Key lengths of each batch entry: full, 0, 1, odd, ... from the seed-th on. On the host, and on the device. */
static inline int *draw_lengths(const Problem *p, unsigned seed, const int **device) {
    int choices[] = {p->seqlen_k, 0, 1, (p->seqlen_k / 2) | 1, p->seqlen_k - 1};
    int *lengths = host_alloc(p->batch, sizeof *lengths), *copy = device_allocate(p->batch * sizeof *copy, "key lengths");
    for (int b = 0; b < p->batch; b++) {
        lengths[b] = choices[(seed + b) % 5];
        if (lengths[b] > p->seqlen_k)
            lengths[b] = p->seqlen_k;
    }
    device_write(copy, lengths, p->batch * sizeof *copy);
    *device = copy;
    return lengths;
}

/* Says which case it was. */
static inline void print_problem(const Problem *p, const int *lengths, const char *inputs) {
    diag("batch %d, heads %d/%d, seqlen %d x %d, head_dim %d, %s, %s, %s inputs%s", p->batch, p->heads, p->kv_heads,
         p->seqlen_q, p->seqlen_k, p->head_dim, dtype_name(p->dtype), p->causal ? "causal" : "full", inputs,
         lengths ? ", key lengths:" : "");
    for (int b = 0; lengths && b < p->batch; b++)
        diag("  %d", lengths[b]);
    for (int i = 0; i < MAX_SETTINGS && stage.settings[i].name; i++)
        diag("  --%s: %d", stage.settings[i].name, p->settings[i]);
}

#endif
