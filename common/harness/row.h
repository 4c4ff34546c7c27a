/* row.h - figures of a row: what is counted, what follows from it, and whether it is right. */
#ifndef FA_ROW_H
#define FA_ROW_H

#include "run.h"

/* Whether no bound of what the row's kernels write, O and LSE or the gradients, checks anything. Prepared inputs do not speak for it. */
int row_unchecked(const Row *row);
/* The first that is checked, unless only a later one is bad; of gradients the worst that is checked. */
const Comparison *row_worst(const Row *row);
int row_has_errors(const Row *row); /* of O against fp64 */
/* Why the variant did not run, where a wrong result may come from, or which of its tensors were not checked, and why; good until the
 * next call. Empty: nothing of that. */
const char *row_note(const Row *row);
const char *passes_name(Passes passes); /* "forward" */

/* FLOPs of the forward pass, 4 * head_dim for each pair of a query and a key that causal mask, key lengths (on the host; NULL: there
 * are none) and block mask leave. But a causal square, as many queries as keys and nothing else cut off, counts as half of all pairs,
 * because everybody counts it so. The backward pass has five such products to the forward's two: 2.5 times that. A preparation has
 * none. */
double counted_flops(const Problem *p, const int *key_lengths, Passes passes);

/* Bytes of device memory that any kernel must move: Q, K, V read and O, LSE written once; backward Q, K, V, O, dO, LSE read
 * and dQ, dK, dV written. K and V as far as keys exist, their gradients whole. key_bytes: of an element of K and V. */
double compulsory_bytes(const Problem *p, const int *key_lengths, Passes passes, size_t key_bytes);
/* The same of a row: K and V in the format of its variant's cache, if it has one. */
double moved_bytes(const Row *row);

/* What the row's kernels ask of device memory, by the formulas of their stages: fills in at most MAX_TRAFFIC entries,
 * returns how many; -1: nobody has worked it out. */
int row_traffic(const Row *row, Traffic *traffic);

/* TFLOP/s of all multiprocessors at the highest clock. fp16 and bf16: dense products on tensor cores, summed in fp32; the
 * same with 8-bit factors if `eight_bits`, which chips before sm_89 multiply as 16-bit ones; fp32: multiply-adds on CUDA
 * cores. It is the chip's peak for that format, also for a variant that leaves the tensor cores alone. NAN: a chip that the
 * table does not know, or no GPU. */
double peak_tflops(const DeviceProperties *device, Dtype dtype, int eight_bits);

/* NAN: unknown, or a preparation alone, for which nothing is counted. */
double row_tflops(const Row *row);
double row_dense_tflops(const Row *row); /* as if the block mask kept everything */
double row_gbps(const Row *row);         /* of what any kernel must move */
double row_of_peak(const Row *row);      /* TFLOP/s as a percentage of the chip's peak */
double row_intensity(const Row *row);    /* FLOPs for each of the gpu_bytes */
double row_noise(const Row *row); /* interquartile range over median; NAN: fewer than four runs, which have no quartiles */
#define NOISY 0.01                /* more: timing goes on for a while, and a remark says that it did not help */

/* The value of the stage's setting of this number, as the command line says it; good until the next call. */
const char *setting_text(const Run *run, int number);

#endif
