/* tensors.c - see tensors.h. */
#define _GNU_SOURCE /* mkstemp */
#include "tensors.h"

#include "../host/npy.h"
#include "../numeric.h"
#include "../host/memory.h"
#include "../host/errors.h"
#include "../host/random.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The files that hold Q, K, V and dO; a forward stage has the first three. */
static const char *const FILES[] = {"q.npy", "k.npy", "v.npy", "do.npy"};
enum { Q, K, V, D_O };

static size_t elements_of(const Problem *p, int tensor) {
    return tensor == K || tensor == V ? key_elements(p) : query_elements(p);
}

HostTensors tensors_random(const Problem *p, uint64_t seed, int outliers, int with_d_o) {
    void *t[4] = {NULL};
    for (int i = Q; i <= (with_d_o ? D_O : V); i++) {
        t[i] = host_alloc(elements_of(p, i), dtype_bytes(p->dtype));
        random_normal(p->dtype, t[i], elements_of(p, i), seed, (uint32_t)i, 0, 1);
        if (outliers && i != D_O) /* N(0,1) + N(0,100) Bernoulli(0.001), as in FlashAttention-3 (Shah et al. 2024, 4.3) */
            random_outliers(p->dtype, t[i], elements_of(p, i), seed, (uint32_t)i + 4, 0.001, 10);
    }
    return (HostTensors){t[Q], t[K], t[V], t[D_O]};
}

/* ---- loading ---- */

void tensors_read_headers(Options *o, int with_d_o) {
    static const size_t MOST[4] = {MAX_BATCH, MAX_HEADS, MAX_SEQLEN, MAX_HEAD_DIM};
    Npy f[4];
    for (int i = Q; i <= (with_d_o ? D_O : V); i++) {
        f[i] = npy_read("load", o->load, FILES[i], 0);
        for (int d = 0; d < 4; d++)
            if (f[i].shape[d] < 1 || f[i].shape[d] > MOST[d])
                cannot_run("--load: %s/%s: dimension %d of its shape is %zu, it can be 1 to %zu", o->load, FILES[i], d,
                           f[i].shape[d], MOST[d]);
        size_t bytes = f[i].count * (size_t)f[i].element_bytes;
        o->largest_file = bytes > o->largest_file ? bytes : o->largest_file;
    }
    size_t *q = f[Q].shape, *k = f[K].shape;
    if (memcmp(k, f[V].shape, sizeof f[V].shape) != 0)
        cannot_run("--load: k.npy and v.npy differ in shape");
    if (q[0] != k[0] || q[3] != k[3])
        cannot_run("--load: q.npy and k.npy differ in batch (%zu, %zu) or head_dim (%zu, %zu)", q[0], k[0], q[3], k[3]);
    if (with_d_o && memcmp(q, f[D_O].shape, sizeof f[D_O].shape) != 0)
        cannot_run("--load: do.npy and q.npy differ in shape");
    o->loaded = (Problem){.batch = (int)q[0],
                          .heads = (int)q[1],
                          .kv_heads = (int)k[1],
                          .seqlen_q = (int)q[2],
                          .seqlen_k = (int)k[2],
                          .head_dim = (int)q[3]};
}

/* The file's elements in the problem's dtype. Attention of NaN or infinity is not defined, so there are none. What stands behind a
 * key length may be anything. It becomes 0: it shall neither be refused nor widen what the judge allows. */
static void *load(const Options *o, int tensor) {
    const Problem *p = &o->problem;
    const int *key_lengths = tensor == K || tensor == V ? o->key_lengths : NULL;
    Npy npy = npy_read("load", o->load, FILES[tensor], 1);
    if (npy.count != elements_of(p, tensor))
        cannot_run("--load %s: the files have changed since their headers were read", o->load);
    void *to = host_alloc(npy.count, dtype_bytes(p->dtype));
    size_t i = 0;
    for (size_t batch = 0; batch < npy.shape[0]; batch++)
        for (size_t head = 0; head < npy.shape[1]; head++)
            for (size_t row = 0; row < npy.shape[2]; row++)
                for (size_t column = 0; column < npy.shape[3]; column++, i++) {
                    if (key_lengths && (int)row >= key_lengths[batch])
                        continue;
                    dtype_store(p->dtype, to, i, npy_get(&npy, i));
                    if (!isfinite(dtype_to_double(p->dtype, to, i)))
                        cannot_run("--load: %s[batch %zu, head %zu, row %zu, column %zu] is %g, not a finite number in %s",
                                   FILES[tensor], batch, head, row, column, npy_get(&npy, i), dtype_name(p->dtype));
                }
    free(npy.data);
    return to;
}

HostTensors tensors_load(const Options *o, int with_d_o) {
    return (HostTensors){load(o, Q), load(o, K), load(o, V), with_d_o ? load(o, D_O) : NULL};
}

/* ---- saving ---- */

void save_check(const char *option, const char *folder, const char *load) {
    char path[4200]; /* more than a path can have */
    struct stat there, from;
    snprintf(path, sizeof path, "%s/.save-XXXXXX", folder);
    int file = mkstemp(path); /* asking for permission is not enough: root is granted it even where no file can be made */
    if (file < 0)
        cannot_run("--%s %s: no file can be created there: %s", option, folder, strerror(errno));
    close(file);
    unlink(path);
    if (load && stat(folder, &there) == 0 && stat(load, &from) == 0 && there.st_ino == from.st_ino &&
        there.st_dev == from.st_dev)
        cannot_run("--%s %s: is the folder of --load, whose files it would replace: choose another", option, folder);
}

static NpyFile file_of(const char *file, const Problem *p, TensorShape shape, const void *host) {
    int is_k = shape == LIKE_K, is_lse = shape == LIKE_LSE;
    return (NpyFile){file,
                     is_lse ? DTYPE_FP32 : p->dtype,
                     is_lse ? 3 : 4,
                     {(size_t)p->batch, (size_t)(is_k ? p->kv_heads : p->heads), (size_t)(is_k ? p->seqlen_k : p->seqlen_q),
                      (size_t)p->head_dim},
                     host};
}

void save_outputs(const char *folder, const Problem *p, const Output *outputs, int count) {
    NpyFile files[MAX_OUTPUTS];
    for (int i = 0; i < count; i++)
        files[i] = file_of(outputs[i].file, p, outputs[i].shape, outputs[i].host);
    npy_write("save", folder, files, count);
}

void save_inputs(const char *folder, const Problem *p, const HostTensors *t) {
    const NpyFile files[] = {file_of(FILES[Q], p, LIKE_Q, t->q), file_of(FILES[K], p, LIKE_K, t->k),
                             file_of(FILES[V], p, LIKE_K, t->v), file_of(FILES[D_O], p, LIKE_Q, t->d_o)};
    npy_write("save-inputs", folder, files, t->d_o ? 4 : 3);
}
