/* tensors.c - see tensors.h. */
#define _GNU_SOURCE /* mkstemp */
#include "tensors.h"

#include "../host/npy.h"
#include "../numeric.h"
#include "../host/memory.h"
#include "../host/errors.h"
#include "../host/parallel.h"
#include "../host/random.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

HostTensors tensors_random(const Problem *p, uint64_t seed, int outliers, int with_d_o) {
    size_t element = dtype_bytes(p->dtype);
    HostTensors t = {host_alloc(query_elements(p), element), host_alloc(key_elements(p), element),
                     host_alloc(key_elements(p), element), NULL};
    random_normal(p->dtype, t.q, query_elements(p), seed, 0, 0, 1);
    random_normal(p->dtype, t.k, key_elements(p), seed, 1, 0, 1);
    random_normal(p->dtype, t.v, key_elements(p), seed, 2, 0, 1);
    if (outliers) { /* N(0,1) + N(0,100) Bernoulli(0.001), as FlashAttention-3 measures its errors on (Shah et al. 2024, 4.3) */
        random_outliers(p->dtype, t.q, query_elements(p), seed, 4, 0.001, 10);
        random_outliers(p->dtype, t.k, key_elements(p), seed, 5, 0.001, 10);
        random_outliers(p->dtype, t.v, key_elements(p), seed, 6, 0.001, 10);
    }
    if (with_d_o) {
        t.d_o = host_alloc(query_elements(p), element);
        random_normal(p->dtype, t.d_o, query_elements(p), seed, 3, 0, 1);
    }
    return t;
}

/* ---- loading ---- */

static void path_in(char *path, size_t size, const char *folder, const char *file) {
    if (snprintf(path, size, "%s/%s", folder, file) >= (int)size)
        cannot_run("%.40s...: the folder's name is too long", folder);
}

static Npy read_npy(const char *folder, const char *file, const char *(*reader)(const char *path, Npy *out)) {
    char path[4096];
    path_in(path, sizeof path, folder, file);
    Npy npy;
    const char *error = reader(path, &npy);
    if (error)
        cannot_run("--load: %s", error);
    return npy;
}

static Npy read_header(const char *folder, const char *file) {
    static const size_t MOST[4] = {MAX_BATCH, MAX_HEADS, MAX_SEQLEN, MAX_HEAD_DIM};
    Npy npy = read_npy(folder, file, npy_read_header);
    if (npy.dims != 4)
        cannot_run("--load: %s/%s: has %d dimensions, 4 are needed: [batch, heads, seqlen, head_dim]", folder, file,
                   npy.dims);
    for (int i = 0; i < 4; i++)
        if (npy.shape[i] < 1 || npy.shape[i] > MOST[i])
            cannot_run("--load: %s/%s: dimension %d of its shape is %zu, it can be 1 to %zu", folder, file, i, npy.shape[i],
                       MOST[i]);
    return npy;
}

void tensors_read_headers(Options *o, int with_d_o) {
    Npy q = read_header(o->load, "q.npy"), k = read_header(o->load, "k.npy"), v = read_header(o->load, "v.npy"),
        d_o = with_d_o ? read_header(o->load, "do.npy") : q;
    if (memcmp(k.shape, v.shape, sizeof k.shape) != 0)
        cannot_run("--load: k.npy and v.npy differ in shape");
    if (q.shape[0] != k.shape[0] || q.shape[3] != k.shape[3])
        cannot_run("--load: q.npy and k.npy differ in batch (%zu, %zu) or head_dim (%zu, %zu)", q.shape[0], k.shape[0],
                   q.shape[3], k.shape[3]);
    if (memcmp(d_o.shape, q.shape, sizeof q.shape) != 0)
        cannot_run("--load: do.npy and q.npy differ in shape");

    const Npy *files[4] = {&q, &k, &v, &d_o};
    const List *dtypes = &o->axes[offsetof(Problem, dtype) / sizeof(int)];
    for (int i = 0; i < 4; i++) {
        for (int d = 0; d < dtypes->count && files[i]->element_bytes == 2; d++)
            if (dtypes->values[d] != DTYPE_FP16)
                cannot_run("--dtype %s: the files of --load hold fp16, choose fp16", dtype_name((Dtype)dtypes->values[d]));
        size_t bytes = files[i]->count * (size_t)files[i]->element_bytes;
        o->largest_file = bytes > o->largest_file ? bytes : o->largest_file;
    }
    options_give(o, offsetof(Problem, batch), (int)q.shape[0]);
    options_give(o, offsetof(Problem, heads), (int)q.shape[1]);
    options_give(o, offsetof(Problem, kv_heads), (int)k.shape[1]);
    options_give(o, offsetof(Problem, seqlen_q), (int)q.shape[2]);
    options_give(o, offsetof(Problem, seqlen_k), (int)k.shape[2]);
    options_give(o, offsetof(Problem, head_dim), (int)q.shape[3]);
}

typedef struct {
    const Npy *from;
    Dtype dtype;
    const int *key_lengths; /* of K and V; NULL: every row counts */
    void *to;
    atomic_int is_unfit; /* an element is not finite in `dtype` */
} RoundWork;

