/* device.h - the seam between the harness and the machine that runs the kernels.
 *
 * Two implementations, one linked in: device_cuda.cu (an NVIDIA GPU) and device_cpu.c (this computer's cores, through
 * cpu/simt.h). Beside them the Makefile knows which one it is, the headers of gpu/, and whoever asks is_cpu.
 *
 * Errors: a call the machine refuses for a reason other than memory ends the program with one line and exit code 2.
 */
#ifndef FA_DEVICE_H
#define FA_DEVICE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char name[128];      /* "NVIDIA H200", or the CPU's own name */
    char platform[64];   /* "sm_90, 132 SMs, CUDA 13.0", or "CPU device, 2 cores" */
    int is_cpu;          /* the harness asks: default shape, timing, budget; and 06_fp8: how exactly tensor cores add up */
    int capability;      /* compute capability x 10 the kernels may count on: the lower of chip and compiled code */
    int chip;            /* compute capability x 10 of the chip itself; 0: no GPU */
    int sm_count;        /* blocks run on this many multiprocessors (CPU: cores) */
    int clock_mhz;       /* 0: unknown */
    int has_hopper;      /* wgmma and TMA are there, and the code for them (sm_90a) */
    size_t shared_bytes; /* the most shared memory a block can have */
    size_t l2_bytes;
    size_t memory_bytes;   /* the most that tensors and workspace can have together */
    char cuda_version[16]; /* "13.0", or "" */
} DeviceProperties;

/* How many there are, and which one to open, from 0 on: the first unless told otherwise. Choosing comes before the calls below. */
int device_count(void);
void device_choose(int number);

/* One process per GPU instead of one for all (ranks.h): joins the others. Returns the number of this one. */
int device_join_ranks(const char *file);

/* Opens the device on the first call. */
const DeviceProperties *device_properties(void);

/* Memory. `purpose` is kept with the allocation ("Q", "S", ...). NULL if it does not fit: the caller reports
 * that. A guard strip follows every allocation; on the CPU device it is what its pages have left over, and beyond lies a gap that
 * nobody can touch. Fresh memory is filled with 0xff, which is NaN in every format. */
void *device_alloc(size_t bytes, const char *purpose);
void device_free(void *pointer); /* NULL is fine; what is not allocated ends the program as an error does */
size_t device_allocated(void);   /* bytes asked for and not freed, guard strips left out */

/* The purpose of an allocation whose guard strip was overwritten - a kernel wrote outside - or NULL. Mends the strip, so that
 * the next kernel is not blamed for it: to hear of all allocations ask until there is none. */
const char *device_damaged(void);

/* After all that was launched before; they end the program if a kernel failed. */
void device_write(void *device, const void *host, size_t bytes);
void device_read(void *host, const void *device, size_t bytes);
void device_fill(void *device, int byte, size_t bytes); /* 0: zeros, 0xff: NaN in every format */

/* Timing. Runs `work(context)` once, with a cold L2 unless `warm`, and returns how long the device took over it, in ms. */
double device_time_ms(void (*work)(void *), void *context, int warm);

/* The same for work that is too short to be launched by the host and timed one by one: work(contexts[i]) for each of `count`
 * contexts, recorded once as a CUDA graph and replayed as a whole. Returns ms for one of them, on average. L2 is as cold as
 * the contexts are many: those of a caller who wants it cold use more memory than L2 holds. Recorded anew when `contexts`
 * is not the array of the call before; replay_end frees the recording. */
double device_time_replay_ms(void (*work)(void *), void *const *contexts, int count);
void device_replay_end(void);

/* What device memory gives, in GB/s: a copy (bytes read and written), and reading alone. Measured on the first call, on
 * 1 GiB or what is free. 0 where there is too little to measure with. */
typedef struct {
    double copy_gbps, read_gbps;
} Bandwidth;
Bandwidth device_bandwidth(void);

/* ---- several devices in one program (12_context_parallel). The CPU device simulates them. ----
 *
 * Number 0 is the device that was opened; the others follow it. Each has two queues, and all queues run side by side. What lies
 * between fork and join is only put into queues: fork makes every queue wait for what device 0 was given before, and join
 * makes device 0 wait for every queue. The calls between them are about the device that device_use named last. */
enum { MAX_DEVICES = 8, MAX_EVENTS = 32 };
typedef enum { COMPUTE, COPY } Queue; /* kernels go into COMPUTE */

int device_peers(void);     /* how many there are, at most MAX_DEVICES */
int device_use(int device); /* where memory is allocated and kernels run from here on; 0: another process does that (ranks.h) */
void device_fork(int devices);
void device_join(int devices); /* device_use(0), too */

/* Copies `rows` rows of `bytes` from another device, or this one, in the queue COPY. A pitch is from one row to the next. */
void device_pull(void *to, size_t to_pitch, int from_device, const void *from, size_t from_pitch, size_t bytes, size_t rows);

/* Groups the pulls between device_pull_together(1) and device_pull_together(0). With one process per GPU, they run at the same time,
 * and whoever waits for one of them waits for all. With a single process, this changes nothing. */
void device_pull_together(int begins);

/* An event is a point in a queue, and each device has its own, which are numbered. A queue that waits goes on when the event
 * recorded last before this call has been reached. Between BEGIN + i and END + i a device computes, which is its i-th round; from
 * FIRST_FREE_EVENT on the numbers are the caller's choice. */
enum { BEGIN, END = BEGIN + MAX_DEVICES, FIRST_FREE_EVENT = END + MAX_DEVICES };
void device_record(Queue queue, int event);
void device_wait(Queue queue, int device, int event);
double device_busy_ms(int device); /* in all rounds since the last fork; after join, and all that is in the queues */

double device_link_bytes(int from, int to); /* what device_pull was told to copy since the last fork */

/* For LAUNCH on a GPU: the queue that it puts kernels into (a cudaStream_t), and what it calls after each. */
void *device_stream(void);
void device_check_launch(const char *kernel, const char *file, int line);

#ifdef __cplusplus
}
#endif
#endif
