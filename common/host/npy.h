/* npy.h - reading and writing NumPy's .npy files, so that tensors can come from and go to NumPy and PyTorch.
 *
 *     numpy.save("folder/q.npy", q.astype(numpy.float16))           in Python
 *     Npy q = npy_read("load", "folder", "q.npy", 1);               in C, for a program whose option --load named the folder
 *
 * Understood: format versions 1, 2 and 3; little-endian floats of 2, 4 or 8 bytes in 4 dimensions, or booleans in 2; C order. The
 * host is taken to be little-endian, as all hosts of NVIDIA GPUs are. A mistake ends the program with one line, which names the
 * option and the file, and exit code 2.
 */
#ifndef FA_NPY_H
#define FA_NPY_H

#include "../problem.h"

typedef struct {
    int element_bytes; /* 1: bool, 2: fp16, 4: float, 8: double */
    size_t shape[4];
    size_t count; /* elements: the product of the shape */
    void *data;   /* free() frees it; NULL: only the header was read */
} Npy;

Npy npy_read(const char *option, const char *folder, const char *file, int with_data);

/* A table of booleans: `path` is the file. */
Npy npy_read_table(const char *option, const char *path);

/* Element i as a double. */
double npy_get(const Npy *npy, size_t i);

/* A file to be written: its data, contiguous, of `dtype` and shape[dims], dims 1 to 4. fp16 becomes '<f2', fp32 '<f4'; bf16,
 * which NumPy does not have, is written as '<f4' and loses nothing. */
typedef struct {
    const char *file;
    Dtype dtype;
    int dims;
    size_t shape[4];
    const void *data;
} NpyFile;

/* Writes the files, all or none: on an error what was there before is there still, and nothing else. A signal waits until they
 * are written. */
void npy_write(const char *option, const char *folder, const NpyFile *files, int count);

#endif
