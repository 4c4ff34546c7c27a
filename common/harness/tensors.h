/* tensors.h - what a run holds on host and device from its beginning to its end: drawn, read or written. */
#ifndef FA_TENSORS_H
#define FA_TENSORS_H

#include "run.h"

/* The headers of q.npy, k.npy and v.npy (and do.npy) in the folder options->load: fills in `loaded` and `largest_file`. */
void tensors_read_headers(Options *options);

/* Ends the program unless a file can be created in `folder`, which --`option` names: better before the work than after it. Nor
 * may it be the folder `load`, unless that is NULL. */
void save_check(const char *option, const char *folder, const char *load);

/* A copy of a host array on the device; ends the program if it does not fit. */
void *upload(const void *host, size_t bytes, const char *purpose);
/* What --lengths and the stage's own option ask for, on the device: key lengths, block mask, score mod. */
void upload_options(const Problem *p, const int *key_lengths, Tensors *t);
void free_options(const Tensors *t);

/* The inputs, drawn or read, on host and device; and what variants are to write. */
void load_inputs(Run *run);
void free_run(Run *run);
/* Q, K, V or dO, by its number from 0 on: N(0,1), the same numbers for the same seed on every device; with outliers a
 * thousandth of Q, K and V have N(0,100) added. */
void *random_input(const Problem *p, int number, uint64_t seed, int outliers);
/* Writes tensors into their files in the folder that --`option` names, all or none. */
void save_tensors(const char *option, const char *folder, const Problem *p, const Tensor *tensors, int count);

#endif
