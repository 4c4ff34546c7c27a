/* variant.c - see variant.h. */
#include "variant.h"

#include "../device/device.h"
#include "../host/errors.h"
#include "../host/memory.h"
#include "../host/parallel.h"
#include "../host/text.h"
#include "../judge/compare.h"

#include <stdio.h>
#include <string.h>

/* ---- variants ---- */

const Variant *reference_of(const Stage *stage) { return stage->reference ? stage->reference : &naive_variant; }

const Variant *named_variant(const Options *o) {
    for (const Variant *v = o->stage->variants; o->variant && v->name; v++)
        if (strcmp(v->name, o->variant) == 0)
            return v;
    return o->variant ? reference_of(o->stage) : NULL;
}

const char *variant_refuses(const Variant *v, const Problem *p) {
    static char reason[128];
    int capability = device_properties()->capability;
    char takes[64] = "";

    if (!(v->dtypes & 1u << p->dtype)) {
        for (int dtype = 0; v->dtypes >> dtype; dtype++)
            if (v->dtypes & 1u << dtype)
                append(takes, sizeof takes, "%s%s", *takes ? ", " : "", dtype_name((Dtype)dtype));
        snprintf(reason, sizeof reason, "takes %s, not %s", takes, dtype_name(p->dtype));
        return reason;
    }
    int listed = 0;
    for (int i = 0; v->head_dims[i]; i++) {
        listed |= v->head_dims[i] == p->head_dim;
        append(takes, sizeof takes, "%s%d", *takes ? ", " : "", v->head_dims[i]);
    }
    if (*takes ? !listed : p->head_dim % 8 || p->head_dim > MAX_HEAD_DIM) {
        snprintf(reason, sizeof reason, "takes head dim %s, not %d", *takes ? takes : "8, 16, ..., 256", p->head_dim);
        return reason;
    }
    if (v->uses & TENSOR_CORES && p->dtype == DTYPE_BF16 && capability < 80) {
        snprintf(reason, sizeof reason, "needs sm_80 for bf16, and this program can count on sm_%d", capability);
        return reason;
    }
    if (v->uses & WGMMA && !device_properties()->has_hopper)
        return "needs a Hopper GPU (sm_90) and code for it (ARCH=90a): wgmma and TMA are not on other chips";
    if (v->max_seqlen_q && p->seqlen_q > v->max_seqlen_q) {
        snprintf(reason, sizeof reason, "takes --seqlen from 1 to %d, not %d", v->max_seqlen_q, p->seqlen_q);
        return reason;
    }
    return v->refuses ? v->refuses(p) : NULL;
}

int variant_prepares(const Variant *v, const Problem *p) {
    return v->preparation && (!v->preparation->wanted || v->preparation->wanted(p));
}

int variant_rounds(const Variant *v, const Problem *p) { return variant_prepares(v, p) && v->preparation->values; }

const Variant *forward_of(const Stage *stage, const Problem *p) {
    return stage->forward_otherwise && variant_refuses(stage->forward, p) ? stage->forward_otherwise : stage->forward;
}

/* ---- memory ---- */

/* judge/oracle.c: each thread has the scores of a row. */
static double sample_bytes(const Options *o) {
    const Problem *p = &o->problem;
    double rows = fmin(fmin(host_threads(), MAX_SAMPLES), (double)row_count(p)), longest = 0;
    for (int b = 0; b < p->batch; b++)
        longest = fmax(longest, key_length(p, o->key_lengths, b));
    return rows * longest * sizeof(double);
}

/* judge/prepared.c, if there is a variant that rounds its inputs: these in fp32, its reference for O and LSE twice in fp64 and
 * once as the device has it, and one buffer of the variant's workspace at a time. */
static double prepared_bytes(const Options *o) {
    const Problem *p = &o->problem;
    double inputs = (double)query_elements(p) + 2.0 * (double)key_elements(p), largest = 0;
    int any = 0;
    for (const Variant *v = o->stage->variants; v->name; v++) {
        Buffer workspace[MAX_WORKSPACE_BUFFERS];
        if ((o->variant && strcmp(o->variant, v->name) != 0) || variant_refuses(v, p) || !variant_rounds(v, p))
            continue;
        any = 1;
        for (int i = v->plan(p, workspace); i-- > 0;)
            largest = fmax(largest, (double)workspace[i].bytes);
    }
    return any ? 4 * inputs + 20 * ((double)query_elements(p) + (double)row_count(p)) + largest : 0;
}

MemoryNeed memory_need(const Options *o) {
    const Problem *p = &o->problem;
    double q = (double)query_elements(p) * dtype_bytes(p->dtype), k = (double)key_elements(p) * dtype_bytes(p->dtype),
           lse = (double)row_count(p) * sizeof(float);
    double inputs = q + 2 * k, outputs = q + lse, judge = o->validate ? sample_bytes(o) + prepared_bytes(o) : 0;
    int copies = o->validate ? 2 : o->save != NULL; /* of what variants write: the reference's, and one to judge */
    double results = copies * outputs;
    MemoryNeed need = {.device = inputs + outputs};
    if (o->stage->kind == BACKWARD) {
        double gradients = inputs; /* the forward pass has no reference, and one gradient is computed again */
        results = copies ? outputs + copies * gradients + fmax(q, k) : 0;
        inputs += q;
        need.device += q + gradients;
    }
    need.host = inputs + fmax(results + judge, (double)o->largest_file);
    return need;
}

static void check_memory(const Options *o, const char *whose, double need, double there) {
    const Problem *p = &o->problem;
    Cell needs, has;
    print_bytes(needs, need);
    print_bytes(has, there);
    if (need > there)
        cannot_run("no memory for batch %d, heads %d/%d, seqlen %dx%d, head dim %d: %s needs %s and has %s", p->batch,
                   p->heads, p->kv_heads, p->seqlen_q, p->seqlen_k, p->head_dim, whose, needs, has);
}

/* Keeps the host's part free: the CPU device's allocations cannot take it. */
static void check_budget(const Options *o) {
    const DeviceProperties *device = device_properties();
    MemoryNeed need = memory_need(o);
    check_memory(o, device->is_cpu ? "the run" : "the host", need.host + (device->is_cpu ? need.device : 0),
                 (double)memory_budget());
    check_memory(o, "the device", need.device, (double)device->memory_bytes);
    memory_keep_for_host((size_t)need.host);
}

/* ---- what is asked for ---- */

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

void check_options(Options *o) {
    const Stage *stage = o->stage;
    for (const Variant *v = stage->variants; v->name; v++)
        if (!v->launch || !v->dtypes)
            cannot_run("the row of %s in main.c needs .launch and .dtypes", v->name);
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
