/* tensors.c - see tensors.h. */
#define _GNU_SOURCE /* mkstemp */

#include "tensors.h"

#include "../block_mask.h"
#include "../host/errors.h"
#include "../host/npy.h"
#include "../host/random.h"
#include "../host/text.h"
#include "../judge/rows.h"
#include "run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A forward stage has Q, K and V, and writes O and LSE. */
enum { Q, K, V, D_O, INPUT_COUNT };
#define TENSOR(field) offsetof(Tensors, field), 0, NULL, NULL
static const Tensor INPUTS[INPUT_COUNT] = {{"Q", "q.npy", LIKE_Q, TENSOR(q)},
                                           {"K", "k.npy", LIKE_K, TENSOR(k)},
                                           {"V", "v.npy", LIKE_K, TENSOR(v)},
                                           {"dO", "do.npy", LIKE_Q, TENSOR(d_o)}},
                    OUTPUTS[MAX_OUTPUTS] = {{"O", "o.npy", LIKE_Q, TENSOR(o)},
                                            {"LSE", "lse.npy", LIKE_LSE, TENSOR(lse)},
                                            {"dQ", "dq.npy", LIKE_Q, TENSOR(dq)},
                                            {"dK", "dk.npy", LIKE_K, TENSOR(dk)},
                                            {"dV", "dv.npy", LIKE_K, TENSOR(dv)},
                                            {"dsinks", "dsinks.npy", LIKE_SINKS, TENSOR(d_sinks)}};

static int input_count(const Stage *stage) { return stage->kind == BACKWARD ? INPUT_COUNT : D_O; }

static size_t elements_of(const Problem *p, const Tensor *t) {
    switch (t->shape) {
    case LIKE_Q: return query_elements(p);
    case LIKE_K: return key_elements(p);
    case LIKE_LSE: return row_count(p);
    default: return (size_t)p->heads;
    }
}
static int is_fp32(const Tensor *t) { return t->shape == LIKE_LSE || t->shape == LIKE_SINKS; }
static size_t bytes_of(const Problem *p, const Tensor *t) {
    return elements_of(p, t) * (is_fp32(t) ? sizeof(float) : dtype_bytes(p->dtype));
}

void *random_input(const Problem *p, int number, uint64_t seed, int outliers) {
    size_t count = elements_of(p, &INPUTS[number]);
    void *to = host_alloc(count, dtype_bytes(p->dtype));
    random_normal(p->dtype, to, count, seed, (uint32_t)number, 0, 1);
    if (outliers && number != D_O) /* N(0,1) + N(0,100) Bernoulli(0.001), as in FlashAttention-3 (Shah et al. 2024, 4.3) */
        random_outliers(p->dtype, to, count, seed, (uint32_t)number + 4, 0.001, 10);
    return to;
}

/* ---- loading ---- */

void tensors_read_headers(Options *o) {
    static const size_t MOST[4] = {MAX_BATCH, MAX_HEADS, MAX_SEQLEN, MAX_HEAD_DIM};
    HostArray f[INPUT_COUNT];
    int count = input_count(o->stage);
    for (int i = 0; i < count; i++) {
        f[i] = npy_read("load", o->load, INPUTS[i].file, 0);
        for (int d = 0; d < 4; d++)
            if (f[i].shape[d] < 1 || f[i].shape[d] > MOST[d])
                cannot_run("--load: %s/%s: dimension %d of its shape is %zu: choose 1 to %zu", o->load, INPUTS[i].file, d,
                           f[i].shape[d], MOST[d]);
        size_t bytes = array_bytes(&f[i]);
        o->largest_file = bytes > o->largest_file ? bytes : o->largest_file;
    }
    size_t *q = f[Q].shape, *k = f[K].shape;
    if (memcmp(k, f[V].shape, sizeof f[V].shape) != 0)
        cannot_run("--load: k.npy and v.npy differ in shape");
    if (q[0] != k[0] || q[3] != k[3])
        cannot_run("--load: q.npy and k.npy differ in batch (%zu, %zu) or head_dim (%zu, %zu)", q[0], k[0], q[3], k[3]);
    if (count > D_O && memcmp(q, f[D_O].shape, sizeof f[D_O].shape) != 0)
        cannot_run("--load: do.npy and q.npy differ in shape");
    o->loaded = (Problem){.batch = (int)q[0],
                          .heads = (int)q[1],
                          .kv_heads = (int)k[1],
                          .seqlen_q = (int)q[2],
                          .seqlen_k = (int)k[2],
                          .head_dim = (int)q[3]};
}

