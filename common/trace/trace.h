/* trace.h - what a launched kernel did to memory: bytes, sectors, bank conflicts, races. CPU device, `make TRACE=1` only.
 *
 *     trace_begin("h200");
 *     variant->launch(...);                      any number of launches
 *     const Trace *trace = trace_end();
 *     trace_find(trace, "mma_scores", "Q")->read
 *
 * What is counted is the kernel as it is written: the requests its warps make, before any cache. notes/trace.md explains the
 * units and how it is done; trace_internal.h lists the files that do it.
 */
#ifndef FA_TRACE_H
#define FA_TRACE_H

#include "../stage.h"

#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHARED_MEMORY_NAME "shared memory" /* a TraceRow's tensor that is none */

enum { TRACE_LINE = 128 /* bytes of a source line's name */, TRACE_COLLECTIVES = 15 };
enum { TRACE_READ, TRACE_WRITE, TRACE_DIRECTIONS };

/* One kernel and one tensor, or its shared memory; all launches of the kernel together. A *request* is one instruction of
 * one warp. What it costs is counted in 32-byte sectors (device memory) or in wavefronts, passes over the 32 banks (shared).
 */
typedef struct {
    const char *kernel;                /* without template arguments: "mma_scores" */
    char tensor[64];                   /* the purpose it was allocated for: "Q" */
    uint64_t bytes[TRACE_DIRECTIONS];  /* as the threads asked for them; an atomic counts as one read and one write */
    uint64_t unique[TRACE_DIRECTIONS]; /* different bytes among these; 0 for shared memory */
    uint64_t requests[TRACE_DIRECTIONS];
    uint64_t cost[TRACE_DIRECTIONS];  /* sectors, or wavefronts */
    uint64_t ideal[TRACE_DIRECTIONS]; /* the fewest that could carry the same bytes */
    /* the line that costs most above its ideal; "" if all are ideal */
    char worst_line[TRACE_LINE];
    uint64_t worst_requests, worst_cost, worst_ideal;
    int approximate; /* some lanes passed a line more often than others between two collectives: see notes/trace.md */
} TraceRow;

typedef struct {
    const char *what; /* "mma_m16n8k16" */
    uint64_t count;   /* of warps */
} TraceCollective;

typedef struct {
    char name[64];
    uint64_t launches, blocks, threads; /* threads per block */
    uint64_t shared_bytes;              /* a block */
    uint64_t barriers;                  /* of blocks */
    uint64_t exponentials;              /* of threads: expf, exp2f, tanhf */
    uint64_t exponentials_beside;       /* of these, while a wgmma of the thread's warpgroup runs that it has not waited for */
    uint64_t mma_flops, cuda_flops; /* of tensor cores; of CUDA cores, in floats, without conversions and exponentials */
    TraceCollective collectives[TRACE_COLLECTIVES + 1]; /* ends at the first without a name */
} TraceKernel;

/* Two accesses to one byte by two threads, at least one a write, with nothing that orders them. Or a thread's write that wgmma
 * or TMA meets, in order but without a proxy_fence: `unpublished`. */
typedef struct {
    const char *kernel;
    char tensor[64];
    char line[2][TRACE_LINE]; /* source lines: the earlier access here, then the one that found it */
    int writes[2], unpublished;
    unsigned block[2], thread[2]; /* of the first example; `thread` in its block */
    uint64_t offset;              /* the byte of the tensor or of shared memory */
    uint64_t count;               /* bytes between this pair of lines */
} TraceRace;

enum { TRACE_KERNELS = 16, TRACE_ROWS = 128, TRACE_RACES = 64 };

typedef struct {
    TraceKernel kernels[TRACE_KERNELS];
    TraceRow rows[TRACE_ROWS]; /* a kernel's rows are neighbors */
    TraceRace races[TRACE_RACES];
    int kernel_count, row_count, race_count;
} Trace;

#ifdef TRACE
/* Everything launched between these two is recorded, on a simulated chip: a name from chips.h. The result lives until the
 * next trace_begin. */
void trace_begin(const char *chip);
const Trace *trace_end(void);

/* The row of a kernel and a tensor; all zeros if there was no such access. */
const TraceRow *trace_find(const Trace *trace, const char *kernel, const char *tensor);

/* Prints the races, three lines each. */
void trace_print_races(const Trace *trace, FILE *to);

/* Prints the result for people, or as JSON, one object a line. `flops`: of the problem, as everybody counts them.
 * `predicted`: what formulas say (Variant.predict). Returns how many of them are wrong, and says so on stderr. */
int trace_print(const Trace *trace, const char *variant, const Problem *p, double flops, const Traffic *predicted,
                int predicted_count, int json);

/* The copies made between trace_announce(1) and (0) say where results will go that have not been computed yet. */
void trace_announce(int begins);

/* Writes the data of a page to watch them (trace_page.c): everything launched between trace_page_begin and trace_page_end is
 * recorded step by step too, trace_page_variant writes what the last trace_end ended. A file that cannot be written ends the program. */
void trace_page_begin(const char *path, const char *stage, const Problem *p, const int *key_lengths, const char *chip);
void trace_page_variant(const char *name, const char *idea);
void trace_page_end(void);
#endif

#ifdef __cplusplus
}
#endif
#endif
