/* budget.c - see budget.h. */
#include "budget.h"

#include "../device/device.h"
#include "../host/errors.h"
#include "../host/memory.h"
#include "../host/parallel.h"
#include "../judge/samples.h"
#include "prepare.h"
#include "refuse.h"
#include "task.h"

#include <string.h>

static double larger(double a, double b) { return a > b ? a : b; }

/* samples.c: each thread has a head's keys that exist, K and V, and their scores, as doubles. */
static double sample_bytes(const Options *o) {
    const Problem *p = &o->problem;
    int threads = host_threads() < MAX_SAMPLES ? host_threads() : MAX_SAMPLES, longest = 0;
    for (int b = 0; b < p->batch; b++)
        longest = key_length(p, o->key_lengths, b) > longest ? key_length(p, o->key_lengths, b) : longest;
    return larger(1, (double)row_count(p) < threads ? (double)row_count(p) : threads) * longest * (2.0 * p->head_dim + 1) *
           8;
}

/* judge/prepared.c, if there is a variant that prepares its inputs: these in fp32, its reference for O and LSE twice, and one
 * buffer of the variant's workspace at a time. */
static double prepared_bytes(const Options *o) {
    const Problem *p = &o->problem;
    double inputs = (double)query_elements(p) + 2.0 * (double)key_elements(p), largest = 0;
    int any = 0;
    for (const Variant *v = o->stage->variants; v < o->stage->variants + MAX_VARIANTS && v->name; v++) {
        Buffer workspace[MAX_WORKSPACE_BUFFERS];
        if ((o->variant && strcmp(o->variant, v->name) != 0) || variant_refuses(v, p) || !variant_prepares(v, p))
            continue;
        any = 1;
        for (int i = v->plan(p, workspace); i-- > 0;)
            largest = larger(largest, (double)workspace[i].bytes);
    }
    return any ? 4 * inputs + 8 * ((double)query_elements(p) + (double)row_count(p)) + largest : 0;
}

MemoryNeed memory_need(const Options *o) {
    const Problem *p = &o->problem;
    double q = (double)query_elements(p) * dtype_bytes(p->dtype), k = (double)key_elements(p) * dtype_bytes(p->dtype),
           lse = (double)row_count(p) * sizeof(float);
    double inputs = q + 2 * k, outputs = q + lse, judge = o->validate ? sample_bytes(o) + prepared_bytes(o) : 0;
    int copies = o->validate ? 2 : o->save != NULL; /* of what variants write: the reference's, and one to judge */
    double results = copies * outputs;
    MemoryNeed need = {.device = inputs + outputs};
    if (task_of(o->stage)->with_d_o) {
        double gradients = inputs; /* the forward pass has no reference, and one gradient is computed again */
        results = copies ? outputs + copies * gradients + larger(q, k) : 0;
        inputs += q;
        need.device += q + gradients;
    }
    need.host = inputs + larger(results + judge, (double)o->largest_file);
    return need;
}

static void check(const Options *o, const char *whose, double need, double there) {
    const Problem *p = &o->problem;
    if (need > there)
        cannot_run("no memory for batch %d, heads %d/%d, seqlen %dx%d, head dim %d: %s needs %.2f GiB and has %.2f GiB",
                   p->batch, p->heads, p->kv_heads, p->seqlen_q, p->seqlen_k, p->head_dim, whose, need / 0x1p30,
                   there / 0x1p30);
}

void budget_check(const Options *o) {
    const DeviceProperties *device = device_properties();
    MemoryNeed need = memory_need(o);
    if (device->is_cpu) {
        check(o, "the run", need.host + need.device, (double)memory_budget());
    } else {
        check(o, "the host", need.host, (double)memory_budget());
        check(o, "the device", need.device, (double)device->memory_bytes);
    }
    memory_keep_for_host((size_t)need.host);
}
