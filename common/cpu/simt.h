/* simt.h - runs a CUDA grid on this computer's cores: the machine under the CPU device.
 *
 * A GPU runs a kernel as a *grid* of *blocks* of *threads*. Blocks know nothing of each other and run in any order; here
 * each core (a *worker*) takes the next block that nobody has begun. The threads of a block share memory and can wait for
 * each other. They come in *warps* of 32 *lanes*; on a GPU a warp's lanes mostly execute one instruction together (single
 * instruction, multiple threads: SIMT). Here each thread is a *fiber*, a stack with a place to go on from, and a worker
 * runs the fibers of its block one after another. A fiber runs until it must wait, and there are few reasons to wait:
 *
 *     a barrier      __syncthreads: until all threads of the block are there, but for warps that have returned
 *     a collective   an instruction that a warp's lanes execute together, because each lane's result depends on the
 *                    operands of others: shuffles, votes, ldmatrix, mma. The last lane to arrive computes for all.
 *                    Hopper's wgmma_wait is one of four warps
 *     a condition    until another thread, or a copy, has done its part: mbarriers, named barriers (hopper_cpu.h)
 *
 * What lies between two waits runs for one thread at a time. So a kernel that is right on a GPU gives the same result
 * here, a kernel that needs a barrier it does not have gives results that depend on the order of the threads, and a wait
 * that can never end is seen at once: nobody is left to run. That is reported with kernel, block, and a line for all threads
 * that wait for the same thing, file and line of the source, and what is missing; the program ends with exit code 1. (A
 * thread that looks at memory until another one writes there, as wait_ordered does, is seen only under the trace.)
 *
 * Kernels do not call this header. cuda_on_cpu.h and instructions_cpu.h build the CUDA words on it.
 *
 * Environment:
 *     CPU_DEVICE_THREADS   how many cores to use; default all. 1 runs every block on the calling thread, best for gdb
 *     CPU_DEVICE_ORDER     forward (default), reverse or shuffle: which of the threads that could run goes first;
 *                          reverse begins with the last block, too. A correct kernel does not care. none: launches are
 *                          checked, and nothing runs. Each launch looks anew
 *     CPU_DEVICE_SHARED    the bytes of shared memory a block can have, for kernels that choose their tiles by it: 65536 as
 *                          on sm_75, 101376 as on sm_86 and sm_89; default SIMT_SHARED_LIMIT, and only then a Hopper's
 */
#ifndef FA_SIMT_H
#define FA_SIMT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SIMT_WARP = 32,
    SIMT_MAX_BLOCK = 1024,          /* threads per block, as on every GPU */
    SIMT_SHARED_LIMIT = 227 * 1024, /* bytes of shared memory a block: Hopper's figure, so that every kernel can run */
};
#define SIMT_FULL_WARP 0xffffffffu

typedef struct {
    unsigned x, y, z;
} SimtIndex;

/* CUDA's own variables. Plain thread-local variables and not functions, so that a debugger can read them:
 * (gdb) break mma.cu:100 if threadIdx.x == 6 */
extern __thread SimtIndex threadIdx, blockIdx, blockDim, gridDim;

typedef struct {
    const char *kernel; /* its name and where it is launched, for messages */
    const char *file;
    int line;
    SimtIndex grid, block;           /* blocks per grid, threads per block */
    size_t shared_bytes;             /* shared memory a block */
    void (*thread)(void *arguments); /* the kernel, for one thread */
    void *arguments;
    size_t argument_bytes; /* what of them a launch that is put off has to keep */
    int device;            /* which of several runs it */
} SimtLaunch;

/* Runs the whole grid and returns. Ends the program (one line, exit code 2) if the launch asks for what no GPU has: a block
 * of no threads or of more than SIMT_MAX_BLOCK, an empty grid, shared memory beyond simt_shared_bytes. One at a time. */
void simt_launch(const SimtLaunch *launch);

/* If there is one, each launch is first offered to it: not 0 means that it has been put into a queue and is not to be run now. */
extern int (*simt_put_off)(const SimtLaunch *launch);

/* How many cores run blocks; in a simulation how many multiprocessors. */
int simt_workers(void);

/* CPU_DEVICE_SHARED: what a launch may ask for. */
size_t simt_shared_bytes(void);

/* Memory of whole pages, between two gaps of so many bytes that nobody can touch. A thread that tries ends the program: one line
 * with kernel, block, thread and the nearest tensor, exit code 2. NULL: there is not so much. */
