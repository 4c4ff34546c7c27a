/* tensors.h - Q, K, V (and dO) on the host: drawn at random or read from a folder, and written to one, as the outputs are.
 *
 * A mistake in a file ends the program with one line on stderr and exit code 2.
 */
#ifndef FA_TENSORS_H
#define FA_TENSORS_H

#include "run.h"

/* N(0,1), the same numbers for the same seed on every device; with outliers a thousandth of Q, K and V have N(0,100) added.
 * with_d_o: dO as well, for a backward stage. */
HostTensors tensors_random(const Problem *p, uint64_t seed, int outliers, int with_d_o);

/* The headers of q.npy, k.npy and v.npy (and do.npy) in the folder options->load: fills in `loaded` and `largest_file`. */
void tensors_read_headers(Options *options, int with_d_o);

/* The tensors of these files, rounded to the problem's dtype; 0 behind a key length, whatever the files have there. */
HostTensors tensors_load(const Options *options, int with_d_o);

/* Ends the program unless a file can be created in `folder`, which --`option` names: better before the work than after it. Nor may
 * it be the folder `load`, unless that is NULL. */
void save_check(const char *option, const char *folder, const char *load);

/* Writes the outputs into their files, all or none. */
void save_outputs(const char *folder, const Problem *p, const Output *outputs, int count);

/* Writes the files of --load, as the run computes with them: what was loaded is rounded by now. */
void save_inputs(const char *folder, const Problem *p, const HostTensors *inputs);

#endif
