/* memory.h - host memory: how much there is, and arrays that are there or end the program with one line and exit code 2.
 *
 * Linux hands out more than there is and kills the program that touches it, so who needs much asks first.
 */
#ifndef FA_MEMORY_H
#define FA_MEMORY_H

#include <stddef.h>

/* Memory for count elements of `size` bytes, zeroed; free() frees it. */
void *host_alloc(size_t count, size_t size);

/* The same memory, which may be NULL, made count elements long; what is new in it is not zeroed. */
void *host_resize(void *memory, size_t count, size_t size);

/* Bytes that arrays may fill: seven eighths of the computer's memory, or of what the groups that this process is in may
 * use, if that is less (cgroups: containers and batch systems set them). The rest is for the program and the system. The
 * environment's MEMORY_ROOT, for tests: a folder in whose proc/ and sys/ the groups are looked up. */
size_t memory_read_budget(void);

/* The same, read once in a run: each allocation of the CPU device asks. */
size_t memory_budget(void);

/* Keeps so many bytes of the budget for the host's arrays: the CPU device, whose memory is the same, may fill the rest.
 * Replaces what was kept before; nothing at first. */
void memory_keep_for_host(size_t bytes);
size_t memory_for_device(void);

#endif
