/* trace_internal.h - what the files of the trace share:
 *
 *     trace.c         what the compiler, the machine and the twins call at each access, barrier and launch
 *     trace_flops.c   counts what the CUDA cores multiply and add
 *     trace_warp.c    puts the accesses of a warp's lanes together again into requests, and counts what they cost
 *     trace_clock.c   counts the steps of a block, and what each takes by the model's clock
 *     trace_watch.c   records what happened in each step, if somebody watches
 *     trace_page.c    writes that for the page of `make watch-<stage>`
 *     trace_copy.c    which bytes of device memory are copies of others
 *     trace_race.c    remembers who touched each byte last, and compares
 *     trace_order.c   what is ordered before what, by all kinds of barriers
 *     trace_report.c  prints what trace_result.c has
 *     trace_result.c  what all this adds up to: the Trace of trace.h
 *     trace_site.c    which tensor an address belongs to, which site touches it, and which source line that is
 *
 * Each calls only files that stand below it in this list.
 */
#ifndef FA_TRACE_INTERNAL_H
#define FA_TRACE_INTERNAL_H

#include "../cpu/simt_internal.h"
#include "trace.h"
#include "../cpu/trace_hooks.h"
#include "../host/chips.h"
#include "../host/memory.h"
#include "trace_order.h"

#include <stdint.h>
#include <string.h>

/* MAX_SITES must fit the site's bits of a Touch. */
enum { MAX_SITES = 4096, MAX_TENSORS = 256, SHARED_TENSOR = 0 };

/* A tensor is an allocation of device memory; number 0 is shared memory. */
struct TouchCell;
typedef struct {
    SimtAllocation memory;
    struct TouchCell *cells;           /* one a byte, fresh in each launch */
    uint64_t unique[TRACE_DIRECTIONS]; /* bytes touched in this launch */
} TracedTensor;
extern TracedTensor trace_tensors[MAX_TENSORS];
extern int trace_tensor_count;

/* A *site* is one place in the program that touches one tensor. Sites are numbered as they are met, and keep their number.
 */
typedef enum { SITE_READ, SITE_WRITE, SITE_ATOMIC } SiteKind;
typedef struct {
    const void *place; /* the address to which the access's call returns */
    int tensor;
    SiteKind kind;
} Site;
extern Site trace_sites[MAX_SITES];
extern int trace_site_count;

typedef struct {
    uint64_t requests, bytes, cost, ideal;
    int approximate;
} SiteCount;

/* One request in the making: the addresses of the lanes that have come to it so far. */
typedef struct {
    unsigned lanes, bytes; /* which lanes; bytes per lane */
    uintptr_t address[SIMT_WARP];
} Request;

/* A warp at a site, since its last collective. Request i is the lanes' i-th visit. */
typedef struct {
    unsigned visits[SIMT_WARP];
    Request *requests;
    unsigned count, capacity;
} SiteLog;

typedef struct {
    SiteLog *sites[MAX_SITES]; /* made when first needed */
    uint16_t touched[MAX_SITES];
    int touched_count;
    unsigned returned; /* lanes */
} WarpLog;

/* What is counted of the launch at hand. */
typedef struct {
    SiteCount sites[MAX_SITES];
    uint64_t barriers, exponentials, exponentials_beside, flops; /* flops: of CUDA cores */
    TraceCollective collectives[TRACE_COLLECTIVES + 1]; /* as in TraceKernel */
} LaunchCount;
extern LaunchCount trace_launch;

/* What is known about a block that is at work. */
typedef struct Recorder {
    WarpLog warps[MAX_WARPS];
    struct TouchCell *shared_cells;
    uint64_t *async_readers; /* touches, see trace_race.c */
    uint32_t block;          /* its number in the grid */
    Ordering order;
    int atomic_parts;      /* so many atomics to come are parts of one that is recorded: trace_wide_atomic */
    uint32_t fenced, seen; /* __threadfence since the block began; see race_atomic */
    struct Clock *clock;
    struct Watch *watch; /* if somebody watches */
} Recorder;

extern const Chip *trace_chip; /* that is simulated */

/* One side of a race. */
typedef struct {
    int site;
    unsigned block, thread;
} Toucher;

/* trace_warp.c */
void warp_access(Recorder *r, int warp, int lane, int site, uintptr_t address, unsigned bytes);
void warp_flush(Recorder *r, int warp, int first); /* the sites that the warp has touched, from this one on */

/* trace_race.c. `offset` counts from the start of the tensor. `agent`: the current thread, or one that works for it. */
void race_access(Recorder *r, int agent, int site, size_t offset, size_t bytes);
void race_atomic(Recorder *r);
void race_acquire(Recorder *r); /* as an atomic, that hands on nothing */
void race_copy_lands(Recorder *r, const Fiber *thread, size_t shared_offset);
void race_launch_begins(void);
void race_launch_ends(void);
void race_block_begins(Recorder *r);
void race_block_ends(Recorder *r);

/* trace_site.c: the tensors of the launch at hand; the one that this byte belongs to, or would if it did not lie outside (nothing
 * else is on a tensor's pages), else -1; the number of a site. source_lines fills in the line of each: "mma.cu:53", or "tile.cuh:64
 * in mma.cu:53" for a function that was inlined. */
