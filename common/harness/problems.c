/* problems.c - see problems.h. */
#include "problems.h"

#include "../device/device.h"
#include "../host/errors.h"
#include "../host/memory.h"
#include "memory_need.h"
#include "tensors.h"
#include "variant.h"

#include <math.h>
#include <stdlib.h>

Problem default_shape(const Stage *stage, int is_cpu) {
    static const Problem OF_MOST[2] = {
        {.batch = 4, .heads = 16, .kv_heads = 16, .seqlen_q = 4096, .head_dim = 128},
        {.batch = 1, .heads = 2, .kv_heads = 2, .seqlen_q = 256, .seqlen_k = 1024, .head_dim = 64}};
    return stage->defaults[is_cpu].batch ? stage->defaults[is_cpu] : OF_MOST[is_cpu];
}

static void read_setting(const Stage *stage, const char *option, const char *text, Problem *p) {
    if (stage->read_score)
        p->score = stage->read_score(option, text, p);
    else
        p->blocks = stage->read_mask(option, text, p);
}

void options_select(Options *o, int index, int is_cpu) {
    Problem *p = &o->problem, other = o->load ? o->loaded : default_shape(o->stage, is_cpu);
    o->selected = index;
    free((void *)p->blocks), free((void *)p->score);
    *p = (Problem){.scale = o->scale};
    for (int i = AXES; i-- > 0;)
        if (o->axes[i].count) {
            ((int *)p)[i] = o->axes[i].values[index % o->axes[i].count];
            index /= o->axes[i].count;
        }
    p->batch = p->batch ? p->batch : other.batch;
    p->kv_heads = p->kv_heads ? p->kv_heads : p->heads ? p->heads : other.kv_heads ? other.kv_heads : other.heads;
    p->heads = p->heads ? p->heads : other.heads;
    int keys = p->seqlen_q && o->stage->kind != DECODING ? p->seqlen_q : other.seqlen_k ? other.seqlen_k : other.seqlen_q;
    p->seqlen_k = p->seqlen_k ? p->seqlen_k : keys;
    p->seqlen_q = p->seqlen_q ? p->seqlen_q : other.seqlen_q;
    p->head_dim = p->head_dim ? p->head_dim : other.head_dim;
    p->scale = p->scale > 0 ? p->scale : 1 / sqrtf((float)p->head_dim);

    if (p->head_dim % 8)
        cannot_run("--%s: head dim %d: choose a multiple of 8 up to %d", o->load ? "load" : "head-dim", p->head_dim,
                   MAX_HEAD_DIM);
    if (p->heads % p->kv_heads)
        cannot_run("--%s: %d key/value heads: choose a divisor of %d, the number of query heads",
                   o->load ? "load" : "kv-heads", p->kv_heads, p->heads);

    /* The kernels have one (batch, head) a block of their grid's y or z dimension. */
    if ((long)p->batch * p->heads > MAX_BATCH)
        cannot_run("--batch %d times --heads %d: choose a product up to %d", p->batch, p->heads, MAX_BATCH);

    /* Q, K, V and O end below 2^55 elements by now. 2^58 of S keep every size in bytes inside 64 bits. */
    if ((double)p->batch * p->heads * p->seqlen_q * p->seqlen_k > 0x1p58)
        cannot_run("--batch %d, --heads %d, --seqlen %d, --seqlen-k %d: together too large for 64 bits", p->batch, p->heads,
                   p->seqlen_q, p->seqlen_k);

    for (int i = 0; o->stage->settings[i].name; i++) {
        const char *text = o->texts[i] ? o->texts[i] : o->stage->default_mask;
        if (o->stage->settings[i].max == TEXT && text)
            read_setting(o->stage, o->stage->settings[i].name, text, p);
    }

    if (!o->lengths.count)
        return;
    if (o->lengths.count != 1 && o->lengths.count != p->batch)
        cannot_run("--lengths: %d given: choose one for all batch entries or one for each of the %d", o->lengths.count,
                   p->batch);
    free(o->key_lengths); /* of the problem before */
    o->key_lengths = host_alloc((size_t)p->batch, sizeof *o->key_lengths);
    for (int b = 0; b < p->batch; b++) {
        o->key_lengths[b] = o->lengths.values[o->lengths.count == 1 ? 0 : b];
        if (o->key_lengths[b] > p->seqlen_k)
            cannot_run("--lengths: %d: choose key lengths from 0 to %d, the number of keys", o->key_lengths[b], p->seqlen_k);
    }
}

/* What is left are mistakes in the numbers of --load, and a --scale too large for gradients of the inputs. */
void select_problem(Options *options, int index) {
    options_select(options, index, device_properties()->is_cpu);
    const Variant *only = named_variant(options), *forward = forward_of(options->stage, &options->problem);
    const char *reason;
    if (only && (reason = variant_refuses(only, &options->problem)))
        cannot_run("--variant %s cannot run here: %s", options->variant, reason);
    if (forward && (reason = variant_refuses(forward, &options->problem)))
        cannot_run("the forward pass cannot run here: %s %s", forward->name, reason);
    check_budget(options);
}

static void choose_device(int number) {
    int count = device_count();
    if (number >= count)
        cannot_run("--device %d: choose a number below %d, the number of devices", number, count);
    device_choose(number);
}

/* Only the first has results to save. */
static void join_ranks(Options *o) {
    const Variant *v = o->stage->variants;
    while (v->name && !v->devices)
        v++;
    if (!v->name)
        cannot_run("--rendezvous: %s runs on one device: choose 12_context_parallel or 12_context_parallel_backward",
                   o->stage->name);
    o->rank = device_join_ranks(o->rendezvous);
    if (o->rank > 0)
        o->save = o->save_inputs = NULL;
}

void check_options(Options *o) {
    const Stage *stage = o->stage;
    for (const Variant *v = stage->variants; v->name; v++)
        if (!v->launch || !v->dtypes)
            cannot_run("the row of %s in main.c needs .launch and .dtypes", v->name);
    if (o->rendezvous)
        join_ranks(o);
    if (o->save)
        save_check("save", o->save, NULL);
    if (o->save_inputs)
        save_check("save-inputs", o->save_inputs, o->load);
    if (o->device >= 0)
        choose_device(o->device);
    if (o->load)
        tensors_read_headers(o);
    for (int i = 0; i < o->problem_count; i++)
        select_problem(o, i);
}