/* Whether there is such a key, and a query that the block mask lets keep it. */
static int is_key_kept(const Options *o, RowIndex at) {
    const Problem *p = &o->problem;
    const int length = key_length(p, o->key_lengths, at.batch);
    return at.row < length &&
           (!p->blocks || tile_kept(&p->blocks->mask, p, length, 0, p->seqlen_q, at.row, at.row + 1) != TILE_NONE);
}

/* The file's elements in the problem's dtype. Attention of NaN or infinity is not defined, so there are none. A key behind a key
 * length, or one that no query keeps, may be anything. It becomes 0: it shall neither be refused nor widen what the judge allows. */
static void *load_input(const Options *o, const Tensor *tensor) {
    const Problem *p = &o->problem;
    const Problem rows = tensor->shape == LIKE_K ? keys_as_queries(p) : *p;
    HostArray array = npy_read("load", o->load, tensor->file, 1);
    if (array_count(&array) != elements_of(p, tensor))
        cannot_run("--load %s: the files have changed since their headers were read", o->load);
    void *to = host_alloc(elements_of(p, tensor), dtype_bytes(p->dtype));
    size_t i = 0;
    for (size_t row = 0; row < row_count(&rows); row++) {
        RowIndex at = row_index(&rows, row);
        const int may_be_anything = tensor->shape == LIKE_K && !is_key_kept(o, at);
        for (int column = 0; column < p->head_dim; column++, i++) {
            if (may_be_anything)
                continue;
            dtype_store(p->dtype, to, i, npy_get(&array, i));
            if (!isfinite(dtype_to_double(p->dtype, to, i)))
                cannot_run("--load: %s[batch %d, head %d, row %d, column %d] is %g, not a finite number in %s", tensor->file,
                           at.batch, at.head, at.row, column, npy_get(&array, i), dtype_name(p->dtype));
        }
    }
    free(array.data);
    return to;
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

void save_tensors(const char *option, const char *folder, const Problem *p, const Tensor *tensors, int count) {
    HostArray files[MAX_OUTPUTS];
    for (int i = 0; i < count; i++) {
        const Tensor *t = &tensors[i];
        int is_k = t->shape == LIKE_K;
        files[i] = (HostArray){t->file,
                               is_fp32(t) ? ARRAY_FP32 : (ArrayType)p->dtype,
                               t->shape == LIKE_SINKS ? 1 : t->shape == LIKE_LSE ? 3 : 4,
                               {(size_t)p->batch, (size_t)(is_k ? p->kv_heads : p->heads),
                                (size_t)(is_k ? p->seqlen_k : p->seqlen_q), (size_t)p->head_dim},
                               t->host};
        if (t->shape == LIKE_SINKS)
            files[i].shape[0] = (size_t)p->heads;
    }
    npy_write(option, folder, files, count);
}

/* ---- a run's ---- */

void *upload(const void *host, size_t bytes, const char *purpose) {
    void *device = device_alloc(bytes, purpose);
    Cell needs, used;
    print_bytes(needs, (double)bytes);
    print_bytes(used, (double)device_allocated());
    if (!device)
        cannot_run("out of device memory: %s needs %s in addition to the %s in use", purpose, needs, used);
    device_write(device, host, bytes);
    return device;
}

/* A kernel computes S again and takes LSE from another that computed S: each has its own rounding errors, and P = e^(S - LSE),
 * at most 1, turns their difference x into a factor e^x. The end is where a row's sum is no longer checked (LSE_FLOOR). */
static void check_scores(const Problem *p, const HostTensors *in) {
    double size = score_size(p, in->q, in->k), off = sum_error(p->head_dim) * size;
    double most = p->scale * LSE_FLOOR / off, digit = pow(10, floor(log10(most)) - 2); /* of three */
    if (!(off <= LSE_FLOOR))
        cannot_run(
            "--scale %g: scores reach %.2g, where fp32 is off by %.2g, which is too much for e^S: choose a scale up to %g here",
            p->scale, size, off, floor(0.9999999 * most / digit) * digit);
}

/* Kernels add up products in fp32, and before they divide by a row's sum. No sum overflows, in whatever order, if it would not
 * even were all its terms as large as the largest, and of one sign. P is at most 1 there, times up to 2^15 where it is stored in 8
 * bits; dS is at most |dO| |V|, from dP, and as much again, from delta; and a score may be multiplied by log2 e. */
static void check_range(const Problem *p, const HostTensors *in) {
    const Problem keys = keys_as_queries(p);
    const double q = largest_length(p, in->q), k = largest_length(&keys, in->k), v = largest_length(&keys, in->v),
                 d_o = in->d_o ? largest_length(p, in->d_o) : 0, ds = 2 * d_o * v, scale = fmax(p->scale, 1),
                 rows = (double)p->seqlen_q * (p->heads / p->kv_heads);
    const struct {
        const char *sum, *cure;
        double size;
    } sums[] = {{"a score", "Q or K", 2 * scale * q * k},
                {"a sum of P V", "V", 0x1p15 * p->seqlen_k * v},
                {"a sum of P dO", "dO", rows * d_o},
                {"a sum of dS K or dS Q", "dO or V", ds * scale * fmax(1, fmax(p->seqlen_k * k, rows * q))}};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        if (sums[i].size > dtype_largest(DTYPE_FP32))
            cannot_run("--load: %s could reach %.2g, but fp32 ends at %.2g: choose %s smaller, by a factor of 2^%d or more",
                       sums[i].sum, sums[i].size, dtype_largest(DTYPE_FP32), sums[i].cure,
                       (int)ceil(log2(sums[i].size / dtype_largest(DTYPE_FP32))));
}

void upload_options(const Problem *p, const int *key_lengths, Tensors *t) {
    t->lengths_on_host = key_lengths;
    if (key_lengths)
        t->key_lengths = upload(key_lengths, (size_t)p->batch * sizeof(int), "key lengths");
    if (p->blocks) {
        BlockMask *mask = &t->mask;
        *mask = p->blocks->mask;
        if (mask->documents)
            mask->documents = upload(mask->documents, document_bytes(p), "block mask");
        if (mask->kept) /* a table that keeps every block is none */
            mask->kept = memchr(mask->kept, 0, mask_blocks(p)) ? upload(mask->kept, mask_blocks(p), "block mask") : NULL;
    }
    if (p->score) {
        t->score = p->score->score;
        if (t->score.sinks)
            t->score.sinks = upload(t->score.sinks, (size_t)p->heads * sizeof(float), "sinks");
    }
}

void free_options(const Tensors *t) {
    const void *on_device[] = {t->key_lengths, t->mask.documents, t->mask.kept, t->score.sinks};
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++)
        device_free((void *)on_device[i]);
}

