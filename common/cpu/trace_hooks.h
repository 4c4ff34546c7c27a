/* trace_hooks.h - what the machine (simt*.c) and the instruction twins tell the trace, which implements it (trace/trace.c). Without
 * TRACE all of it is nothing. The accesses in a kernel's own code need no hook: the compiler calls trace.c for each.
 */
#ifndef FA_TRACE_HOOKS_H
#define FA_TRACE_HOOKS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef TRACE

/* A function that must not be seen by the trace, because it does for a whole warp what its hook has reported by lanes. */
#define NOT_TRACED __attribute__((no_sanitize("thread")))

/* The launch at hand (simt_job) begins and ends, seen from the launching thread. */
void trace_launch_begins(void);
void trace_launch_ends(void);
void trace_kernel_fails(void); /* the program is about to end: prints the races so far, which may be why */
void trace_fault(const void *address); /* the current thread cannot touch this: prints the line that it is at */

/* On a worker, of its block at hand. */
void trace_block_begins(size_t block);
void trace_barrier(void);                                          /* all threads have arrived */
void trace_collective(const char *what, int warp, unsigned lanes); /* these have; NULL: counted already, for another warp */
void trace_thread_returns(void);
void trace_copy_lands(const void *shared);

/* An access that the current thread makes through an instruction. They are functions of their own, not inlined, because
 * their return address is how the trace knows the line. */
void trace_read(const void *address, size_t bytes);
void trace_write(const void *address, size_t bytes);

/* The same, looked at for races and not counted. */
void trace_beside_read(const void *address, size_t bytes);
void trace_beside_write(const void *address, size_t bytes);

/* The same for hardware that works beside the threads, for wgmma until the warp's trace_wait and for TMA until the phase of
 * `barrier` is over. Reads are looked at for races, and not counted. */
void trace_async_read(const void *address, size_t bytes);
void trace_async_write(const void *address, size_t bytes, const void *barrier);

/* What orders memory, beside __syncthreads and __syncwarp: the current thread arrives at a barrier; a phase of it is over; the
 * thread has waited for one. A batch of wgmma is closed; the thread has waited for all but the youngest `pending` batches.
 * It has done a proxy_fence. */
void trace_release(const void *barrier);
void trace_phase(const void *barrier);
void trace_acquire(const void *barrier);
void trace_batch(void);
void trace_wait(int pending);
void trace_proxy_fence(void);

/* One atomic of `words` neighbouring 4-byte words. The thread's next `words` atomics do its work and are not counted. */
void trace_wide_atomic(const void *address, int words);

#else
#define NOT_TRACED
#define trace_launch_begins() ((void)0)
#define trace_launch_ends() ((void)0)
#define trace_kernel_fails() ((void)0)
#define trace_fault(address) ((void)0)
#define trace_block_begins(block) ((void)0)
#define trace_barrier() ((void)0)
#define trace_collective(what, warp, lanes) ((void)0)
#define trace_thread_returns() ((void)0)
#define trace_copy_lands(shared) ((void)0)
#define trace_read(address, bytes) ((void)0)
#define trace_write(address, bytes) ((void)0)
#define trace_beside_read(address, bytes) ((void)0)
#define trace_beside_write(address, bytes) ((void)0)
#define trace_wide_atomic(address, words) ((void)0)
#define trace_async_read(address, bytes) ((void)0)
#define trace_async_write(address, bytes, barrier) ((void)0)
#define trace_release(barrier) ((void)0)
#define trace_phase(barrier) ((void)0)
#define trace_acquire(barrier) ((void)0)
#define trace_batch() ((void)0)
#define trace_wait(pending) ((void)0)
#define trace_proxy_fence() ((void)0)
#endif

#ifdef __cplusplus
}
#endif
#endif
