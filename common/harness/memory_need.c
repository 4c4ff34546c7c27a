/* memory_need.c - see memory_need.h. */
#include "memory_need.h"

#include "../device/device.h"
#include "../host/errors.h"
#include "../host/memory.h"
#include "../host/parallel.h"
#include "../host/text.h"
#include "../judge/oracle.h"
#include "variant.h"

#include <math.h>
#include <string.h>

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
        cannot_run("no memory for batch %d, heads %d/%d, seqlen %dx%d, head dim %d: %s needs %s but has %s", p->batch,
                   p->heads, p->kv_heads, p->seqlen_q, p->seqlen_k, p->head_dim, whose, needs, has);
}

void check_budget(const Options *o) {
    const DeviceProperties *device = device_properties();
    MemoryNeed need = memory_need(o);
    check_memory(o, device->is_cpu ? "the run" : "the host", need.host + (device->is_cpu ? need.device : 0),
                 (double)memory_budget());
    check_memory(o, "the device", need.device, (double)device->memory_bytes);
    memory_keep_for_host((size_t)need.host);
}
