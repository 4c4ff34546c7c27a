/* inputs.c - what a run holds on the host and on the device from its beginning to its end. See run.h. */
#include "../block_mask.h"
#include "../host/errors.h"
#include "../host/memory.h"
#include "checks.h"
#include "tensors.h"

#include <stdlib.h>

/* A copy of a host array on the device; ends the program if it does not fit. */
static void *upload(const void *host, size_t bytes, const char *purpose) {
    void *device = device_alloc(bytes, purpose);
    if (!device)
        cannot_run("out of device memory: %s needs %.2f GiB, beside %.2f GiB in use", purpose, (double)bytes / 0x1p30,
                   (double)device_allocated() / 0x1p30);
    device_write(device, host, bytes);
    return device;
}

void load_inputs(Run *run) {
    const Problem *p = run->p;
    const Options *o = run->options;
    int with_d_o = run->stage->kind == BACKWARD;
    run->inputs = o->load ? tensors_load(o, with_d_o) : tensors_random(p, o->seed, o->outliers, with_d_o);
    if (o->save_inputs)
        save_inputs(o->save_inputs, p, &run->inputs);

    size_t q = query_elements(p) * dtype_bytes(p->dtype), k = key_elements(p) * dtype_bytes(p->dtype);
    run->tensors.q = upload(run->inputs.q, q, "Q");
    run->tensors.k = upload(run->inputs.k, k, "K");
    run->tensors.v = upload(run->inputs.v, k, "V");
    if (o->key_lengths)
        run->tensors.key_lengths = upload(o->key_lengths, (size_t)p->batch * sizeof(int), "key lengths");
    if (p->blocks) {
        BlockMask *mask = &run->tensors.mask;
        *mask = p->blocks->mask;
        if (mask->documents)
            mask->documents = upload(mask->documents, document_bytes(p), "block mask");
        if (mask->kept)
            mask->kept = upload(mask->kept, mask_blocks(p), "block mask");
    }
    if (with_d_o) {
        check_scores(p, &run->inputs);
        run->tensors.d_o = upload(run->inputs.d_o, q, "dO");
    }
    const Output outputs[MAX_OUTPUTS] = {
        {"O", "o.npy", LIKE_Q, offsetof(Tensors, o), q, NULL, NULL},
        {"LSE", "lse.npy", LIKE_LSE, offsetof(Tensors, lse), row_count(p) * sizeof(float), NULL, NULL},
        {"dQ", "dq.npy", LIKE_Q, offsetof(Tensors, dq), q, NULL, NULL},
        {"dK", "dk.npy", LIKE_K, offsetof(Tensors, dk), k, NULL, NULL},
        {"dV", "dv.npy", LIKE_K, offsetof(Tensors, dv), k, NULL, NULL}};
    run->output_count = with_d_o ? MAX_OUTPUTS : FORWARD_OUTPUTS;
    for (int i = 0; i < run->output_count; i++)
        run->outputs[i] = outputs[i];
}

void free_run(Run *run) {
    if (run->forward)
        free_row(&run->rows[0]);
    const Tensors *t = &run->tensors;
    const void *on_device[] = {t->q, t->k, t->v, t->d_o, t->key_lengths, t->mask.documents, t->mask.kept};
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++)
        device_free((void *)on_device[i]);
    void *on_host[] = {run->inputs.q, run->inputs.k, run->inputs.v, run->inputs.d_o};
    for (size_t i = 0; i < sizeof on_host / sizeof *on_host; i++)
        free(on_host[i]);
    for (int i = 0; i < run->output_count; i++) {
        free(run->outputs[i].host);
        free(run->outputs[i].reference);
    }
    free_samples(&run->samples);
    free_gradients(&run->gradients);
}