void list_tensors(void);
int find_tensor(const char *byte);
int find_site(const void *place, int tensor, SiteKind kind);
typedef char SourceLine[TRACE_LINE];
void source_lines(const Site *sites, int count, SourceLine *lines);
int is_below_kernels(const char *line); /* CUDA words, twins or conversions, where nobody looks for a mistake */
const char *this_program(void);         /* its path */

/* trace_flops.c: reads the program, unless it has been; what the basic block does that begins at this place. */
void flops_read_program(void);
unsigned flops_pass(const void *place);
void flops_launch_ends(int kernel);

/* trace_result.c */
extern Trace trace_result;
void result_clear(void);
void result_count(TraceCollective *collectives, const char *what, uint64_t count); /* adds to those of this kind */
int result_kernel(void); /* the number of the kernel at hand */
void result_add_launch(void);
unsigned result_flops(const char *what);   /* of one such collective; 0 if it multiplies nothing */
const SiteCount *result_sites(int kernel); /* one a site */
void result_add_race(Toucher earlier, Toucher later, uint64_t offset, int unpublished);
void result_finish(void);

/* ---- what is recorded step by step ---- */

/* One more element of an array, zeroed. Capacities are powers of two. */
#define APPEND(array, count) ((array) = grown((array), (count), sizeof *(array)), &(array)[(count)++])
static inline void *grown(void *array, int count, size_t size) {
    if ((count & (count - 1)) == 0)
        array = host_resize(array, count ? 2 * (size_t)count : 1, size);
    memset((char *)array + (size_t)count * size, 0, size);
    return array;
}

/* Rows lo..hi, counted through all heads; of S and P also columns left..right. lo > hi: none. Tensor 0: computed; -1: nothing yet.
 * Of a copy these are the original's, which lies `shift` bytes away. */
typedef struct {
    int tensor;
    uint32_t lo, hi, left, right;
    ptrdiff_t shift;
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
} Stretch; /* a stretch of shared memory that holds neighboring rows of one tensor */
typedef struct {
    uint32_t chunk;
    Span span;
} Filling;

typedef struct {
    uint32_t block, time;
    uint64_t bytes, wavefronts, flops, exponentials, barriers, core_flops; /* flops: of tensor cores */
    double tensor_cycles, waited;
    double start, cycles; /* when it is closed: since when, how long, */
    int busiest;          /*   which unit decides about that, */
    int multiprocessor;   /*   and where */
    Move *moves;
    Product *products;
    Stretch *runs; /* shared memory at the end of the step; none: as before */
    int move_count, product_count, run_count;
    Filling *fillings; /* until the step is closed */
    int filling_count;
} Step;

typedef struct {
    int kernel; /* of trace_result */
    uint64_t blocks;
    double bytes_per_clock; /* of device memory, of a multiprocessor's */
    Step *steps;            /* by block */
    int count;
} Launch;

/* trace_clock.c. `warp`: its number. */
#define CLOCK_EXPONENTIAL "exponential"
typedef struct Clock Clock;
void clock_launch_begins(void);
void clock_launch_ends(void);
void clock_block_begins(Recorder *r);
void clock_block_ends(Recorder *r);
void clock_access(Recorder *r, int tensor, SiteKind kind, size_t offset, size_t bytes); /* by the current thread */
void clock_wavefronts(Recorder *r, int warp, uint64_t count);
void clock_async(Recorder *r, const void *place); /* the current thread's warp reads shared memory by wgmma */
void clock_work(Recorder *r, int warp, const char *what, const void *place, unsigned flops); /* place NULL: the wgmma's */
void clock_flops(Recorder *r, unsigned flops); /* of CUDA cores, by the current thread */
void clock_barrier(Recorder *r, const char *what, const void *place);
void clock_warp(Recorder *r, int warp);            /* a __syncwarp of all its lanes */
uint32_t clock_step(Recorder *r);                  /* that the current thread's warp is at */
void clock_acquire(Recorder *r, uint32_t step);    /* the current thread has waited for what was ready at this step */
double clock_now(Recorder *r);                     /* when the current thread's step began */
void clock_look(Recorder *r, const void *address); /* at what another block may change */
void clock_changed(void);                          /* such a thing */

/* trace_watch.c: called by trace_clock.c if somebody watches. */
typedef struct Watch Watch;
void watch_launch_begins(void);
void watch_launch_ends(Launch *launch);
void watch_block_begins(Recorder *r);
void watch_block_ends(Recorder *r);
void watch_access(Recorder *r, Step *step, int tensor, SiteKind kind, size_t offset, size_t bytes);
void watch_async(Recorder *r, int warp, const void *place);
void watch_work(Recorder *r, int warp, int kernel, const char *what, const void *place, unsigned flops);
void watch_warp_ends_step(Recorder *r, int warp, Step *step);
void watch_step_closes(Recorder *r, Step *step); /* no warp will come back to it */

/* trace_page.c: what is watched, NULL: nobody watches; writes a launch; counts what a line of a kernel does but move bytes:
 * "mma_m16n8k16", "exponential", "__syncthreads", "flop" (of CUDA cores). */
extern const Problem *page_problem;
void page_launch(const Launch *launch);
void page_work(int kernel, const void *place, const char *what, uint64_t times);

/* trace_copy.c: these bytes have been copied; the byte that this one is a copy of, NULL: of none. */
void copy_clear(void);
void copy_made(const void *to, const void *from, size_t bytes);
const char *copy_original(const char *byte);

#endif
