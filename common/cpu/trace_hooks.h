/* trace_hooks.h - what the machine (simt*.c) and the instruction twins tell the trace, which puts its functions here while it
 * records (trace/trace.c). Else trace_hooks is NULL, and nobody is told. The accesses in a kernel's own code need no hook: in a
 * build with TRACE=1 the compiler calls trace.c for each.
 */
#ifndef FA_TRACE_HOOKS_H
#define FA_TRACE_HOOKS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    /* The launch at hand (simt_job) begins and ends, seen from the launching thread. */
    void (*launch_begins)(void);
    void (*launch_ends)(void);
    void (*kernel_fails)(void);         /* the program is about to end: prints the races so far, which may be why */
    void (*fault)(const void *address); /* the current thread cannot touch this: prints the line that it is at */

    /* On a worker, of its block at hand. */
    void (*block_begins)(size_t block);
    void (*barrier)(void);                                          /* all threads have arrived */
    void (*collective)(const char *what, int warp, unsigned lanes); /* these have; NULL: counted already, for another warp */
    void (*thread_returns)(void);
    void (*copy_lands)(const void *shared);

    /* An access that the current thread makes through an instruction. The return address is how the trace knows the line.
     * Not counted: only looked at for races. */
    void (*access)(const void *address, size_t bytes, int writes, int counted);

    /* The same for hardware that works beside the threads, for wgmma until the warp's trace_wait and for TMA until the phase of
     * `barrier` is over. Reads are looked at for races, and not counted. */
    void (*async_read)(const void *address, size_t bytes);
    void (*async_write)(const void *address, size_t bytes, const void *barrier);

    /* An addition from shared to device memory begins: an atomic access there, and a read here, looked at for races until the
     * thread's bulk_wait. */
    void (*bulk_add)(const void *to, const void *shared, size_t bytes);

    /* What orders memory, beside __syncthreads and __syncwarp: the current thread arrives at a barrier; a phase of it is over;
     * the thread has waited for one. A batch of wgmma is closed; the thread has waited for all but the youngest `pending`
     * batches. The same of its bulk additions. It has done a proxy_fence. */
    void (*release)(const void *barrier);
    void (*phase)(const void *barrier);
    void (*acquire)(const void *barrier);
    void (*batch)(void);
    void (*wait)(int pending);
    void (*bulk_commit)(void);
    void (*bulk_wait)(int pending);
    void (*proxy_fence)(void);

    /* One atomic of `words` neighboring 4-byte words. The thread's next `words` atomics do its work and are not counted. */
    void (*wide_atomic)(const void *address, int words);

    /* Between launches, by the host: bytes of device memory have been copied. */
    void (*copied)(const void *to, const void *from, size_t bytes);
} TraceHooks;
extern const TraceHooks *trace_hooks;

#define TELL_TRACE(hook, ...) (trace_hooks ? trace_hooks->hook(__VA_ARGS__) : (void)0)

/* What the twins say. */
#define trace_read(address, bytes) TELL_TRACE(access, address, bytes, 0, 1)
#define trace_write(address, bytes) TELL_TRACE(access, address, bytes, 1, 1)
#define trace_beside_read(address, bytes) TELL_TRACE(access, address, bytes, 0, 0)
#define trace_beside_write(address, bytes) TELL_TRACE(access, address, bytes, 1, 0)
#define trace_async_read(address, bytes) TELL_TRACE(async_read, address, bytes)
#define trace_async_write(address, bytes, barrier) TELL_TRACE(async_write, address, bytes, barrier)
#define trace_bulk_add(to, shared, bytes) TELL_TRACE(bulk_add, to, shared, bytes)
#define trace_bulk_commit() TELL_TRACE(bulk_commit)
#define trace_bulk_wait(pending) TELL_TRACE(bulk_wait, pending)
#define trace_release(barrier) TELL_TRACE(release, barrier)
#define trace_phase(barrier) TELL_TRACE(phase, barrier)
#define trace_acquire(barrier) TELL_TRACE(acquire, barrier)
#define trace_batch() TELL_TRACE(batch)
#define trace_wait(pending) TELL_TRACE(wait, pending)
#define trace_proxy_fence() TELL_TRACE(proxy_fence)
#define trace_wide_atomic(address, words) TELL_TRACE(wide_atomic, address, words)
#define trace_copied(to, from, bytes) TELL_TRACE(copied, to, from, bytes)
#define trace_collective(what, warp, lanes) TELL_TRACE(collective, what, warp, lanes)

/* A function that must not be seen by the trace, because it does for a whole warp what its hook has reported by lanes. */
#ifdef TRACE
#define NOT_TRACED __attribute__((no_sanitize("thread")))
#else
#define NOT_TRACED
#endif

#ifdef __cplusplus
}
#endif
#endif