/* What stands behind a key length may be anything. It becomes 0: it shall neither be refused nor widen what the judge allows. */
static void round_elements(size_t begin, size_t end, void *context) {
    RoundWork *r = context;
    const size_t *shape = r->from->shape, entry = r->from->count / shape[0];
    for (size_t i = begin; i < end; i++) {
        int exists = !r->key_lengths || (int)(i / shape[3] % shape[2]) < r->key_lengths[i / entry];
        dtype_store(r->dtype, r->to, i, exists ? npy_get(r->from, i) : 0);
        if (!isfinite(dtype_to_double(r->dtype, r->to, i)))
            atomic_store(&r->is_unfit, 1);
    }
}

/* The file's elements in `dtype`. Attention of NaN or infinity is not defined, so there are none. */
static void *load(const char *folder, const char *file, const Problem *p, size_t count, const int *key_lengths) {
    Npy npy = read_npy(folder, file, npy_read);
    const size_t *shape = npy.shape;
    if (npy.count != count)
        cannot_run("--load: %s/%s: has changed since its header was read", folder, file);
    RoundWork r = {&npy, p->dtype, key_lengths, host_alloc(npy.count, dtype_bytes(p->dtype)), 0};
    parallel_for(npy.count, round_elements, &r);
    size_t i = 0;
    while (atomic_load(&r.is_unfit) && isfinite(dtype_to_double(p->dtype, r.to, i)))
        i++;
    if (atomic_load(&r.is_unfit))
        cannot_run("--load: %s[batch %zu, head %zu, row %zu, column %zu] is %g, not a finite number in %s", file,
                   i / (count / shape[0]), i / shape[3] / shape[2] % shape[1], i / shape[3] % shape[2], i % shape[3],
                   npy_get(&npy, i), dtype_name(p->dtype));
    npy_free(&npy);
    return r.to;
}

HostTensors tensors_load(const Options *o, int with_d_o) {
    const Problem *p = &o->problem;
    return (HostTensors){load(o->load, "q.npy", p, query_elements(p), NULL),
                         load(o->load, "k.npy", p, key_elements(p), o->key_lengths),
                         load(o->load, "v.npy", p, key_elements(p), o->key_lengths),
                         with_d_o ? load(o->load, "do.npy", p, query_elements(p), NULL) : NULL};
}

/* ---- saving ---- */

void save_check(const char *option, const char *folder) {
    char path[4096];
    path_in(path, sizeof path, folder, ".save-XXXXXX");
    int file = mkstemp(path); /* asking for permission is not enough: root is granted it even where no file can be made */
    if (file < 0)
        cannot_run("--%s %s: no file can be created there: %s", option, folder, strerror(errno));
    close(file);
    unlink(path);
}

void save_inputs_check(const char *folder, const char *load) {
    struct stat there, from;
    save_check("save-inputs", folder);
    if (load && stat(folder, &there) == 0 && stat(load, &from) == 0 && there.st_ino == from.st_ino &&
        there.st_dev == from.st_dev)
        cannot_run("--save-inputs %s: is the folder of --load, whose files it would replace: choose another", folder);
}

/* A tensor as a file, in the shape that `shape` says. */
typedef struct {
    const char *file;
    Dtype dtype;
    TensorShape shape;
    const void *host;
} Tensor;

static void save(const char *option, const char *folder, const Problem *p, const Tensor *tensors, int count) {
    size_t queries[4] = {(size_t)p->batch, (size_t)p->heads, (size_t)p->seqlen_q, (size_t)p->head_dim};
    size_t keys[4] = {(size_t)p->batch, (size_t)p->kv_heads, (size_t)p->seqlen_k, (size_t)p->head_dim};
    static char paths[NPY_MAX_FILES][4096];
    NpyFile files[NPY_MAX_FILES];
    for (int i = 0; i < count; i++) {
        const Tensor *t = &tensors[i];
        path_in(paths[i], sizeof paths[i], folder, t->file);
        files[i] = (NpyFile){paths[i], t->dtype, t->shape == LIKE_LSE ? 3 : 4, t->shape == LIKE_K ? keys : queries, t->host};
    }
    const char *error = npy_write(files, count);
    if (error)
        cannot_run("--%s: %s", option, error);
}

void save_outputs(const char *folder, const Problem *p, const Output *outputs, int count, const void *o, const float *lse) {
    Tensor tensors[NPY_MAX_FILES];
    for (int i = 0; i < count; i++) {
        const OutputKind *kind = outputs[i].kind;
        tensors[i] = (Tensor){kind->file, kind->shape == LIKE_LSE ? DTYPE_FP32 : p->dtype, kind->shape, outputs[i].host};
    }
    if (o) {
        tensors[count++] = (Tensor){"o.npy", p->dtype, LIKE_Q, o};
        tensors[count++] = (Tensor){"lse.npy", DTYPE_FP32, LIKE_LSE, lse};
    }
    save("save", folder, p, tensors, count);
}

void save_inputs(const char *folder, const Problem *p, const HostTensors *t) {
    const Tensor tensors[] = {{"q.npy", p->dtype, LIKE_Q, t->q},
                              {"k.npy", p->dtype, LIKE_K, t->k},
                              {"v.npy", p->dtype, LIKE_K, t->v},
                              {"do.npy", p->dtype, LIKE_Q, t->d_o}};
    save("save-inputs", folder, p, tensors, t->d_o ? 4 : 3);
}