void *simt_map(size_t bytes, size_t gap);

/* Of these pages a kernel may touch only these bytes. It is the address sanitizer that sees to that. */
void simt_allow_only(const void *pointer, size_t bytes, const void *pages, size_t page_bytes);

/* Device memory, the youngest allocation first. device/device_cpu.c keeps this list; messages and the trace read it. */
typedef struct SimtAllocation {
    struct SimtAllocation *next;
    unsigned char *pages, *pointer; /* its own pages; where in them it begins */
    size_t page_bytes, bytes;
    char purpose[64];
} SimtAllocation;
extern SimtAllocation *simt_allocations;

/* ---- for code inside a kernel. `file` and `line` say where in the kernel, for messages. ---- */

/* Waits until every thread of the block has come to this very line; those of warps that have returned are not waited for.
 * Returns for how many threads `predicate` was true. */
int simt_barrier(const char *what, int predicate, const char *file, int line);

/* Executes a warp's instruction `what` by the lanes whose bits are set in `mask` (those that the block does not have, in a
 * partial last warp, are left out). Every lane brings a pointer to its operands; when all are there, compute(operands,
 * lanes) runs once, reads and writes the operands of each lane, and all go on. operands[lane] is valid where `lanes` has a
 * bit. compute may be NULL: then the lanes just wait for each other. */
void simt_collective(const char *what, unsigned mask, void *operands, void (*compute)(void **operands, unsigned lanes),
                     const char *file, int line);

/* The same for the 128 threads of a warpgroup: four warps, the first of them a multiple of four. operands[thread % 128]. */
void simt_warpgroup(const char *what, void *operands, void (*compute)(void **operands), const char *file, int line);

/* simt_sleep waits until another thread of the block calls simt_wake with the same `on`, an address. Whoever sleeps for a
 * condition looks again when it wakes. If nobody can run any more the message says for each `on` and `detail` what is
 * missing, in the words that `describe` puts into `text`. */
typedef void SimtDescribe(const void *on, int detail, char *text, size_t size);
void simt_sleep(const char *what, const void *on, int detail, SimtDescribe *describe, const char *file, int line);
void simt_wake(const void *on);

/* For a thread that looks at memory until another one, of whatever block, has written there: all others of its block that can
 * run go first, then it looks again. */
void simt_look_later(void);

/* Hardware that works beside the threads: when nobody can run, work() may change that, and returns 0 if it has nothing to do.
 * Holds for the block at hand. */
void simt_when_stuck(int (*work)(void));

/* How many blocks this core has begun: changes when all that belonged to a block is void. */
unsigned simt_block_count(void);
void **simt_hardware(void); /* where this core keeps that; NULL at first */

/* This thread's lane, 0..31, and the lanes that exist in its warp. */
int simt_lane(void);
unsigned simt_warp_lanes(void);

/* Ends the program unless all 32 lanes of this warp exist, which `what` (ldmatrix, mma) needs. */
void simt_need_full_warp(const char *what, const char *file, int line);

/* The block's shared memory, aligned to 1024 bytes, NaN (0xff) when a block starts. `bytes`: how much the kernel means to use;
 * more than the launch gave ends the program. */
void *simt_shared(size_t bytes, const char *file, int line);

/* Ends the program unless `pointer` is aligned to `bytes` (a power of two); simt_need_shared: and bytes of shared memory. */
void simt_need_aligned(const char *what, const void *pointer, size_t bytes, const char *file, int line);
void simt_need_shared(const char *what, const void *pointer, size_t bytes, const char *file, int line);

/* Asynchronous copies of 16 bytes. On a GPU they land at any time between the issue and the wait. Here the target becomes
 * NaN at the issue and gets its bytes at the wait: a wait that is missing, and an issue that comes while somebody still
 * reads the target, both show. simt_copy_wait lands all groups of this thread but the `pending` youngest committed ones. */
void simt_copy(void *shared, const unsigned char bytes[16]);
void simt_copy_commit(void);
void simt_copy_wait(int pending);

/* Says on stderr, in one line, which thread of which kernel did what the message says, and ends the program, exit code 1. */
__attribute__((noreturn, format(printf, 3, 4))) void simt_fail(const char *file, int line, const char *format, ...);

#ifdef __cplusplus
}
#endif
#endif