void load_inputs(Run *run) {
    const Problem *p = run->p;
    const Options *o = run->options;
    Tensor inputs[INPUT_COUNT + 1] = {0};
    int count = input_count(run->stage);
    for (int i = 0; i < count; i++) {
        inputs[i] = INPUTS[i];
        inputs[i].host = o->load ? load_input(o, &inputs[i]) : random_input(p, i, o->seed, o->outliers);
    }
    run->inputs = (HostTensors){inputs[Q].host, inputs[K].host, inputs[V].host, inputs[D_O].host};
    int saved = count, has_sinks = p->score && p->score->score.sinks;
    if (has_sinks) /* --load does not read them, because they depend on no option */
        inputs[saved++] = (Tensor){"sinks", "sinks.npy", LIKE_SINKS, 0, 0, (void *)p->score->score.sinks, NULL};
    if (o->save_inputs)
        save_tensors("save-inputs", o->save_inputs, p, inputs, saved);
    if (o->load)
        check_range(p, &run->inputs);
    if (count > D_O)
        check_scores(p, &run->inputs);

    for (int i = 0; i < count; i++)
        *pointer_to(&run->tensors, &inputs[i]) = upload(inputs[i].host, bytes_of(p, &inputs[i]), inputs[i].name);
    upload_options(p, o->key_lengths, &run->tensors);
    run->input_bytes = device_allocated();
    run->output_count = FORWARD_OUTPUTS + (count > D_O ? gradient_count(p) : 0);
    for (int i = 0; i < run->output_count; i++) {
        run->outputs[i] = OUTPUTS[i];
        run->outputs[i].bytes = bytes_of(p, &OUTPUTS[i]);
    }
}

void free_run(Run *run) {
    const Tensors *t = &run->tensors;
    const void *inputs[] = {t->q, t->k, t->v, t->d_o};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        device_free((void *)inputs[i]);
    free_options(t);
    free(run->inputs.q), free(run->inputs.k), free(run->inputs.v), free(run->inputs.d_o);
    for (int i = 0; i < run->output_count; i++)
        free(run->outputs[i].host), free(run->outputs[i].reference);
    free_samples(&run->samples);
    free_gradients(&run->gradients);
}
