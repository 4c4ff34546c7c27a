/* trace_watch.h - what trace_watch.c records and trace_page.c writes: the steps of all blocks. */
#ifndef FA_TRACE_WATCH_H
#define FA_TRACE_WATCH_H

#include "trace_internal.h"

/* Rows lo..hi, counted through all heads; of S and P also columns left..right. lo > hi: none. Tensor 0: computed; -1: nothing yet. */
typedef struct {
    int tensor;
    uint32_t lo, hi, left, right;
} Span;

typedef struct {
    Span span;
    int direction;
    uint64_t bytes;
} Move; /* of device memory, in one step */
typedef struct {
    int warp;
    Span queries, keys;
} Product;
typedef struct {
    Span span;
    size_t bytes;
} Run; /* a stretch of shared memory that holds neighbouring rows of one tensor */
typedef struct {
    uint32_t chunk;
    Span span;
} Filling;

typedef struct {
    uint32_t block, time;
    uint64_t bytes, wavefronts, flops, exponentials, barriers;
    double tensor_clocks, waited;
    double start, clocks; /* when it is closed: since when, how long, */
    int busiest;          /*   which unit decides about that, */
    int multiprocessor;   /*   and where */
    int accumulators; /* 16 x 8 each: the most that a warp adds products to */
    Move *moves;
    Product *products;
    Run *runs; /* shared memory at the end of the step; none: as before */
    int move_count, product_count, run_count;
    Filling *fillings; /* until the step is closed */
    int filling_count;
} Step;

typedef struct {
    int kernel;                      /* of trace_result */
    int merged_steps, merged_blocks; /* so many neighbours were added up to one; 1: none */
    uint64_t blocks;
    double bytes_per_clock; /* of device memory, of a multiprocessor's */
    Step *steps;            /* by block */
    int count;
} Launch;

/* trace_page.c: what is watched, NULL: nobody watches; writes a launch; counts what a line of a kernel does but move bytes:
 * "mma_m16n8k16", "exponential", "__syncthreads". */
extern const Problem *page_problem;
void page_launch(const Launch *launch);
void page_work(int kernel, const void *place, const char *what);

#endif
