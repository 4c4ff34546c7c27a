/* npy.h - reading and writing NumPy's .npy files, so that tensors can come from and go to NumPy and PyTorch.
 *
 *     numpy.save("q.npy", q.astype(numpy.float16))            in Python
 *
 *     Npy q;
 *     const char *error = npy_read("q.npy", &q);              in C
 *     if (error) { fprintf(stderr, "%s\n", error); return 2; }
 *
 * Understood: format versions 1.0, 2.0 and 3.0; little-endian floats of 2, 4 or 8 bytes; C order; 1 to 4 dimensions.
 * The host is taken to be little-endian, as all hosts of NVIDIA GPUs are.
 */
#ifndef FA_NPY_H
#define FA_NPY_H

#include "../problem.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { NPY_MAX_DIMS = 4, NPY_MAX_FILES = 5 };

typedef struct {
    int element_bytes; /* 2: fp16, 4: float, 8: double */
    int dims;          /* 1 .. NPY_MAX_DIMS */
    size_t shape[NPY_MAX_DIMS];
    size_t count; /* elements: the product of the shape */
    void *data;
} Npy;

/* Reads a file. NULL on success: then out->data is the caller's, to be given to npy_free. Otherwise one sentence that names
 * the file and what is wrong with it, without a full stop; it lives until the next call of a function of this file, and
 * *out holds nothing. */
const char *npy_read(const char *path, Npy *out);
const char *npy_read_header(const char *path, Npy *out); /* the same without the data, which stay NULL */
void npy_free(Npy *npy);                                 /* harmless on one that holds nothing */

/* Element i as a double. */
double npy_get(const Npy *npy, size_t i);

/* A file to be written: its data, contiguous, of `dtype` and shape[dims], dims 1 .. NPY_MAX_DIMS. fp16 becomes '<f2', fp32 '<f4';
 * bf16, which NumPy does not have, is written as '<f4' and loses nothing. */
typedef struct {
    const char *path;
    Dtype dtype;
    int dims;
    const size_t *shape;
    const void *data;
} NpyFile;

/* Writes up to NPY_MAX_FILES files, all or none: on an error, or if a signal ends the program, what was there before is there
 * still, and nothing else. NULL on success, otherwise a sentence as above. */
const char *npy_write(const NpyFile *files, int count);

#ifdef __cplusplus
}
#endif
#endif
