/* ranks.h - one process per GPU: the seam between the queues of several devices (device.h) and NCCL.
 *
 * A launcher (mpirun, srun, torchrun) starts as many processes, or *ranks*, as there are devices, on one host or several. All
 * of them run the same program on the same problem and so make the same calls in the same order; a rank leaves out what
 * is computed on a device that is not its own. */
#ifndef FA_RANKS_H
#define FA_RANKS_H

#include <cuda_runtime.h>
#include <stddef.h>

typedef struct {
    int number, count; /* 0 of 1: one process drives all devices */
} Ranks;
Ranks ranks(void);

/* Joins the other ranks, which are given the same file (host/meeting.h). Number and count are what the launcher has left in the
 * environment. */
void ranks_join(const char *file);

/* A message to (`sends`) or from another rank, in a queue. Those of a group are on their way together: every rank calls
 * ranks_group(1) before them and ranks_group(0) after them. */
void ranks_message(void *memory, size_t bytes, int other, int sends, cudaStream_t queue);
void ranks_group(int begins);

/* The largest x of all ranks, which wait for each other here. */
double ranks_max(double x);

#endif
