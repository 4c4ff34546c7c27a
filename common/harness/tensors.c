/* tensors.c - see tensors.h. */
#define _GNU_SOURCE /* mkstemp, sysconf's memory figures */
#include "tensors.h"

#include "../host/npy.h"
#include "../numeric.h"
#include "../host/allocation.h"
#include "../host/errors.h"
#include "../host/parallel.h"
#include "../host/random.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Linux hands out more memory than there is and kills the program when it is touched, so the sizes are compared first: the
 * harness holds Q, K, V, and O and LSE twice (the reference, and what is compared with it); in a backward stage also dO, and
 * dQ, dK and dV twice. */
static void check_host_memory(const Problem *p, int with_d_o) {
    double outputs = 2 * ((double)query_elements(p) * dtype_bytes(p->dtype) + (double)row_count(p) * sizeof(float));
    double inputs = ((double)query_elements(p) + 2.0 * (double)key_elements(p)) * dtype_bytes(p->dtype);
    if (with_d_o)
        outputs += 2 * inputs, inputs += (double)query_elements(p) * dtype_bytes(p->dtype);
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE);
    if (inputs + outputs > memory)
        cannot_run("not enough memory: the tensors need %.1f GiB of this computer's, which has %.1f GiB",
                   (inputs + outputs) / 0x1p30, memory / 0x1p30);
}

HostTensors tensors_random(const Problem *p, uint64_t seed, int outliers, int with_d_o) {
    check_host_memory(p, with_d_o);
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

static Npy read_tensor(const char *folder, const char *file) {
    static const size_t MOST[4] = {MAX_BATCH, MAX_HEADS, MAX_SEQLEN, MAX_HEAD_DIM};
    char path[4096];
    path_in(path, sizeof path, folder, file);
    Npy npy;
    const char *error = npy_read(path, &npy);
    if (error)
        cannot_run("--load: %s", error);
    if (npy.dims != 4)
        cannot_run("--load: %s: has %d dimensions, 4 are needed: [batch, heads, seqlen, head_dim]", path, npy.dims);
    for (int i = 0; i < 4; i++)
        if (npy.shape[i] < 1 || npy.shape[i] > MOST[i])
            cannot_run("--load: %s: dimension %d of its shape is %zu, it can be 1 to %zu", path, i, npy.shape[i], MOST[i]);
    return npy;
}

typedef struct {
    const Npy *from;
    Dtype dtype;
    void *to;
    atomic_size_t unfit; /* an element that is not finite in `dtype`, plus 1; 0: none */
} RoundWork;

static void round_elements(size_t begin, size_t end, void *context) {
    RoundWork *r = context;
    for (size_t i = begin; i < end; i++) {
        dtype_store(r->dtype, r->to, i, npy_get(r->from, i));
        if (!isfinite(dtype_to_double(r->dtype, r->to, i)))
            atomic_store(&r->unfit, i + 1);
    }
}

/* The file's elements in `dtype`; frees the file's own. Attention of NaN or infinity is not defined, so there are none. */
static void *rounded(Npy *npy, Dtype dtype, const char *file) {
    RoundWork r = {npy, dtype, host_alloc(npy->count, dtype_bytes(dtype)), 0};
    parallel_for(npy->count, round_elements, &r);
    size_t unfit = atomic_load(&r.unfit);
    if (unfit)
        cannot_run("--load: %s: element %zu is %g, not a finite number in %s", file, unfit - 1, npy_get(npy, unfit - 1),
                   dtype_name(dtype));
    npy_free(npy);
    return r.to;
}

HostTensors tensors_load(Options *options, int with_d_o) {
    Npy q = read_tensor(options->load, "q.npy");
    Npy k = read_tensor(options->load, "k.npy");
    Npy v = read_tensor(options->load, "v.npy");
    if (memcmp(k.shape, v.shape, sizeof k.shape) != 0)
        cannot_run("--load: k.npy and v.npy differ in shape");
    if (q.shape[0] != k.shape[0] || q.shape[3] != k.shape[3])
        cannot_run("--load: q.npy and k.npy differ in batch (%zu, %zu) or head_dim (%zu, %zu)", q.shape[0], k.shape[0],
                   q.shape[3], k.shape[3]);
    Npy d_o = {0};
    if (with_d_o) {
        d_o = read_tensor(options->load, "do.npy");
        if (memcmp(d_o.shape, q.shape, sizeof q.shape) != 0)
            cannot_run("--load: do.npy and q.npy differ in shape");
    }
    int has_fp16 = q.element_bytes == 2 || k.element_bytes == 2 || v.element_bytes == 2 || d_o.element_bytes == 2;
    if (has_fp16 && options->problem.dtype != DTYPE_FP16)
        cannot_run("--dtype %s: the files of --load hold fp16, choose fp16", dtype_name(options->problem.dtype));

    Problem *p = &options->problem;
    p->batch = (int)q.shape[0];
    p->heads = (int)q.shape[1];
    p->kv_heads = (int)k.shape[1];
    p->seqlen_q = (int)q.shape[2];
    p->seqlen_k = (int)k.shape[2];
    p->head_dim = (int)q.shape[3];
    check_host_memory(p, with_d_o);
    HostTensors t = {rounded(&q, p->dtype, "q.npy"), rounded(&k, p->dtype, "k.npy"), rounded(&v, p->dtype, "v.npy"),
                     with_d_o ? rounded(&d_o, p->dtype, "do.npy") : NULL};
    return t;
}

/* ---- saving ---- */

void save_check(const char *folder) {
    char path[4096];
    path_in(path, sizeof path, folder, ".save-XXXXXX");
    int file = mkstemp(path); /* asking for permission is not enough: root is granted it even where no file can be made */
    if (file < 0)
        cannot_run("--save %s: no file can be created there: %s", folder, strerror(errno));
    close(file);
    unlink(path);
}

/* All of the files or none: each is written under another name first, and when all are there they get their own. */
void save_outputs(const char *folder, const Problem *p, const Output *outputs, int count) {
    size_t queries[4] = {(size_t)p->batch, (size_t)p->heads, (size_t)p->seqlen_q, (size_t)p->head_dim};
    size_t keys[4] = {(size_t)p->batch, (size_t)p->kv_heads, (size_t)p->seqlen_k, (size_t)p->head_dim};
    char paths[MAX_OUTPUTS][4096], complete[MAX_OUTPUTS][4096];
    const char *error = NULL;
    int written = 0, renamed = 0;
    for (; written < count && !error; written += !error) {
        const OutputKind *kind = outputs[written].kind;
        int is_lse = kind->shape == LIKE_LSE;
        path_in(paths[written], 4000, folder, kind->file);
        snprintf(complete[written], sizeof complete[0], "%.4000s.%ld.new", paths[written], (long)getpid());
        error = npy_write(complete[written], is_lse ? DTYPE_FP32 : p->dtype, is_lse ? 3 : 4,
                          kind->shape == LIKE_K ? keys : queries, outputs[written].host);
    }
    for (; renamed < count && !error; renamed += !error)
        error = rename(complete[renamed], paths[renamed]) == 0 ? NULL : strerror(errno);
    if (!error)
        return;
    for (int i = 0; i < written; i++)
        unlink(i < renamed ? paths[i] : complete[i]);
    cannot_run("--save %s: %s: %s", folder, outputs[written < count ? written : renamed].kind->file, error);
}
