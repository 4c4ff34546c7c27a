/* npy.h - reading and writing NumPy's .npy files, so that tensors can come from and go to NumPy and PyTorch.
 *
 *     numpy.save("folder/q.npy", q.astype(numpy.float16))           in Python
 *     HostArray q = npy_read("load", "folder", "q.npy", 1);               in C, for a program whose option --load named the folder
 *
 * Understood: format versions 1, 2 and 3; little-endian floats of 2, 4 or 8 bytes in 4 dimensions, or booleans in 2; C order. The
 * host is taken to be little-endian, as all hosts of NVIDIA GPUs are. A mistake ends the program with one line, which names the
 * option and the file, and exit code 2.
 */
#ifndef FA_NPY_H
#define FA_NPY_H

#include "../problem.h"

/* An array on the host, contiguous, of 1 to 4 dimensions, and the name of its file. */
typedef enum { ARRAY_FP16 = DTYPE_FP16, ARRAY_BF16 = DTYPE_BF16, ARRAY_FP32 = DTYPE_FP32, ARRAY_FP64, ARRAY_BOOL } ArrayType;
typedef struct {
    const char *file;
    ArrayType type;
    int dims;
    size_t shape[4];
    void *data; /* of what is read: free() frees it; NULL: only the header was read */
} HostArray;
size_t array_count(const HostArray *array); /* of elements */
size_t array_bytes(const HostArray *array);

HostArray npy_read(const char *option, const char *folder, const char *file, int with_data);

/* A table of booleans: `path` is the file. */
HostArray npy_read_table(const char *option, const char *path);

/* Element i as a double. */
double npy_get(const HostArray *array, size_t i);

/* Writes the files, fp16 as '<f2' and fp32 as '<f4'; bf16, which NumPy does not have, is written as '<f4' and loses nothing. All or none: on an error what was there before is there still, and nothing else. A signal waits until they
 * are written. */
void npy_write(const char *option, const char *folder, const HostArray *arrays, int count);

#endif
